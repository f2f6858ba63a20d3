"""Windows of a stream are measured as files are, and alarms are rarely false and soon true."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant import Predictions, measure
from calibrant.metrics.measure import CalibrationMonitor, log_ratios, running_evidence

WINDOWS, ROWS = 50, 40


def streams(n: int, *, classes: int, off: float, seed: int = 0, since: int = 0) -> np.ndarray:
    """Evidence ``[n, 50]`` of streams whose probabilities are off by ``off`` from window ``since`` on."""
    rng = np.random.default_rng(seed)
    shape = (n, WINDOWS, ROWS)
    stated = rng.beta(1, 1, shape) if classes == 2 else 1 - 0.5 * rng.beta(1, 2, shape)
    shift = np.where(np.arange(WINDOWS)[:, None] >= since, off, 0.0)
    happened = torch.from_numpy(rng.random(shape) < stated - shift).reshape(-1)
    p = torch.from_numpy(stated).reshape(-1)
    # Of three classes, the first is on top.
    probs = torch.stack([1 - p, p], 1) if classes == 2 else torch.stack([p, *2 * [(1 - p) / 2]], 1)
    labels = happened.long() if classes == 2 else (~happened).long()
    index = torch.arange(n * WINDOWS).repeat_interleave(ROWS)
    ratios = log_ratios(Predictions(probs=probs, labels=labels), index, n * WINDOWS, tolerance=0.02)
    return np.array([running_evidence(part.unbind(1)) for part in ratios.split(WINDOWS, 1)])


@pytest.mark.parametrize(("classes", "off"), [(2, 0.0), (3, 0.02), (3, -0.02)])
def test_alarms_are_false_no_more_often_than_promised_over_all_windows(classes: int, off: float) -> None:
    evidence = streams(200, classes=classes, off=off)
    # At 20 % an alarm begins where the evidence is 5: three standard deviations of 200 streams are 8 %.
    assert (evidence.max(1) >= 5).mean() <= 0.2
    assert (evidence.max(1) >= 20).mean() <= 0.05


@pytest.mark.parametrize("classes", [2, 3])
def test_change_is_noticed_soon_after_it_begins(classes: int) -> None:
    evidence = streams(50, classes=classes, off=0.15, since=25)
    alarm = evidence >= 20
    assert alarm[:, :25].any(1).mean() <= 0.05
    assert alarm[:, 45].mean() >= 0.95


def test_windows_hold_the_scores_of_their_examples_whatever_the_order() -> None:
    rng = np.random.default_rng(0)
    dates = np.datetime64("2024-01-29") + rng.integers(0, 14, 900)
    probs = rng.dirichlet(np.ones(3), 900)
    whole = Predictions(probs=probs, labels=rng.integers(0, 3, 900))
    monitor = CalibrationMonitor(window="week")
    for part, zone in zip(np.array_split(np.arange(900), 4), ("", "Z", "+00:00", "+02:00"), strict=True):
        # Text, as a .csv has it.
        monitor.update(whole.subset(part), [f"{date} 17:00:00{zone}" for date in dates[part]])
    watched = monitor.result(n_resamples=100)
    assert [window.name for window in watched.windows] == ["2024-01-29", "2024-02-05"]
    second = measure(whole.subset(dates >= np.datetime64("2024-02-05")), n_resamples=100)
    assert watched.windows[1].scores["ece"].value == pytest.approx(second["ece"].value, abs=1e-12)
    assert watched.windows[1].scores.n == second.n
    assert watched.first_alarm is watched.windows[0]
    assert watched.to_dict()["first_alarm"] == "2024-01-29"


@pytest.mark.parametrize(
    ("window", "names"),
    [
        ("hour", ["2024-02-29T22", "2024-02-29T23", "2024-03-01T00"]),
        ("day", ["2024-02-29", "2024-03-01"]),
        ("month", ["2024-02", "2024-03"]),
        (None, ["2024-02-29 22:59", "2024-02-29 23:00", "2024-03-01 00:00"]),
    ],
)
def test_windows_begin_where_the_calendar_says(window: str | None, names: list[str]) -> None:
    monitor = CalibrationMonitor(window=window)  # type: ignore[arg-type]
    times = ["2024-03-01 00:00", "2024-02-29 22:59", "2024-02-29 23:00"]
    monitor.update(Predictions(probs=[[0.9, 0.1]] * 3, labels=[0, 0, 1]), times)
    assert [found.name for found in monitor.result(n_resamples=100).windows] == names


def test_values_are_windows_in_their_own_order() -> None:
    monitor = CalibrationMonitor(window=None)
    monitor.update(Predictions(probs=[[0.9, 0.1]] * 3, labels=[0, 0, 1]), np.array([10, 9, 10]))
    assert [(window.name, window.scores.n) for window in monitor.result(n_resamples=100).windows] == [("9", 1), ("10", 2)]


def test_certain_and_wrong_is_evidence_without_end_only_where_nothing_is_tolerated() -> None:
    given = Predictions(probs=[[1.0, 0.0]] * 100, labels=[0] * 99 + [1])
    for tolerance, alarm in ((0.0, True), (0.02, False)):
        monitor = CalibrationMonitor(window=None, tolerance=tolerance)
        monitor.update(given, np.zeros(100))
        assert monitor.result(n_resamples=100).windows[0].alarm is alarm


def test_update_refuses_what_is_no_time() -> None:
    given = Predictions(probs=[[0.9, 0.1]] * 3, labels=[0, 0, 1])
    for times in (["2024-03-01", "soon", "later"], ["2024-03-01", "", "2024-03-01"], [1.5, 2.5, 3.5], ["2024-03-01"]):
        with pytest.raises(ValueError, match="`times`"):
            CalibrationMonitor().update(given, times)
    with pytest.raises(ValueError, match="`window`"):
        CalibrationMonitor(window="year")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1000 windows"):
        CalibrationMonitor(window=None).update(Predictions(probs=[[0.9, 0.1]] * 1001, labels=[0] * 1001), np.arange(1001))
