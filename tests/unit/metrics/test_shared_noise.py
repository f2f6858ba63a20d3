from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.metrics.bootstrap import Sample
from calibrant.metrics.shared_noise import SharedNoise


def test_noise_of_weighted_examples_has_the_variance_that_resamples_lack() -> None:
    predictions = Predictions(probs=[[0.9, 0.1]] * 4, labels=[0] * 4, weights=[1.0, 2.0, 2.0, 4.0])
    sample = Sample(predictions, n_bins=15)
    # 81 / 25 = 3 effective examples, all right: a guess of 5 / 7 has variance 10 / 49, shared by three.
    for same in (torch.ones(4, dtype=torch.bool), torch.tensor([True, False, False, True])):
        noise = SharedNoise(sample, sample, same)
        assert float(noise.first.power(2).sum()) == pytest.approx(10 / 49 / 3, rel=1e-5)
        assert float(noise.second.power(2).sum()) == pytest.approx(10 / 49 / 3, rel=1e-5)


def test_noise_is_the_same_where_both_models_predict_the_same() -> None:
    labels = [0, 0, 0, 1]
    first = Predictions(probs=[[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.3, 0.7]], labels=labels)
    # Example 0 keeps its bin, 1 moves to another, 2 gets another class, 3 moves with its bin.
    second = Predictions(probs=[[0.9, 0.1], [0.7, 0.3], [0.4, 0.6], [0.2, 0.8]], labels=labels)
    one, two = Sample(first, n_bins=10), Sample(second, n_bins=10)
    noise = SharedNoise(one, two, first.predicted == second.predicted)
    a, b = noise.first.toarray(), noise.second.toarray()
    shared = a @ b.T
    # Bins of the first, by confidence: {2}, {3}, {0, 1}; of the second: {2}, {1}, {3}, {0}.
    expected = np.array([[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 1]]) * np.outer(one.lacking.numpy(), two.lacking.numpy())
    np.testing.assert_allclose(shared, expected, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(np.diag(a @ a.T), one.lacking.numpy() ** 2 * [1, 1, 2], rtol=1e-5)
    np.testing.assert_allclose(np.diag(b @ b.T), two.lacking.numpy() ** 2, rtol=1e-5)
    assert one.lacking.min() > 0


def test_noise_drawn_has_the_covariance_of_its_matrices() -> None:
    predictions = Predictions(probs=[[0.9, 0.1], [0.6, 0.4]] * 5, labels=[0] * 10)
    sample = Sample(predictions, n_bins=15)
    noise = SharedNoise(sample, sample, torch.arange(10) < 5)
    drawn, other = noise.draw(np.random.default_rng(0), 20_000)
    assert drawn.shape == other.shape == (2, 20_000)
    expected = (noise.first @ noise.second.T).toarray()
    np.testing.assert_allclose(drawn @ other.T / 20_000, expected, atol=0.05 * expected.max())
    same, again = SharedNoise(sample, sample, torch.ones(10, dtype=torch.bool)).draw(np.random.default_rng(0), 5)
    assert np.array_equal(same, again)
