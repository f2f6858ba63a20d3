"""Choosing a calibrator: the ranking, the rule, and what it says."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch import Tensor

from calibrant import Predictions
from calibrant.calibrators import (
    CALIBRATORS,
    AutoCalibrator,
    CalibrationWarning,
    Calibrator,
    Ranked,
    TemperatureScaling,
    VectorScaling,
)
from calibrant.calibrators.auto import SCORES, advise, candidates, choose, gains_of, mean_and_error, rank
from calibrant.calibrators.base import FitData, Learned
from calibrant.core.checks import FitError
from calibrant.data.synthetic import synthetic_predictions
from calibrant.metrics import brier_score, negative_log_likelihood


def nll(log_probs: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.nll_loss(log_probs, labels, reduction="none")


FEW = ("temperature", "ensemble_temperature", "vector", "histogram")

NONE_LEFT = "Doing nothing is all that is left: no method could be used on these examples."


def predictions(n: int = 1500, *, temperature: float = 2.4, seed: int = 0, split: str = "val") -> Predictions:
    return synthetic_predictions(n, 4, temperature=temperature, hardness=0.5, seed=seed, split=split)[0]


def test_auto_scores_are_those_of_fits_that_have_not_seen_the_example() -> None:
    given = predictions(400)
    auto = AutoCalibrator(methods=("temperature",), n_folds=4, seed=3).fit(given)
    scores = torch.empty(400, dtype=torch.float64)
    for kept, held in FitData.of(given).folds(4, seed=3):
        assert not set(kept.tolist()) & set(held.tolist())
        fitted = TemperatureScaling().fit(given.logits[kept], given.labels[kept])
        scores[held] = nll(fitted.predict_log_proba(given.logits[held].double()), given.labels[held])
    entry = next(entry for entry in auto.ranking_ if entry.name == "temperature")
    assert entry.score == pytest.approx(float(scores.mean()), rel=1e-7)
    gains = nll(given.logits.double().log_softmax(1), given.labels) - scores
    half = 1.959964 * float(gains.std(correction=0)) / math.sqrt(399)
    assert (entry.gain_low, entry.gain_high) == pytest.approx((entry.gain - half, entry.gain + half), rel=1e-7)
    assert entry.gain == pytest.approx(float(negative_log_likelihood(given)) - entry.score, rel=1e-7)


def test_auto_raises_labels_of_probability_zero_and_ranks_by_brier_too() -> None:
    given = predictions()
    logits = given.logits.double().clone()
    logits[:2].scatter_(1, given.labels[:2].unsqueeze(1), -math.inf)
    logits[2:9].scatter_(1, (given.labels[2:9].unsqueeze(1) + 1) % 4, -math.inf)
    raised = logits.log_softmax(1).clamp(min=math.log(1 / 6000)).softmax(1)
    for scoring, metric in (("nll", negative_log_likelihood), ("brier", brier_score)):
        with pytest.warns(CalibrationWarning, match="2 of 1500 examples have a label of probability zero"):
            auto = AutoCalibrator(methods=("temperature", "histogram"), scoring=scoring).fit(logits, given.labels)
        assert auto.best_name_ == "temperature"
        none = next(entry for entry in auto.ranking_ if entry.name == "none")
        assert none.score == pytest.approx(float(metric(raised, given.labels)))
        fresh = predictions(seed=1).logits
        torch.testing.assert_close(auto.wrap(torch.nn.Identity())(fresh).exp(), auto.predict_proba(fresh))


def test_gains_have_the_moments_of_labels_drawn_from_the_probabilities() -> None:
    generator = torch.Generator().manual_seed(0)
    idle, log_probs = (torch.randn(1, 4, generator=generator, dtype=torch.float64).log_softmax(1) for _ in range(2))
    labels = torch.multinomial(idle[0].exp(), 200_000, replacement=True, generator=generator)
    for _, score in SCORES.values():
        found, expected, variance = gains_of(log_probs.expand(200_000, 4), idle.expand(200_000, 4), labels, score)
        assert float(found.mean()) == pytest.approx(float(expected[0]), abs=0.01)
        assert float(found.var()) == pytest.approx(float(variance[0]), rel=0.02)
        assert expected[0] < 0


NOISE = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
NOISE, ZERO = (NOISE - NOISE.mean()) / NOISE.std(), torch.zeros(400, dtype=torch.float64)
ONES = torch.ones(400, dtype=torch.float64)


def ranked(held: Mapping[str, Tensor], best: str, spread: float = 1.0) -> tuple[dict[str, Ranked], str]:
    """Rank from held-out scores whose gains would have this spread if doing nothing were right, and choose."""
    gains = {name: torch.stack([held["none"] - scores, ZERO, spread**2 * ONES]) for name, scores in held.items()}
    found = rank(gains, ONES, best, 9.0)
    return found, choose(found, gains, ONES)


def test_clear_gain_is_no_chance_for_all_methods_together() -> None:
    # One standard error of the mean is 1 / 20. A method tried with nine others must gain 2.6 of them; alone 1.6 are enough.
    held = {"none": NOISE + 0.1, "temperature": ZERO}
    entries, name = ranked(held, "temperature")
    assert entries["temperature"][1:6] == pytest.approx((8.9, 0.1, 0.1 - 0.098, 0.1 + 0.098, 0.02275), abs=1e-3)
    assert name == "temperature"
    held |= {f"useless{k}": held["none"] for k in range(9)}
    entries, name = ranked(held, "temperature")
    assert entries["temperature"].p_value == pytest.approx(0.2275, abs=1e-3)
    assert name == "none"


def test_clear_gain_allows_for_mistakes_that_were_not_made_yet() -> None:
    # What is gained on every example would be lost on a mistake: a sure model makes few, but they cost much.
    held = {"none": NOISE / 100 + 0.1, "temperature": ZERO}
    assert ranked(held, "temperature", spread=1.0)[1] == "temperature"
    assert ranked(held, "temperature", spread=2.0)[1] == "none"


def test_mean_of_unequal_weights_has_the_error_of_the_effective_number() -> None:
    # Variance (2.5² + 0.5² + 2 · 1.5²) / 4 = 2.75; effective number 4² / 6 = 8/3. What is not known is left out.
    values = torch.tensor([0.0, 2.0, math.nan, 4.0]).double()
    found = mean_and_error(values, torch.tensor([1.0, 1.0, 5.0, 2.0]).double())
    assert found == pytest.approx((2.5, (2.75 / (5 / 3)) ** 0.5), abs=1e-9)


@pytest.mark.parametrize(
    ("lost", "idle", "expected"), [(0.04, 9.0, "temperature"), (0.06, 9.0, "vector"), (0.04, 0.5, "vector")]
)
def test_simpler_method_wins_within_one_standard_error_and_a_twentieth_of_the_gain(
    lost: float, idle: float, expected: str
) -> None:
    assert ranked({"none": ZERO + idle, "temperature": NOISE + lost, "vector": ZERO}, "vector")[1] == expected


def test_choice_takes_no_noisy_method_that_a_simpler_one_beats() -> None:
    # A temperature is clearly worse than a matrix; a spline is worse than both, but too noisy to be clearly so.
    held = {"none": ZERO + 0.5, "temperature": ZERO + 0.103, "spline": 0.105 + 2 * NOISE, "matrix": 0.1 + 0.01 * NOISE}
    assert ranked(held, "matrix")[1] == "matrix"


def test_auto_of_less_than_100_examples_does_not_choose_what_learns_something_of_every_class() -> None:
    given, _ = synthetic_predictions(99, 3, temperature=1.0, hardness=0.5, split="val")
    # One class is favoured, which no temperature undoes.
    logits = given.logits + torch.tensor([4.0, 0.0, 0.0])
    with pytest.warns(CalibrationWarning, match="99 examples are few for a choice"):
        auto = AutoCalibrator(methods=("temperature", "beta")).fit(logits, given.labels)
    assert auto.best_name_ != "beta"
    assert "99 examples are few" in str(auto.ranking_[-1].failure)


def test_auto_of_predictions_that_are_all_right_does_nothing() -> None:
    logits = predictions(300).logits
    # More confidence gains on every one of them, and the first mistake would cost all of it.
    with pytest.warns(CalibrationWarning, match="every example is predicted right"):
        auto = AutoCalibrator(methods=("temperature", "platt")).fit(logits, logits.argmax(1))
    assert (auto.best_name_, auto.advice_) == ("none", NONE_LEFT)


def test_advice_tells_of_a_gain_that_may_be_chance_and_of_no_loss() -> None:
    none, better, worse = Ranked("none"), Ranked("platt", 0.5, 0.1, 0.0, 0.2), Ranked("platt", 0.7, -0.1, -0.2, 0.0)
    assert advise([better, none], "none", "nll").endswith(
        "platt lowers it by 0.1000 (95% interval 0.0000 to 0.2000), which may be chance."
    )
    assert advise([none, worse], "none", "nll").endswith("lowers the held-out negative log-likelihood clearly.")


def test_auto_does_not_choose_a_temperature_that_ended_at_its_bound() -> None:
    given = predictions()
    wrong = given.logits.argmin(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        auto = AutoCalibrator(methods=("temperature", "ensemble_temperature", "joint_isotonic")).fit(given.logits, wrong)
        alone = AutoCalibrator(methods=("temperature",)).fit(given.logits, wrong)
    assert auto.best_name_ == "joint_isotonic"
    assert auto.advice_.startswith("joint_isotonic is best: it lowers")
    assert "ended at its bound" in str(auto.ranking_[-1].failure)
    assert (alone.best_name_, alone.advice_) == ("none", NONE_LEFT)


def test_auto_does_not_choose_a_method_that_has_too_few_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    given = predictions()
    # What was done to one class no temperature undoes.
    logits = given.logits * torch.tensor([0.3, 1.0, 1.0, 1.0])
    auto = AutoCalibrator(methods=("temperature", "vector"))
    assert auto.fit(logits, given.labels).best_name_ == "vector"
    monkeypatch.setattr(VectorScaling, "few_samples_per_class", 10_000)
    assert auto.fit(logits, given.labels).best_name_ == "temperature"
    assert [entry.name for entry in auto.ranking_] == ["temperature", "none", "vector"]


def test_auto_gives_up_what_is_clearly_worse_and_ranks_it_where_it_stood() -> None:
    called = []
    auto = AutoCalibrator(methods=("temperature", "spline", "isotonic")).on_progress(lambda *given: called.append(given))
    auto.fit(synthetic_predictions(3000, 10, split="val")[0])
    tried = [name for name, _, _ in called]
    parts = tried.count("isotonic")
    assert tried.count("temperature") == 5 > parts
    assert [part for name, part, of in called if name == "temperature" and of == 5] == [1, 2, 3, 4, 5]
    entries = {entry.name: entry for entry in auto.ranking_}
    assert entries["isotonic"].note == f"dropped after {parts} of 5 folds"
    assert entries["isotonic"].gain < entries["temperature"].gain
    assert entries["isotonic"].score == pytest.approx(entries["none"].score - entries["isotonic"].gain)


def test_candidates_are_the_listed_ones_and_a_package_that_cannot_be_loaded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert next(iter(candidates())) == "temperature"
    assert not {"mc_temperature", "none", "auto"} & set(candidates())
    broken = EntryPoint("broken", "no_such_package:Thing", "calibrant.calibrators")
    offered = {"theirs": EntryPoint("theirs", f"{__name__}:Failing", "calibrant.calibrators"), "broken": broken}
    monkeypatch.setitem(CALIBRATORS.__dict__, "_offered", offered)
    with pytest.warns(UserWarning, match="'broken' of the installed package"):
        assert "theirs" in candidates()


class Failing(TemperatureScaling):
    """Cannot be fitted."""

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        raise FitError("Failing.fit: nothing works.")


def test_auto_method_that_fails_is_reported_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"temperature": TemperatureScaling, "failing": Failing}
    monkeypatch.setattr("calibrant.calibrators.auto.candidates", lambda: table)
    auto = AutoCalibrator().fit(predictions(300))
    assert auto.ranking_[-1].failure == "nothing works."
    assert math.isnan(auto.ranking_[-1].score)
    assert auto.best_name_ == "temperature"


def test_auto_round_trips_with_its_ranking(tmp_path: Path) -> None:
    auto = AutoCalibrator(methods=FEW).fit(predictions())
    auto.save(tmp_path / "auto.json")
    back = Calibrator.load(tmp_path / "auto.json")
    assert isinstance(back, AutoCalibrator)
    assert (back.ranking_, back.best_name_, back.advice_) == (auto.ranking_, auto.best_name_, auto.advice_)
    assert back.get_params() == auto.get_params()
    fresh = predictions(seed=1).logits
    assert torch.equal(back.predict_proba(fresh), auto.predict_proba(fresh))
    torch.testing.assert_close(back.wrap(torch.nn.Identity())(fresh), auto.predict_log_proba(fresh))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ("temprature",)}, "unknown calibrator 'temprature'. Did you mean 'temperature'"),
        ({"scoring": "ece"}, "`scoring` must be one of"),
        ({"n_folds": 1}, "`n_folds` must be a whole number >= 2"),
    ],
)
def test_auto_wrong_argument_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AutoCalibrator(**arguments).fit(predictions(100))  # type: ignore[arg-type]
