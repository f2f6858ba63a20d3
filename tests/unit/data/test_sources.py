import re

import pytest

from calibrant.data import DATASETS, EMBEDDED, ON_DISK, SOURCES, cifar, mnist, sources, tiny_imagenet
from calibrant.data.sources import RemoteFile, Source, fetch, is_there


def test_sources_are_the_sets_on_disk_and_every_loader_names_its_source(tmp_path):
    assert list(SOURCES) == list(ON_DISK)
    assert [*EMBEDDED, *SOURCES] == DATASETS
    for name, load in ON_DISK.items():
        with pytest.raises(FileNotFoundError, match=f"calibrant data fetch {name}`"):
            load(tmp_path)


def test_sources_have_addresses_sizes_and_checksums_of_the_right_form():
    files = [file for source in SOURCES.values() for file in source.files]
    assert len(files) == 11
    assert len({file.md5 for file in files}) == len({file.path for file in files}) == 11
    for file in files:
        assert re.fullmatch("[0-9a-f]{32}", file.md5)
        assert file.size > 4000
        assert all(re.fullmatch(r"https?://\S+/" + re.escape(file.path.rpartition("/")[2]), url) for url in file.urls)
        assert not file.path.startswith(("/", ".."))


def test_sources_put_files_where_loaders_look():
    assert SOURCES["tiny-imagenet"].files[0].path == tiny_imagenet.ARCHIVE
    assert SOURCES["tiny-imagenet"].files[0].md5 == tiny_imagenet.ARCHIVE_MD5
    for name, table in (("mnist", mnist.MNIST_FILES), ("fashion-mnist", mnist.FASHION_FILES)):
        assert [file.path for file in SOURCES[name].files] == [f"{name}/{file}.gz" for file in table]
    assert "data_batch_1" in cifar.CIFAR10_FILES


def test_fetch_hands_every_file_to_download(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(sources, "download", lambda urls, path, **options: calls.append((urls, path, options)) or path)
    found = fetch("mnist", root=tmp_path, report=print)
    assert found == [tmp_path / file.path for file in SOURCES["mnist"].files]
    assert calls[1][2] == {"md5": SOURCES["mnist"].files[1].md5, "report": print}


def test_fetch_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="unknown data set to fetch 'fashion'. Did you mean 'fashion-mnist'"):
        fetch("fashion")


def test_is_there_needs_every_file_or_another_sign(tmp_path, monkeypatch):
    files = tuple(RemoteFile(f"set/{i}", 1, "", ()) for i in range(2))
    monkeypatch.setitem(SOURCES, "set", Source("a set", files, ("unpacked/1",)))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "0").touch()
    assert not is_there("set", root=tmp_path)
    (tmp_path / "set" / "1").touch()
    assert is_there("set", root=tmp_path)
    (tmp_path / "set" / "0").unlink()
    (tmp_path / "unpacked").mkdir()
    (tmp_path / "unpacked" / "1").touch()
    assert is_there("set", root=tmp_path)
    assert SOURCES["set"].size == 2
