from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.metrics.bootstrap import Sample, _shrinkage, bootstrap_scores, draw_counts
from calibrant.metrics.shared_noise import SharedNoise
from calibrant.metrics.values import KEYS, score_values
from helpers import mixed_gaps


def some_predictions(n: int = 800, num_classes: int = 5) -> Predictions:
    probs, labels = mixed_gaps(n, num_classes)
    return Predictions(probs=probs, labels=labels)


def test_draw_counts_are_poisson_with_mean_one() -> None:
    counts = np.concatenate(list(draw_counts(1000, n_resamples=500, seed=0)), axis=1)
    assert counts.shape == (1000, 500)
    # Half a million draws: standard errors 1.4e-3 and 2.4e-3.
    assert float(counts.mean()) == pytest.approx(1, abs=0.006)
    assert float(counts.var()) == pytest.approx(1, abs=0.012)
    assert float((counts == 0).mean()) == pytest.approx(np.exp(-1), abs=0.003)


def test_draw_counts_of_two_examples_never_draw_nothing() -> None:
    assert all((counts.sum(0) > 0).all() for counts in draw_counts(2, n_resamples=200, seed=0))


def test_sample_example_without_weight_beyond_all_others_counts_nothing() -> None:
    probs, labels, weights = [[0.6, 0.4]] * 30 + [[0.99, 0.01]], [0, 1] * 15 + [1], [1.0] * 30 + [0.0]
    with_it = Sample(Predictions(probs=probs, labels=labels, weights=weights), n_bins=15)
    without = Sample(Predictions(probs=probs[:30], labels=labels[:30]), n_bins=15)
    found, expected = (sample.scores(np.ones((n, 1), dtype=np.float32)) for sample, n in ((with_it, 31), (without, 30)))
    assert {key: float(value) for key, value in found.items()} == {key: float(value) for key, value in expected.items()}


def test_sample_drawn_once_each_scores_as_the_data_do() -> None:
    predictions = some_predictions()
    values = score_values(predictions, n_bins=15)
    found = Sample(predictions, n_bins=15).scores(np.ones((800, 1), dtype=np.float32))
    assert tuple(found) == KEYS
    # Those that see confidence by levels are near (the debiased error is a small difference), the others exact to float32.
    near = {"ace": 0.05, "sece": 0.01, "smece": 0.02, "mmce": 0.01, "ece_debiased": 0.15, "aurc": 0.01}
    for key, value in values.items():
        assert float(found[key]) == pytest.approx(value, rel=near.get(key, 1e-5), abs=1e-6), key


def test_sample_drawing_counts_equals_repeating_examples() -> None:
    predictions = some_predictions(300)
    counts = torch.arange(300) % 3
    repeated = predictions.subset(torch.repeat_interleave(torch.arange(300), counts))
    found = Sample(predictions, n_bins=15).scores(counts.float().unsqueeze(1).numpy())
    values = score_values(repeated, n_bins=15)
    for key in ("error", "nll", "brier", "classwise_ece"):
        assert float(found[key]) == pytest.approx(values[key], rel=1e-5), key
    # Examples of one level share its mean confidence, of which repetition changes the true one a little.
    for key in ("ece", "mce", "sece", "mmce", "signed_gap"):
        assert float(found[key]) == pytest.approx(values[key], rel=0.02, abs=1e-4), key


@pytest.mark.parametrize("num_classes", [2, 30])
def test_sample_weights_count_as_repetitions(num_classes: int) -> None:
    probs, labels = mixed_gaps(200, num_classes)
    weights = (torch.arange(200) % 3).double()
    weighted = Sample(Predictions(probs=probs, labels=labels, weights=weights), n_bins=15)
    repeat = torch.repeat_interleave(torch.arange(200), weights.long())
    plain = score_values(Predictions(probs=probs[repeat], labels=labels[repeat]), n_bins=15)
    found = weighted.scores(np.ones((200, 1), dtype=np.float32))
    for key in ("error", "nll", "brier", "ece", "mce", "classwise_ece", "signed_gap"):
        assert float(found[key]) == pytest.approx(plain[key], rel=1e-5, abs=1e-7), key


def test_sample_infinite_loss_is_infinite_only_where_drawn() -> None:
    predictions = Predictions(probs=[[1.0, 0.0], [0.5, 0.5]], labels=[1, 0])
    counts = np.array([[1, 0], [1, 1]], dtype=np.float32)
    assert Sample(predictions, n_bins=15).scores(counts)["nll"].tolist() == pytest.approx([float("inf"), np.log(2)])


