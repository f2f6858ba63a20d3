"""Dense logits, ignored labels and class weights of the modules, against torch's own loss and rows chosen by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from calibrant.losses import (
    CRL,
    LOSSES,
    MDCA,
    PENALTIES,
    AdaFocalLoss,
    AvUC,
    BrierLoss,
    CrossEntropyLoss,
    FocalLoss,
    MixupLoss,
    Objective,
    Penalty,
    avuc_threshold,
    brier_loss,
    cross_entropy_loss,
    focal_loss,
    mdca_penalty,
)
from calibrant.losses.base import Reduction

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


@pytest.mark.parametrize("name", BOTH)
def test_every_module_of_dense_logits_is_that_of_their_rows(name: str) -> None:
    logits, labels = draw(2, 2, ignored=None)
    module = made(name)
    more = inputs_of(module, labels)
    flat = {key: value.reshape(-1) if value.ndim else value for key, value in more.items()}
    expected = module(logits.movedim(1, -1).reshape(-1, 4), labels.reshape(-1), **flat)
    assert torch.equal(module(logits, labels, **more), expected)


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


def test_focal_loss_without_ignored_labels_gives_what_it_gave() -> None:
    logits, labels = draw(ignored=None)
    assert torch.equal(FocalLoss(ignore_index=-100)(logits, labels), FocalLoss()(logits, labels))


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


def test_classes_without_weight_alone_give_zero_where_torch_divides_by_it() -> None:
    assert float(CrossEntropyLoss(weight=WEIGHT)(torch.randn(2, 4), torch.tensor([2, 2]))) == 0


def test_soft_targets_are_flattened_and_none_is_ignored() -> None:
    logits, target = draw(3)[0], draw(3)[0].exp().softmax(1)
    rows, flat = (value.movedim(1, -1).reshape(-1, 4) for value in (logits, target))
    expected = cross_entropy_loss(rows, flat)
    torch.testing.assert_close(CrossEntropyLoss()(logits, target), expected.mean())
    torch.testing.assert_close(CrossEntropyLoss(ignore_index=0, reduction="none")(logits, target), expected.reshape(6, 3))
    with pytest.raises(ValueError, match="CrossEntropyLoss: `labels` must be class indices where there is a `weight`"):
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


def test_module_prints_and_keeps_what_it_was_given() -> None:
    loss = FocalLoss(gamma=2, ignore_index=-100, weight=WEIGHT) + MDCA(ignore_index=-100)
    assert repr(loss) == "FocalLoss(gamma=2, ignore_index=-100, weight=tensor [4]) + MDCA(ignore_index=-100)"
    assert list(loss.state_dict()) == ["terms.0.weight"]
    assert list(FocalLoss().state_dict()) == []


def test_crl_leaves_out_the_indices_of_ignored_labels() -> None:
    logits, labels = draw()
    kept, indices = labels >= 0, torch.arange(6) + 2
    whole, part = CRL(num_samples=9, ignore_index=-100), CRL(num_samples=9)
    whole.update(logits, labels, indices=indices)
    part.update(logits[kept], labels[kept], indices=indices[kept])
    assert torch.equal(whole.times_right, part.times_right)
    whole.times_right[4] = part.times_right[4] = 1
    torch.testing.assert_close(
        whole(logits, labels, indices=indices), part(logits[kept], labels[kept], indices=indices[kept]), rtol=0, atol=0
    )
    with pytest.raises(ValueError, match=r"CRL: `indices` must be int64 or int32 \[B\] = \[12\], got torch.int64 \[6\]"):
        part(*draw(2, ignored=None), indices=indices)


def test_avuc_threshold_follows_labelled_rows_alone() -> None:
    logits, labels = draw(3)
    penalty = AvUC(ignore_index=-100)
    penalty.update_threshold(logits, labels)
    rows = logits.movedim(1, -1).reshape(-1, 4)[labels.reshape(-1) >= 0]
    torch.testing.assert_close(penalty.current_threshold.double(), avuc_threshold(rows, labels[labels >= 0]))


def test_mixup_of_dense_logits_flattens_both_labels() -> None:
    (logits, labels), lam = draw(3, ignored=None), torch.tensor(0.3)
    rows = logits.movedim(1, -1).reshape(-1, 4)
    found = MixupLoss()(logits, labels, labels_b=labels.flip(0), lam=lam)
    expected = MixupLoss()(rows, labels.reshape(-1), labels_b=labels.flip(0).reshape(-1), lam=lam)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "options",
    [{"ignore_index": -100}, {"weight": WEIGHT}, {"base": FocalLoss(weight=WEIGHT)}, {"base": BrierLoss(ignore_index=1)}],
)
def test_mixup_refuses_what_needs_one_label(options: dict[str, object]) -> None:
    with pytest.raises(
        ValueError, match="MixupLoss: neither it nor `base` may have an `ignore_index` or a `weight`, as a mixed"
    ):
        MixupLoss(**options)  # type: ignore[arg-type]


def test_label_below_zero_names_ignore_index() -> None:
    logits, labels = draw()
    for loss in (CrossEntropyLoss(), FocalLoss(), MDCA(), FocalLoss(ignore_index=7) + MDCA()):
        with pytest.raises(
            ValueError, match=r"got -100. If it marks .* to leave out, give the loss's module .* `ignore_index=-100`\."
        ):
            loss(logits, labels)


def test_what_cannot_be_is_refused_with_a_sentence() -> None:
    logits, labels = draw(3, ignored=None)
    with pytest.raises(ValueError, match=r"FocalLoss: .* The classes come last: pass `logits.movedim\(-1, 1\)`"):
        FocalLoss()(logits.movedim(1, -1), labels)
    with pytest.raises(ValueError, match=r"FocalLoss: `labels` must be \[N, ...\] = \[6, 3\], got \[6\]"):
        FocalLoss()(logits, labels[:, 0])
    with pytest.raises(ValueError, match=r"`logits` must be a tensor, got ndarray"):
        FocalLoss(ignore_index=-100)(logits.numpy(), labels)
    with pytest.raises(ValueError, match="FocalLoss: `ignore_index` must be a whole number or None, got -0.5"):
        FocalLoss(ignore_index=-0.5)  # type: ignore[typeddict-item]
    with pytest.raises(ValueError, match="WeightedSum: terms must share one `ignore_index`, got"):
        FocalLoss(ignore_index=1) + MDCA(ignore_index=2)
    with pytest.raises(
        ValueError, match="MDCA: `weight` must not be given, as a penalty is about the batch as a whole. Give it to"
    ):
        MDCA(weight=WEIGHT)
    with pytest.raises(
        ValueError, match=r"FocalLoss: `weight` must be a floating tensor \[C\], one number per class, got list"
    ):
        FocalLoss(weight=[1.0, 2.0])  # type: ignore[typeddict-item]
    with pytest.raises(ValueError, match=r"FocalLoss: `weight` must be finite and >= 0, got \[-1.0\]"):
        FocalLoss(weight=torch.tensor([-1.0]))
    with pytest.raises(ValueError, match=r"FocalLoss: `weight` must be \[C\] = \[4\], got \[2\]"):
        FocalLoss(weight=torch.ones(2))(logits, labels)


def test_penalty_of_ones_own_has_it_all_for_nothing() -> None:
    class MeanTop(Penalty):
        def value(self, logits: Tensor, labels: Tensor) -> Tensor:
            return logits.amax(1).mean()

    logits, labels = draw(3)
    expected = logits.amax(1)[labels >= 0].mean()
    torch.testing.assert_close(MeanTop(ignore_index=-100)(logits, labels), expected)


def test_misspelt_argument_is_answered_with_the_nearest_of_the_class_that_was_named() -> None:
    with pytest.raises(TypeError, match="unknown argument of FocalLoss 'gama'. Did you mean 'gamma'?"):
        FocalLoss(gama=3)
    with pytest.raises(TypeError, match="unknown argument of MDCA 'ignor_index'. Did you mean 'ignore_index'?"):
        MDCA(ignor_index=1)


def test_adafocal_learns_from_labelled_rows_alone() -> None:
    probs, labels = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)).softmax(1), torch.arange(60) % 3
    padded, plain = AdaFocalLoss(ignore_index=-100), AdaFocalLoss()
    padded.update(probs, labels.where(labels > 0, -100))
    plain.update(probs[labels > 0], labels[labels > 0])
    torch.testing.assert_close(padded.gammas, plain.gammas)


def test_mixup_of_dense_logits_takes_a_proportion_for_every_example() -> None:
    logits, labels = draw(3, ignored=None)
    lam = torch.linspace(0, 1, len(logits))
    positions = labels[0].numel()
    found = MixupLoss()(logits, labels, labels_b=labels.flip(0), lam=lam)
    expected = MixupLoss()(
        logits.movedim(1, -1).reshape(-1, 4),
        labels.reshape(-1),
        labels_b=labels.flip(0).reshape(-1),
        lam=lam.repeat_interleave(positions),
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
