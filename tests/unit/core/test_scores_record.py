from __future__ import annotations

import json

import pytest
import torch

from calibrant.core.records import Bins
from calibrant.core.scores import ClassScore, Estimate, IfCalibrated, Scores

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


def test_scores_are_equal_where_their_numbers_are() -> None:
    assert scores() == scores()
    assert scores() != scores(metrics={"ece": Estimate(0.1, 0.05, 0.3)})


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


def test_scores_json_classes_and_slices_are_written_when_present() -> None:
    entry = ClassScore(1, "cat", 4, 0.2, -0.1, NAN)
    data = json.loads(scores(classes=(entry,), slices={"night": scores()}).to_json(indent=1))
    assert data["classes"] == [{"index": 1, "name": "cat", "count": 4, "ece": 0.2, "signed_gap": -0.1, "error": None}]
    assert data["slices"]["night"]["n"] == 10


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


def test_scores_text_shows_the_classes_that_were_measured() -> None:
    entries = (ClassScore(0, "ox", 6, 0.125, 0.25, 0.5), ClassScore(1, "cat", 4, 0.2, -0.1, NAN))
    assert str(scores(classes=entries)).splitlines()[-3:] == [
        "  classes (examples, error, ece, signed gap):",
        "    ox   6  0.5000  0.1250  +0.2500",
        "    cat  4  nan  0.2000  -0.1000",
    ]


def test_scores_are_frozen() -> None:
    with pytest.raises(AttributeError, match="cannot assign to field 'n'"):
        scores().n = 3  # type: ignore[misc]
