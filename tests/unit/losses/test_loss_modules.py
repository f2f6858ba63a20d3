"""Modules of objectives: sums, further inputs, dense logits, ignored labels and class weights."""

from __future__ import annotations

import copy
import inspect
import math
import pickle

import pytest
import torch
from torch import Tensor, nn

from calibrant.losses import (
    LOSSES,
    MDCA,
    PENALTIES,
    AdaFocalLoss,
    BrierLoss,
    CrossEntropyLoss,
    FocalLoss,
    MixupLoss,
    Objective,
    Penalty,
    brier_loss,
    cross_entropy_loss,
    focal_loss,
    mdca_penalty,
)
from calibrant.losses.base import Reduction


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
    assert repr(MeanTop() * 2) == "2.0 * MeanTop()"
    assert repr(1.0 * MeanTop() + BrierLoss(reduction="mean")) == "MeanTop() + BrierLoss()"
    assert repr(FocalLoss(gamma=1.5, reduction="sum")) == "FocalLoss(gamma=1.5, reduction='sum')"


def test_sum_of_several_is_flat_and_scales_as_a_whole() -> None:
    loss = 0.5 * (CrossEntropyLoss() + 0.5 * MeanTop()) + MeanTop()
    assert loss.weights == (0.5, 0.25, 1.0)
    torch.testing.assert_close(loss(LOGITS, LABELS), 0.5 * CE.mean() + 1.25 * TOP)
    torch.testing.assert_close(sum([CrossEntropyLoss(), MeanTop(), MeanTop()])(LOGITS, LABELS), CE.mean() + 2 * TOP)


def test_further_inputs_reach_the_member_that_needs_them() -> None:
    counting = Counting(size=4)
    counting.seen[2] = 3.0
    loss = CrossEntropyLoss() + 2 * counting
    assert loss.inputs == ("indices",)
    assert repr(loss) == "CrossEntropyLoss(label_smoothing=0.0) + 2.0 * Counting(size=4)"
    torch.testing.assert_close(loss(LOGITS, LABELS, indices=torch.tensor([2, 0])), CE.mean() + 3.0)


REDUCTIONS: tuple[Reduction, ...] = ("mean", "sum", "none")
WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.0])


