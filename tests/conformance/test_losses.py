"""The contract of every objective, parametrised over the tables: a new entry is tested before its author thinks of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import calibrant.losses
from calibrant.losses import LOSSES, PENALTIES, CrossEntropyLoss, FocalLoss, Loss, LossEntry, Objective, Penalty

BOTH = {**LOSSES, **PENALTIES}
# The pairs of the ranking loss follow the order of the batch.
ORDERED = {"crl"}
all_entries = pytest.mark.parametrize("name", BOTH)
all_losses = pytest.mark.parametrize("name", LOSSES)
all_penalties = pytest.mark.parametrize("name", PENALTIES)


def extras(labels: Tensor, num_classes: int) -> dict[str, Tensor]:
    """Values for whatever an objective needs besides logits and labels."""
    batch = len(labels)
    steps = torch.arange(batch, device=labels.device)
    return {
        "indices": steps,
        "correctness": (steps * 0.37) % 1.0,
        "labels_b": (labels + 1) % num_classes,
        "lam": torch.tensor(0.3, device=labels.device),
    }


def parameters_of(made: Callable[..., object]) -> dict[str, inspect.Parameter]:
    return {k: v for k, v in inspect.signature(made).parameters.items() if v.kind not in (v.VAR_POSITIONAL, v.VAR_KEYWORD)}


def required(entry: LossEntry, made: Callable[..., object]) -> dict[str, object]:
    return {name: value for name, value in entry.required.items() if name in parameters_of(made)}


def module_of(entry: LossEntry, **more: object) -> Objective:
    return entry.module(**required(entry, entry.module), **more)


def evaluate(entry: LossEntry, logits: Tensor, labels: Tensor, more: dict[str, Tensor] | None = None) -> Tensor:
    """Call the function of an entry, with its required hyper-parameters and further inputs."""
    more = extras(labels, logits.shape[1]) if more is None else more
    given = {name: value for name, value in more.items() if name in parameters_of(entry.function)}
    hyper = {k: v.to(logits.device) if isinstance(v, Tensor) else v for k, v in required(entry, entry.function).items()}
    return entry.function(logits, labels, **given, **hyper)


def call(module: Objective, logits: Tensor, labels: Tensor) -> Tensor:
    more = extras(labels, logits.shape[1])
    value: Tensor = module(logits, labels, **{name: more[name] for name in module.inputs})
    return value


def draw(batch: int = 6, num_classes: int = 4, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(batch, num_classes, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(num_classes, (batch,), generator=generator)
    right = torch.arange(batch) % 2 == 0
    return logits, torch.where(right, logits.argmax(1), labels)


def shape_of(name: str, batch: int) -> tuple[int, ...]:
    return (batch,) if name in LOSSES else ()


@all_entries
def test_entry_gives_a_value_per_sample_or_one_per_batch(name: str) -> None:
    logits, labels = draw()
    value = evaluate(BOTH[name], logits, labels)
    assert (value.shape, value.dtype) == (shape_of(name, 6), torch.float64)
    assert isinstance(module_of(BOTH[name]), Loss if name in LOSSES else Penalty)


def extreme(kind: str, batch: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Logits of ±1e4 (float32) whose predictions are all right, all wrong, a mixture, or all tied."""
    generator = torch.Generator().manual_seed(batch + num_classes)
    logits = 1e4 * (2.0 * torch.randint(2, (batch, num_classes), generator=generator) - 1)
    top = torch.randint(num_classes, (batch,), generator=generator)
    if kind == "tied":
        return torch.full((batch, num_classes), 1e4), top
    if kind in ("right", "wrong"):
        logits = torch.full((batch, num_classes), -1e4).scatter(1, top.unsqueeze(1), 1e4)
    return logits, (top + 1) % num_classes if kind == "wrong" else top


def assert_finite(entry: LossEntry, logits: Tensor, labels: Tensor) -> None:
    leaf = logits.clone().requires_grad_()
    value = evaluate(entry, leaf, labels)
    assert torch.isfinite(value).all()
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("num_classes", [2, 5, 1000])
@all_entries
def test_entry_at_logits_of_1e4_has_finite_value_and_gradient(name: str, num_classes: int) -> None:
    for batch in (1, 7):
        for kind in ("right", "wrong", "mixed", "tied"):
            assert_finite(BOTH[name], *extreme(kind, batch, num_classes))


def projected(entry: LossEntry, labels: Tensor) -> Callable[[Tensor], Tensor]:
    """The entry as a scalar function of logits: one number to differentiate instead of one per sample."""
    weights = torch.linspace(0.5, 1.5, len(labels), dtype=torch.float64)
    return lambda logits: (evaluate(entry, logits, labels) * weights).sum()


@all_entries
def test_entry_gradient_agrees_with_differences(name: str) -> None:
    logits, labels = draw(5)
    assert torch.autograd.gradcheck(projected(BOTH[name], labels), logits.requires_grad_())


