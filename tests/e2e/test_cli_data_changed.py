"""Pictures that are replaced or added between two commands: no run goes on with them, no table takes them for the old ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calibrant.cli.main import run as run_command

SHORT = ("--model", "mlp", "--device", "cpu", "--epochs", "1", "--set", "train.batch_size=8")
GRID = ("compare", "--data", "pictures", "--out", "out", "--jobs", "1", "--no-figures", *SHORT)
RUN = "pictures-mlp-ce-seed0"


def draw(root: Path, *, seed: int = 0, classes: int = 2, each: int = 20) -> None:
    """Make a folder of class folders anew."""
    shutil.rmtree(root, ignore_errors=True)
    random = np.random.default_rng(seed)
    for label in range(classes):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(each):
            pixels = random.integers(0, 120, (6, 6, 3)) + 60 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:02}.png")


def call(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        run_command(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with pictures and a finished grid of one run on them."""
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "pictures")
    code, out, err = call(*GRID, "--methods", "ce", capsys=capsys)
    assert (code, "1/1" in err or "1/1" in out) == (0, True)
    return tmp_path


def test_compare_notices_pictures_that_changed_and_goes_on_with_the_old_ones(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(place / "out")
    changes = (
        ({"seed": 1}, "other test images or labels"),
        ({"each": 25}, "8 test images then and 10 now"),
        ({"classes": 3}, "2 classes then and 3 now"),
    )
    for change, said in changes:
        draw(place / "pictures", **change)
        for more in (("--methods", "ce"), ("--methods", "ce", "--seeds", "2"), ("--methods", "focal")):
            code, _, err = call(*GRID, *more, capsys=capsys)
            assert code == 2
            assert f"got other data than {RUN} had: {said}. Put the old data back, or choose another" in err
            assert len(err.strip().splitlines()) == 1
    assert content(place / "out") == before
    draw(place / "pictures")
    code, out, _ = call(*GRID, "--methods", "ce,focal", capsys=capsys)
    assert code == 0
    assert {"ce", "focal"} <= {line.split()[0] for line in out.splitlines() if line.strip()}
    shutil.rmtree(place / "pictures")
    assert call(*GRID, "--methods", "ce,focal", capsys=capsys)[0] == 0
    code, _, err = call(*GRID, "--methods", "ce,focal", "--seeds", "2", capsys=capsys)
    assert (code, "pictures" in err) == (2, True)


def test_reproduce_notices_pictures_that_changed_before_it_times_anything(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(place / "pictures", seed=1)
    again = ("reproduce", "table2", "--quick", "--data", "pictures", "--out", "out", "--device", "cpu")
    code, out, err = call(*again, capsys=capsys)
    assert (code, out) == (2, "")
    assert f"got other data than {RUN} had: other test images or labels" in err


def test_train_and_report_notice_pictures_that_changed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw(place / "pictures", each=25)
    code, _, err = call("train", "--resume", "--out", f"out/runs/{RUN}", capsys=capsys)
    assert code == 2
    assert f"train: `data` must be what out/runs/{RUN} was trained on, got other data in pictures: 8 test images" in err
    train = ("train", "--data", "pictures", "--method", "ce", "--seed", "1", "--out", "out/runs/other", *SHORT)
    assert call(*train, capsys=capsys)[0] == 0
    code, _, err = call("report", "--run", "out/runs", "--out", "report.html", capsys=capsys)
    assert code == 2
    assert not (place / "report.html").exists()
    assert f"`--run` must have the 8 examples of the test set of pictures as in out/runs/{RUN}, got 10 in out/runs/other" in err
