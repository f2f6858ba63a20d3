"""Many small logistic regressions at once: each is where its penalised loss has no slope."""

from __future__ import annotations

import pytest
import torch

from calibrant.calibrators.logistic import fit_logistic


@pytest.mark.parametrize("strength", [1e-9, 0.5, 20.0])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_fit_logistic_ends_where_the_penalised_loss_is_flat(strength: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3, 80, 2, generator=generator, dtype=torch.float64)
    answers = torch.rand(3, 80, generator=generator, dtype=torch.float64)
    weights = torch.rand(80, generator=generator, dtype=torch.float64) + 0.1
    # From far away Newton's first step is too long for some of the three, and must be halved for them alone.
    centre = scale * torch.tensor([[0.2, -0.1], [1.0, 0.5], [-0.7, 0.3]], dtype=torch.float64)
    ridge = torch.tensor([[1.0, 2.0], [3.0, 0.5], [1.0, 1.0]], dtype=torch.float64) * strength
    theta = fit_logistic(features, answers, weights, ridge=ridge, centre=centre).requires_grad_()
    score = (features * theta.unsqueeze(1)).sum(2)
    nll = torch.nn.functional.binary_cross_entropy_with_logits(score, answers, reduction="none")
    loss = (nll * weights).sum() + 0.5 * (ridge * (theta - centre) ** 2).sum()
    (slope,) = torch.autograd.grad(loss, theta)
    # The search ends at a gain of 1e-12 of the loss, near which the slope is its square root.
    assert slope.abs().max() < 1e-4
