"""The state of streaming metrics: batches, merges, copies, devices and precision change no number."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calibrant.metrics import METRICS
from calibrant.metrics.from_grid import KEPT_EXAMPLES
from calibrant.metrics.streaming import (
    CalibrationSuite,
    ExpectedCalibrationError,
    NegativeLogLikelihood,
)
from helpers import mixed_gaps


def filled(n: int = 400, *, seed: int = 0, num_classes: int = 4, **options: object) -> CalibrationSuite:
    suite = CalibrationSuite(num_classes=num_classes, **options)
    suite.update(*mixed_gaps(n, num_classes, seed=seed))
    return suite


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    assert set(a) == set(b)
    for key, value in a.items():
        assert float(value) == float(b[key]) or abs(float(value - b[key])) <= tolerance, key


def rows(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # Few distinct probabilities, so that ties and edges are common.
    raw = torch.randint(0, 6, (n, 3), generator=generator).double() + 0.1 * (seed % 2)
    raw[raw.sum(1) == 0] = 1.0
    labels = torch.randint(0, 3, (n,), generator=generator)
    return raw / raw.sum(1, keepdim=True), labels, torch.randint(1, 4, (n,), generator=generator).double()


@given(n=st.integers(1, 60), seed=st.integers(0, 10_000), cuts=st.lists(st.integers(0, 60), max_size=4), weighted=st.booleans())
@settings(max_examples=60, deadline=None)
def test_suite_in_batches_of_any_size_and_order_equals_one_shot(n: int, seed: int, cuts: list[int], weighted: bool) -> None:
    probs, labels, weights = rows(n, seed)
    whole = CalibrationSuite(num_classes=3)
    whole.update(probs, labels, weights=weights if weighted else None)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + 1))
    parts = CalibrationSuite(num_classes=3)
    edges = [0, *sorted(c for c in cuts if c < n), n]
    for first, last in zip(edges[:-1], edges[1:], strict=True):
        at = order[first:last]
        if len(at):
            parts.update(probs[at], labels[at], weights=weights[at] if weighted else None)
    # The root of a sum that cancels to nothing turns rounding of 1e-16 into 1e-8.
    assert_same(whole.compute(), parts.compute(), tolerance=1e-7)


@given(sizes=st.tuples(*[st.integers(1, 25)] * 3), seed=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_merge_is_associative_and_commutative(sizes: tuple[int, int, int], seed: int) -> None:
    suites = []
    for k, n in enumerate(sizes):
        suite = CalibrationSuite(num_classes=3)
        suite.update(*rows(n, seed + k)[:2])
        suites.append(suite)
    a, b, c = suites
    left, right, other = a.merge(b).merge(c), a.merge(b.merge(c)), c.merge(a, b)
    for name in ("count", "totals", "cells", "class_bins", "class_correct"):
        assert torch.allclose(getattr(left, name), getattr(right, name), rtol=1e-14, atol=1e-13)
        assert torch.allclose(getattr(left, name), getattr(other, name), rtol=1e-14, atol=1e-13)
    assert_same(left.compute(), right.compute(), tolerance=1e-7)
    assert_same(left.compute(), other.compute(), tolerance=1e-7)
    assert [int(s.count[0]) for s in suites] == list(sizes)


def test_merge_keeps_examples_of_weight_zero_in_their_place() -> None:
    probs, labels = mixed_gaps(200, 4)
    weights = torch.arange(200).remainder(3).double()
    whole = CalibrationSuite(num_classes=4)
    whole.update(probs, labels, weights=weights)
    parts = [CalibrationSuite(num_classes=4) for _ in range(2)]
    for part, half in zip(parts, (slice(0, 90), slice(90, 200)), strict=True):
        part.update(probs[half], labels[half], weights=weights[half])
    assert_same(parts[0].merge(parts[1]).compute(), whole.compute())


def test_merge_beyond_the_kept_examples_equals_one_stream() -> None:
    probs, labels = mixed_gaps(KEPT_EXAMPLES + 3000, 4)
    whole = CalibrationSuite(num_classes=4)
    whole.update(probs, labels)
    a, b = CalibrationSuite(num_classes=4), CalibrationSuite(num_classes=4)
    a.update(probs[:40000], labels[:40000])
    b.update(probs[40000:], labels[40000:])
    assert_same(a.merge(b).compute(), whole.compute())
    assert a.sums().kept is not None
    assert a.merge(b).sums().kept is None


def test_merge_state_into_a_fresh_metric_replaces_cached_values() -> None:
    fresh, full = CalibrationSuite(num_classes=4), filled()
    fresh.merge_state(full)
    assert_same(fresh.compute(), full.compute())
    fresh.merge_state(filled(seed=1).metric_state)
    assert int(fresh.count[0]) == 800
    assert float(fresh.compute()["nll"]) != float(full.compute()["nll"])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (CalibrationSuite(num_classes=5), "CalibrationSuite.merge_state: `incoming_state` must have the same settings"),
        (CalibrationSuite(num_classes=4, n_bins=10), "the same settings .*'n_bins': 15.* got .*'n_bins': 10"),
        (CalibrationSuite(num_classes=4, classwise=False), "the same settings"),
        (CalibrationSuite(num_classes=4, ignore_index=0), "the same settings"),
        (ExpectedCalibrationError(num_classes=4), "the same settings"),
        ({"count": torch.zeros(2)}, r"state `totals` must be \[8\], got none"),
        ({"count": torch.zeros(3)}, r"state `count` must be \[2\], got \[3\]"),
        (3, "`incoming_state` must be a metric or its `metric_state`, got int"),
    ],
)
def test_merge_state_of_another_kind_is_refused(other: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filled().merge_state(other)


def test_state_size_does_not_grow_with_examples() -> None:
    def size(suite: CalibrationSuite) -> int:
        return sum(s.numel() * s.element_size() for s in suite.metric_state.values())

    fresh, seen = CalibrationSuite(num_classes=4), filled(70_000)
    assert size(fresh) == size(seen) < 1_900_000
    per_class = size(CalibrationSuite(num_classes=1000)) - size(CalibrationSuite(num_classes=1000, classwise=False))
    assert per_class == 24 * 1000 * 15 + 16 * 1000


def test_update_of_probs_that_require_grad_keeps_no_graph() -> None:
    logits = torch.randn(32, 4, requires_grad=True)
    suite = CalibrationSuite(num_classes=4)
    suite(logits.softmax(1), torch.randint(0, 4, (32,)))
    suite.update(logits=logits, labels=torch.randint(0, 4, (32,)))
    assert all(not state.requires_grad and state.grad_fn is None for state in suite.metric_state.values())
    assert logits.grad is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_update_in_half_precision_accumulates_in_float64(dtype: torch.dtype) -> None:
    probs = torch.tensor([[0.75, 0.25]], dtype=dtype).expand(5000, 2)
    suite = CalibrationSuite(num_classes=2)
    for _ in range(4):
        suite.update(probs, torch.zeros(5000, dtype=torch.int64))
    values = suite.compute()
    assert float(values["ece"]) == 0.25
    assert float(values["brier"]) == pytest.approx(0.125, abs=1e-15)
    assert int(suite.count[0]) == 20_000


def test_update_from_logits_is_exact_where_probabilities_underflow() -> None:
    suite = CalibrationSuite(num_classes=2)
    suite.update(logits=torch.tensor([[2000.0, 0.0], [0.0, 3.0]]), labels=torch.tensor([1, 1]))
    expected = (2000 + float(torch.tensor(-3.0, dtype=torch.float64).exp().log1p())) / 2
    assert float(suite.compute()["nll"]) == pytest.approx(expected, rel=1e-14)
    from_probs = NegativeLogLikelihood(num_classes=2)
    from_probs.update(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert float(from_probs.compute()) == float("inf")


def test_update_of_probabilities_rounded_above_one_equals_the_functions() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2_000, 4, generator=generator) * 20
    labels = torch.randint(0, 4, (2_000,), generator=generator)
    # The mean of ten networks that agree: a float32 tenth is too large, and so is the sum of ten.
    probs = sum(logits.softmax(1) * 0.1 for _ in range(10))
    assert isinstance(probs, Tensor)
    assert float(probs.max()) > 1
    suite = CalibrationSuite(num_classes=4)
    suite.update(probs, labels)
    direct = {key: METRICS[key](probs, labels) for key in suite.compute()}
    assert_same(suite.compute(), direct)
    for _ in range(KEPT_EXAMPLES // len(labels)):
        suite.update(probs, labels)  # The same examples again and again, until the cells alone must do.
    exact = ("error", "nll", "brier", "ece", "mce", "classwise_ece", "signed_gap")
    found = suite.compute()
    assert_same({key: found[key] for key in exact}, {key: direct[key] for key in exact})


def test_scores_of_a_weighted_stream_count_rows_by_class() -> None:
    probs, labels = mixed_gaps(60, 3)
    suite = CalibrationSuite(num_classes=3)
    for rows in torch.arange(60).split(20):
        suite.update(probs[rows], labels[rows], weights=torch.full((20,), 0.01))
    scores = suite.scores(by_class=True, n_resamples=20)
    assert {entry.index: entry.count for entry in scores.classes} == dict(
        enumerate(torch.bincount(labels, minlength=3).tolist())
    )
    assert sum(entry.weight or 0.0 for entry in scores.classes) == pytest.approx(0.6)


def test_update_without_examples_adds_nothing() -> None:
    probs, labels = mixed_gaps(30, 3)
    suite, plain = CalibrationSuite(num_classes=3, ignore_index=-1), CalibrationSuite(num_classes=3, ignore_index=-1)
    suite.update(probs[:0], labels[:0])
    suite.update(logits=torch.empty(0, 3, 4, 4), labels=torch.empty(0, 4, 4, dtype=torch.long))
    suite.update(probs[:0], labels[:0], weights=torch.empty(0))
    with pytest.raises(ValueError, match="no examples yet"):
        suite.compute()
    for metric in (suite, plain):
        metric.update(probs, labels)
    assert suite.compute() == plain.compute()
    with pytest.raises(ValueError, match=r"must have C = 3 columns, got \[0, 4\]"):
        suite.update(torch.empty(0, 4), labels[:0])
    # An empty list becomes floating point.
    suite.update(probs[:0], torch.empty(0))


def test_weight_zero_leaves_an_example_out() -> None:
    probs, labels = mixed_gaps(300, 4)
    probs = torch.cat([probs, torch.tensor([[1.0, 0, 0, 0]])])
    labels = torch.cat([labels, torch.tensor([2])])
    weights = torch.cat([torch.full((300,), 2.0), torch.zeros(1)])
    suite = CalibrationSuite(num_classes=4)
    suite.update(probs, labels, weights=weights)
    assert_same(suite.compute(), filled(300).compute(), tolerance=1e-9)


def test_ignore_index_and_dense_input_equal_the_plain_rest() -> None:
    probs, labels = mixed_gaps(240, 4)
    dense, marked = probs.reshape(2, 120, 4).movedim(2, 1), labels.clone()
    marked[::7] = 255
    suite = CalibrationSuite(num_classes=4, ignore_index=255)
    suite.update(dense, marked.reshape(2, 120))
    suite.update(probs[:5], torch.full((5,), 255))
    plain = CalibrationSuite(num_classes=4)
    plain.update(probs[marked != 255], labels[marked != 255])
    assert_same(suite.compute(), plain.compute())
    assert int(suite.ignored_255) == int((marked == 255).sum()) + 5


def test_large_batch_in_chunks_equals_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = filled(1000).compute()
    monkeypatch.setattr("calibrant.metrics.stream._CHUNK_ENTRIES", 4 * 300)
    assert_same(filled(1000).compute(), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 1}, "CalibrationSuite: `num_classes` must be a whole number >= 2, got 1"),
        ({"num_classes": 3, "n_bins": 12}, "`n_bins` must be one of 5, 10, 15, 20, 25, 30, 50, 100, 200, 500, 1000, got 12"),
        ({"num_classes": 3, "n_bin": 15}, "Unexpected keyword arguments: `n_bin`"),
    ],
)
def test_constructor_refuses_bad_settings(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CalibrationSuite(**arguments)


P, Y = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"probs": P}, "CalibrationSuite.update: `labels` must be given, got None"),
        ({"labels": Y}, "exactly one of `probs` and `logits` must be given, got neither"),
        ({"probs": P, "logits": P, "labels": Y}, "exactly one of `probs` and `logits` must be given, got both"),
        ({"probs": P[:, :2] * 4 / 3, "labels": Y}, r"`probs` must have C = 3 columns, got \[1, 2\]"),
        ({"probs": P * 3, "labels": Y}, "look like logits"),
        ({"probs": P, "labels": torch.tensor([3])}, r"`labels` must lie in \[0, 2\], got 3"),
        ({"probs": P, "labels": torch.tensor([[1, 0, 0]])}, "one-hot"),
        ({"logits": P * float("nan"), "labels": Y}, "`logits` must not hold NaN"),
        ({"probs": P, "labels": Y, "weights": torch.tensor([-1.0])}, "`weights` must be finite and >= 0"),
    ],
)
def test_update_refuses_bad_input_and_leaves_the_state_alone(arguments: dict[str, Tensor], message: str) -> None:
    suite = CalibrationSuite(num_classes=3)
    with pytest.raises(ValueError, match=message):
        suite.update(**arguments)
    assert int(suite.count[0]) == 0
    assert float(suite.cells.sum()) == 0


def copies(suite: CalibrationSuite) -> Iterator[CalibrationSuite]:
    yield suite.clone()
    yield copy.deepcopy(suite)
    yield pickle.loads(pickle.dumps(suite))


def test_copies_of_a_metric_are_independent_and_equal() -> None:
    suite = filled()
    for other in copies(suite):
        assert_same(other.compute(), suite.compute())
        other.update(*mixed_gaps(10, 4, seed=3))
        assert (int(other.count[0]), int(suite.count[0])) == (410, 400)


def test_state_dict_of_a_persistent_metric_restores_it() -> None:
    suite = filled(persistent=True)
    file = io.BytesIO()
    torch.save(suite.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    restored = CalibrationSuite(num_classes=4)
    restored.load_state_dict(dict(saved))
    assert_same(restored.compute(), suite.compute())
    restored.update(*mixed_gaps(10, 4))
    assert int(saved["count"][0]) == 400
    assert filled().state_dict() == {}


def test_model_cast_to_half_precision_leaves_the_sums_in_float64() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(2, 2)
            self.metric = filled()

    expected = filled().compute()
    for cast in (lambda m: m.half(), lambda m: m.to(torch.bfloat16), lambda m: m.to("cpu", torch.float32), lambda m: m.float()):
        model = cast(Model())
        model.metric.set_dtype(torch.float32)
        assert model.metric.cells.dtype == torch.float64
        assert model.metric.count.dtype == torch.int64
        model.metric.reset()
        model.metric.update(*mixed_gaps(400, 4))
        assert_same(model.metric.compute(), expected)


def test_move_to_a_device_without_float64_keeps_the_state_on_the_cpu() -> None:
    def to_mps(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return tensor

    suite = filled()
    suite._apply(to_mps)
    assert_same(suite.compute(), filled().compute())
    assert suite.cells.dtype == torch.float64


def test_reset_inside_inference_mode_can_be_updated_outside() -> None:
    suite = filled()
    with torch.inference_mode():
        suite.reset()
    suite.update(*mixed_gaps(400, 4))
    assert_same(suite.compute(), filled().compute())


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_suite_on_cuda_equals_the_one_on_the_cpu(dtype: torch.dtype) -> None:
    probs, labels = mixed_gaps(5000, 4, dtype=dtype)
    here, there = CalibrationSuite(num_classes=4), CalibrationSuite(num_classes=4).to("cuda")
    here.update(probs, labels)
    there.update(probs.cuda(), labels.cuda())
    assert there.cells.device.type == there.compute()["ece"].device.type == "cuda"
    assert_same(here.compute(), {key: value.cpu() for key, value in there.compute().items()}, tolerance=1e-9)


def test_summary_of_a_weighted_stream_is_not_changed_by_what_comes_after() -> None:
    suite = CalibrationSuite(num_classes=3)
    batch = {"probs": torch.eye(3)[[0, 1, 2, 0]] * 0.7 + 0.1, "labels": torch.tensor([0, 1, 2, 2])}
    suite.update(**batch, weights=torch.tensor([1.0, 2.0, 0.5, 1.0]))
    before = suite.summary()
    kept = before.class_rows.clone()
    suite.update(**batch, weights=torch.ones(4))
    assert torch.equal(before.class_rows, kept)
