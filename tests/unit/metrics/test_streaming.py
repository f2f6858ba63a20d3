from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics import MetricCollection

from calibrant.core.binning import EXACT_BINS, KEPT_EXAMPLES, summarize
from calibrant.core.records import Predictions
from calibrant.metrics import METRICS, streaming
from calibrant.metrics.measure import measure
from calibrant.metrics.streaming import (
    AdaptiveCalibrationError,
    BrierScore,
    CalibrationSuite,
    ClasswiseCalibrationError,
    ExpectedCalibrationError,
    NegativeLogLikelihood,
    SingleMetric,
)
from calibrant.metrics.table import score_metrics
from helpers import mixed_gaps

KEYS = [key for key, metric in score_metrics().items() if metric.read]


SINGLES = [
    cls
    for cls in vars(streaming).values()
    if isinstance(cls, type) and issubclass(cls, SingleMetric) and cls is not SingleMetric
]


def filled(n: int = 400, *, seed: int = 0, num_classes: int = 4, **options: object) -> CalibrationSuite:
    suite = CalibrationSuite(num_classes=num_classes, **options)
    suite.update(*mixed_gaps(n, num_classes, seed=seed))
    return suite


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    assert set(a) == set(b)
    for key, value in a.items():
        assert float(value) == float(b[key]) or abs(float(value - b[key])) <= tolerance, key


@pytest.mark.parametrize("cls", SINGLES)
def test_single_metric_equals_its_entry_of_the_suite(cls: type[SingleMetric]) -> None:
    metric = cls(num_classes=4)
    metric.update(*mixed_gaps(400, 4))
    value = metric.compute()
    assert value.dtype == torch.float64
    assert float(value) == pytest.approx(float(filled().compute()[cls.key]), abs=1e-15)


@pytest.mark.filterwarnings("ignore:.*before the ``update``")
def test_compute_without_examples_says_so() -> None:
    suite = filled()
    suite.reset()
    with pytest.raises(ValueError, match=r"CalibrationSuite: no examples yet"):
        suite.compute()


