from __future__ import annotations

import math

import pytest
import torch

from calibrant import Predictions
from calibrant.core.binning import Summary, summarize
from helpers import golden, mixed_gaps


def fields(summary: Summary) -> list[torch.Tensor]:
    assert summary.class_counts is not None
    totals = torch.cat([torch.tensor([summary.n]), summary.weights, summary.nll, summary.brier])
    return [totals, summary.cells, summary.by_class, summary.class_counts]


def test_summarize_two_examples_gives_hand_computed_sums() -> None:
    summary = summarize(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0]), n_bins=5)
    assert (summary.n, summary.num_classes, summary.n_bins) == (2, 2, 5)
    assert (summary.weight, summary.effective_n) == (2.0, 2.0)
    # -log 0.9 and -log 0.2; (0.1² + 0.1²) and (0.8² + 0.8²).
    losses, scores = (-math.log(0.9), -math.log(0.2)), (0.02, 1.28)
    for power in (1, 2, 3):
        assert float(summary.nll[power - 1]) == pytest.approx(sum(v**power for v in losses))
        assert float(summary.brier[power - 1]) == pytest.approx(sum(v**power for v in scores))
    assert summary.by_class[0].tolist() == [[1, 0, 0, 0, 1], [1, 0, 0, 1, 0]]
    assert summary.by_class[2].tolist() == [[1, 0, 0, 0, 1], [0, 0, 0, 0, 0]]
    assert summary.by_class[2].sum(1).tolist() == [2, 0]
    assert summary.class_counts is not None
    assert summary.class_counts.tolist() == [[1, 0], [2, 0]]


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


def test_summarize_whole_weights_equal_repeated_examples() -> None:
    probs, labels = mixed_gaps(60, 3)
    weights = torch.arange(60) % 3
    repeated = torch.repeat_interleave(torch.arange(60), weights)
    one = summarize(Predictions(probs=probs, labels=labels, weights=weights.double()))
    two = summarize(Predictions(probs=probs[repeated], labels=labels[repeated]))
    torch.testing.assert_close(one.cells[:3], two.cells[:3])
    torch.testing.assert_close(one.nll, two.nll)
    torch.testing.assert_close(one.brier, two.brier)
    assert one.weight == two.weight
    assert float(one.cells[4].sum()) == one.n == 40


@pytest.mark.parametrize("n_bins", [15, 7])
def test_summaries_with_and_without_weights_count_examples_beside_weights(n_bins: int) -> None:
    probs, labels = mixed_gaps(60, 3)
    weights = torch.cat([torch.full((30,), 2.0), torch.ones(30)]).double()
    parts = [
        summarize(Predictions(probs=probs[:30], labels=labels[:30], weights=weights[:30]), n_bins=n_bins),
        summarize(Predictions(probs=probs[30:], labels=labels[30:]), n_bins=n_bins),
    ]
    whole = summarize(Predictions(probs=probs, labels=labels, weights=weights), n_bins=n_bins)
    for joined in (parts[0] + parts[1], parts[1] + parts[0]):
        assert joined.bins.rows is not None
        assert whole.bins.rows is not None
        assert torch.equal(joined.bins.rows, whole.bins.rows)
        assert torch.equal(joined.bins.count, whole.bins.count)


def test_summary_without_its_examples_reads_them_from_cells() -> None:
    probs, labels = mixed_gaps(400, 4)
    predictions = Predictions(probs=probs, labels=labels)
    exact, nearly = summarize(predictions, keep=None), summarize(predictions, keep=0)
    assert exact.top is not None
    assert nearly.top is None
    assert torch.equal(exact.bins.count, nearly.bins.count)
    assert nearly.examples.size == exact.examples.size == 400
    assert float(nearly.examples.mass @ nearly.examples.confidence) == pytest.approx(float(exact.examples.confidence.sum()))


def test_summarize_chunks_do_not_change_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = golden()
    predictions = Predictions(logits=logits, labels=labels)
    whole = summarize(predictions)
    monkeypatch.setattr("calibrant.core.binning.CHUNK_ENTRIES", 35)
    chunked = summarize(predictions)
    for one, two in zip(fields(whole), fields(chunked), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
    assert torch.equal(whole.examples.confidence, chunked.examples.confidence)
    assert torch.equal(whole.examples.correct, chunked.examples.correct)
