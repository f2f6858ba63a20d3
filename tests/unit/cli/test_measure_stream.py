"""Files too large to keep: the rows that are kept, and what is checked before reading."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calibrant import Predictions
from calibrant.cli.measure import Request, RowSample, measure_file, measure_stream
from calibrant.io import survey_predictions


def numbered(n: int) -> Predictions:
    """Row i has logit i, so that rows can be told apart."""
    logits = torch.stack([torch.arange(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)], 1)
    return Predictions(logits=logits, labels=torch.arange(n) % 2, weights=torch.arange(n) + 1.0)


def sampled(whole: Predictions, piece: int, *, size: int, seed: int = 0) -> Predictions:
    sample = RowSample(size=size, seed=seed)
    for start in range(0, len(whole), piece):
        sample.add(whole.subset(torch.arange(start, min(start + piece, len(whole)))))
    return sample.predictions()


@pytest.mark.parametrize("piece", [1, 7, 100, 1000])
def test_sample_is_the_same_in_whatever_pieces_rows_come(piece: int) -> None:
    whole = numbered(1000)
    first, second = sampled(whole, 1000, size=50), sampled(whole, piece, size=50)
    assert len(second) == 50
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(second.logits[:, 0].sort().values, second.logits[:, 0])
    assert torch.equal(second.logits[:, 0].long() % 2, second.labels)
    assert second.weights is not None
    assert torch.equal(second.logits[:, 0] + 1, second.weights)


def test_sample_of_few_rows_keeps_them_all() -> None:
    assert torch.equal(sampled(numbered(30), 7, size=50).logits, numbered(30).logits)


def test_sample_is_spread_evenly_and_depends_on_the_seed() -> None:
    whole = numbered(10_000)
    rows = sampled(whole, 999, size=1000).logits[:, 0]
    # Mean of 1,000 of 10,000 rows without replacement: standard error 10,000 / sqrt(12 * 1000) * sqrt(0.9) = 87.
    assert abs(float(rows.mean()) - 5000) < 350
    assert not torch.equal(rows, sampled(whole, 999, size=1000, seed=1).logits[:, 0])


def test_class_names_are_checked_before_a_stream_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1]).save(path)
    with pytest.raises(ValueError, match=r"x.parquet: `class_names` must hold C = 2 names"):
        measure_file(path, Request(class_names=["a"]))
    survey = survey_predictions(path)
    assert survey is not None
    monkeypatch.setattr("calibrant.cli.measure.iter_prediction_batches", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(ValueError, match=r"x.parquet: `class_names` must hold C = 2 names"):
        measure_stream(path, survey, Request(class_names=["a"]))
