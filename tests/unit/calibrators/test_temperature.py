"""Temperature scaling against closed forms, grids and its own guard rails."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant import Predictions
from calibrant.calibrators import (
    AttendedTemperatureScaling,
    AutoCalibrator,
    BoundWarning,
    CalibrationWarning,
    Calibrator,
    EnsembleTemperatureScaling,
    MonteCarloTemperatureScaling,
    TemperatureScaling,
)
from calibrant.calibrators.fit_data import FitData, check_fit_input
from calibrant.calibrators.temperature import find_temperature, nll_slope, temperature_log_probs
from calibrant.data.synthetic import synthetic_predictions
from calibrant.metrics import expected_calibration_error
from helpers import golden

Z = synthetic_predictions(2000, 5, temperature=2.4, split="val")[0]


def nll(logits: Tensor, labels: Tensor, temperature: float) -> float:
    return float(torch.nn.functional.cross_entropy(logits.double() / temperature, labels))


def test_temperature_two_classes_has_the_closed_form() -> None:
    # Logit 2 with three of four right: softmax(2 / T) = 3/4, so T = 2 / ln 3.
    logits = torch.tensor([[2.0, 0.0]]).repeat(200, 1)
    labels = torch.tensor([0] * 150 + [1] * 50)
    assert TemperatureScaling().fit(logits, labels).temperature_ == pytest.approx(2 / math.log(3), rel=1e-9)


def test_temperature_weights_act_as_repeated_examples() -> None:
    logits = torch.tensor([[2.0, 0.0]]).repeat(60, 1)
    labels = torch.tensor([0] * 30 + [1] * 30)
    weights = torch.tensor([3.0] * 30 + [1.0] * 30)
    assert TemperatureScaling().fit(logits, labels, weights=weights).temperature_ == pytest.approx(2 / math.log(3), rel=1e-9)


def test_temperature_on_golden_input_is_the_minimum_of_a_fine_grid() -> None:
    logits, labels = golden()
    with pytest.warns(CalibrationWarning, match="24 examples are few"):
        found = TemperatureScaling().fit(logits, labels).temperature_
    grid = np.arange(0.5, 6, 1e-4)
    best = grid[np.argmin([nll(logits, labels, t) for t in grid[::50]]) * 50]
    near = np.arange(best - 0.01, best + 0.01, 1e-5)
    assert found == pytest.approx(near[np.argmin([nll(logits, labels, t) for t in near])], abs=1e-4)


def test_temperature_scaled_logits_scale_it() -> None:
    one = TemperatureScaling().fit(Z).temperature_
    other = TemperatureScaling().fit(Z.replace(logits=Z.logits.double() * 7.5)).temperature_
    assert other == pytest.approx(7.5 * one, rel=1e-7)


def test_temperature_shifted_rows_leave_it() -> None:
    shift = torch.linspace(-1e3, 1e3, len(Z), dtype=torch.float64).unsqueeze(1)
    shifted = TemperatureScaling().fit(Z.logits.double() + shift, Z.labels).temperature_
    assert shifted == pytest.approx(TemperatureScaling().fit(Z).temperature_, rel=1e-6)


def test_temperature_subsample_start_does_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TemperatureScaling().fit(Z).temperature_
    monkeypatch.setattr("calibrant.calibrators.temperature._FIRST_ENTRIES", 500)
    assert TemperatureScaling().fit(Z).temperature_ == pytest.approx(whole, rel=1e-8)


def test_nll_slope_is_the_derivative_by_the_inverse_temperature() -> None:
    logits, labels = golden()
    data = check_fit_input(logits, labels, torch.arange(24) + 1.0, where="test")
    beta = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    loss = (torch.nn.functional.cross_entropy(beta * logits, labels, reduction="none") * data.weights).sum()
    (first,) = torch.autograd.grad(loss, beta, create_graph=True)
    (second,) = torch.autograd.grad(first, beta)
    slope = nll_slope(data, 0.7)
    assert (slope.first, slope.second) == pytest.approx((first.item(), second.item()), rel=1e-10)
    assert not slope.all_on_top


def test_temperature_all_right_ends_at_lower_bound_and_warns() -> None:
    logits = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    with pytest.warns(CalibrationWarning, match=r"bound 0\.05.*every prediction of the fit data is right"):
        found = TemperatureScaling(bounds=(0.05, 20)).fit(logits, logits.argmax(1))
    assert found.temperature_ == 0.05


def test_temperature_all_wrong_ends_at_upper_bound_and_warns() -> None:
    logits = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    with pytest.warns(CalibrationWarning, match="bound 20.*less about the labels than guessing"):
        found = TemperatureScaling(bounds=(0.05, 20)).fit(logits, logits.argmin(1))
    assert found.temperature_ == pytest.approx(20)


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


def test_temperature_probability_zero_is_kept_and_fits() -> None:
    logits = Z.logits.double().clone()
    logits[torch.arange(len(Z)), (Z.labels + 1) % 5] = -math.inf
    found = TemperatureScaling().fit(logits, Z.labels)
    assert 0.1 < found.temperature_ < 10
    assert (found.predict_proba(logits.flip(0) + 1e-3)[:, :] >= 0).all()
    assert int((found.predict_proba(logits + 1e-3) == 0).sum()) == len(Z)


@pytest.mark.parametrize("kind", [TemperatureScaling, AttendedTemperatureScaling, MonteCarloTemperatureScaling])
def test_temperature_examples_whose_label_has_probability_zero_say_nothing(
    kind: type[TemperatureScaling | AttendedTemperatureScaling | MonteCarloTemperatureScaling],
) -> None:
    given, _ = synthetic_predictions(1000, 10, temperature=2.0, hardness=0.5, split="val")
    weights = torch.arange(1000) % 3 + 1.0
    logits = given.logits.double().clone()
    logits[:50].scatter_(1, given.labels[:50].unsqueeze(1), -math.inf)
    # Zero probability of another class is kept, and counts as zero at any temperature.
    logits[50:100, :].scatter_(1, (given.labels[50:100].unsqueeze(1) + 1) % 10, -math.inf)
    with pytest.warns(CalibrationWarning, match=rf"^{kind.__name__}.fit: 50 of 1000 examples have a label of probability zero"):
        found = kind().fit(logits, given.labels, weights=weights)
    alone = logits[50:].clone()
    alone[alone == -math.inf] = -1e9
    expected = kind().fit(alone, given.labels[50:], weights=weights[50:]).temperature_
    assert found.temperature_ == pytest.approx(expected, rel=1e-6)
    assert 1.5 < found.temperature_ < 3
    assert (found.predict_proba(logits + 1e-3) == 0).sum() == 100


def test_temperature_of_samples_leaves_out_labels_without_a_chance_in_every_sample() -> None:
    given, _ = synthetic_predictions(1000, 10, temperature=2.0, hardness=0.5, split="val")
    samples = torch.stack([given.logits, given.logits.roll(1, 0) * 0.1 + given.logits]).double()
    samples[0, :100].scatter_(1, given.labels[:100].unsqueeze(1), -math.inf)
    samples[1, :50].scatter_(1, given.labels[:50].unsqueeze(1), -math.inf)
    with pytest.warns(CalibrationWarning, match="50 of 1000 examples have a label of probability zero"):
        found = MonteCarloTemperatureScaling().fit(samples, given.labels)
    assert found.temperature_ == MonteCarloTemperatureScaling().fit(samples[:, 50:], given.labels[50:]).temperature_


def test_auto_by_brier_score_takes_a_temperature_although_a_label_has_probability_zero() -> None:
    logits = Z.logits.clone()
    logits[0, Z.labels[0]] = -math.inf
    with pytest.warns(CalibrationWarning, match="1 of 2000 examples have a label of probability zero"):
        auto = AutoCalibrator(methods=("temperature",), scoring="brier").fit(logits, Z.labels)
    assert auto.best_name_ == "temperature"


def test_temperature_of_labels_that_all_have_probability_zero_warns_of_its_bound() -> None:
    logits = torch.tensor([[0.0, -math.inf, 1.0]]).repeat(60, 1)
    with pytest.warns(BoundWarning, match="the temperature ended at its bound"):
        assert TemperatureScaling().fit(logits, torch.ones(60, dtype=torch.long)).temperature_ > 1e4


def test_temperature_at_its_bound_says_what_is_so() -> None:
    flat, labels = torch.zeros(60, 3), torch.arange(60) % 3
    with pytest.warns(CalibrationWarning, match=r"bound 0\.001: every example has the same logit for all classes"):
        TemperatureScaling().fit(flat, labels)
    right = 3 * torch.nn.functional.one_hot(labels, 3).float()
    with pytest.warns(CalibrationWarning, match=r"bound 0\.001: every prediction of the fit data is right"):
        TemperatureScaling().fit(right, labels)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        AttendedTemperatureScaling().fit(right[:1] + torch.tensor([0.0, 1.0, 0.5]), labels[:1])
    assert any("bound 100000: the best one lies beyond it" in str(entry.message) for entry in caught)


def test_ensemble_of_labels_with_probability_zero_keeps_the_temperature_of_the_others() -> None:
    given, _ = synthetic_predictions(2000, 10, temperature=2.0, hardness=0.5, split="val")
    logits = given.logits.double().clone()
    logits[:20].scatter_(1, given.labels[:20].unsqueeze(1), -math.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = EnsembleTemperatureScaling().fit(logits, given.labels)
    assert found.temperature_ == pytest.approx(TemperatureScaling().fit(logits[20:], given.labels[20:]).temperature_, rel=1e-7)
    assert float(found.mixture_[2]) > 0
    assert torch.isfinite(found.log_probs(logits)).all()


def test_temperature_ece_grid_is_the_least_ece() -> None:
    eces = [float(expected_calibration_error((Z.logits.double() * 10 / k).softmax(1), Z.labels)) for k in range(1, 101)]
    assert TemperatureScaling(objective="ece").fit(Z).temperature_ == (1 + int(np.argmin(eces))) / 10


def test_temperature_ece_grid_end_warns() -> None:
    with pytest.warns(CalibrationWarning, match="bound 10"):
        TemperatureScaling(objective="ece").fit(Z.replace(logits=Z.logits * 20))


def test_temperature_log_probs_of_one_are_the_log_softmax() -> None:
    logits, _ = golden()
    torch.testing.assert_close(temperature_log_probs(logits, 1.0), logits.log_softmax(1))


def test_find_temperature_never_leaves_its_bounds() -> None:
    data = FitData(Z.logits, Z.labels, torch.ones(len(Z), dtype=torch.float64))
    assert find_temperature(data, bounds=(0.5, 1.5)) == (pytest.approx(1.5), True)
    assert find_temperature(data, bounds=(4.0, 9.0)) == (pytest.approx(4.0), True)


def test_predict_proba_gives_back_what_it_was_given() -> None:
    found = TemperatureScaling().fit(Z)
    fresh = Z.logits + 0.5 * torch.arange(5)
    array, tensor, single = found.predict_proba(fresh.numpy()), found.predict_proba(fresh), found.predict_proba(fresh.half())
    assert isinstance(array, np.ndarray)
    assert isinstance(tensor, Tensor)
    assert array.dtype == np.float32
    assert (tensor.dtype, single.dtype) == (torch.float32, torch.float32)
    assert isinstance(found.predict_proba([[1.0, 2.0, 0.0, 0.0, 0.0]]), np.ndarray)
    expected = (fresh.double() / found.temperature_).softmax(1).float()
    torch.testing.assert_close(tensor, expected)
    torch.testing.assert_close(torch.from_numpy(array), expected)
    torch.testing.assert_close(found.predict_log_proba(fresh).exp(), expected)


def test_predict_proba_dense_keeps_the_shape() -> None:
    dense = Z.logits.reshape(500, 4, 5).movedim(-1, 1)
    labels = Z.labels.reshape(500, 4)
    found = TemperatureScaling().fit(dense, labels)
    assert found.temperature_ == pytest.approx(TemperatureScaling().fit(Z).temperature_, rel=1e-9)
    probs = found.predict_proba(dense + 1e-3)
    assert probs.shape == dense.shape
    torch.testing.assert_close(probs.sum(1), torch.ones(500, 4))


def test_apply_keeps_everything_but_the_scores() -> None:
    found = TemperatureScaling().fit(Z)
    test = Predictions(logits=Z.logits * 1.01, labels=Z.labels, split="test", class_names=list("abcde"))
    repaired = found.apply(test)
    assert repaired.split is not None
    assert repaired.split.value == "test"
    assert repaired.class_names == tuple("abcde")
    torch.testing.assert_close(repaired.probs, (test.logits.double() / found.temperature_).softmax(1))


def test_predict_proba_on_fit_data_warns() -> None:
    found = TemperatureScaling().fit(Z)
    with pytest.warns(CalibrationWarning, match="100 % of these examples were used to fit"):
        found.predict_proba(Z.logits.double())
    with pytest.warns(CalibrationWarning, match="50 % of these examples"):
        found.predict_proba(torch.cat([Z.logits, Z.logits + 1]))


def test_predict_proba_of_repeated_scores_does_not_warn() -> None:
    logits = torch.randint(3, (200, 2), generator=torch.Generator().manual_seed(0)).float()
    labels = torch.randint(2, (200,), generator=torch.Generator().manual_seed(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = TemperatureScaling().fit(logits, labels)
        assert found.predict_proba(logits).shape == (200, 2)


def test_fit_refuses_test_data() -> None:
    with pytest.raises(ValueError, match="must not be marked as test data"):
        TemperatureScaling().fit(Z.replace(split="test"))


def test_unfitted_calibrator_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"TemperatureScaling\.predict_proba: the calibrator must be fitted"):
        TemperatureScaling().predict_proba(Z.logits)
    with pytest.raises(RuntimeError, match="must be fitted"):
        TemperatureScaling().wrap(torch.nn.Identity())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "mse"}, "`objective` must be 'nll' or 'ece', got 'mse'"),
        ({"bounds": (2.0, 1.0)}, "`bounds` must be two numbers in order"),
        ({"bounds": (0.0, 1.0)}, "`bounds` must be a finite number > 0"),
        ({"n_bins": 0}, "`n_bins` must be a whole number >= 1"),
    ],
)
def test_constructor_wrong_argument_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TemperatureScaling(**arguments)  # type: ignore[arg-type]


def test_fit_and_predict_wrong_input_is_named() -> None:
    found = TemperatureScaling().fit(Z)
    with pytest.raises(ValueError, match="`labels` must be given with logits"):
        TemperatureScaling().fit(Z.logits)
    with pytest.raises(ValueError, match="`labels` must not be given with a `Predictions`"):
        TemperatureScaling().fit(Z, Z.labels)
    with pytest.raises(ValueError, match="C = 5 classes of the fit"):
        found.predict_proba(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"must be floating \[N, C\]"):
        found.predict_proba(torch.zeros(2, 5, dtype=torch.long))
    with pytest.raises(ValueError, match=r"must not hold NaN or \+inf"):
        found.predict_proba(torch.full((2, 5), math.nan))
    with pytest.raises(ValueError, match=r"`weights` must be \[2000\]"):
        TemperatureScaling().fit(Z, weights=[1.0])


def test_save_and_load_round_trip(tmp_path: Path) -> None:
    found = TemperatureScaling(bounds=(0.1, 30.0)).fit(Z)
    found.save(tmp_path / "t.json")
    back = Calibrator.load(tmp_path / "t.json")
    assert isinstance(back, TemperatureScaling)
    assert back.temperature_ == found.temperature_
    assert back.get_params() == found.get_params() == {"objective": "nll", "bounds": (0.1, 30.0), "n_bins": 15}
    assert repr(back) == "TemperatureScaling(objective='nll', bounds=(0.1, 30.0), n_bins=15)"


def test_load_of_another_file_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match="must be a JSON file of a calibrator, got format None"):
        Calibrator.load(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("no")
    with pytest.raises(ValueError, match="got something else"):
        Calibrator.load(tmp_path / "b.json")
    with pytest.raises(FileNotFoundError, match="must be a file of a calibrator"):
        Calibrator.load(tmp_path / "c.json")
    (tmp_path / "d.json").write_text('{"format": "calibrant calibrator", "version": 9}')
    with pytest.raises(ValueError, match="must have version 1, got 9"):
        Calibrator.load(tmp_path / "d.json")
    (tmp_path / "e.json").write_text('{"format": "calibrant calibrator", "version": 1, "calibrator": "temperature"}')
    with pytest.raises(ValueError, match="must describe a calibrator"):
        Calibrator.load(tmp_path / "e.json")


def test_wrap_gives_calibrated_log_probabilities_and_survives_export() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 5)
    found = TemperatureScaling().fit(Z)
    wrapped = found.wrap(model).eval()
    assert "calibration.temperature" in wrapped.state_dict()
    inputs = torch.randn(7, 6)
    expected = (model(inputs) / found.temperature_).log_softmax(1)
    torch.testing.assert_close(wrapped(inputs), expected)
    program = torch.export.export(wrapped, (inputs,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(program.module()(torch.cat([inputs, inputs])), torch.cat([expected, expected]))


def test_wrap_of_a_dense_model_calibrates_the_class_axis() -> None:
    layer = TemperatureScaling().fit(Z).as_layer()
    dense = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer(dense).exp().sum(1), torch.ones(2, 3, 4))
