from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from calibrant.core.entry import Entry, common_size, usual_size
from calibrant.core.records import Predictions
from calibrant.core.scores import Scores
from calibrant.metrics.measure import measure
from figure_data import run_of

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


def sized(n: int, *, model: str | None = None, epochs: int | None = None) -> Entry:
    entry = run_of(model=model, epochs=epochs)
    return replace(entry, scores=replace(entry.scores, n=n))


@pytest.mark.parametrize(
    ("entries", "usual"),
    [
        ([], None),
        ([sized(5), sized(9), sized(7)], 9),
        ([sized(9), sized(5, model="mlp"), sized(7, model="mlp")], 5),
        ([sized(9), sized(7, epochs=3), sized(5, model="mlp", epochs=3)], 7),
    ],
)
def test_usual_size_is_that_of_the_first_run_or_else_the_largest(entries: list[Entry], usual: int | None) -> None:
    assert usual_size(entries) == usual


def test_common_size_is_none_where_seeds_differ() -> None:
    assert (common_size([sized(5), sized(5)]), common_size([sized(5), sized(6)]), common_size([])) == (5, None, None)