def filled_with(probs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    suite = CalibrationSuite(num_classes=4)
    suite.update(probs, labels)
    return suite.compute()


def test_metric_collection_shares_one_state_among_equal_settings() -> None:
    probs, labels = mixed_gaps(600, 4)
    collection = MetricCollection(
        {
            "ece": ExpectedCalibrationError(num_classes=4),
            "ece5": ExpectedCalibrationError(num_classes=4, n_bins=5),
            "ace": AdaptiveCalibrationError(num_classes=4),
            "brier": BrierScore(num_classes=4),
            "classwise": ClasswiseCalibrationError(num_classes=4),
            "ignoring": ExpectedCalibrationError(num_classes=4, ignore_index=7),
        }
    )
    for at in (0, 300):
        collection.update(probs[at : at + 300], labels[at : at + 300])
    assert sorted(sorted(group) for group in collection.compute_groups.values()) == [
        ["ace", "brier", "ece", "ece5"],
        ["classwise"],
        ["ignoring"],
    ]
    values, expected = collection.compute(), filled_with(probs, labels)
    for name, key in {"ece": "ece", "ace": "ace", "brier": "brier", "classwise": "classwise_ece", "ignoring": "ece"}.items():
        assert float(values[name]) == pytest.approx(float(expected[key]), abs=1e-14)
    assert float(values["ece5"]) != float(values["ece"])
    collection.reset()
    collection.update(probs[:9], labels[:9])
    assert int(collection["ece5"].count) == 9


def test_scores_are_those_of_measuring_the_predictions() -> None:
    probs, labels = mixed_gaps(1500, 4)
    suite = filled(1500)
    found = suite.scores(by_class=True, class_names=list("abcd"), n_resamples=100)
    expected = measure(Predictions(probs=probs, labels=labels, class_names=list("abcd")), by_class=True, n_resamples=100)
    assert (found.n, found.num_classes, found.n_bins) == (1500, 4, 15)
    assert list(found) == [key for key in expected if key in KEYS] == KEYS
    for key in KEYS:
        assert found[key].value == pytest.approx(float(suite.compute()[key]), abs=0)
        assert found[key] == pytest.approx(expected[key], abs=1e-6), key
    assert found.ece_if_calibrated == pytest.approx(expected.ece_if_calibrated, abs=1e-9)
    assert [c.name for c in found.classes] == [c.name for c in expected.classes]


def test_plot_draws_the_reliability_diagram(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot as plt

    plt.switch_backend("Agg")
    suite = filled()
    figure, ax = suite.plot()
    assert ax.get_title() == f"ECE {float(suite.compute()['ece']):.4f} in 15 bins, 400 examples"
    assert len(figure.axes) == 2
    given = plt.figure().subplots()
    assert suite.plot(given, n_bins=100)[1] is given
    metric = ExpectedCalibrationError(num_classes=4)
    metric.update(*mixed_gaps(50, 4))
    assert metric.plot()[1].get_lines()
    assert metric.plot([metric.compute(), metric.compute()])[0] is not None
    binary = CalibrationSuite(num_classes=2)
    binary.update(*mixed_gaps(50, 2))
    drawn = binary.plot()[1]
    assert drawn.get_title() == f"binary ECE {float(binary.compute()['binary_ece']):.4f} in 15 bins, 50 examples"
    assert drawn.get_ylabel() == "observed"
    plt.close("all")


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
    for name in ("count", "weights", "nll", "brier", "cells", "class_bins", "class_counts"):
        assert torch.allclose(getattr(left, name), getattr(right, name), rtol=1e-14, atol=1e-13)
        assert torch.allclose(getattr(left, name), getattr(other, name), rtol=1e-14, atol=1e-13)
    assert_same(left.compute(), right.compute(), tolerance=1e-7)
    assert_same(left.compute(), other.compute(), tolerance=1e-7)
    assert [int(s.count) for s in suites] == list(sizes)


@pytest.mark.parametrize(
    "other",
    [
        CalibrationSuite(num_classes=5),
        CalibrationSuite(num_classes=4, n_bins=10),
        CalibrationSuite(num_classes=4, classwise=False),
        CalibrationSuite(num_classes=4, ignore_index=0),
        {"count": torch.zeros(3)},
        3,
    ],
)
def test_merge_state_of_another_kind_is_refused(other: object) -> None:
    with pytest.raises(ValueError, match="`incoming_state` must have the states"):
        filled().merge_state(other)


def test_state_size_does_not_grow_with_examples() -> None:
    def size(suite: CalibrationSuite) -> int:
        return sum(s.numel() * s.element_size() for s in suite.metric_state.values())

    fresh, seen = CalibrationSuite(num_classes=4), filled(70_000)
    assert size(fresh) == size(seen) < 2_100_000
    per_class = size(CalibrationSuite(num_classes=1000)) - size(CalibrationSuite(num_classes=1000, classwise=False))
    assert per_class == 24 * 1000 * 15 + 16 * 1000


def test_update_from_logits_is_exact_where_probabilities_underflow() -> None:
    suite = CalibrationSuite(num_classes=2)
    suite.update(logits=torch.tensor([[2000.0, 0.0], [0.0, 3.0]]), labels=torch.tensor([1, 1]))
    expected = (2000 + float(torch.tensor(-3.0, dtype=torch.float64).exp().log1p())) / 2
    assert float(suite.compute()["nll"]) == pytest.approx(expected, rel=1e-14)
    from_probs = NegativeLogLikelihood(num_classes=2)
    from_probs.update(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert float(from_probs.compute()) == float("inf")


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


P, Y = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"probs": P}, "CalibrationSuite.update: `labels` must be given, got None"),
        ({"labels": Y}, "exactly one of"),
        ({"probs": P, "logits": P, "labels": Y}, "exactly one of"),
        ({"probs": P[:, :2] * 4 / 3, "labels": Y}, r"`probs` must have C = 3 columns, got \[1, 2\]"),
        ({"probs": P * 3, "labels": Y}, r"`probs` must lie in \[0, 1\]"),
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
    assert int(suite.count) == 0
    assert float(suite.cells.sum()) == 0


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
    assert int(saved["count"]) == 400
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


F64 = torch.float64


BINNED = ("ece", "mce", "classwise_ece")
EXACT = ("error", "nll", "brier", "signed_gap", *BINNED)


Data = tuple[Tensor, Tensor]


def with_accuracy(confidence: Tensor, accuracy: Tensor, generator: torch.Generator) -> Data:
    """Three classes, the first predicted with ``confidence`` and right with ``accuracy``."""
    rest = (1 - confidence) / 2
    right = torch.rand(len(confidence), generator=generator, dtype=F64) < accuracy
    return torch.stack([confidence, rest, rest], 1), torch.where(right, 0, 1)


def calibrated(n: int, g: torch.Generator) -> Data:
    probs = (2 * torch.randn(n, 10, generator=g, dtype=F64)).softmax(1)
    return probs, torch.multinomial(probs, 1, generator=g).squeeze(1)


def mixed(n: int, g: torch.Generator) -> Data:
    return mixed_gaps(n, seed=g.initial_seed())


def saturated(n: int, g: torch.Generator) -> Data:
    near_one = 1 - 1e-5 * (0.5 + torch.rand(n, generator=g, dtype=F64))
    spread = 0.4 + 0.6 * torch.rand(n, generator=g, dtype=F64)
    confidence = torch.where(torch.rand(n, generator=g) < 0.5, near_one, spread)
    return with_accuracy(confidence, confidence - 0.03 * torch.sin(9 * confidence), g)


def tied(n: int, g: torch.Generator) -> Data:
    confidence = (20 + 30 * torch.rand(n, generator=g, dtype=F64)).round() / 50
    return with_accuracy(confidence, confidence**1.2, g)


def narrow(n: int, g: torch.Generator) -> Data:
    confidence = 0.9 + 0.02 * torch.rand(n, generator=g, dtype=F64)
    return with_accuracy(confidence, torch.full_like(confidence, 0.91), g)


def float32_at_one(n: int, g: torch.Generator) -> Data:
    logits = torch.randn(n, 10, generator=g)
    logits[:, 0] += 14 + 4 * torch.randn(n, generator=g)
    return logits.softmax(1), torch.multinomial((0.4 * logits).softmax(1), 1, generator=g).squeeze(1)


KINDS = [calibrated, mixed, saturated, tied, narrow, float32_at_one]


def streamed(probs: Tensor, labels: Tensor, *, n_bins: int = 15, weights: Tensor | None = None) -> CalibrationSuite:
    suite = CalibrationSuite(num_classes=probs.shape[1], n_bins=n_bins)
    for at in torch.arange(len(labels)).split(max(len(labels) // 5, 1)):
        suite.update(probs[at], labels[at], weights=None if weights is None else weights[at])
    return suite


@pytest.mark.parametrize("kind", KINDS)
def test_stream_of_few_examples_is_exact(kind: Callable[..., Data]) -> None:
    probs, labels = kind(700, torch.Generator().manual_seed(1))
    values = streamed(probs, labels).compute()
    for key in KEYS:
        # A root near zero (mmce, debiased) turns rounding of 1e-16 into 1e-8.
        assert float(values[key]) == pytest.approx(float(METRICS[key](probs, labels)), abs=1e-8), key


@pytest.mark.parametrize("n", [700, KEPT_EXAMPLES + 500])
def test_stream_of_two_classes_gives_the_scores_of_the_positive_one(n: int) -> None:
    probs, labels = mixed_gaps(n, 2)
    weights = torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=F64)
    one, two = (streamed(probs, labels, weights=own) for own in (None, weights))
    for suite, own in ((one, None), (two, weights)):
        found, expected = suite.compute(), measure(Predictions(probs=probs, labels=labels, weights=own), n_resamples=100)
        assert list(found) == [key for key in expected if METRICS[key].read is not None]
        for key in ("binary_gap", "binary_ece", "binary_ace"):
            assert float(found[key]) == pytest.approx(expected[key].value, abs=1e-12 if key != "binary_ace" else 1e-4), key
    assert one.scores(n_resamples=100).positive is not None


@pytest.mark.parametrize("kind", KINDS)
def test_stream_beyond_the_kept_examples_is_within_the_promise(kind: Callable[..., Data]) -> None:
    probs, labels = kind(KEPT_EXAMPLES + 500, torch.Generator().manual_seed(2))
    suite = streamed(probs, labels)
    values = suite.compute()
    assert suite.summary().top is None
    for key in EXACT:
        assert float(values[key]) == pytest.approx(float(METRICS[key](probs, labels)), abs=1e-12), key
    for key in set(KEYS) - set(EXACT):
        # Promised is 1e-3, and on other seeds 2e-4 was the most; the 3,020 cells of a grid would miss this.
        assert float(values[key]) == pytest.approx(float(METRICS[key](probs, labels)), abs=1e-4), key


@pytest.mark.parametrize("n_bins", EXACT_BINS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_equal_width_metrics_are_exact_for_every_promised_number_of_bins(n_bins: int, dtype: torch.dtype) -> None:
    probs, labels = mixed_gaps(2000, 4, seed=n_bins)
    # Confidences on and beside the edges of every binning, zero and one among them.
    edges = torch.arange(0, 3001, dtype=F64) / 3000
    two = torch.stack([edges, 1 - edges, torch.zeros_like(edges), torch.zeros_like(edges)], 1)
    probs = torch.cat([probs, two]).to(dtype)
    labels = torch.cat([labels, torch.arange(3001) % 3])
    values = streamed(probs, labels, n_bins=n_bins).compute()
    for key in BINNED:
        assert float(values[key]) == pytest.approx(float(METRICS[key](probs, labels, n_bins=n_bins)), abs=1e-12), key


def test_weights_count_as_in_the_functions() -> None:
    probs, labels = mixed_gaps(1500, 4)
    weights = torch.rand(1500, generator=torch.Generator().manual_seed(0), dtype=F64) * 3
    weights[::50] = 0
    suite = streamed(probs, labels, weights=weights)
    for key, value in suite.compute().items():
        assert float(value) == pytest.approx(float(METRICS[key](probs, labels, weights=weights)), abs=1e-8), key
    assert suite.summary().n == 1470
    many = [torch.cat([part] * 50) for part in (probs, labels, weights)]
    suite = streamed(many[0], many[1], weights=many[2])
    examples = suite.summary().examples
    assert examples.size == 50 * 1470
    assert float(examples.rising[1][3, -1]) == pytest.approx(float(many[2].square().sum()))
    for key, value in suite.compute().items():
        expected = float(METRICS[key](many[0], many[1], weights=many[2]))
        assert float(value) == pytest.approx(expected, abs=1e-3), key


def test_summary_is_that_of_the_predictions() -> None:
    probs, labels = mixed_gaps(1000, 4)
    weights = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=F64)
    found = streamed(probs, labels, weights=weights).summary()
    expected = summarize(Predictions(probs=probs, labels=labels, weights=weights))
    assert (found.n, found.num_classes, found.n_bins) == (1000, 4, 15)
    assert found.weight == pytest.approx(expected.weight)
    for name in ("weights", "nll", "brier", "cells", "class_bins", "class_counts"):
        assert torch.allclose(getattr(found, name), getattr(expected, name), atol=1e-9), name
    joined = found + expected
    assert joined.n == 2000
    assert float(joined.bins.rows.sum()) == 2000
    assert torch.equal(joined.class_counts[1], 2 * expected.class_counts[1])


def test_suite_has_a_class_of_its_own_for_every_built_in_score() -> None:
    assert sorted(cls.key for cls in SINGLES) == sorted(KEYS) == sorted(filled().compute())