def test_sample_shrunk_gaps_within_chance_vanish_and_clear_ones_stay() -> None:
    ones = np.ones((400, 1), dtype=np.float32)
    chance = Predictions(probs=[[0.9, 0.1]] * 400, labels=[0] * 364 + [1] * 36)
    clear = Predictions(probs=[[0.9, 0.1]] * 400, labels=[0] * 200 + [1] * 200)
    # Gap 0.01 where chance gives 0.015; gap 0.4, of which chance may be 0.015² / 0.4.
    still = np.zeros((1, 1), dtype=np.float32)
    found = Sample(chance, n_bins=15).scores(ones, noise=still)
    assert [float(found[key]) for key in ("ece", "ace", "classwise_ece")] == pytest.approx([0] * 3, abs=1e-6)
    found = Sample(clear, n_bins=15).scores(ones, noise=still)
    assert float(found["ece"]) == pytest.approx(0.4 - 0.9 * 0.1 / 400 / 0.4, rel=1e-5)


def test_sample_mce_of_a_single_example_varies_as_its_label_might() -> None:
    predictions = Predictions(probs=[[0.9, 0.1]] * 200 + [[0.6, 0.4]], labels=[0] * 180 + [1] * 20 + [1])
    counts = np.ones((201, 400), dtype=np.float32)
    sample = Sample(predictions, n_bins=15)
    noise, _ = SharedNoise(sample, sample, torch.ones(201, dtype=torch.bool)).draw(np.random.default_rng(0), 400)
    assert float(sample.scores(counts)["mce"].std()) < 1e-12
    # One example wrong: a guess of (0 + 2) / (1 + 4) right has variance 0.24.
    drawn = sample.scores(counts, noise=noise)["mce"]
    assert 0.2 < float(drawn.std()) < 0.5


def test_bootstrap_scores_spread_as_theory_says() -> None:
    predictions = some_predictions(2000)
    drawn = bootstrap_scores(predictions, n_resamples=600)
    assert tuple(drawn) == KEYS
    error = score_values(predictions, n_bins=15)["error"]
    # A standard deviation from 600 values is known to 3 %.
    assert float(drawn["error"].std()) == pytest.approx((error * (1 - error) / 2000) ** 0.5, rel=0.12)
    residual = predictions.confidence - predictions.correct.double()
    assert float(drawn["signed_gap"].std()) == pytest.approx(float(residual.std()) / 2000**0.5, rel=0.12)


def test_bootstrap_scores_of_blocks_spread_as_those_of_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.metrics.blocks._BLOCKS", 500)
    # In order: blocks of neighbours, or of every 500th example, would spread more, or not at all.
    probs = torch.cat([torch.tensor([[0.9, 0.1]]).repeat(3000, 1), torch.tensor([[0.6, 0.4]]).repeat(2000, 1)])
    labels = torch.cat([torch.zeros(2700), torch.ones(300), torch.zeros(1000), torch.ones(1000)]).long()
    drawn = bootstrap_scores(Predictions(probs=probs, labels=labels), n_resamples=600)
    assert float(drawn["error"].mean()) == pytest.approx(0.26, abs=0.002)
    assert float(drawn["error"].std()) == pytest.approx((0.26 * 0.74 / 5000) ** 0.5, rel=0.12)
    assert float(drawn["brier"].std()) == pytest.approx(brier_spread(probs, labels) / 5000**0.5, rel=0.12)


def brier_spread(probs: torch.Tensor, labels: torch.Tensor) -> float:
    return float((probs - torch.nn.functional.one_hot(labels)).square().sum(1).std())


def test_bootstrap_scores_repeat_with_their_seed_only() -> None:
    predictions = some_predictions(100)
    first, again, other = (bootstrap_scores(predictions, n_resamples=20, seed=s) for s in (1, 1, 2))
    for key in KEYS:
        assert torch.equal(first[key], again[key])
    assert not torch.equal(first["nll"], other["nll"])


def test_bootstrap_scores_in_chunks_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.metrics.bootstrap._CHUNK_COUNTS", 250)
    assert bootstrap_scores(some_predictions(100), n_resamples=7)["ece"].shape == (7,)


def test_bootstrap_scores_wrong_counts_raise() -> None:
    with pytest.raises(ValueError, match="bootstrap_scores: `n_resamples` must be a whole number >= 1, got 0"):
        bootstrap_scores(some_predictions(10), n_resamples=0)
    with pytest.raises(ValueError, match="bootstrap_scores: `n_bins` must be a whole number >= 1, got -1"):
        bootstrap_scores(some_predictions(10), n_bins=-1)
    with pytest.raises(ValueError, match="bootstrap_scores: `seed` must be a whole number >= 0, got -1"):
        bootstrap_scores(some_predictions(10), seed=-1)


def test_shrinkage_takes_nothing_away_where_rounding_makes_a_variance_negative() -> None:
    gap = torch.tensor([2e-16, -2e-16, 0.1], dtype=torch.float64)
    variance = torch.tensor([-2e-19, 0.0, 0.001], dtype=torch.float64)
    torch.testing.assert_close(_shrinkage(gap, variance), torch.tensor([0.0, 0.0, 0.01], dtype=torch.float64))
