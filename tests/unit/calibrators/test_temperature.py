"""Temperature scaling against closed forms, grids and its own guard rails."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant.calibrators import (
    CALIBRATORS,
    AttendedTemperatureScaling,
    BoundWarning,
    CalibrationWarning,
    Calibrator,
    MonteCarloTemperatureScaling,
    TemperatureScaling,
)
from calibrant.calibrators.base import FitData
from calibrant.calibrators.scaling import (
    attended_nll,
    monte_carlo_log_probs,
)
from calibrant.data.synthetic import synthetic_predictions
from calibrant.metrics import expected_calibration_error
from helpers import golden

Z = synthetic_predictions(2000, 5, temperature=2.4, split="val")[0]


def nll(logits: Tensor, labels: Tensor, temperature: float) -> float:
    return float(torch.nn.functional.cross_entropy(logits.double() / temperature, labels))


def test_temperature_subsample_start_does_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TemperatureScaling().fit(Z).temperature_
    monkeypatch.setattr("calibrant.calibrators.scaling._FIRST_ENTRIES", 500)
    assert TemperatureScaling().fit(Z).temperature_ == pytest.approx(whole, rel=1e-8)


@pytest.mark.parametrize("scale", [1e-2, 2.0, 1e4])
def test_temperature_saturated_or_tiny_logits_converge(scale: float) -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(4, (500,), generator=generator)
    wrong = torch.rand(500, generator=generator) < 0.3
    logits = scale * torch.nn.functional.one_hot(torch.where(wrong, (labels + 1) % 4, labels), 4).double()
    share = 1 - float(wrong.double().mean())
    # One class at `scale`, three at zero: exp(scale / T) / (exp(scale / T) + 3) is the share that is right.
    expected = scale / math.log(3 * share / (1 - share))
    assert TemperatureScaling().fit(logits, labels).temperature_ == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("name", ["temperature", "attended_temperature", "mc_temperature", "ensemble_temperature"])
def test_labels_of_probability_zero_are_raised_to_the_floor_in_fit_and_use(name: str) -> None:
    given, _ = synthetic_predictions(1000, 10, temperature=2.0, hardness=0.5, split="val")
    logits = given.logits.double().clone()
    logits[:20].scatter_(1, given.labels[:20].unsqueeze(1), -math.inf)
    kind = CALIBRATORS[name]
    for floor, used in ((None, 1e-4), (0.01, 0.01)):
        with warnings.catch_warnings(record=True, action="always") as caught:
            found = kind().fit(logits, given.labels, floor=floor)
        assert [w for w in caught if "20 of 1000 examples have a label of probability zero" in str(w.message)] or floor
        raised = logits.log_softmax(1).clamp(min=math.log(used))
        expected = kind().fit(raised, given.labels)
        assert found.temperature_ == expected.temperature_
        torch.testing.assert_close(expected.log_probs(raised), found.predict_log_proba(logits + 1e-3))
        back = Calibrator.from_dict(found.to_dict())
        torch.testing.assert_close(back.wrap(torch.nn.Identity())(logits + 1e-3), found.predict_log_proba(logits + 1e-3))
        assert torch.isfinite(back.predict_log_proba(logits + 1e-3)).all()
    with pytest.raises(ValueError, match="`floor` must"):
        kind().fit(logits, given.labels, floor=0.1)


def test_zeros_that_are_never_the_label_stay_zero() -> None:
    given, _ = synthetic_predictions(1000, 10, temperature=2.0, hardness=0.5, split="val")
    logits = given.logits.double().clone()
    logits.scatter_(1, (given.labels.unsqueeze(1) + 1) % 10, -math.inf)
    for kind in (TemperatureScaling, AttendedTemperatureScaling, MonteCarloTemperatureScaling):
        found = kind().fit(logits, given.labels)
        expected = kind().fit(logits.clamp(min=-1e9), given.labels)
        assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-6)
        assert (found.predict_proba(logits + 1e-3) == 0).sum() == 1000


NOISE = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("logits", "labels", "bound"),
    [
        (NOISE, NOISE.argmax(1), 0.05),  # every prediction is right
        (NOISE, NOISE.argmin(1), 20),  # the logits say less than guessing does
        (torch.zeros(60, 3), torch.arange(60) % 3, 0.05),  # no temperature changes anything
        (20 * Z.logits, Z.labels, 20),  # the best one lies beyond
    ],
)
def test_temperature_that_ends_at_its_bound_warns(logits: Tensor, labels: Tensor, bound: float) -> None:
    with pytest.warns(BoundWarning, match=f"ended at its bound {bound}:"):
        found = TemperatureScaling(bounds=(0.05, 20)).fit(logits, labels)
    assert found.temperature_ == pytest.approx(bound)


def test_temperature_ece_grid_is_the_least_ece() -> None:
    eces = [float(expected_calibration_error((Z.logits.double() * 10 / k).softmax(1), Z.labels)) for k in range(1, 101)]
    assert TemperatureScaling(objective="ece").fit(Z).temperature_ == (1 + int(np.argmin(eces))) / 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "mse"}, "`objective` must be one of"),
        ({"bounds": (2.0, 1.0)}, "`bounds` must be 2 ascending numbers"),
        ({"bounds": (0.0, 1.0)}, "`bounds` must be a finite number > 0"),
        ({"n_bins": 0}, "`n_bins` must be a whole number >= 1"),
    ],
)
def test_constructor_wrong_argument_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TemperatureScaling(**arguments).fit(Z)  # type: ignore[arg-type]


@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_attended_nll_is_the_sum_over_labels_and_attended_classes(temperature: float, threshold: float) -> None:
    logits, labels = golden()
    weights = (torch.arange(24) % 3 + 1.0).double()
    kept = logits.clone()
    expected = 0.0
    for z, label, weight in zip(logits.tolist(), labels.tolist(), weights.tolist(), strict=True):
        p, q = ([math.exp(v / t) / sum(math.exp(w / t) for w in z) for v in z] for t in (1.0, temperature))
        attended = [k for k in range(5) if k != label and (p[k] > threshold or p[k] == max(p))]
        expected -= weight * (math.log(q[label]) + sum(math.log(q[k] ** 2 / (1 - q[k])) for k in attended))
    assert attended_nll(FitData(logits, labels, weights), temperature, threshold=threshold) == pytest.approx(expected, rel=1e-9)
    assert torch.equal(logits, kept)


def test_attended_temperature_varies_less_between_small_fit_sets() -> None:
    found: dict[type[Calibrator], list[float]] = {TemperatureScaling: [], AttendedTemperatureScaling: []}
    for seed in range(12):
        given, _ = synthetic_predictions(100, 10, temperature=2.4, hardness=0.5, seed=seed, split="val")
        for kind, values in found.items():
            values.append(kind().fit(given).temperature_)  # type: ignore[attr-defined]
    assert np.std(found[AttendedTemperatureScaling]) < np.std(found[TemperatureScaling]) / 1.5
    assert np.mean(found[AttendedTemperatureScaling]) == pytest.approx(2.4, rel=0.2)


def test_attended_temperature_of_few_classes_warns() -> None:
    given, _ = synthetic_predictions(2000, 2, temperature=2.0, split="val")
    with pytest.warns(CalibrationWarning, match="fewer than 10 classes"):
        assert AttendedTemperatureScaling().fit(given).temperature_ > 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AttendedTemperatureScaling().fit(synthetic_predictions(500, 10, split="val")[0])


def test_monte_carlo_one_sample_is_temperature_scaling() -> None:
    given, _ = synthetic_predictions(800, 4, temperature=2.0, split="val")
    single = TemperatureScaling().fit(given).temperature_
    assert MonteCarloTemperatureScaling().fit(given).temperature_ == pytest.approx(single, rel=1e-5)
    found = MonteCarloTemperatureScaling().fit(given.logits.unsqueeze(0), given.labels)
    assert found.temperature_ == pytest.approx(single, rel=1e-5)


def test_monte_carlo_samples_are_averaged_after_scaling() -> None:
    generator = torch.Generator().manual_seed(0)
    members = 3 * torch.randn(4, 3000, 3, generator=generator, dtype=torch.float64)
    truth = monte_carlo_log_probs(members, 1.0).exp()
    labels = torch.multinomial(truth, 1, generator=generator).squeeze(1)
    found = MonteCarloTemperatureScaling().fit(2.2 * members, labels)
    assert found.temperature_ == pytest.approx(2.2, rel=0.1)
    probs = found.predict_proba(2.3 * members)
    assert probs.shape == (3000, 3)
    expected = (2.3 * members / found.temperature_).softmax(-1).mean(0)
    torch.testing.assert_close(probs, expected)
    layer = found.as_layer(dtype=torch.float64)
    torch.testing.assert_close(layer(2.3 * members).exp(), expected)


def test_monte_carlo_wrong_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"`logits` must be \[N, C\]"):
        MonteCarloTemperatureScaling().fit(torch.zeros(2, 3, 1), torch.zeros(3, dtype=torch.long))
    given, _ = synthetic_predictions(100, 3, split="val")
    found = MonteCarloTemperatureScaling().fit(given)
    with pytest.raises(ValueError, match=r"`logits` must be \[S, N, C\] or \[N, C\]"):
        found.predict_proba(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match=r"`weights` must be \[100\]"):
        MonteCarloTemperatureScaling().fit(given.logits, given.labels, weights=[1.0])
