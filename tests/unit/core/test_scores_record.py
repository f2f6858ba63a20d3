from __future__ import annotations

import json

import pytest
import torch

from calibrant.core.records import Bins, Entry, Estimate, IfCalibrated, Predictions, Scores
from calibrant.metrics.measure import measure

NAN = float("nan")


def scores(**changes: object) -> Scores:
    bins = Bins(*(torch.zeros(k) for k in (3, 2, 2, 2)))
    fields: dict[str, object] = {
        "n": 10,
        "num_classes": 3,
        "n_bins": 2,
        "metrics": {"ece": Estimate(0.1, 0.05, 0.2), "brier": Estimate(0.5, 0.4, 0.6)},
        "ece_if_calibrated": IfCalibrated(0.02, 0.04, 0.003),
        "bins": bins,
        "file": "a.npz",
    }
    return Scores(**{**fields, **changes})  # type: ignore[arg-type]


def test_scores_index_iterate_and_contain_by_key() -> None:
    record = scores()
    assert record["ece"] == Estimate(0.1, 0.05, 0.2)
    assert float(record["brier"]) == 0.5
    assert list(record) == ["ece", "brier"]
    assert "ece" in record
    assert "nll" not in record


def test_scores_unknown_key_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown metric 'brierr'. Did you mean 'brier'\? There are: ece, brier"):
        scores()["brierr"]


def test_scores_json_follows_the_schema() -> None:
    assert json.loads(scores().to_json()) == {
        "file": "a.npz",
        "n": 10,
        "num_classes": 3,
        "n_bins": 2,
        "metrics": {"ece": {"value": 0.1, "low": 0.05, "high": 0.2}, "brier": {"value": 0.5, "low": 0.4, "high": 0.6}},
        "ece_if_calibrated": {"mean": 0.02, "p95": 0.04, "p_value": 0.003},
    }


def test_scores_from_dict_keeps_the_number_of_bins() -> None:
    data = json.loads(scores(slices={"night": scores(n_bins=4)}).to_json())
    found = Scores.from_dict(data)
    assert (found.n_bins, found.slices["night"].n_bins) == (2, 4)
    assert found == scores(slices={"night": scores(n_bins=4)})
    # Records of earlier versions do not say.
    del data["n_bins"], data["slices"]["night"]["n_bins"]
    assert Scores.from_dict(data).n_bins == 15
    found = Scores.from_dict(data, bins=scores().bins)
    assert (found.n_bins, found.slices["night"].n_bins) == (2, 2)


def test_scores_json_what_is_no_number_becomes_null() -> None:
    record = scores(metrics={"ece": Estimate(NAN, float("-inf"), float("inf"))})
    assert json.loads(record.to_json())["metrics"]["ece"] == {"value": None, "low": None, "high": None}


def test_scores_text_shows_every_metric_with_its_interval() -> None:
    assert str(scores()).splitlines() == [
        "10 examples, 3 classes, 2 bins",
        "  ece      0.1000  [0.0500, 0.2000]",
        "  brier    0.5000  [0.4000, 0.6000]",
        "  a calibrated model would show ece 0.0200 (95th percentile 0.0400); p = 0.003",
    ]


PROBS = [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]] * 10


def measured() -> Scores:
    return measure(Predictions(probs=PROBS, labels=[0, 1, 1] * 10), n_resamples=100, by_class=True)


def test_scores_written_as_json_come_back_the_same() -> None:
    before = measured()
    after = Scores.from_dict(json.loads(before.to_json()), bins=before.bins)
    assert after == before
    assert torch.equal(after.bins.count, before.bins.count)


@pytest.mark.parametrize("broken", [{}, {"n": 1, "num_classes": 2, "metrics": {"ece": {"value": 1}}}, {"n": 3, "metrics": 4}])
def test_scores_of_something_else_are_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be what `calibrant measure --json` writes"):
        Scores.from_dict(broken)


def test_entry_curve_leaves_out_epochs_that_were_not_evaluated() -> None:
    history = ({"test_ece": None}, {"test_ece": 0.25}, {"test_ece": 0.125})
    entry = Entry(data="digits", method="ce", scores=measured(), history=history)
    assert entry.curve("test_ece") == ([2, 3], [0.25, 0.125])
    assert entry.curve("gamma_mean") == ([], [])
