"""Penalties against definitions written out in loops, on data whose gaps have both signs, and their memory."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant import losses
from calibrant.losses import dece_penalty, mmce_penalty, sece_penalty, skce_penalty, weighted_mmce_penalty
from helpers import mixed_gaps

N, C = 60, 6


def batch() -> tuple[Tensor, Tensor, list[float], list[float]]:
    """Logits, labels, confidences and correctness of a batch in which some confidences tie."""
    probs, labels = mixed_gaps(N, C)
    probs[1] = probs[0]
    top = probs.max(1)
    return probs.log(), labels, top.values.tolist(), (top.indices == labels).double().tolist()


def laplace(a: float, b: float) -> float:
    return math.exp(-abs(a - b) / 0.4)


def loop_mmce_squared(c: list[float], a: list[float]) -> float:
    return sum((a[i] - c[i]) * (a[j] - c[j]) * laplace(c[i], c[j]) for i in range(N) for j in range(N)) / N**2


def loop_weighted_mmce_squared(c: list[float], a: list[float], *, official: bool) -> float:
    right, wrong = [x for x, y in zip(c, a, strict=True) if y], [x for x, y in zip(c, a, strict=True) if not y]
    m, n = len(right), len(wrong)
    rr = np.mean([(1 - x) * (1 - y) * laplace(x, y) for x in right for y in right])
    ww = np.mean([x * y * laplace(x, y) for x in wrong for y in wrong])
    rw = np.mean([(1 - x) * y * laplace(x, y) for x in right for y in wrong])
    return float(rr / m**2 + ww / n**2 - 2 * rw / (m * n)) if official else float(rr + ww - 2 * rw)


def kernel_row(c: list[float], i: int, *, h: float, leave_one_out: bool) -> list[float]:
    k = [math.exp(-((c[i] - other) ** 2) / (2 * h * h)) for other in c]
    if leave_one_out:
        k[i] = 0.0
    return k


def loop_sece(c: list[float], a: list[float], *, h: float, leave_one_out: bool) -> float:
    total = 0.0
    for i in range(N):
        k = kernel_row(c, i, h=h, leave_one_out=leave_one_out)
        total += abs(sum(w * x for w, x in zip(k, a, strict=True)) / sum(k) - c[i])
    return total / N


def loop_centred_divergence(c: list[float], a: list[float], *, h: float, leave_one_out: bool) -> float:
    total = 0.0
    for i in range(N):
        k = kernel_row(c, i, h=h, leave_one_out=leave_one_out)
        around = c[i] + sum(w * (x - y) for w, x, y in zip(k, a, c, strict=True)) / sum(k)
        p = min(max(around, 1e-6), 1 - 1e-6)
        total += p * math.log(p) + (1 - p) * math.log(1 - p) - around * math.log(c[i]) - (1 - around) * math.log(1 - c[i])
    return total / N


def loop_skce(c: list[float], a: list[float], *, h: float) -> float:
    total = 0.0
    for i in range(N):
        k = kernel_row(c, i, h=h, leave_one_out=True)
        total += sum((a[i] - c[i]) * (a[j] - c[j]) * k[j] for j in range(N))
    return total / (N * (N - 1))


def loop_dece(probs: np.ndarray[tuple[int, int], np.dtype[np.float64]], labels: list[int]) -> float:
    bins, t_b, t_a = 15, 0.01, 100
    member, accuracy = np.zeros((N, bins)), np.zeros(N)
    for i, y in enumerate(labels):
        scores = [(m * probs[i].max() - sum(k / bins for k in range(m))) / t_b for m in range(1, bins + 1)]
        shares = np.exp(np.array(scores) - max(scores))
        member[i] = (shares / shares.sum() + 1e-6) / (1 + (bins + 1) * 1e-6)
        rank = 0.5 + sum(1 / (1 + math.exp(-t_a * (probs[i, k] - probs[i, y]))) for k in range(C))
        accuracy[i] = max(0.0, 2 - rank)
    total = 0.0
    for m in range(bins):
        mass = member[:, m].sum()
        gap = (member[:, m] * accuracy).sum() / mass - (member[:, m] * probs.max(1)).sum() / mass
        total += mass / N * abs(gap)
    return total


Definition = Callable[[list[float], list[float]], float]
DEFINITIONS: dict[str, tuple[Callable[..., Tensor], Definition]] = {
    "mmce": (partial(mmce_penalty, squared=True), loop_mmce_squared),
    **{
        f"weighted_mmce {form}": (
            partial(weighted_mmce_penalty, normalization=form, squared=True),
            partial(loop_weighted_mmce_squared, official=form == "official"),
        )
        for form in ("paper", "official")
    },
    **{
        f"sece {h} {without}": (
            partial(sece_penalty, bandwidth=h, leave_one_out=without),
            partial(loop_sece, h=h, leave_one_out=without),
        )
        for h in (0.1, 0.01, 0.009)
        for without in (False, True)
    },
    **{
        f"centred {h} {without}": (
            partial(sece_penalty, bandwidth=h, centred=True, distance="kl", leave_one_out=without),
            partial(loop_centred_divergence, h=h, leave_one_out=without),
        )
        for h in (0.1, 0.009)
        for without in (False, True)
    },
    **{f"skce {h}": (partial(skce_penalty, bandwidth=h), partial(loop_skce, h=h)) for h in (0.1, 0.009)},
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_penalty_agrees_with_its_definition(name: str) -> None:
    logits, labels, c, a = batch()
    penalty, definition = DEFINITIONS[name]
    assert penalty(logits, labels).item() == pytest.approx(definition(c, a), rel=1e-9)


def test_dece_agrees_with_its_definition() -> None:
    logits, labels, _, _ = batch()
    expected = loop_dece(logits.softmax(1).numpy(), labels.tolist())
    assert dece_penalty(logits, labels).item() == pytest.approx(expected, rel=1e-10)


def test_mmce_gradient_agrees_with_that_of_the_quadratic_definition() -> None:
    logits, labels, _, _ = batch()
    logits.requires_grad_()
    confidence, top = logits.softmax(1).max(1)
    gap = (top == labels).double() - confidence
    plain = (gap.unsqueeze(1) * gap * torch.exp(-(confidence.unsqueeze(1) - confidence).abs() / 0.4)).mean()
    found = torch.autograd.grad(mmce_penalty(logits, labels, squared=True), logits)[0]
    torch.testing.assert_close(found, torch.autograd.grad(plain, logits)[0])


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of tensors that operations under it allocate and that are alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(found):
            if isinstance(value, Tensor) and value.untyped_storage()._cdata not in self._known:
                storage = value.untyped_storage()
                self._known.add(storage._cdata)
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())
        return found

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def peak_of(penalty: Callable[[Tensor, Tensor], Tensor], size: int, num_classes: int) -> int:
    logits = torch.randn(size, num_classes, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.arange(size) % num_classes
    with PeakMemory() as memory:
        penalty(logits, labels).backward()
    return memory.peak


def test_peak_memory_counts_what_is_alive_at_once() -> None:
    # The exponentials (1 MB) are kept until the gradient (1 MB) is there; a product in between is gone by then.
    peak = peak_of(lambda logits, labels: (2 * logits).exp().sum(), 256, 1024)
    assert 2 * 2**20 <= peak < 2 * 2**20 + 100


@pytest.mark.parametrize(
    "penalty",
    [
        losses.DECE(),
        losses.SECE(),
        losses.SECE(accuracy="soft", bandwidth=0.01),
        losses.SECE(leave_one_out=True),
        losses.SECE(centred=True, distance="kl"),
    ],
    ids=repr,
)
def test_dece_and_sece_of_1024_x_1000_need_less_than_50_mb(penalty: losses.Penalty) -> None:
    assert peak_of(penalty, 1024, 1000) < 50e6


@pytest.mark.parametrize("name", ["mmce", "weighted_mmce"])
def test_mmce_of_a_large_batch_builds_no_kernel_matrix(name: str) -> None:
    # A kernel matrix of 20,000 samples would be 1.6 GB.
    assert peak_of(losses.PENALTIES[name].module(), 20_000, 2) < 20e6


def test_cpc_of_many_classes_keeps_no_pairs() -> None:
    # 64 x 599 x 599 pairs are 92 MB, of which autograd would keep two; a block is 16 MB.
    assert peak_of(losses.CPC(), 64, 600) < 70e6