@pytest.mark.parametrize("name", [name for name, entry in BOTH.items() if entry.twice])
def test_entry_second_gradient_agrees_with_differences(name: str) -> None:
    logits, labels = draw(5, 3)
    assert torch.autograd.gradgradcheck(projected(BOTH[name], labels), logits.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@all_entries
def test_entry_of_half_precision_is_computed_and_returned_in_float32(name: str, dtype: torch.dtype) -> None:
    logits, labels = draw(16, 10, dtype=dtype)
    leaf = logits.clone().requires_grad_()
    value = evaluate(BOTH[name], leaf, labels)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, evaluate(BOTH[name], logits.float(), labels))
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    assert gradient.dtype == dtype
    assert torch.isfinite(gradient).all()


@all_entries
def test_entry_leaves_its_inputs_alone(name: str) -> None:
    logits, labels = draw()
    more = extras(labels, 4)
    kept = [t.clone() for t in (logits, labels, *more.values())]
    leaf = logits.requires_grad_()
    versions = [t._version for t in (leaf, labels, *more.values())]
    evaluate(BOTH[name], leaf, labels, more).sum().backward()
    assert all(torch.equal(a.detach(), b) for a, b in zip((leaf, labels, *more.values()), kept, strict=True))
    assert [t._version for t in (leaf, labels, *more.values())] == versions


@all_entries
def test_entry_follows_the_order_of_samples_or_ignores_it(name: str) -> None:
    logits, labels = draw(12)
    more = extras(labels, 4)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    shuffled = {k: v[order] if v.ndim else v for k, v in more.items()}
    before = evaluate(BOTH[name], logits, labels, more)
    after = evaluate(BOTH[name], logits[order], labels[order], shuffled)
    if name in ORDERED:
        assert after.shape == before.shape
    else:
        torch.testing.assert_close(after, before[order] if name in LOSSES else before)


@all_losses
def test_loss_of_a_sample_does_not_depend_on_the_others(name: str) -> None:
    logits, labels = draw()
    more = extras(labels, 4)
    first = {k: v[:1] if v.ndim else v for k, v in more.items()}
    torch.testing.assert_close(
        evaluate(BOTH[name], logits[:1], labels[:1], first), evaluate(BOTH[name], logits, labels, more)[:1]
    )


@all_entries
def test_entry_compiles_in_one_graph_with_its_gradient(name: str) -> None:
    # A read of a value (`.item()`), a data-dependent shape or a branch on a tensor would break the graph and raise here.
    torch._dynamo.reset()
    logits, labels = draw(8, 5)
    module = module_of(BOTH[name])
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=False)
    found = []
    for objective in (compiled, module):
        leaf = logits.clone().requires_grad_()
        value = call(objective, leaf, labels)
        found.append((value.detach(), torch.autograd.grad(value, leaf)[0]))
    torch.testing.assert_close(found[0], found[1])


