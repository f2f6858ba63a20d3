"""Runs as a page sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from calibrant import Predictions
from calibrant.core.entry import BinSweep, Entry
from calibrant.core.records import Bins
from calibrant.core.scores import Estimate, IfCalibrated, Scores
from calibrant.metrics.sweep import bin_sweep
from calibrant.report.page_runs import group_entries, run_rows, runs_view
from helpers import mixed_gaps

NONE = torch.empty(0)


def scores(error: float, ece: float) -> Scores:
    metrics = {
        key: Estimate(value, value - 0.01, value + 0.01) for key, value in (("error", error), ("ece", ece), ("nll", 0.5))
    }
    return Scores(100, 10, 15, metrics, IfCalibrated(0.01, 0.02, 0.5), Bins(NONE, NONE, NONE, NONE))


def entry(method: str, seed: int = 0, *, error: float = 0.1, ece: float = 0.05, **more: Any) -> Entry:
    history: tuple[Mapping[str, float | int | None], ...] = more.pop("history", ())
    return Entry(data=more.pop("data", "digits"), method=method, scores=scores(error, ece), seed=seed, history=history, **more)


def test_group_entries_puts_seeds_together_and_names_only_what_differs() -> None:
    many = [
        entry("ce", 0, preset="default", epochs=10, model="convnet"),
        entry("ce", 1, preset="default", epochs=10, model="convnet"),
        entry("ce", 0, preset="paper", epochs=10, model="convnet"),
        entry("flgamma-sece", 0, preset="default", epochs=10, model="convnet"),
        entry("flgamma-sece", 0, preset="default", epochs=20, model="convnet"),
        entry("ce", 0, data="cifar10"),
    ]
    groups = group_entries(many)
    assert [(group.label, group.place, len(group.entries)) for group in groups] == [
        ("ce (10 epochs)", "digits · convnet", 2),
        ("ce (paper, 10 epochs)", "digits · convnet", 1),
        ("flgamma-sece (10 epochs)", "digits · convnet", 1),
        ("flgamma-sece (20 epochs)", "digits · convnet", 1),
        ("ce", "cifar10", 1),
    ]


def test_run_rows_give_mean_and_deviation_or_the_interval_of_one_run() -> None:
    names, rows = run_rows(group_entries([entry("ce", 0, error=0.10), entry("ce", 1, error=0.12), entry("focal", error=0.3)]))
    assert names == ["Error", "NLL", "ECE"]
    cells = [row["cells"] for row in rows]
    assert isinstance(cells[0], list)
    assert isinstance(cells[1], list)
    # Two values 2 apart: their sample deviation is the square root of two.
    assert cells[0][0] == {"value": "11.00%", "spread": "± 1.41", "is_best": True}
    assert cells[1][0] == {"value": "30.00%", "spread": "29.00 – 31.00", "is_best": False}


def test_runs_view_averages_curves_over_the_seeds_that_have_the_epoch() -> None:
    first = ({"test_ece": 0.1, "gamma_mean": None}, {"test_ece": None}, {"test_ece": 0.4})
    second = ({"test_ece": 0.3}, {"test_ece": None})
    (view,) = runs_view(group_entries([entry("ce", 0, history=first, best_epoch=2), entry("ce", 1, history=second)]))
    curves = view["curves"]
    assert isinstance(curves, dict)
    assert list(curves) == ["test_ece"]
    epochs, means, spreads = curves["test_ece"]
    assert epochs == [1, 3]
    assert means == pytest.approx([0.2, 0.4])
    assert spreads == pytest.approx([0.141421, 0.0], abs=1e-5)
    assert view["best"] == [3]
    assert view["points"] == [[0.1, 0.05], [0.1, 0.05]]


def test_runs_view_thins_long_curves_and_keeps_the_last_epoch() -> None:
    history = tuple({"train_loss": 1 / (k + 1)} for k in range(1000))
    (view,) = runs_view(group_entries([entry("ce", history=history)]))
    curves = view["curves"]
    assert isinstance(curves, dict)
    epochs, means, spreads = curves["train_loss"]
    assert len(epochs) == len(means) <= 240
    assert epochs[-1] == 1000
    assert spreads == []


def test_runs_view_takes_the_sweep_given_or_computes_it() -> None:
    probs, labels = mixed_gaps(200)
    predictions = Predictions(probs=probs, labels=labels)
    known = BinSweep((10, 20), (0.1, 0.2), (0.3, 0.4))
    views = runs_view(group_entries([entry("given", sweep=known), entry("computed", test=predictions), entry("bare")]))
    assert views[0]["sweep"] == {"n": [10, 20], "ece": [0.1, 0.2], "mce": [0.3, 0.4]}
    expected = bin_sweep(predictions)
    found = views[1]["sweep"]
    assert isinstance(found, dict)
    assert found["n"] == list(expected.n_bins)
    assert found["ece"] == pytest.approx(expected.ece, rel=1e-5)
    assert views[2]["sweep"] == {}


def test_runs_view_bins_gamma_by_confidence() -> None:
    probs = [[0.62, 0.38], [0.63, 0.37], [0.99, 0.01]]
    test = Predictions(probs=probs, labels=[0, 0, 0], columns={"gamma": [1.0, 3.0, 0.5]})
    (view,) = runs_view(group_entries([entry("flgamma", test=test)]))
    gamma = view["gamma"]
    assert isinstance(gamma, list)
    assert gamma[0] == pytest.approx([0.625, 0.99])
    assert gamma[1:] == [[2.0, 0.5], [1.0, 0.0], [2, 1]]
