from __future__ import annotations

import json
import math

import pytest
import torch

from calibrant.core.entry import Entry
from calibrant.core.records import Predictions
from calibrant.core.scores import Scores
from calibrant.metrics.measure import measure

PROBS = [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]] * 10


def scores() -> Scores:
    return measure(Predictions(probs=PROBS, labels=[0, 1, 1] * 10), n_resamples=20, by_class=True)


def test_scores_written_as_json_come_back_the_same() -> None:
    before = scores()
    after = Scores.from_dict(json.loads(before.to_json()), bins=before.bins)
    assert after == before
    assert torch.equal(after.bins.count, before.bins.count)


def test_scores_without_bins_keep_their_numbers_and_read_null_as_nan() -> None:
    data = json.loads(scores().to_json())
    data["metrics"]["mce"]["low"] = None
    after = Scores.from_dict(data)
    assert after["ece"] == scores()["ece"]
    assert math.isnan(after["mce"].low)
    assert len(after.bins.count) == 0


@pytest.mark.parametrize("broken", [{}, {"n": 1, "num_classes": 2, "metrics": {"ece": {"value": 1}}}, {"n": 3, "metrics": 4}])
def test_scores_of_something_else_are_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be what `calibrant measure --json` writes"):
        Scores.from_dict(broken)


def test_entry_curve_leaves_out_epochs_that_were_not_evaluated() -> None:
    history = ({"test_ece": None}, {"test_ece": 0.25}, {"test_ece": 0.125})
    entry = Entry(data="digits", method="ce", scores=scores(), history=history)
    assert entry.curve("test_ece") == ([2, 3], [0.25, 0.125])
    assert entry.curve("gamma_mean") == ([], [])
