"""The pure functions that calibrators are made of, by hand-computed values and limits."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.calibrators import (
    CALIBRATORS,
    AttendedTemperatureScaling,
    BayesianBinning,
    BetaCalibration,
    CalibrationWarning,
    Calibrator,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    HistogramBinning,
    Identity,
    IsotonicCalibration,
    MatrixScaling,
    MonteCarloTemperatureScaling,
    SplineCalibration,
    TemperatureScaling,
    TopLabelBinning,
    VectorScaling,
    name_of,
)
from calibrant.calibrators.affine import AffineProblem
from calibrant.calibrators.attended import attended_nll
from calibrant.calibrators.bbq import make_binnings, sort_question
from calibrant.calibrators.ensemble import ensemble_log_probs, find_mixture
from calibrant.calibrators.fit_data import FitData, marks_to_keep, row_marks
from calibrant.calibrators.histogram import equal_mass_edges
from calibrant.calibrators.log_space import (
    floor_logits,
    join_one_vs_rest,
    log_complements,
    log_mix,
    log_odds,
    replace_confidence,
)
from calibrant.calibrators.matrix import dirichlet_log_probs, matrix_log_probs, odir_penalties
from calibrant.calibrators.monte_carlo import monte_carlo_log_probs
from calibrant.calibrators.one_vs_rest import Question
from calibrant.calibrators.scalar_search import least_in_log
from calibrant.data.synthetic import synthetic_predictions
from helpers import golden


def test_floor_logits_replaces_only_minus_infinity_below_the_rest() -> None:
    floored = floor_logits(torch.tensor([[1.0, -math.inf, 0.0], [0.0, -500.0, -math.inf]]))
    torch.testing.assert_close(floored, torch.tensor([[1.0, -102.2789, 0.0], [0.0, -500.0, -500.0]]))


def test_log_complements_of_a_saturated_class_keep_their_digits() -> None:
    log_probs = torch.tensor([[1000.0, 0.0, 0.0]], dtype=torch.float64).log_softmax(1)
    found = log_complements(log_probs)
    torch.testing.assert_close(found, torch.tensor([[math.log(2) - 1000, 0.0, 0.0]], dtype=torch.float64))
    logits, _ = golden()
    torch.testing.assert_close(log_complements(logits.log_softmax(1)).exp(), 1 - logits.softmax(1))


def test_log_odds_of_two_classes_are_the_logit_difference() -> None:
    logits = torch.tensor([[3.0, 1.0], [-800.0, 900.0]], dtype=torch.float64)
    torch.testing.assert_close(log_odds(logits)[:, 1], torch.tensor([-2.0, 1700.0], dtype=torch.float64))


def test_join_one_vs_rest_row_of_zeros_gets_its_probabilities_back() -> None:
    log_probs = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    torch.testing.assert_close(join_one_vs_rest(torch.zeros(1, 3).double(), log_probs), log_probs)
    joined = join_one_vs_rest(torch.tensor([[0.2, 0.2, 0.4]]).double(), log_probs).exp()
    torch.testing.assert_close(joined, torch.tensor([[0.25, 0.25, 0.5]]).double(), atol=1e-8, rtol=0)


def test_log_mix_is_the_sum_and_has_a_gradient_where_a_value_is_zero() -> None:
    values = torch.tensor([0.3, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    log_probs = torch.tensor([-1.0, -2.0, -1000.0], dtype=torch.float64, requires_grad=True)
    found = log_mix(values, log_probs, part=0.1)
    expected = torch.tensor([math.log(0.3 + 0.1 * math.exp(-1)), math.log(0.1) - 2, math.log(0.1) - 1000], dtype=torch.float64)
    torch.testing.assert_close(found.detach(), expected)
    found.sum().backward()
    share = 0.1 * math.exp(-1) / (0.3 + 0.1 * math.exp(-1))
    torch.testing.assert_close(log_probs.grad, torch.tensor([share, 1.0, 1.0], dtype=torch.float64))
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([1 / (0.3 + 0.1 * math.exp(-1)), 0.0, 0.0])


@pytest.mark.parametrize("name", list(CALIBRATORS))
def test_gradient_through_every_layer_is_finite_also_where_a_table_is_zero(name: str, quiet: None) -> None:
    given, _ = synthetic_predictions(400, 4, temperature=2.0, split="val")
    kind = CALIBRATORS[name]
    found = kind(spreads=(0.1,)) if issubclass(kind, MatrixScaling) else kind()  # type: ignore[call-arg]
    layer = found.fit(given.logits, (given.labels + (given.labels == 0)).clamp(max=2)).as_layer()
    logits = (3 * torch.randn(100, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
    layer(logits).gather(1, logits.argmin(1, keepdim=True)).sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_replace_confidence_scales_the_rest_and_keeps_the_top() -> None:
    log_probs = torch.tensor([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1]], dtype=torch.float64).log()
    found = replace_confidence(log_probs, torch.tensor([0.8, 0.1]).double()).exp()
    # The second is raised to where it ties with the runner-up: 0.75 / 1.75 each.
    expected = torch.tensor([[0.8, 0.15, 0.05], [3 / 7, 3 / 7, 1 / 7]]).double()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert torch.equal(found.argmax(1), torch.tensor([0, 0]))


@pytest.mark.parametrize("diagonal", [True, False])
def test_affine_loss_gradient_agrees_with_differences(diagonal: bool) -> None:
    logits, labels = golden()
    weights = (torch.arange(24) % 3 + 1.0).double()
    problem = AffineProblem(logits, labels, weights / weights.mean(), diagonal=diagonal, ridge=0.7, off_diagonal=0.3, bias=0.2)
    rng = np.random.default_rng(0)
    point = problem.start() + 0.1 * rng.normal(size=len(problem.start()))
    _, slope = problem.loss(point)
    for k in range(len(point)):
        step = np.zeros(len(point))
        step[k] = 1e-6
        assert slope[k] == pytest.approx((problem.loss(point + step)[0] - problem.loss(point - step)[0]) / 2e-6, abs=1e-8)


def test_affine_loss_at_the_identity_is_the_nll() -> None:
    logits, labels = golden()
    problem = AffineProblem(logits, labels, torch.ones(24).double(), diagonal=False, ridge=1.0, off_diagonal=1.0, bias=1.0)
    assert problem.loss(problem.start())[0] == pytest.approx(1.209579, rel=1e-6)


def test_odir_penalties_are_those_of_a_normal_prior() -> None:
    found = odir_penalties(0.1, n=50, num_classes=4)
    # lambda / (C (C - 1)) = 1 / (2 N s^2), and ten times the spread for a bias: mu / C = 1 / (2 N (10 s)^2).
    assert found.off_diagonal / 12 == pytest.approx(1 / (2 * 50 * 0.01))
    assert found.bias / 4 == pytest.approx(1 / (2 * 50 * 1.0))


def test_matrix_and_dirichlet_of_the_identity_are_the_log_softmax() -> None:
    logits, _ = golden()
    for function in (matrix_log_probs, dirichlet_log_probs):
        found = function(logits, torch.eye(5).double(), torch.zeros(5).double())
        torch.testing.assert_close(found, logits.log_softmax(1))


def test_matrix_spread_wide_for_strong_mixing_and_narrow_for_none(quiet: None) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2000, 3, generator=generator, dtype=torch.float64)
    mixing = torch.tensor([[0.6, 1.0, 0.0], [0.0, 0.6, 1.0], [1.0, 0.0, 0.6]]).double()
    mixed = torch.multinomial((logits @ mixing.T).softmax(1), 1, generator=generator).squeeze(1)
    plain = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    assert MatrixScaling().fit(logits, mixed).spread_ >= 0.3
    assert MatrixScaling().fit(logits, plain).spread_ <= 0.03


def test_dirichlet_shifted_rows_change_nothing(quiet: None) -> None:
    logits, labels = golden()
    found = DirichletCalibration(spreads=(0.1,)).fit(logits, labels)
    shift = torch.arange(24, dtype=torch.float64).unsqueeze(1)
    torch.testing.assert_close(found.log_probs(logits + shift), found.log_probs(logits))


def test_ensemble_of_one_part_is_temperature_scaling() -> None:
    logits, _ = golden()
    found = ensemble_log_probs(logits, 2.0, torch.tensor([1.0, 0.0, 0.0]).double())
    torch.testing.assert_close(found, (logits / 2).log_softmax(1))


def test_find_mixture_useless_parts_get_nothing() -> None:
    log_parts = torch.tensor([[-0.1, -3.0, -1.0]] * 10, dtype=torch.float64)
    torch.testing.assert_close(find_mixture(log_parts, torch.ones(10).double()), torch.tensor([1.0, 0.0, 0.0]).double())


def test_ensemble_is_never_worse_than_its_temperature() -> None:
    for seed in range(3):
        given, _ = synthetic_predictions(500, 3, temperature=1.5, seed=seed, split="val")
        logits, labels = given.logits.double(), given.labels
        nlls = [
            float(torch.nn.functional.nll_loss(kind().fit(given).log_probs(logits), labels))
            for kind in (TemperatureScaling, EnsembleTemperatureScaling)
        ]
        assert nlls[1] <= nlls[0] + 1e-12


def test_attended_nll_with_threshold_one_adds_the_top_class_of_wrong_examples_only() -> None:
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    data = FitData(logits, torch.tensor([0, 1]), torch.ones(2).double())
    p = 1 / (1 + math.exp(-1.0))
    expected = -math.log(p) - math.log(1 - p) - math.log(p**2 / (1 - p))
    assert attended_nll(data, 2.0, threshold=1.0) == pytest.approx(expected)


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


def test_attended_nll_of_saturated_logits_and_of_probability_zero_keeps_its_digits() -> None:
    logits = torch.tensor([[900.0, 0.0, 300.0], [2.0, -math.inf, 0.0]], dtype=torch.float64)
    data = FitData(logits, torch.tensor([2, 2]), torch.ones(2).double())
    # At T = 2 the first is sure to within e^-300 of class 0, which is attended; of the second both others are 1 / (1 + e).
    p = 1 / (1 + math.exp(-1.0))
    expected = (300.0 - 300.0) - (math.log(1 - p) + math.log(p**2 / (1 - p)))
    assert attended_nll(data, 2.0, threshold=0.5) == pytest.approx(expected, abs=1e-9)


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
    with pytest.warns(
        CalibrationWarning, match=r"fit: 2 classes are few for this method \(10 or more .*use temperature scaling"
    ):
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
    with pytest.raises(ValueError, match=r"`logits` must be \[S, N, C\] or \[N, C\], got \[3\]"):
        MonteCarloTemperatureScaling().fit(torch.zeros(3), torch.zeros(3, dtype=torch.long))
    given, _ = synthetic_predictions(100, 3, split="val")
    found = MonteCarloTemperatureScaling().fit(given)
    with pytest.raises(ValueError, match=r"\[S, N, C\] or \[N, C\], got \[1, 2, 3, 3\]"):
        found.predict_proba(torch.zeros(1, 2, 3, 3))
    with pytest.raises(ValueError, match=r"`weights` must be \[100\]"):
        MonteCarloTemperatureScaling().fit(given.logits, given.labels, weights=[1.0])


def test_equal_mass_edges_weights_move_the_cut() -> None:
    probs = np.array([0.1, 0.2, 0.3, 0.4])
    assert equal_mass_edges(probs, np.ones(4), 2).round(4).tolist() == [0.2]
    assert equal_mass_edges(probs, np.array([3.0, 1.0, 1.0, 1.0]), 2).round(4).tolist() == [0.1]
    assert equal_mass_edges(np.full(4, 0.3), np.ones(4), 3).tolist() == []


def test_bbq_one_bin_has_the_beta_binomial_evidence() -> None:
    question = Question(np.array([0.2, 0.4, 0.6]), np.array([0.0, 1.0, 1.0]), np.ones(3))
    (binning,) = make_binnings(sort_question(question), range(1, 2))
    # The middle is 1/2, so the prior is uniform: B(3, 2) / B(1, 1) = 2! 1! / 4! = 1/12.
    assert math.exp(binning.log_evidence) == pytest.approx(1 / 12)
    assert binning.values.tolist() == pytest.approx([(2 + (1.0 + 0.5) / 3) / 4])


def test_bbq_ties_are_never_split() -> None:
    question = Question(np.array([0.5] * 6 + [0.9] * 2), np.array([1.0, 0.0] * 4), np.ones(8))
    for binning in make_binnings(sort_question(question), range(1, 6)):
        assert set(binning.edges.round(4)) <= {0.5, 1.0}


def test_isotonic_is_monotone_in_the_probability(quiet: None) -> None:
    given, _ = synthetic_predictions(500, 2, temperature=2.0, split="val")
    found = IsotonicCalibration().fit(given)
    odds = torch.linspace(-8, 8, 200, dtype=torch.float64)
    probs = found.predict_proba(torch.stack([torch.zeros_like(odds), odds], 1))[:, 1]
    assert bool((probs.diff() >= -1e-12).all())


def test_beta_decreasing_curve_is_cut_to_a_flat_one(quiet: None) -> None:
    given, _ = synthetic_predictions(1000, 2, temperature=1.0, split="val")
    found = BetaCalibration().fit(given.logits, 1 - given.labels)
    assert bool((found.weight_ >= 0).all())
    probs = found.predict_proba(given.logits[:50] + 1e-3)[:, 1]
    assert float(probs.max() - probs.min()) < 0.05


def test_least_in_log_second_valley_is_found() -> None:
    def two_valleys(x: float) -> float:
        return min((math.log(x) + 5) ** 2, (math.log(x) - 4) ** 2 - 1)

    found, at_bound = least_in_log(two_valleys, bounds=(1e-3, 1e3))
    assert found == pytest.approx(math.exp(4), rel=1e-6)
    assert not at_bound
    assert least_in_log(lambda x: x, bounds=(0.5, 2.0)) == (0.5, True)


def test_row_marks_tell_rows_apart_and_ignore_precision() -> None:
    logits = torch.randn(1000, 40, generator=torch.Generator().manual_seed(0))
    marks = row_marks(logits)
    assert len(marks.unique()) == 1000
    assert torch.equal(marks, row_marks(logits.double()))
    assert torch.equal(row_marks(torch.tensor([[0.0, 1.0]])), row_marks(torch.tensor([[-0.0, 1.0]])))
    assert marks_to_keep(torch.zeros(10, 2)) is None


def test_fit_without_a_class_warns_where_classes_are_apart() -> None:
    given, _ = synthetic_predictions(3000, 4, split="val")
    kept = (given.labels != 2).nonzero().flatten()
    with pytest.warns(CalibrationWarning, match=r"VectorScaling\.fit: 1 of 4 classes has no example in the fit data \(2\)"):
        VectorScaling().fit(given.subset(kept))
    # Accuracy where a class is predicted says nothing if the class cannot be right.
    with pytest.warns(CalibrationWarning, match=r"TopLabelBinning\.fit: 1 of 4 classes has no example"):
        TopLabelBinning().fit(given.subset(kept))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TemperatureScaling().fit(given.subset(kept)).temperature_ > 1


@pytest.mark.parametrize("name", list(CALIBRATORS))
def test_fit_on_few_examples_warns(name: str) -> None:
    given, _ = synthetic_predictions(15, 3, temperature=1.0, hardness=4.0, split="val")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CALIBRATORS[name]().fit(given)
    assert any(entry.category is CalibrationWarning and "15 examples are few" in str(entry.message) for entry in caught)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MatrixScaling(spreads=(1.0, 0.1)), "MatrixScaling: `spreads` must be ascending"),
        (lambda: DirichletCalibration(n_folds=1), "DirichletCalibration: `n_folds` must be a whole number >= 2"),
        (lambda: VectorScaling(ridge=0.0), "`ridge` must be a finite number > 0"),
        (lambda: HistogramBinning(binning="other"), "`binning` must be 'width' or 'mass', got 'other'"),  # type: ignore[arg-type]
        (lambda: BayesianBinning(span=-1.0), "`span` must be a finite number > 0"),
        (lambda: SplineCalibration(n_knots=2), "`n_knots` must be a whole number >= 3"),
        (lambda: TopLabelBinning(points_per_bin=0), "`points_per_bin` must be a whole number >= 1"),
        (lambda: AttendedTemperatureScaling(threshold=1.0), r"`threshold` must lie in \[0, 1\), got 1\.0"),
    ],
)
def test_constructor_wrong_value_is_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


class Own(TemperatureScaling):
    """Not in the table."""


def test_name_of_an_unlisted_class_is_refused() -> None:
    assert name_of(Identity()) == "none"
    with pytest.raises(ValueError, match="must be of a listed class, got Own"):
        name_of(Own())


def test_identity_round_trips_and_changes_nothing(tmp_path: Path) -> None:
    logits, labels = golden()
    found = Identity().fit(logits, labels)
    found.save(tmp_path / "none.json")
    back = Identity.load(tmp_path / "none.json")
    torch.testing.assert_close(back.predict_proba(logits), logits.softmax(1))
    torch.testing.assert_close(found.wrap(torch.nn.Identity())(logits), logits.log_softmax(1))
