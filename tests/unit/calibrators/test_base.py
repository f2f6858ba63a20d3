"""What every calibrator inherits: memory of its application, and files that hold what it found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant import Predictions
from calibrant.calibrators import IsotonicCalibration, MonteCarloTemperatureScaling, TemperatureScaling, fit_data
from calibrant.data.synthetic import synthetic_predictions


class Wide(TorchDispatchMode):
    """Counts the float64 tensors of at least ``size`` entries that are made."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for value in found if isinstance(found, (list, tuple)) else [found]:
            if isinstance(value, Tensor) and value.dtype == torch.float64 and value.numel() >= self.size:
                self.made.add(value.untyped_storage().data_ptr())
        return found


@pytest.mark.parametrize("kind", [TemperatureScaling, IsotonicCalibration])
def test_log_probs_widens_some_rows_at_a_time(
    kind: type[TemperatureScaling | IsotonicCalibration], monkeypatch: pytest.MonkeyPatch
) -> None:
    predictions, _ = synthetic_predictions(600, 5, temperature=2.0, split="val")
    found, logits = kind().fit(predictions), predictions.logits.float()
    whole = found.log_probs(logits)
    monkeypatch.setattr(fit_data, "CHUNK_ENTRIES", 70 * 5)
    with Wide(logits.numel()) as wide:
        parts = found.log_probs(logits)
    assert len(wide.made) == 1  # The result alone.
    assert torch.equal(parts, whole)
    assert found.log_probs(logits[:0]).shape == (0, 5)


def test_probabilities_in_the_place_of_logits_are_refused() -> None:
    val, _ = synthetic_predictions(300, 4, temperature=2.0, split="val")
    test, _ = synthetic_predictions(300, 4, temperature=2.0, seed=1)
    message = r"`logits` must be scores before softmax, .* pass `Predictions\(probs=...\)`, or their logarithm"
    for kind in (TemperatureScaling, MonteCarloTemperatureScaling):
        with pytest.raises(ValueError, match=rf"^{kind.__name__}.fit: {message}"):
            kind().fit(val.probs, val.labels)
        fitted = kind().fit(val)
        with pytest.raises(ValueError, match=rf"^{kind.__name__}.predict_proba: {message}"):
            fitted.predict_proba(test.probs)
    dense = test.probs.reshape(1, 300, 4).movedim(-1, 1)
    with pytest.raises(ValueError, match=rf"predict_log_proba: {message}"):
        TemperatureScaling().fit(val).predict_log_proba(dense)


def test_fit_on_probabilities_is_the_fit_on_their_logits() -> None:
    val, _ = synthetic_predictions(300, 4, temperature=2.0, split="val")
    of_probs = TemperatureScaling().fit(Predictions(probs=val.probs, labels=val.labels))
    assert of_probs.temperature_ == pytest.approx(TemperatureScaling().fit(val).temperature_, rel=1e-6)
    test, _ = synthetic_predictions(300, 4, temperature=2.0, seed=1)
    torch.testing.assert_close(of_probs.predict_proba(test.probs.log()), of_probs.predict_proba(test.logits.double()))
