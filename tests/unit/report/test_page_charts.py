"""What the page draws of runs: the numbers, the rules and the looks of the figures."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from calibrant import Predictions, measure
from calibrant.core.entry import BinSweep, Entry
from calibrant.core.records import Bins
from calibrant.core.scores import Estimate, IfCalibrated, Scores
from calibrant.metrics import expected_calibration_error
from calibrant.metrics.diagram import PALETTE
from calibrant.metrics.ordinary import rate_interval
from calibrant.metrics.sweep import bin_sweep
from calibrant.report.curves import prepare_curves
from calibrant.report.page import render_page
from calibrant.report.page_charts import GRID_STOPS, look_of, runs_view
from calibrant.report.page_runs import group_entries
from calibrant.report.rows import group_rows
from calibrant.report.style import METHOD_STYLES, styles_of
from calibrant.report.tradeoff import prepare_tradeoff
from helpers import mixed_gaps

NONE = torch.empty(0)


def scores(**values: float) -> Scores:
    metrics = {key: Estimate(value, value, value) for key, value in values.items()}
    return Scores(100, 10, 15, metrics, IfCalibrated(0.01, 0.02, 0.5), Bins(NONE, NONE, NONE, NONE))


def entry(method: str, seed: int = 0, *, error: float = 0.1, ece: float = 0.05, data: str = "digits", **more: Any) -> Entry:
    return Entry(data=data, method=method, scores=scores(error=error, ece=ece), seed=seed, **more)


def views(*entries: Entry) -> list[dict[str, Any]]:
    return runs_view(group_entries(entries))


def test_front_is_that_of_the_figures_in_every_place() -> None:
    # b is beaten by a in both; d lies elsewhere, where it is alone; e knows no ECE.
    many = [
        entry("a", error=0.10, ece=0.05),
        entry("b", error=0.11, ece=0.06),
        entry("c", error=0.12, ece=0.01),
        entry("d", error=0.5, ece=0.5, data="cifar10"),
        dataclasses.replace(entry("e"), scores=scores(error=0.01)),
    ]
    found = views(*many)
    assert [view["front"] for view in found] == [True, False, True, False, True]
    assert [view["label"] for view in found] == ["a", "b", "c", "e", "d"]
    expected = prepare_tradeoff(group_rows(many)[0].rows)
    assert [view["front"] for view in found[:3]] == [point.best for point in expected]


def test_points_are_of_runs_that_have_both_numbers() -> None:
    half, wild = dataclasses.replace(entry("ce", 1), scores=scores(error=0.01)), entry("ce", 2, ece=math.nan)
    (view,) = views(entry("ce"), half, wild)
    assert view["points"] == [[0.1, 0.05]]
    (view,) = views(half)
    assert view["points"] == []
    assert view["front"] is False


def test_curves_take_the_epochs_that_all_seeds_evaluated_as_the_figures_do() -> None:
    first = ({"test_ece": 0.1}, {"test_ece": 0.7}, {"test_ece": 0.4})
    second = ({"test_ece": 0.3}, {"test_ece": None}, {"test_ece": 0.2})
    many = [entry("ce", 0, history=first), entry("ce", 1, history=second)]
    (view,) = views(*many)
    assert list(view["curves"]) == ["test_ece"]
    epochs, means, spreads = view["curves"]["test_ece"]
    assert epochs == [1, 3]
    assert means == pytest.approx([0.2, 0.3])
    assert spreads == pytest.approx([0.141421, 0.141421], abs=1e-5)
    figure = prepare_curves(group_rows(many)[0].rows)
    assert figure is not None
    assert tuple(epochs) == figure.ece[0].x
    assert means == pytest.approx(figure.ece[0].mean)


def test_curves_of_repaired_rows_are_left_out() -> None:
    history = ({"test_ece": 0.2, "gamma_mean": 1.0, "gamma_std": 0.1, "lr": 0.1}, {"test_ece": 0.1, "lr": 0.01})
    base, repaired = views(entry("ce", history=history), entry("ce+ts", history=history, temperature=2.0))
    assert base["curves"]["test_ece"] == [[1, 2], [0.2, 0.1], []]
    assert base["gamma"] == [[1], [1.0], [0.1]]
    assert base["drops"] == [2]
    assert (repaired["curves"], repaired["gamma"], repaired["drops"]) == ({}, [], [])


def test_long_curves_are_thinned_and_keep_the_last_epoch() -> None:
    history = tuple({"train_loss": 1 / (k + 1)} for k in range(1000))
    (view,) = views(entry("ce", history=history))
    epochs, means, spreads = view["curves"]["train_loss"]
    assert len(epochs) == len(means) <= 240
    assert epochs[-1] == 1000
    assert epochs == sorted(epochs)
    assert spreads == []


def test_looks_are_those_of_the_figures_whatever_the_order_and_the_data() -> None:
    first = {view["label"]: view["look"] for view in views(entry("ce"), entry("flgamma-sece"), entry("ce+ts"))}
    second = {view["label"]: view["look"] for view in views(entry("flgamma-sece", data="cifar10"), entry("focal"), entry("ce"))}
    assert first["CE"] == second["CE"] == look_of(METHOD_STYLES["ce"])
    assert first["FLγ-SECE"] == second["FLγ-SECE"]
    assert first["FLγ-SECE"] == {"hue": "vermillion", "marker": "*", "dash": "", "filled": True}
    assert first["CE (TS)"]["hue"] == "black"
    assert first["CE (TS)"]["filled"] is False
    assert first["CE (TS)"]["dash"] != ""


def test_every_look_can_be_drawn_by_the_page() -> None:
    page = render_page(entries=[entry("ce")])
    for style in styles_of((f"mine {k}", "") for k in range(40)).values():
        look = look_of(style)
        marker = str(look["marker"])
        assert f".{look['hue']} {{ --hue: var(--hue-{look['hue']}); }}" in page
        assert f"\n  {marker}: (r) =>" in page or f'\n  "{marker}": (r) =>' in page, marker
    assert {look_of(style)["hue"] for style in METHOD_STYLES.values()} == set(PALETTE)


def test_sweep_is_the_given_one_or_computed() -> None:
    probs, labels = mixed_gaps(200)
    predictions = Predictions(probs=probs, labels=labels)
    known = BinSweep((10, 20), (0.1, 0.2), (0.3, 0.4))
    other = BinSweep((20, 30), (0.4, 0.5), (0.5, 0.6))
    found = views(entry("given", sweep=known), entry("given", 1, sweep=other), entry("test", test=predictions), entry("bare"))
    # Only 20 bins are shared.
    assert found[0]["sweep"] == {
        "ece": [[20], [pytest.approx(0.3)], [pytest.approx(0.141421)]],
        "mce": [[20], [pytest.approx(0.45)], [pytest.approx(0.0707107)]],
    }
    expected = bin_sweep(predictions)
    assert found[1]["sweep"]["ece"][0] == list(expected.n_bins)
    assert found[1]["sweep"]["mce"][1] == pytest.approx(expected.mce, rel=1e-5)
    assert found[1]["sweep"]["ece"][2] == []
    assert found[2]["sweep"] == {}


def test_sweep_says_what_a_calibrated_model_would_show_where_it_is_known() -> None:
    probs, labels = mixed_gaps(200)
    predictions = Predictions(probs=probs, labels=labels)
    known = BinSweep((10, 20), (0.1, 0.2), (0.3, 0.4), (0.01, 0.02), (0.03, 0.04))
    other = BinSweep((10, 20), (0.3, 0.4), (0.5, 0.6), (0.03, 0.04), (0.05, 0.06))
    older = BinSweep((10, 20), (0.1, 0.2), (0.3, 0.4))
    found = views(
        entry("given", sweep=known),
        entry("given", 1, sweep=other),
        entry("test", test=predictions),
        entry("older", sweep=older),
    )
    # Of 10 and 20 bins, which are as near to 15, the first counts.
    assert found[0]["sweep"]["chance"] == {
        "rank": pytest.approx(0.2),
        "ece": [[10, 20], [pytest.approx(0.02), pytest.approx(0.03)], []],
        "mce": [[10, 20], [pytest.approx(0.04), pytest.approx(0.05)], []],
    }
    expected = bin_sweep(predictions)
    assert found[1]["sweep"]["chance"]["ece"][1] == pytest.approx(expected.ece_if_calibrated, rel=1e-5)
    assert found[1]["sweep"]["chance"]["rank"] == expected.ece[expected.n_bins.index(15)]
    assert "chance" not in found[2]["sweep"]


def test_gamma_against_confidence_tells_right_from_wrong() -> None:
    right, wrong = [[0.62, 0.38]] * 5, [[0.61, 0.39]] * 6
    gamma = [1.0, 2.0, 3.0, 4.0, 5.0, *[0.5] * 6]
    test = Predictions(probs=right + wrong, labels=[0] * 5 + [1] * 6, columns={"gamma": gamma})
    (view,) = views(entry("flgamma", test=test))
    dots = view["dots"]
    assert dots["right"] == [pytest.approx([0.62] * 5), [1.0, 2.0, 3.0, 4.0, 5.0]]
    assert dots["wrong"] == [pytest.approx([0.61] * 6), [0.5] * 6]
    assert dots["rightMean"] == [pytest.approx([0.62]), pytest.approx([3.0])]
    assert dots["wrongMean"] == [pytest.approx([0.61]), pytest.approx([0.5])]


def test_gamma_dots_are_few_and_span_all_confidences() -> None:
    confidence = torch.linspace(0.5, 1.0, 5000, dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    test = Predictions(probs=probs, labels=[0] * 5000, columns={"gamma": [1.0] * 5000})
    (view,) = views(entry("flgamma", test=test))
    where, gamma = view["dots"]["right"]
    assert len(where) == len(gamma) == 400
    assert (where[0], where[-1]) == (0.5, 1.0)
    assert view["dots"]["wrong"] == [[], []]


def test_points_are_the_numbers_of_the_table() -> None:
    # Six digits of these would give 29.82, and 29.83 the mean of what was cut.
    errors = (0.29825049, 0.29824953)
    (view,) = views(*(entry("ce", seed, error=error) for seed, error in enumerate(errors)))
    assert [point[0] for point in view["points"]] == list(errors)
    (group,) = group_entries([entry("ce", seed, error=error) for seed, error in enumerate(errors)])
    assert view["mean"] == [group.mean("error"), group.mean("ece")]


@pytest.mark.parametrize("weighted", [False, True])
def test_diagram_holds_the_bins_of_every_stop_of_the_last_seed(weighted: bool) -> None:
    probs, labels = mixed_gaps(300)
    weights = torch.linspace(0.5, 1.5, len(labels)) if weighted else None
    test = Predictions(probs=probs, labels=labels, weights=weights)
    other = Predictions(probs=[[0.9, 0.1]], labels=[1])
    last = dataclasses.replace(entry("ce", 3, test=test), scores=measure(test, n_resamples=20))
    (view,) = views(last, entry("ce", 0, test=other))
    diagram = view["diagram"]
    assert (GRID_STOPS[0], GRID_STOPS[-1], 15 in GRID_STOPS) == (10, 100, True)
    for n_bins, stop in zip(GRID_STOPS, diagram["stops"], strict=True):
        expected = expected_calibration_error(test.probs, test.labels, n_bins=n_bins, weights=test.weights)
        assert stop["ece"] == pytest.approx(expected.item(), abs=1e-9)
        counts = stop["rows"][1::6]
        assert sum(counts) == pytest.approx(300, abs=0.5)
    share = test.correct.double() if weights is None else test.correct * weights.double() / weights.double().mean()
    assert diagram["error"] == pytest.approx(1 - share.mean().item(), abs=1e-6)


def test_page_offers_only_charts_and_curves_that_some_run_has() -> None:
    bare = render_page(entries=[dataclasses.replace(entry("ce"), scores=scores(error=0.1))])
    for chart in ("trade-off", "sweep", "grid", "curves", "gamma", "gamma-confidence"):
        assert f'id="{chart}"' not in bare
    history = ({"val_ece": 0.2, "train_loss": 1.0, "gamma_mean": 1.0, "gamma_std": 0.1},)
    page = render_page(entries=[entry("flgamma", history=history)])
    assert '<option value="val_ece">validation ECE</option><option value="train_loss">training loss</option>' in page
    assert 'value="test_ece"' not in page
    # One row has nothing to be compared or chosen.
    assert 'id="trade-off"' not in page
    assert 'id="run-legend"' not in page
    assert 'id="trade-off"' in render_page(entries=[entry("ce"), entry("focal")])
    # Gamma's history is there without predictions.
    assert 'id="gamma"' in page
    assert 'id="gamma-confidence"' not in page


def test_diagrams_and_gammas_are_of_the_seed_that_figures_show() -> None:
    probs, labels = mixed_gaps(200)
    test = Predictions(probs=probs, labels=labels)
    with_gamma = [Predictions(probs=probs, labels=labels, columns={"gamma": [gamma] * len(labels)}) for gamma in (1.0, 2.0)]
    runs = [entry("flgamma", seed, error=0.1 * (seed + 1), test=with_gamma[seed]) for seed in (0, 1)]
    first, alone = views(*runs, entry("ce", 0, test=test))
    # The other method has no run of the last seed.
    assert group_rows([*runs, entry("ce", 0, test=test)])[0].common_seed == 0
    assert (first["diagram"]["error"], set(first["dots"]["right"][1])) == (0.1, {1.0})
    assert alone["diagram"]["error"] == 0.1
    (first,) = views(*runs)
    assert (first["diagram"]["error"], set(first["dots"]["right"][1])) == (0.2, {2.0})


def test_page_says_whose_seed_diagrams_show() -> None:
    test = Predictions(probs=[[0.8, 0.2]] * 40, labels=[0, 0, 0, 1] * 10)
    runs = [entry("ce", seed, test=test) for seed in (0, 1)]
    assert "the last that all methods have is shown" in render_page(entries=[*runs, entry("focal", 0, test=test)])
    # Without a seed in common every method has its own.
    assert "the last is shown" in render_page(entries=[*runs, entry("focal", 2, test=test)])


def test_diagram_of_weighted_examples_has_intervals_of_as_many_as_count() -> None:
    # All in one bin, half of them right; weights of 1 and 3 are worth four fifths of as many equal ones.
    probs, labels = [[0.75, 0.25]] * 40, [0, 1] * 20
    test = Predictions(probs=probs, labels=labels, weights=[1.0, 1.0, 3.0, 3.0] * 10)
    stop = views(entry("ce", test=test))[0]["diagram"]["stops"][GRID_STOPS.index(10)]
    ends = rate_interval(0.5, size=32)
    assert stop["rows"] == [7, 80, 7500, 5000, round(10_000 * ends.low), round(10_000 * ends.high)]


def test_diagram_of_a_record_holds_the_bins_that_it_keeps() -> None:
    probs, labels = mixed_gaps(300)
    test = Predictions(probs=probs, labels=labels)
    run = Entry("digits", "ce", measure(test, n_resamples=20), test=test)
    (full,), (kept,) = views(run), views(dataclasses.replace(run, test=None))
    at = GRID_STOPS.index(15)
    assert kept["diagram"]["stops"][at] == full["diagram"]["stops"][at]
    assert kept["diagram"]["error"] == full["diagram"]["error"]
    assert [GRID_STOPS[k] for k, stop in enumerate(kept["diagram"]["stops"]) if stop] == [15]
    # Of weighted examples a record does not tell how many they are worth, nor of other bins those of a stop.
    broken, whole = torch.linspace(0.5, 1.5, len(labels)), 1 + 2 * (torch.arange(len(labels)) % 2)
    weighted = [Predictions(probs=probs, labels=labels, weights=weights) for weights in (broken, whole)]
    others = (*(measure(given, n_resamples=20) for given in weighted), measure(test, n_resamples=20, n_bins=7))
    for other in others:
        assert views(dataclasses.replace(run, scores=other, test=None))[0]["diagram"] == {}
