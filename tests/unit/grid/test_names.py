from __future__ import annotations

from pathlib import Path

import pytest

from calibrant.core.entry import Entry
from calibrant.core.records import Predictions
from calibrant.grid.names import name_apart, name_of, place_of
from made_up_runs import run_of, scores_of

TEST = Predictions(probs=[[0.9, 0.1]], labels=[0])


def theirs(path: Path, data: str = "coins") -> Entry:
    return Entry(data, "?", scores_of({"ece": 0.1}), seed=place_of(path)[1], test=TEST, folder=str(path))


def names(folder: Path, *files: str) -> list[str]:
    return [entry.method for entry in name_apart([theirs(folder / file) for file in files])]


@pytest.mark.parametrize(
    ("file", "place", "seed"),
    [
        ("a/mine.npz", "a/mine", None),
        ("a/mine-seed3.npz", "a/mine", 3),
        ("a/test.npz", "a", None),
        ("a-seed3/test.npz", "a", 3),
        ("a-seed3/seed4.npz", "a-seed3", 4),
        ("a/seed3/test.npz", "a", 3),
    ],
)
def test_place_of_a_file_ends_in_its_name(tmp_path: Path, file: str, place: str, seed: int | None) -> None:
    assert place_of(tmp_path / file) == (tmp_path.resolve() / place, seed)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["o1/m.npz"], ["m"]),
        (["o1/m.npz", "o1/k.npz"], ["m", "k"]),
        (["o1/m.npz", "o2/m.npz"], ["o1/m", "o2/m"]),
        (["a/o/m.npz", "b/o/m.npz"], ["a/o/m", "b/o/m"]),
        (["o1/m-seed0.npz", "o1/m-seed1.npz"], ["m", "m"]),
        (["o1/m-seed0.npz", "o2/m-seed0.npz", "o1/m-seed1.npz"], ["o1/m", "o2/m", "o1/m"]),
        (["o1/m.npz", "o2/m-seed0.npz"], ["o1/m", "o2/m"]),
        (["o1/m.npz", "o1/m.csv"], ["m.npz", "m.csv"]),
        (["o1/m-seed0.npz", "o1/m.npz"], ["m", "m.npz"]),
        (["m/seed0.npz", "m/test.npz"], ["m", "m/test.npz"]),
    ],
)
def test_name_apart_adds_folders_and_endings_only_where_they_are_needed(
    tmp_path: Path, files: list[str], expected: list[str]
) -> None:
    assert names(tmp_path, *files) == expected


def test_name_apart_of_named_entries_changes_nothing_more(tmp_path: Path) -> None:
    once = name_apart([theirs(tmp_path / "o1" / "m.npz"), theirs(tmp_path / "o2" / "m.npz")])
    assert name_apart(once) == once


def test_name_apart_leaves_runs_records_and_other_data_alone(tmp_path: Path) -> None:
    entries = [run_of("ce"), run_of("ce"), theirs(tmp_path / "m.npz"), theirs(tmp_path / "o" / "m.npz", data="dice")]
    assert [entry.method for entry in name_apart(entries)] == ["ce", "ce", "m", "m"]


def test_name_apart_files_called_like_a_method_keep_their_ending(tmp_path: Path) -> None:
    files = ("ce.npz", "focal-seed0.npz", "focal-seed1.npz", "mine.npz")
    assert names(tmp_path, *files) == ["ce.npz", "focal.npz", "focal.npz", "mine"]
    assert names(tmp_path, "a/ce+ts.csv", "b/ce+ts.csv") == ["a/ce+ts", "b/ce+ts"]


def test_name_of_a_file_whose_name_is_no_utf8_can_be_written_and_told_apart() -> None:
    found = [name_of(f"m{byte}", f"m{byte}.npz") for byte in ("\udc80", "\udc81")]
    assert found == ["m\\udc80", "m\\udc81"]
    assert name_of("模型", "模型.npz") == "模型"
