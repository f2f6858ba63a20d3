"""Every data set of the table: where it comes from, and that it is what its entry says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from calibrant.data import DATASETS, DataSource, RemoteFile, data_name, fetch, load_mixture


@pytest.mark.parametrize("name", DATASETS.builtin)
def test_entry_of_every_set_is_complete_and_says_how_to_get_it(name: str, tmp_path: Path) -> None:
    entry = DATASETS[name]
    assert entry.name == name
    assert entry.label
    assert entry.about
    for file in entry.files:
        assert re.fullmatch("[0-9a-f]{32}", file.md5)
        assert file.size > 4000
        assert all(re.fullmatch(r"https?://\S+/" + re.escape(file.path.rpartition("/")[2]), url) for url in file.urls)
        assert not file.path.startswith(("/", ".."))
    if entry.embedded:
        assert entry.load(tmp_path).name == name
    else:
        with pytest.raises(FileNotFoundError, match=f"calibrant data fetch {name}`"):
            entry.load(tmp_path)


def test_unknown_name_is_answered_with_the_nearest_and_own_sets_keep_theirs() -> None:
    with pytest.raises(ValueError, match="unknown data set 'fashion'. Did you mean 'fashion-mnist'"):
        fetch("fashion")
    assert (data_name("tiny-imagenet"), data_name("birds")) == ("Tiny-ImageNet", "birds")


def test_is_there_needs_every_file_or_another_sign(tmp_path: Path) -> None:
    files = tuple(RemoteFile(f"set/{i}", 1, "", ()) for i in range(2))
    entry = DataSource("set", "Set", "a set", lambda root: load_mixture(), files, others=("unpacked/1",))
    (tmp_path / "set").mkdir()
    (tmp_path / "unpacked").mkdir()
    (tmp_path / "set" / "0").touch()
    assert not entry.is_there(tmp_path)
    (tmp_path / "set" / "1").touch()
    assert entry.is_there(tmp_path)
    (tmp_path / "set" / "0").unlink()
    (tmp_path / "unpacked" / "1").touch()
    assert entry.is_there(tmp_path)
    assert entry.bytes == 2
    assert DATASETS["digits"].is_there(tmp_path)
