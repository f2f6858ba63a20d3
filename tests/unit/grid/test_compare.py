from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from calibrant.engine.run import lock_folder
from calibrant.grid import compare as module
from calibrant.grid.compare import compare
from calibrant.grid.executors import make_places, run_cell
from calibrant.grid.schedule import Cell, Event

SHORT = {"train.epochs": 1, "train.batch_size": 800, "train.device": "cpu"}


class Here:
    """Runs cells in this process, one after the other."""

    given: list[str] = []

    def __init__(self, **options: object) -> None:
        make_places(**options)
        self.cells: list[Cell] = []
        self.given.clear()

    def free(self) -> int:
        return 1 - len(self.cells)

    def submit(self, cell: Cell) -> None:
        self.cells.append(cell)
        self.given.append(cell.name)

    def poll(self, seconds: float) -> list[Event]:
        said: list[Event] = []
        run_cell(self.cells.pop(), send=said.append)
        return [replace(event, again=False) for event in said]

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LocalExecutor", Here)
    # Drawing takes most of the time, and has tests of its own.
    monkeypatch.setattr("calibrant.report.page.page_charts", lambda groups: [])
    monkeypatch.setattr(sys, "argv", sys.argv)


def run(out: Path, methods: str = "ce", **options):
    return compare("mixture", methods=methods, out=out, figures=False, **({"settings": SHORT} | options))


def test_compare_runs_a_base_that_is_not_asked_for_and_leaves_it_out_of_the_table(tmp_path: Path) -> None:
    found = run(tmp_path, "focal+ts,ce")
    assert Here.given == ["mixture-mlp-focal-seed0", "mixture-mlp-focal+ts-seed0", "mixture-mlp-ce-seed0"]
    assert [entry.method for entry in found.entries] == ["focal+ts", "ce"]
    assert found.entries[0].temperature is not None
    assert [line.method for line in found.table.rows] == ["focal+ts", "ce"]
    assert {file.name for file in found.files} == {"table.md", "table.tex", "table.csv", "table.json", "report.html"}
    assert all(file.is_file() for file in found.files)
    again = run(tmp_path, "ce,focal+ts,focal")
    assert Here.given[3:] == []
    assert [entry.method for entry in again.entries] == ["ce", "focal+ts", "focal"]


def test_compare_does_not_train_a_base_again_that_only_a_finished_run_was_made_of(tmp_path: Path) -> None:
    run(tmp_path, "ce+ts")
    for file in (tmp_path / "runs" / "mixture-mlp-ce-seed0").iterdir():
        file.unlink()
    found = run(tmp_path, "ce+ts,brier")
    assert Here.given == ["mixture-mlp-brier-seed0"]
    assert [entry.method for entry in found.entries] == ["ce+ts", "brier"]


def test_compare_reports_what_failed_and_compares_the_rest(tmp_path: Path) -> None:
    settings = SHORT | {"focal:optim.lr": 1e30, "focal:train.clip_norm": 0}
    found = run(tmp_path, "ce,focal,focal+ts", settings=settings)
    assert [entry.method for entry in found.entries] == ["ce"]
    first, second = found.failures
    log = tmp_path / "logs" / "mixture-mlp-focal-seed0.log"
    assert (first.name, first.log) == ("mixture-mlp-focal-seed0", log)
    assert "the loss became nan in epoch 1" in first.text
    assert (second.name, second.log.exists()) == ("mixture-mlp-focal+ts-seed0", False)
    assert second.text == "mixture-mlp-focal-seed0, which it is made of, failed"
    # Who is handed the table alone sees that it is not whole.
    missing = "Missing, as their runs failed: mixture-mlp-focal-seed0, mixture-mlp-focal+ts-seed0."
    for name in ("table.md", "table.json", "report.html"):
        assert missing in (tmp_path / name).read_text(encoding="utf-8"), name
    assert "Missing, as their runs failed: mixture-mlp-focal" in (tmp_path / "table.tex").read_text(encoding="utf-8")
    assert "Missing" not in (tmp_path / "table.csv").read_text(encoding="utf-8")


def test_compare_of_runs_that_cannot_begin_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for other, message in (
        ({"settings": SHORT | {"train.batch_size": 2100}}, "`train.batch_size` must be at most the"),
        ({"settings": SHORT | {"train.device": "gpu"}}, "`device` must be 'auto', 'cpu'"),
        ({"jobs": 0}, "`jobs` and `threads` must be >= 1 and `retries` >= 0"),
        ({"retries": -1}, "`jobs` and `threads` must be >= 1 and `retries` >= 0"),
        ({"on": "moon"}, "`on` must be 'local', or 'ray'"),
        ({"ray_address": "auto"}, "`on` must be 'local', or 'ray'"),
    ):
        with pytest.raises(ValueError, match=message):
            run(tmp_path / "grid", "ce,flgamma-sece", **other)
    assert not (tmp_path / "grid").exists()


def test_compare_with_a_damaged_run_is_refused_before_others_are_trained(tmp_path: Path) -> None:
    run(tmp_path)
    Here.given.clear()
    for name in ("recipe.toml", "test.npz", "history.jsonl", "run.json"):
        file = tmp_path / "runs" / "mixture-mlp-ce-seed0" / name
        whole = file.read_bytes()
        for damaged in (None, whole[:30]):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            if (name, damaged) != ("run.json", None):
                with pytest.raises(ValueError, match="ce-seed0"):
                    run(tmp_path, "ce,focal")
        file.write_bytes(whole)
    assert Here.given == []
    # Nothing says that it was finished, and nothing that it was begun with these settings: it is made anew.
    file.unlink()
    assert not run(tmp_path, "ce,focal").failures
    assert Here.given == ["mixture-mlp-ce-seed0", "mixture-mlp-focal-seed0"]


def test_compare_of_nothing_but_failures_has_no_table(tmp_path: Path) -> None:
    found = run(tmp_path, "ce", settings=SHORT | {"optim.lr": 1e30, "train.clip_norm": 0})
    assert (found.entries, found.table, found.files) == ((), None, ())
    assert len(found.failures) == 1


def test_compare_of_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path)
    try:
        with pytest.raises(ValueError, match="compare: .* is being written by another process"):
            run(tmp_path)
    finally:
        lock.close()


def test_compare_tells_the_watcher_what_is_there_and_what_happens(tmp_path: Path) -> None:
    run(tmp_path)
    seen: list[tuple[int, str | None]] = []

    def watch(board, event) -> None:
        seen.append((board.count("done"), event and event.kind))

    run(tmp_path, "ce,focal", watch=watch)
    # The last call is before tables are made.
    assert (seen[0], seen[-2], seen[-1]) == ((1, None), (2, "done"), (2, None))
    assert set(seen[1:-2]) == {(1, "step")}
