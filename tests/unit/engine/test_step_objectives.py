"""Objectives of a step: what mixup mixes, and how the mean over a batch is shared between processes."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from calibrant.engine.batches import Batch
from calibrant.engine.distributed import Group
from calibrant.engine.objective import MixupObjective
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.setup import assemble
from calibrant.losses import CrossEntropyLoss

batches = SimpleNamespace(steps_per_epoch=3, batch_size=6, seed=0)


def test_mixup_weighs_images_and_labels_alike():
    objective = MixupObjective(CrossEntropyLoss(), batches, alpha=0.4, device=torch.device("cpu"))
    objective.begin_epoch(0)
    labels, g = torch.tensor([0, 1, 2, 0, 1, 2]), torch.Generator().manual_seed(0)
    for step in range(3):
        # Every image is the one-hot code of its label: the mixed one is then the target of the mixed example.
        images = F.one_hot(labels, 3).double().view(6, 3, 1, 1)
        batch = Batch(images, labels, torch.arange(6), torch.tensor(step))
        target = objective.inputs(batch).flatten(1)
        assert not target.equal(images.flatten(1))
        logits = torch.randn(6, 3, dtype=torch.float64, generator=g)
        torch.testing.assert_close(objective.loss(batch, logits, logits), F.cross_entropy(logits, target), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("reduction", "parts"), [("sum", 1.0), ("mean", 2.0)])
def test_meta_objective_of_two_processes_adds_up_to_that_of_one(reduction, parts):
    settings = {"data.name": "mixture", "backbone.name": "mlp", "train.reduction": reduction, "train.batch_size": "20"}
    objective = assemble(override(Recipe(), settings)).parts.objective
    g = torch.Generator().manual_seed(0)
    features, logits, labels = torch.randn(8, 128, generator=g).abs(), torch.randn(8, 4, generator=g), torch.arange(8) % 4
    batch = Batch(features, labels, labels, torch.tensor(0))
    alone = objective.loss(batch, features, logits)
    objective.group = Group(rank=0, world_size=2)
    torch.testing.assert_close(objective.loss(batch, features, logits), alone / parts)


@pytest.mark.parametrize(("reduction", "times"), [("sum", 8.0), ("mean", 1.0)])
def test_meta_objective_reduces_the_losses_of_a_batch_as_the_recipe_says(reduction, times):
    settings = {"data.name": "mixture", "backbone.name": "mlp", "method.name": "ce-dece", "train.reduction": reduction}
    objective = assemble(override(Recipe(), settings | {"train.batch_size": "20"})).parts.objective
    logits, labels = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4
    # Its coefficients start at zero: the loss is cross-entropy.
    found = objective.loss(Batch(logits, labels, labels, torch.tensor(0)), logits, logits)
    torch.testing.assert_close(found, times * F.cross_entropy(logits, labels))


def test_step_clips_the_gradient_of_all_parameters_to_the_norm_of_the_recipe():
    settings = {"data.name": "mixture", "backbone.name": "mlp", "method.name": "ce", "train.device": "cpu"}
    norms = {}
    for clip in (0.0, 0.02):
        parts = assemble(override(Recipe(), settings | {"train.clip_norm": clip})).parts
        parts.step.batches.begin_epoch(0)
        parts.plain()
        norms[clip] = float(torch.stack([value.grad.norm() for value in parts.model.parameters()]).norm())
    # Zero is off.
    assert norms[0.0] > 0.1
    assert norms[0.02] == pytest.approx(0.02, rel=1e-3)