@all_entries
def test_entry_under_autocast_gives_what_it_gives_without(name: str) -> None:
    logits, labels = draw(16, 10, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = evaluate(BOTH[name], logits, labels)
    torch.testing.assert_close(value, evaluate(BOTH[name], logits, labels))


@all_entries
def test_entry_takes_labels_of_every_integer_type(name: str) -> None:
    logits, labels = draw()
    more = extras(labels, 4)
    for dtype in (torch.int32, torch.int16, torch.int8, torch.uint8):
        assert torch.equal(evaluate(BOTH[name], logits, labels.to(dtype), more), evaluate(BOTH[name], logits, labels, more))


@all_entries
def test_entry_takes_hyper_parameters_by_keyword_with_the_same_default_in_both_forms(name: str) -> None:
    entry = BOTH[name]
    function = parameters_of(entry.function)
    module = parameters_of(entry.module)
    data = [k for k, v in function.items() if v.kind is not v.KEYWORD_ONLY]
    assert data[0] == "logits"
    assert data[1] in ("labels", "labels_a")
    assert set(data[2:]) <= set(extras(torch.zeros(1, dtype=torch.long), 2))
    assert all(v.kind is v.KEYWORD_ONLY for v in module.values())
    for made in (function, module):
        without = {k for k, v in made.items() if v.kind is v.KEYWORD_ONLY and v.default is v.empty}
        assert without == {k for k in entry.required if k in made}
    shared = [k for k in function if k in module and k != "base"]
    assert {k: function[k].default for k in shared} == {k: module[k].default for k in shared}
    # The order of a norm is `p`, as in the metrics, and `temperature` that of the gamma-Net where both are options of a method.
    assert not {"norm", "order"} & set(function)
    assert "n_bins" not in function or "temperature" not in function


@all_entries
def test_facade_prints_as_a_call_that_makes_it_again(name: str) -> None:
    module = module_of(BOTH[name])
    text = repr(module)
    assert text.startswith(f"{type(module).__name__}(")
    assert repr(eval(text, vars(calibrant.losses))) == text


# Where inputs or hyper-parameters of the function are state of the module, its own tests compare them.
@pytest.mark.parametrize("name", sorted(set(BOTH) - {"adafocal", "crl"}))
def test_facade_gives_what_the_function_gives(name: str) -> None:
    logits, labels = draw()
    entry = BOTH[name]
    expected = evaluate(entry, logits, labels)
    more = {"reduction": "none"} if name in LOSSES else {}
    assert torch.equal(call(module_of(entry, **more), logits, labels), expected)


@all_penalties
def test_penalty_in_a_sum_weighs_the_same_under_every_reduction(name: str) -> None:
    logits, labels = draw()
    penalty = module_of(PENALTIES[name])
    alone = call(penalty, logits, labels)
    values = {r: call(FocalLoss(reduction=r) + 0.5 * penalty, logits, labels) for r in ("none", "sum", "mean")}
    torch.testing.assert_close(values["mean"], FocalLoss()(logits, labels) + 0.5 * alone)
    torch.testing.assert_close(values["sum"], 6 * values["mean"])
    torch.testing.assert_close(values["none"].mean(), values["mean"])


@all_entries
def test_entry_joins_a_sum_and_its_state_travels(name: str) -> None:
    logits, labels = draw()
    module = module_of(BOTH[name])
    total = CrossEntropyLoss() + 0.25 * module
    assert repr(total) == f"CrossEntropyLoss(label_smoothing=0.0) + 0.25 * {module!r}"
    torch.testing.assert_close(
        call(total, logits, labels), CrossEntropyLoss()(logits, labels) + 0.25 * call(module, logits, labels)
    )
    assert set(total.state_dict()) == {f"terms.1.{key}" for key in module.state_dict()}


@all_entries
def test_entry_refuses_bad_input_with_a_sentence(name: str) -> None:
    entry = BOTH[name]
    logits, labels = draw()
    cases = [
        (logits[0], labels, "`logits` must be"),
        (logits.unsqueeze(2), labels, "`logits` must be"),
        (logits.long(), labels, "`logits` must be floating"),
        (logits[:, :1], torch.zeros_like(labels), "`logits` must be .* C >= 2"),
        (logits[:0], labels[:0], "`logits` must hold at least one"),
        (logits.numpy(), labels, "`logits` must be a tensor"),
        (labels, logits, "pass `logits` first"),
        (logits, labels[:5], "`labels` must be"),
        (logits, labels.double(), "`labels` must be integer"),
        (logits, labels * 0 + 4, r"`labels` must lie in \[0, 3\]"),
        (logits, labels * 0 - 1, r"`labels` must lie in \[0, 3\]"),
    ]
    more = extras(labels, 4)
    for scores, target, message in cases:
        given = more if target is logits else {k: v[: len(target)] if v.ndim else v for k, v in more.items()}
        with pytest.raises(ValueError, match=message):
            evaluate(entry, scores, target, given)


@all_entries
def test_entry_takes_soft_targets_only_where_they_have_a_meaning(name: str) -> None:
    logits, labels = draw()
    one_hot = torch.nn.functional.one_hot(labels, 4).double()
    if BOTH[name].soft_targets:
        hard = evaluate(BOTH[name], logits, labels)
        torch.testing.assert_close(evaluate(BOTH[name], logits, one_hot, extras(labels, 4)), hard)
    for wrong in (one_hot - 1, 2 * one_hot, one_hot * torch.nan) if BOTH[name].soft_targets else (one_hot,):
        with pytest.raises(ValueError, match="`labels` must be"):
            evaluate(BOTH[name], logits, wrong, extras(labels, 4))


@all_entries
def test_entry_says_what_it_is(name: str) -> None:
    entry = BOTH[name]
    text = inspect.getdoc(entry.function) or ""
    summary = text.partition("\n")[0]
    assert summary.endswith(".")
    assert len(summary) <= 120
    assert entry.source
    options = [
        parameter.name for parameter in parameters_of(entry.function).values() if parameter.kind is parameter.KEYWORD_ONLY
    ]
    for part in ("Example:", "Reference:", *(f"    {option}: " for option in options)):
        assert part in text, f"the docstring of {name} lacks {part!r}"
    assert ".. math::" in text or ":math:" in text


def test_tables_and_exports_name_the_same_objects() -> None:
    named = {made.__name__ for entry in BOTH.values() for made in (entry.function, entry.module)}
    assert named <= set(calibrant.losses.__all__)
    endings = {n for n in calibrant.losses.__all__ if n.endswith(("_loss", "_penalty"))}
    assert endings <= named
    assert not set(LOSSES) & set(PENALTIES)


@pytest.mark.cuda
@all_entries
def test_entry_cuda_is_captured_in_a_graph_without_synchronisation(name: str) -> None:
    logits, labels = (t.cuda() for t in draw(64, 10, dtype=torch.float32))
    module = module_of(BOTH[name]).cuda()
    leaf = logits.clone().requires_grad_()
    more = {k: v for k, v in extras(labels, 10).items() if k in module.inputs}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(module(leaf, labels, **more), leaf)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = module(leaf, labels, **more)
        (gradient,) = torch.autograd.grad(value, leaf)
    fresh = torch.randn_like(logits)
    with torch.no_grad():
        leaf.copy_(fresh)
    graph.replay()
    again = fresh.clone().requires_grad_()
    expected = module(again, labels, **more)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, again)[0])
