"""Facades and their sums; the formulas are tested beside their names."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from calibrant.core.registry import lookup
from calibrant.losses import LOSSES, BrierLoss, CrossEntropyLoss, FocalLoss, Objective, Penalty, ScheduledFocalLoss, WeightedSum
from calibrant.losses.base import Reduction
from helpers import golden


class MeanTop(Penalty):
    """A penalty simple enough to follow by hand: the mean top logit."""

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        return logits.amax(1).mean()


class Counting(Penalty):
    """A penalty with a further input and a state."""

    inputs = ("indices",)
    seen: Tensor

    def __init__(self, *, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("seen", torch.zeros(size))

    def value(self, logits: Tensor, labels: Tensor, *, indices: Tensor) -> Tensor:
        return self.seen[indices].mean()


LOGITS = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]])
LABELS = torch.tensor([1, 0])
# Cross-entropies ln 2 and ln 4/3; mean top logit ln(3) / 2.
CE = torch.tensor([math.log(2.0), math.log(4 / 3)])
TOP = torch.tensor(math.log(3.0) / 2)


def test_sum_prints_as_it_was_written() -> None:
    assert repr(FocalLoss(gamma=3) + 0.5 * MeanTop()) == "FocalLoss(gamma=3) + 0.5 * MeanTop()"
    assert repr(MeanTop() * 2) == "2 * MeanTop()"
    assert repr(1.0 * MeanTop() + BrierLoss(reduction="mean")) == "MeanTop() + BrierLoss()"
    assert repr(FocalLoss(gamma=1.5, reduction="sum")) == "FocalLoss(gamma=1.5, reduction='sum')"
    assert str(FocalLoss(gamma=3.0)) == "FocalLoss(gamma=3)"


def test_sum_with_mean_adds_each_penalty_once() -> None:
    loss = CrossEntropyLoss() + 0.5 * MeanTop()
    torch.testing.assert_close(loss(LOGITS, LABELS), CE.mean() + 0.5 * TOP)


def test_sum_with_sum_multiplies_penalties_by_the_batch_size() -> None:
    loss = CrossEntropyLoss(reduction="sum") + 0.5 * MeanTop()
    torch.testing.assert_close(loss(LOGITS, LABELS), CE.sum() + 2 * 0.5 * TOP)


def test_sum_with_none_gives_every_sample_the_whole_penalty() -> None:
    loss = CrossEntropyLoss(reduction="none") + 0.5 * MeanTop()
    torch.testing.assert_close(loss(LOGITS, LABELS), CE + 0.5 * TOP)


def test_sum_of_several_is_flat_and_scales_as_a_whole() -> None:
    loss = 0.5 * (CrossEntropyLoss() + 0.5 * MeanTop()) + MeanTop()
    assert loss.weights == (0.5, 0.25, 1.0)
    torch.testing.assert_close(loss(LOGITS, LABELS), 0.5 * CE.mean() + 1.25 * TOP)
    torch.testing.assert_close(sum([CrossEntropyLoss(), MeanTop(), MeanTop()])(LOGITS, LABELS), CE.mean() + 2 * TOP)


def test_sum_built_from_pairs_equals_the_written_one() -> None:
    nested = WeightedSum([(2.0, CrossEntropyLoss() + 0.5 * MeanTop())])
    assert repr(nested) == "2 * CrossEntropyLoss(label_smoothing=0) + MeanTop()"


def test_penalties_alone_are_a_scalar_loss() -> None:
    assert torch.equal(MeanTop()(LOGITS, LABELS), TOP)
    total = 0.5 * MeanTop() + MeanTop()
    assert total.reduction is None
    torch.testing.assert_close(total(LOGITS, LABELS), 1.5 * TOP)


def test_weight_of_numpy_makes_a_sum() -> None:
    loss = np.float32(0.5) * MeanTop()
    assert isinstance(loss, WeightedSum)
    assert (np.float64(0.5) * MeanTop()).weights == (0.5,)


@pytest.mark.parametrize("weight", [-0.5, math.nan, math.inf, True, "2", torch.tensor(0.5), None])
def test_weight_that_is_no_finite_number_from_zero_on_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match=r"MeanTop: its weight in a sum must be a finite number >= 0, got"):
        MeanTop() * weight


def test_weight_zero_is_allowed() -> None:
    torch.testing.assert_close((CrossEntropyLoss() + 0 * MeanTop())(LOGITS, LABELS), CE.mean())


def test_sum_of_different_reductions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^WeightedSum: losses added together must share one `reduction`, got mean, sum"):
        CrossEntropyLoss() + BrierLoss(reduction="sum")


@pytest.mark.parametrize("other", [nn.CrossEntropyLoss(), 1.0])
def test_sum_with_something_else_is_refused(other: Objective) -> None:
    with pytest.raises(TypeError, match=r"MeanTop: `\+` must join two objectives of calibrant.losses, got"):
        MeanTop() + other
    with pytest.raises(TypeError, match=r"must join two objectives|unsupported operand"):
        other + MeanTop()


def test_sum_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`terms` must hold at least one objective, got none"):
        WeightedSum([])


def test_further_inputs_reach_the_member_that_needs_them() -> None:
    counting = Counting(size=4)
    counting.seen[2] = 3.0
    loss = CrossEntropyLoss() + 2 * counting
    assert loss.inputs == ("indices",)
    assert repr(loss) == "CrossEntropyLoss(label_smoothing=0) + 2 * Counting(size=4)"
    torch.testing.assert_close(loss(LOGITS, LABELS, indices=torch.tensor([2, 0])), CE.mean() + 3.0)


def test_further_inputs_missing_or_unknown_are_named() -> None:
    loss = CrossEntropyLoss() + Counting(size=4)
    with pytest.raises(ValueError, match=r"WeightedSum: `indices` must be given as a keyword argument"):
        loss(LOGITS, LABELS)
    with pytest.raises(ValueError, match=r"unknown input of WeightedSum 'indicies'. Did you mean 'indices'"):
        loss(LOGITS, LABELS, indicies=torch.tensor([2, 0]))
    with pytest.raises(ValueError, match=r"FocalLoss: takes logits and labels only, got `indices`"):
        FocalLoss()(LOGITS, LABELS, indices=torch.tensor([2, 0]))


def test_state_of_members_travels_with_the_sum() -> None:
    first, second = (CrossEntropyLoss() + Counting(size=4) for _ in range(2))
    first.terms[1].seen.fill_(2.0)
    assert list(first.state_dict()) == ["terms.1.seen"]
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.terms[1].seen, torch.full((4,), 2.0))


def test_epoch_reaches_every_member() -> None:
    loss = CrossEntropyLoss() + ScheduledFocalLoss()
    loss.set_epoch(120)
    assert loss.terms[1].epoch == 120


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_sum_compiles_in_one_graph(reduction: Reduction) -> None:
    torch._dynamo.reset()
    loss = CrossEntropyLoss(reduction=reduction) + 0.5 * MeanTop() + Counting(size=4)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    indices = torch.tensor([0, 1])
    torch.testing.assert_close(compiled(LOGITS, LABELS, indices=indices), loss(LOGITS, LABELS, indices=indices))


def test_sum_trains_a_model() -> None:
    logits, labels = golden()
    leaf = logits.clone().requires_grad_()
    (FocalLoss(gamma=3) + 0.5 * BrierLoss())(leaf, labels).backward()
    assert leaf.grad is not None
    stepped = logits - 0.1 * leaf.grad
    loss = FocalLoss(gamma=3) + 0.5 * BrierLoss()
    assert loss(stepped, labels) < loss(logits, labels)


def test_table_is_searched_by_name_with_a_suggestion() -> None:
    assert lookup(LOSSES, "focal", kind="loss").module is FocalLoss
    with pytest.raises(ValueError, match=r"unknown loss 'focl'. Did you mean 'focal'\?"):
        lookup(LOSSES, "focl", kind="loss")


def test_entry_reads_its_summary_and_defaults_from_the_function() -> None:
    assert LOSSES["focal"].summary == "Cross-entropy scaled down where the true class is already probable."
    assert LOSSES["focal"].defaults == {"gamma": 3.0}
    assert LOSSES["dual_focal"].defaults == {}


def test_document_of_the_losses_is_up_to_date() -> None:
    from calibrant.losses.catalogue import losses_page

    page = Path(__file__).parents[3] / "docs" / "losses.md"
    assert page.read_text(encoding="utf-8") == losses_page(), (
        "write it anew: python -c 'from calibrant.losses.catalogue import losses_page as p; "
        'open("docs/losses.md", "w").write(p())\''
    )