def draw(*dense: int, ignored: int | None = -100) -> tuple[Tensor, Tensor]:
    """Logits [6, 4, ...] in float64 and labels [6, ...], a third of them ignored."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, *dense, generator=g, dtype=torch.float64)
    labels = torch.randint(4, (6, *dense), generator=g)
    if ignored is not None:
        labels.view(-1)[::3] = ignored
    return logits, labels


BOTH = {**LOSSES, **PENALTIES}
REQUIRED = {"inverse_focal": {"gamma": 2.0}, "dual_focal": {"gamma": 5.0}, "crl": {"num_samples": 64}}


def made(name: str, **options: object) -> Objective:
    return BOTH[name].module(**REQUIRED.get(name, {}), **options)


def inputs_of(module: Objective, labels: Tensor) -> dict[str, Tensor]:
    more = {"indices": torch.arange(labels.numel()).reshape(labels.shape), "labels_b": labels.flip(0), "lam": torch.tensor(0.3)}
    return {name: more[name] for name in module.inputs}


@pytest.mark.parametrize("name", sorted(set(BOTH) - {"mixup"}))
def test_every_module_with_ignored_labels_is_that_of_the_others(name: str) -> None:
    logits, labels = draw()
    kept, module = labels >= 0, made(name, ignore_index=-100)
    more = inputs_of(module, labels)
    expected = made(name)(logits[kept], labels[kept], **{key: value[kept] for key, value in more.items()})
    assert torch.equal(module(logits, labels, **more), expected)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weight", [None, WEIGHT.double()])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dense", [(), (3,), (2, 3)])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_cross_entropy_of_every_form_is_that_of_torch(
    reduction: Reduction, weight: Tensor | None, label_smoothing: float, dense: tuple[int, ...], ignored: int
) -> None:
    logits, labels = draw(*dense, ignored=ignored)
    found = []
    for kind in (CrossEntropyLoss, nn.CrossEntropyLoss):
        leaf = logits.clone().requires_grad_()
        loss = kind(reduction=reduction, weight=weight, label_smoothing=label_smoothing, ignore_index=ignored)
        value = loss(leaf, labels)
        found.append((value.detach(), torch.autograd.grad(value.square().sum(), leaf)[0]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_sum_leaves_rows_out_once_for_all_terms(reduction: Reduction) -> None:
    logits, labels = draw(5)
    rows = logits.movedim(1, -1).reshape(-1, 4)[labels.reshape(-1) >= 0]
    kept = labels[labels >= 0]
    values = focal_loss(rows, kept) + 0.5 * mdca_penalty(rows, kept)
    expected = {"mean": values.mean(), "sum": values.sum()}.get(reduction)
    if expected is None:
        expected = torch.zeros(labels.shape, dtype=torch.float64)
        expected[labels >= 0] = values
    for first, second in ((-100, None), (None, -100), (-100, -100)):
        total = FocalLoss(reduction=reduction, ignore_index=first) + 0.5 * MDCA(ignore_index=second)
        assert total.ignore_index == -100
        torch.testing.assert_close(total(logits, labels), expected)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_sum_weighs_only_the_loss_that_has_a_weight(reduction: Reduction) -> None:
    logits, labels = draw()
    rows, kept = logits[labels >= 0], labels[labels >= 0]
    share = WEIGHT[kept].double()
    values = share * focal_loss(rows, kept), brier_loss(rows, kept), mdca_penalty(rows, kept)
    expected = {
        "mean": values[0].sum() / share.sum() + 2 * values[1].mean() + 0.5 * values[2],
        "sum": (values[0] + 2 * values[1] + 0.5 * values[2]).sum(),
        "none": torch.zeros(6, dtype=torch.float64).index_put((labels >= 0,), values[0] + 2 * values[1] + 0.5 * values[2]),
    }
    total = FocalLoss(reduction=reduction, weight=WEIGHT) + 2 * BrierLoss(reduction=reduction, ignore_index=-100) + 0.5 * MDCA()
    torch.testing.assert_close(total(logits, labels), expected[reduction])


def test_batch_with_nothing_but_ignored_labels_gives_zero_and_no_gradient() -> None:
    logits, labels = torch.randn(2, 4, 3).half().requires_grad_(), torch.full((2, 3), -100)
    for loss in (MDCA(ignore_index=-100), *(FocalLoss(reduction=r, ignore_index=-100) + MDCA() for r in REDUCTIONS)):
        value = loss(logits, labels)
        assert value.dtype == torch.float32
        assert value.shape == (labels.shape if loss.reduction == "none" else ())
        (grad,) = torch.autograd.grad(value.sum(), logits)
        assert not value.any()
        assert not grad.any()


def test_soft_targets_are_flattened_and_none_is_ignored() -> None:
    logits, target = draw(3)[0], draw(3)[0].exp().softmax(1)
    rows, flat = (value.movedim(1, -1).reshape(-1, 4) for value in (logits, target))
    expected = cross_entropy_loss(rows, flat)
    torch.testing.assert_close(CrossEntropyLoss()(logits, target), expected.mean())
    torch.testing.assert_close(CrossEntropyLoss(ignore_index=0, reduction="none")(logits, target), expected.reshape(6, 3))
    with pytest.raises(ValueError, match="CrossEntropyLoss: `weight` must be"):
        CrossEntropyLoss(weight=WEIGHT)(logits, target)


def test_ignored_labels_of_a_small_type_are_not_wrapped() -> None:
    logits, labels = draw(ignored=None)
    void = labels.to(torch.uint8).index_fill(0, torch.tensor([0]), 255)
    torch.testing.assert_close(FocalLoss(ignore_index=255)(logits, void), FocalLoss()(logits[1:], labels[1:]))
    # -100 as a byte would be 156.
    assert torch.equal(FocalLoss(ignore_index=-100)(logits, labels.to(torch.uint8)), FocalLoss()(logits, labels))


@pytest.mark.parametrize("loss", [FocalLoss(), FocalLoss(weight=WEIGHT) + 0.5 * MDCA()])
def test_dense_and_weighted_losses_compile_in_one_graph(loss: nn.Module) -> None:
    torch._dynamo.reset()
    logits, labels = draw(3, ignored=None)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(logits, labels), loss(logits, labels))


def test_adafocal_learns_from_labelled_rows_alone() -> None:
    probs, labels = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)).softmax(1), torch.arange(60) % 3
    padded, plain = AdaFocalLoss(ignore_index=-100), AdaFocalLoss()
    padded.update(probs, labels.where(labels > 0, -100))
    plain.update(probs[labels > 0], labels[labels > 0])
    torch.testing.assert_close(padded.gammas, plain.gammas)


@pytest.mark.parametrize("weight", [-0.5, math.nan, math.inf, "2"])
def test_weight_that_is_no_finite_number_from_zero_on_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match=r"MeanTop: its weight in a sum must be a finite number >= 0"):
        MeanTop() * weight


def test_sum_of_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="must share one `reduction`"):
        CrossEntropyLoss() + BrierLoss(reduction="sum")
    with pytest.raises(ValueError, match="must share one `ignore_index`"):
        FocalLoss(ignore_index=1) + MDCA(ignore_index=2)
    for other in (nn.CrossEntropyLoss(), 1.0):
        with pytest.raises(TypeError, match="unsupported operand"):
            MeanTop() + other


def test_further_inputs_missing_or_unknown_are_named() -> None:
    loss = CrossEntropyLoss() + Counting(size=4)
    with pytest.raises(ValueError, match=r"WeightedSum: arguments .* must be \['indices'\], got \[\]"):
        loss(LOGITS, LABELS)
    with pytest.raises(ValueError, match=r"must be \['indices'\], got \['indicies'\]"):
        loss(LOGITS, LABELS, indicies=torch.tensor([2, 0]))
    with pytest.raises(ValueError, match=r"FocalLoss: arguments .* must be \[\], got"):
        FocalLoss()(LOGITS, LABELS, indices=torch.tensor([2, 0]))


def test_labels_and_weights_that_do_not_fit_the_logits_are_refused() -> None:
    logits, labels = draw(3, ignored=None)
    for scores, given in ((logits.movedim(1, -1), labels), (logits, labels[:, 0])):
        with pytest.raises(ValueError, match="FocalLoss: `labels` must be"):
            FocalLoss()(scores, given)
    with pytest.raises(ValueError, match="`logits` must be a tensor"):
        FocalLoss(ignore_index=-100)(logits.numpy(), labels)
    with pytest.raises(ValueError, match=r"FocalLoss: `weight` must be \[C\]"):
        FocalLoss(weight=torch.ones(2))(logits, labels)
    with pytest.raises(ValueError, match="`labels` must lie in .*`ignore_index=-1`"):
        (FocalLoss(ignore_index=7) + MDCA())(logits, labels - 1)
    for options in ({"ignore_index": -100}, {"weight": WEIGHT}, {"base": BrierLoss(ignore_index=1)}):
        with pytest.raises(ValueError, match="may have an `ignore_index` or a `weight`"):
            MixupLoss(**options)  # type: ignore[arg-type]


def test_module_names_its_arguments_for_help_and_survives_a_copy() -> None:
    loss = FocalLoss(gamma=2, ignore_index=3) + MeanTop()
    assert list(inspect.signature(FocalLoss).parameters) == ["gamma", "reduction", "ignore_index", "weight"]
    assert repr(pickle.loads(pickle.dumps(loss))) == repr(copy.deepcopy(loss)) == repr(loss)
