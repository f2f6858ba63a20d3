"""Checkpoints that cannot be read or written: one sentence each, and the last good one stays."""

import os
from pathlib import Path

import pytest
import torch

from calibrant.engine.folder import load_checkpoint, save_checkpoint

WHOLE = {"state": {"model.w": torch.zeros(3)}, "best": [], "history": [], "recipe": ""}


def test_save_checkpoint_then_load_gives_the_same(tmp_path: Path) -> None:
    save_checkpoint(WHOLE, tmp_path / "state.pt")
    found = load_checkpoint(tmp_path / "state.pt")
    assert found["state"]["model.w"].equal(WHOLE["state"]["model.w"])
    assert os.listdir(tmp_path) == ["state.pt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk is played by /dev/full")
@pytest.mark.parametrize("size", [3, 10**6])
def test_save_checkpoint_full_disk_is_named_and_the_last_one_kept(tmp_path: Path, size: int) -> None:
    file = tmp_path / "state.pt"
    save_checkpoint(WHOLE, file)
    (tmp_path / "state.pt.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="could not be written") as raised:
        save_checkpoint(WHOLE | {"state": {"model.w": torch.ones(size)}}, file)
    assert str(raised.value) == (
        f"train: the checkpoint could not be written to {file} (No space left on device). The last good one is kept."
    )
    assert load_checkpoint(file)["state"]["model.w"].tolist() == [0, 0, 0]
    assert os.listdir(tmp_path) == ["state.pt"]


def test_save_checkpoint_other_trouble_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the archive is odd\nand so on")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match=r"state\.pt \(the archive is odd\)\. Make room, and add `--resume`\.$"):
        save_checkpoint(WHOLE, tmp_path / "state.pt")


@pytest.mark.parametrize("damage", ["noise", "cut", "empty"])
def test_load_checkpoint_damaged_file_is_one_sentence(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "state.pt"
    save_checkpoint(WHOLE, file)
    whole = file.read_bytes()
    file.write_bytes({"noise": bytes(range(256)) * 4, "cut": whole[: len(whole) // 2], "empty": b""}[damage])
    with pytest.raises(ValueError, match="damaged") as raised:
        load_checkpoint(file)
    assert str(raised.value) == (
        f"train: `{file}` must be a checkpoint of `calibrant train`, got a file that is damaged and cannot be read. Delete it "
        "to begin again at the first epoch, or start in another folder."
    )


@pytest.mark.parametrize("value", [torch.zeros(2), {"state": {}}, {"model": 1}])
def test_load_checkpoint_of_something_else_is_one_sentence(tmp_path: Path, value: object) -> None:
    torch.save(value, tmp_path / "state.pt")
    with pytest.raises(ValueError, match=r"got a file that holds something else\. Delete it to begin again"):
        load_checkpoint(tmp_path / "state.pt")


def test_load_checkpoint_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"state\.pt cannot be opened \(No such file or directory\)"):
        load_checkpoint(tmp_path / "state.pt")
