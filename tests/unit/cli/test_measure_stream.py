"""Files too large to keep, or many: the rows that are kept of them for the paired test, and how they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.cli import measure
from calibrant.cli.measure import Request, measure_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Ten thousand rows, of which row i has logit i, so that they can be told apart."""
    rows = torch.arange(10_000, dtype=torch.float64)
    logits = torch.stack([rows, torch.zeros_like(rows)], 1)
    Predictions(logits=logits, labels=rows.long() % 2, weights=rows + 1).save(tmp_path / "x.parquet")
    return tmp_path / "x.parquet"


def sampled(file: Path, monkeypatch: pytest.MonkeyPatch, *, piece: int = 10_000, seed: int = 0) -> Predictions:
    monkeypatch.setattr(measure, "STREAM_ROWS", 100)
    monkeypatch.setattr(measure, "_BATCH_ENTRIES", 2 * piece)
    found = measure_file(file, Request(resamples=100, seed=seed), share=0.1)
    assert found.picked is not None
    return found.picked


def test_sample_is_spread_evenly_and_the_same_whole_or_in_pieces_and_depends_on_the_seed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measure_file(file, Request(resamples=100), share=0.1).picked
    first, second, other = (
        sampled(file, monkeypatch, piece=piece, seed=seed) for piece, seed in ((10_000, 0), (999, 0), (999, 1))
    )
    assert whole is not None
    assert torch.equal(first.logits, whole.logits)
    assert torch.equal(first.logits, second.logits)
    rows = first.logits[:, 0]
    assert torch.equal(rows.long() % 2, first.labels)
    assert first.weights is not None
    assert torch.equal(rows + 1, first.weights)
    # 1,000 of 10,000 rows: standard error of their number 30, of their mean 10,000 / sqrt(12 * 1000) = 91.
    assert abs(len(rows) - 1000) < 120
    assert abs(float(rows.mean()) - 5000) < 350
    assert not torch.equal(rows, other.logits[:, 0])


def test_wrong_class_names_stop_a_stream_at_its_first_rows(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = file.parent / "names.txt"
    names.write_text("a\n")
    monkeypatch.setattr(measure, "STREAM_ROWS", 100)
    with pytest.raises(ValueError, match=r"x.parquet: `class_names` must hold C = 2 names"):
        measure_file(file, Request(class_names=names))


def test_groups_of_many_files_whose_labels_are_names_or_ignored(tmp_path: Path) -> None:
    folder, names = tmp_path / "parts", tmp_path / "names.txt"
    folder.mkdir()
    names.write_text("cat\ndog\n")
    for number in range(2):
        columns = {
            "probs": np.eye(2)[[0, 1, 0]],
            "labels": np.array(["cat", "dog", "-1"]),
            "light": np.array(["day", "night", "day"]),
        }
        np.savez(folder / f"{number}.npz", **columns)
    scores = measure_file(folder, Request(slice_by=["light"], class_names=names, ignore_index=-1, resamples=100)).scores
    assert {name: part.n for name, part in scores.slices.items()} == {"day": 2, "night": 2}
