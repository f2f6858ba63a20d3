from __future__ import annotations

from pathlib import Path

import pytest

from calibrant.cli.reading import measure_file
from calibrant.cli.request import Request, check_names
from calibrant.cli.streaming import measure_stream
from calibrant.core.records import Predictions
from calibrant.io import survey_predictions


def test_check_names_needs_one_for_every_class_or_none() -> None:
    check_names(Path("x.npz"), None, 3)
    check_names(Path("x.npz"), ["a", "b", "c"], 3)
    with pytest.raises(ValueError, match="x.npz: `class_names` must hold C = 3 names, got 1. Name every class once"):
        check_names(Path("x.npz"), ["a"], 3)


def test_wrong_class_names_are_named_with_the_file_also_before_a_stream_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.parquet"
    Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1]).save(path)
    said = "x.parquet: `class_names` must hold C = 2 names, got 1"
    with pytest.raises(ValueError, match=said):
        measure_file(path, Request(class_names=["a"]))
    survey = survey_predictions(path)
    assert survey is not None
    monkeypatch.setattr("calibrant.cli.streaming.iter_prediction_batches", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(ValueError, match=said):
        measure_stream(path, survey, Request(class_names=["a"]))
