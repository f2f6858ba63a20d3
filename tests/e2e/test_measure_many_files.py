"""``calibrant measure`` of many files as one data set: folders, patterns, addresses, and on the workers of Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from calibrant import Predictions
from calibrant.cli import measure as command
from calibrant.data.synthetic import synthetic_predictions
from calibrant.metrics.table import METRICS
from helpers import run_command

DAYS, ROWS = 6, 3000
EXACT = ("error", "nll", "brier", "ece", "mce", "classwise_ece", "signed_gap")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data set, twice: as ``whole.parquet``, and as ``parts`` with a folder for each day and what engines leave there."""
    place = tmp_path_factory.mktemp("data")
    made, _ = synthetic_predictions(DAYS * ROWS, 3, temperature=2.0)
    day = np.repeat([f"2024-05-0{number + 1}" for number in range(DAYS)], ROWS)
    columns = {
        "day": day,
        "age": np.random.default_rng(0).random(len(day)),
        "site": np.array(["a", "b", "c"] * (len(day) // 3)),
    }
    whole = Predictions(logits=made.logits, labels=made.labels, columns=columns)
    whole.save(place / "whole.parquet")
    for number in range(DAYS):
        part = whole.subset(day == day[number * ROWS])
        inside = place / "parts" / f"day={day[number * ROWS]}"
        inside.mkdir(parents=True)
        own = {name: values for name, values in part.columns.items() if name != "day"}
        part = Predictions(logits=part.logits, labels=part.labels, columns=own)
        part.save(inside / ("part.csv" if number == 2 else "part.npz" if number == 3 else "part.parquet"))
    notes = place / "parts" / "_delta_log"
    notes.mkdir()
    (notes / "old.parquet").write_bytes(b"no data")
    return place


@pytest.fixture
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one batch in each file, and more rows than are kept one by one."""
    monkeypatch.setattr(command, "STREAM_ROWS", 1000)
    monkeypatch.setattr(command, "_BATCH_ENTRIES", 3 * 700)


def measured(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = run_command(capsys, "measure", "--json", "--resamples", 100, *arguments)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first["n"] == second["n"]
    assert list(first.get("slices", ())) == list(second.get("slices", ()))
    for key in (key for key in first["metrics"] if METRICS[key].read):
        # Sums are added in another order.
        assert first["metrics"][key]["value"] == pytest.approx(second["metrics"][key]["value"], abs=1e-12), key
    for name in first.get("slices", ()):
        assert_same(first["slices"][name], second["slices"][name])


@pytest.mark.usefixtures("_small_batches")
@pytest.mark.parametrize("name", ["parts", "parts/day=*/*"])
def test_measure_of_many_files_is_that_of_one_that_holds_them_all(
    capsys: pytest.CaptureFixture[str], folder: Path, name: str
) -> None:
    slices = ("--slice", "day", "--slice", "age")
    whole = measured(capsys, folder / "whole.parquet", *slices)
    found = measured(capsys, f"{folder}/{name}", *slices)
    assert (found["file"], found["n"]) == (f"{folder}/{name}", DAYS * ROWS)
    assert len(found["slices"]) == DAYS + 5
    assert_same(found, whole)


def test_measure_of_a_folder_of_one_file_can_be_sliced_by_its_name(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    found = measured(capsys, folder / "parts" / "day=2024-05-01", "--slice", "day")
    assert {name: part["n"] for name, part in found["slices"].items()} == {"2024-05-01": ROWS}


@pytest.mark.usefixtures("_small_batches")
def test_measure_compares_two_data_sets_row_by_row(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    found: Any = measured(capsys, folder / "whole.parquet", folder / "parts")
    assert found[1]["paired"]["metrics"]["ece"]["difference"] == pytest.approx(0, abs=1e-12)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two files that do not belong together: of 2 classes with a column, of 3 without."""
    labels = np.arange(40) % 2
    Predictions(probs=np.full((40, 2), 0.5), labels=labels, columns={"site": labels}).save(tmp_path / "1.parquet")
    Predictions(logits=np.zeros((40, 3)), labels=labels).save(tmp_path / "2.csv")
    return tmp_path


def test_measure_of_files_that_do_not_belong_together_names_the_one(capsys: pytest.CaptureFixture[str], mixed: Path) -> None:
    code, _, err = run_command(capsys, "measure", mixed)
    assert (code, "2.csv: must hold 2 classes, split None as the first file does, got 3 classes" in err) == (2, True), err
    code, _, err = run_command(capsys, "measure", mixed, "--slice", "site")
    assert (code, "unknown column" in err, "2.csv" in err) == (2, True, True), err


def test_measure_of_a_folder_of_runs_does_not_mix_their_splits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for split in ("val", "test"):
        Predictions(probs=np.full((9, 2), 0.5), labels=[0] * 9, split=split).save(tmp_path / f"{split}.csv")
    code, _, err = run_command(capsys, "measure", tmp_path)
    assert (code, "val.csv: must hold 2 classes, split test as the first file does, got 2 classes, split val" in err) == (
        2,
        True,
    ), err


@pytest.fixture
def store(folder: Path) -> Iterator[str]:
    """The tables of the data set in a file system that is reached by an address, as s3 is."""
    memory = fsspec.filesystem("memory")
    memory.put(f"{folder}/parts", "/bucket/parts", recursive=True)
    memory.rm("/bucket/parts/day=2024-05-04", recursive=True)
    yield "memory://bucket"
    memory.rm("/bucket", recursive=True)


@pytest.mark.usefixtures("_small_batches")
def test_measure_and_monitor_read_addresses(capsys: pytest.CaptureFixture[str], folder: Path, store: str) -> None:
    whole = measured(capsys, folder / "parts", "--slice", "day")
    found = measured(capsys, f"{store}/parts/*/*", "--slice", "day")
    assert found["n"] == (DAYS - 1) * ROWS
    for name, part in found["slices"].items():
        assert_same(part, whole["slices"][name])
    one = measured(capsys, f"{store}/parts/day=2024-05-01/part.parquet")
    assert_same(one, whole["slices"]["2024-05-01"])
    code, out, err = run_command(capsys, "monitor", f"{store}/parts", "--time", "day", "--resamples", 100, "--json")
    assert (code, len(json.loads(out)["windows"])) == (0, DAYS - 1), err


class Closed(fsspec.AbstractFileSystem):
    """A file system that raises an error of its own, as those of clouds do."""

    def ls(self, path: str, detail: bool = True, **more: object) -> list[Any]:
        raise RuntimeError("no credentials")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("memory://nothing/*.parquet", "must hold files of predictions"),
        ("memory://nothing/x.parquet", "there is no such file"),
        ("memory://bucket/x.npz", "Copy it to this machine first"),
        ("nothing://bucket/x.parquet", "nothing"),
        ("closed://bucket/x.parquet", "closed://bucket/x.parquet: cannot be reached: no credentials"),
        ("closed://bucket/*.parquet", "closed://bucket/*.parquet: cannot be reached: no credentials"),
    ],
)
def test_measure_of_a_wrong_address_ends_with_2_and_one_sentence(
    capsys: pytest.CaptureFixture[str], address: str, said: str
) -> None:
    fsspec.filesystem("memory").pipe_file("/bucket/x.npz", b"x")
    fsspec.register_implementation("closed", Closed, clobber=True)
    code, out, err = run_command(capsys, "measure", address)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.usefixtures("_small_batches")
def test_measure_on_ray_gives_the_numbers_of_one_process(capsys: pytest.CaptureFixture[str], folder: Path, mixed: Path) -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        arguments = (folder / "parts", "--slice", "site,day", "--by-class")
        alone, found = measured(capsys, *arguments), measured(capsys, *arguments, "--ray")
        code, _, err = run_command(capsys, "measure", mixed, "--ray")
    finally:
        ray.shutdown()
    assert_same(found, alone)
    assert len(found["slices"]) == DAYS * 3
    assert [entry["name"] for entry in found["classes"]] == [entry["name"] for entry in alone["classes"]]
    assert (code, err.count("\n"), "2.csv: must hold 2 classes" in err) == (2, 1, True), err
