from __future__ import annotations

import math

import pytest
import torch

from calibrant import Predictions
from calibrant.core.binning import equal_width_index
from calibrant.core.summary import Summary, score_rows, summarize, summarize_with_top, top_labels
from helpers import golden, mixed_gaps


def fields(summary: Summary) -> list[torch.Tensor]:
    scalars = torch.tensor([summary.n, summary.weight, summary.weight_squares], dtype=torch.float64)
    grids = [getattr(g, k) for g in (summary.grid, summary.class_bins) for k in ("weight", "confidence", "correct")]
    return [scalars, *grids, summary.nll, summary.brier, summary.class_correct]


def test_summarize_two_examples_gives_hand_computed_sums() -> None:
    summary = summarize(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0]), n_bins=5)
    assert (summary.n, summary.num_classes, summary.n_bins) == (2, 2, 5)
    assert (summary.weight, summary.weight_squares, summary.effective_n) == (2.0, 2.0, 2.0)
    # -log 0.9 and -log 0.2; (0.1² + 0.1²) and (0.8² + 0.8²).
    losses, scores = (-math.log(0.9), -math.log(0.2)), (0.02, 1.28)
    for power in (1, 2, 3):
        assert float(summary.nll[power - 1]) == pytest.approx(sum(v**power for v in losses))
        assert float(summary.brier[power - 1]) == pytest.approx(sum(v**power for v in scores))
    assert summary.class_bins.weight.tolist() == [[1, 0, 0, 0, 1], [1, 0, 0, 1, 0]]
    assert summary.class_bins.correct.tolist() == [[1, 0, 0, 0, 1], [0, 0, 0, 0, 0]]
    assert summary.class_count.tolist() == [2, 0]
    assert summary.class_correct.tolist() == [1, 0]


def test_summaries_of_parts_add_up_to_that_of_the_whole() -> None:
    probs, labels = mixed_gaps(300, 4)
    whole = summarize(Predictions(probs=probs, labels=labels))
    parts = [summarize(Predictions(probs=probs[at], labels=labels[at])) for at in (slice(0, 7), slice(7, 200), slice(200, 300))]
    for one, two in zip(fields(whole), fields(parts[0] + parts[1] + parts[2]), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_summaries_of_other_classes_or_bins_cannot_be_added() -> None:
    one = summarize(Predictions(probs=[[0.9, 0.1]], labels=[0]), n_bins=5)
    two = summarize(Predictions(probs=[[0.9, 0.1]], labels=[0]), n_bins=10)
    with pytest.raises(ValueError, match=r"Summary: summaries must agree on \(C, M\) to be added, got \(2, 5\) and \(2, 10\)"):
        _ = one + two


@pytest.mark.parametrize("num_classes", [3, 40])
def test_summarize_class_bins_equal_a_loop_over_classes(num_classes: int) -> None:
    probs, labels = mixed_gaps(500, num_classes)
    bins = summarize(Predictions(probs=probs, labels=labels)).class_bins
    index = equal_width_index(probs, 15)
    for k in range(num_classes):
        for name, values in (("weight", None), ("confidence", probs[:, k]), ("correct", (labels == k).double())):
            expected = torch.bincount(index[:, k], weights=values, minlength=15).double()
            torch.testing.assert_close(getattr(bins, name)[k], expected, rtol=1e-12, atol=1e-12)


def test_summarize_whole_weights_equal_repeated_examples() -> None:
    probs, labels = mixed_gaps(60, 3)
    weights = torch.arange(60) % 3
    repeated = torch.repeat_interleave(torch.arange(60), weights)
    one = summarize(Predictions(probs=probs, labels=labels, weights=weights.double()))
    two = summarize(Predictions(probs=probs[repeated], labels=labels[repeated]))
    for name in ("weight", "confidence", "correct"):
        torch.testing.assert_close(getattr(one.grid, name), getattr(two.grid, name))
    torch.testing.assert_close(one.nll, two.nll)
    torch.testing.assert_close(one.brier, two.brier)
    assert one.weight == two.weight


def test_summarize_infinite_loss_without_weight_counts_nothing() -> None:
    summary = summarize(Predictions(probs=[[1.0, 0.0], [0.5, 0.5]], labels=[1, 0], weights=[0.0, 1.0]))
    assert float(summary.nll[0]) == pytest.approx(math.log(2))


def test_summarize_logits_know_the_top_class_that_probabilities_hide() -> None:
    # Both probabilities round to 0.5, so that the first class would seem to be on top.
    predictions = Predictions(logits=torch.tensor([[0.0, 1e-17]], dtype=torch.float64), labels=[1])
    assert float(summarize(predictions).grid.correct.sum()) == float(predictions.correct.sum()) == 1


def test_summarize_chunks_do_not_change_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = golden()
    predictions = Predictions(logits=logits, labels=labels)
    whole, top = summarize_with_top(predictions, n_bins=15)
    monkeypatch.setattr("calibrant.core.summary._CHUNK_ENTRIES", 35)
    chunked, other = summarize_with_top(predictions, n_bins=15)
    for one, two in zip(fields(whole), fields(chunked), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
    for found in (other, top_labels(predictions)):
        assert torch.equal(top.confidence, found.confidence)
        assert torch.equal(top.correct, found.correct)
        assert (found.weights, found.dtype) == (None, top.dtype)


def test_score_rows_golden_input_gives_golden_scores() -> None:
    logits, labels = golden()
    rows = score_rows(Predictions(logits=logits, labels=labels))
    # Golden values were printed from float32.
    assert float(rows.nll.mean()) == pytest.approx(1.209579, rel=1e-6)
    assert float(rows.brier.mean()) == pytest.approx(0.601093, rel=1e-6)
