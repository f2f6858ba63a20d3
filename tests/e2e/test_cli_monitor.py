"""``calibrant monitor`` on files and folders of predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from calibrant import Predictions
from helpers import run_command


def stream(folder: Path, *, off: float, partitions: bool) -> Path:
    """Twenty days of predictions, off by ``off`` on the last five; as one file, or as a folder of one for each day."""
    rng = np.random.default_rng(0)
    days = [f"2024-05-{day:02}" for day in range(1, 21)]
    parts = []
    for number, _ in enumerate(days):
        p = rng.random(300)
        happened = rng.random(300) < p - off * (number >= 15)
        parts.append((p, happened.astype(int)))
    if partitions:
        for day, (p, labels) in zip(days, parts, strict=True):
            (folder / f"date={day}").mkdir(parents=True)
            Predictions.from_binary(probs=p, labels=labels).save(folder / f"date={day}" / "part-0.parquet")
        return folder
    columns = {"served": np.repeat(days, 300)}
    p, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    Predictions.from_binary(probs=p, labels=labels, columns=columns).save(folder / "stream.csv")
    return folder / "stream.csv"


def test_monitor_alarms_after_a_change_and_says_so_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stream(tmp_path, off=0.2, partitions=False)
    common = ("monitor", path, "--time", "served", "--resamples", 100)
    code, out, _ = run_command(capsys, *common, "--fail-on-alarm", "--figure", tmp_path / "drift.png")
    assert code == 3
    assert "Alarm in 2024-05-1" in out
    assert "some probabilities are off by more than 2 points" in " ".join(out.split())
    assert (tmp_path / "drift.png").stat().st_size > 10_000
    code, out, _ = run_command(capsys, *common, "--json", "--window", "week")
    found = json.loads(out)
    assert code == 0
    assert [window["window"] for window in found["windows"]] == ["2024-04-29", "2024-05-06", "2024-05-13", "2024-05-20"]
    assert found["windows"][0]["n"] == 5 * 300
    assert found["windows"][0]["metrics"]["ece"]["low"] == 0


def test_monitor_reads_partitions_and_is_quiet_on_a_calibrated_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stream(tmp_path / "days", off=0.0, partitions=True)
    code, out, _ = run_command(capsys, "monitor", folder, "--resamples", 100, "--fail-on-alarm")
    assert code == 0
    assert "No alarm: these 20 windows" in out


def test_monitor_names_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stream(tmp_path, off=0.0, partitions=False)
    (tmp_path / "empty").mkdir()
    days = stream(tmp_path / "days", off=0.0, partitions=True)
    for arguments, fault in (
        ((days, "--time", "day"), "unknown column"),
        ((days, "--time", "day"), "There are: p0, p1, label, date."),
        ((path, "--time", "served_at"), "served"),
        ((tmp_path / "empty",), "must hold files of predictions"),
        (
            (path, "--time", "served", "--window", "year"),
            "`--window` must be one of 'hour', 'day', 'week', 'month', 'value', got",
        ),
        ((path, "--time", "served", "--figure", tmp_path / "drift.gif"), ".png"),
    ):
        code, _, err = run_command(capsys, "monitor", *arguments)
        assert (code, fault in err) == (2, True), err
