"""What every calibrator of the table must keep as part of a network: same numbers wrapped, exported, and run by ONNX."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from calibrant.calibrators import CALIBRATORS, Calibrator
from calibrant.data.synthetic import synthetic_predictions

# One penalty and few steps: the form of the map is the same.
QUICK: dict[str, dict[str, object]] = {name: {"spreads": (0.1,), "max_iter": 30} for name in ("dirichlet", "matrix")}
NAMES = [name for name in CALIBRATORS.builtin if name != "auto"]

pytestmark = pytest.mark.usefixtures("quiet")


@cache
def fitted(name: str, num_classes: int = 4) -> Calibrator:
    given, _ = synthetic_predictions(600, num_classes, temperature=2.0, hardness=0.5, split="val")
    return CALIBRATORS[name](**QUICK.get(name, {})).fit(given)


def network(num_classes: int = 4) -> nn.Module:
    """A network of one layer whose logits spread over some twenty units."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(3, num_classes).eval()


def inputs(n: int, seed: int = 0) -> Tensor:
    return 5 * torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", NAMES)
def test_calibrator_wrapped_model_survives_export(name: str) -> None:
    found, model, given = fitted(name), network(), inputs(9)
    exact = found.wrap(model, dtype=torch.float64).eval()
    with torch.no_grad():
        logits = model(given)
        torch.testing.assert_close(exact(given), found.log_probs(logits))
    wrapped = found.wrap(model).eval()
    learned = [key for key in wrapped.state_dict() if key.startswith("calibration.")]
    assert learned == [f"calibration.{key}" for key in found.learned]
    program = torch.export.export(wrapped, (given,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with torch.no_grad():
        assert wrapped(given).dtype == torch.float32
        torch.testing.assert_close(program.module()(given[:5]), wrapped(given[:5]))
        torch.testing.assert_close(program.module()(given).exp(), found.predict_proba(logits), atol=1e-6, rtol=0)
    wrapped.load_state_dict(program.state_dict)


class Side(nn.Module):
    """Several networks on the same input."""

    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, given: Tensor) -> tuple[Tensor, ...]:
        return tuple(model(given) for model in self.models)


def test_calibrators_wrapped_give_the_same_in_onnx() -> None:
    import onnxruntime as runtime

    # Of two classes these ask one question, not one a class. One export for all: half of its time does not depend on the model.
    two = ("platt", "beta", "isotonic", "histogram", "bbq")
    found = [(fitted(name, c), network(c)) for c, names in ((4, NAMES), (2, two)) for name in names]
    side = Side([calibrator.wrap(model) for calibrator, model in found]).eval()
    with warnings.catch_warnings():
        # The exporter's own: it uses what other libraries have deprecated.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            side, (inputs(9),), dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False
        )
    assert program is not None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    # Batches of sizes that the export has not seen.
    for batch in (inputs(n, seed=n) for n in (1, 5, 40)):
        results = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
        for (calibrator, model), log_probs in zip(found, results, strict=True):
            assert log_probs.dtype == np.float32
            expected = calibrator.predict_proba(model(batch).detach().numpy())
            np.testing.assert_allclose(np.exp(log_probs), expected, atol=1e-5, rtol=0, err_msg=str(calibrator))


def sure(n: int, seed: int, *, scale: float) -> tuple[Tensor, Tensor]:
    """Single-precision logits of a network that is often sure to 1 - 1e-9 and more, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 10, generator=generator, dtype=torch.float64)
    lead = (9 + 5 * torch.randn(n, 1, generator=generator, dtype=torch.float64)).abs()
    logits = logits.scatter_add(1, torch.randint(10, (n, 1), generator=generator), lead)
    labels = torch.multinomial((logits / 1.8).softmax(1), 1, generator=generator).squeeze(1)
    return (scale * logits).float(), labels


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_calibrator_wrapped_is_that_of_predict_proba_where_single_precision_is_saturated(name: str, scale: float) -> None:
    found = CALIBRATORS[name](**QUICK.get(name, {})).fit(*sure(2000, 0, scale=scale))
    fresh, _ = sure(1000, 1, scale=scale)
    wrapped = found.wrap(nn.Identity())(fresh).exp()
    assert wrapped.dtype == torch.float32
    torch.testing.assert_close(wrapped, found.predict_proba(fresh), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", [name for name in NAMES if CALIBRATORS[name].preserves_accuracy])
@pytest.mark.parametrize("random_labels", [False, True])
def test_calibrator_that_preserves_accuracy_keeps_every_top_class_in_single_precision(name: str, random_labels: bool) -> None:
    logits, labels = sure(3000, 0, scale=1.0)
    # Labels that logits say nothing about flatten everything: a temperature of 100,000, a mixture that is all uniform.
    labels = torch.randint(10, (3000,), generator=torch.Generator().manual_seed(2)) if random_labels else labels
    found = CALIBRATORS[name]().fit(logits, labels)
    fresh, _ = sure(3000, 1, scale=1.0)
    for probs in (found.predict_proba(fresh), found.wrap(nn.Identity())(fresh), found.predict_log_proba(fresh)):
        assert probs.dtype == torch.float32
        assert torch.equal(probs.argmax(1), fresh.argmax(1))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mc_temperature"])
def test_calibrator_wrapped_dense_model_calibrates_every_place(name: str) -> None:
    found = fitted(name)
    dense = 3 * torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(0))
    layer = found.as_layer()
    assert layer(dense).shape == dense.shape
    torch.testing.assert_close(layer(dense).exp(), found.predict_proba(dense), atol=1e-6, rtol=0)
    half = layer(dense.half())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.exp().sum(1), torch.ones(2, 3, 5))


@pytest.mark.parametrize("name", NAMES)
def test_calibrator_wrapped_model_cast_to_another_precision_repairs_as_before(name: str) -> None:
    found = fitted(name)
    given = 8 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        wrapped, logits = found.wrap(nn.Linear(4, 4)).to(dtype), given.to(dtype)
        assert wrapped.model.weight.dtype == dtype
        assert {value.dtype for value in wrapped.calibration.buffers()} <= {found.layer_dtype}
        expected, log_probs = found.predict_proba(logits), wrapped.calibration(logits)
        assert log_probs.dtype == expected.dtype
        # Temperatures and the like are held in single precision whatever the logits.
        torch.testing.assert_close(log_probs.exp(), expected, atol=1e-6, rtol=0)
        assert not found.preserves_accuracy or torch.equal(log_probs.argmax(1), logits.argmax(1))


def test_calibration_layer_follows_the_device_when_its_precision_is_cast() -> None:
    layer = fitted("isotonic").as_layer()
    for moved in (layer.to("meta", torch.float16), layer.to(device="meta")):
        assert {(value.device.type, value.dtype) for value in moved.buffers()} == {("meta", torch.float64)}


@pytest.mark.parametrize("name", NAMES)
def test_calibrator_wrapped_under_autocast_repairs_as_outside(name: str) -> None:
    wrapped, logits = fitted(name).wrap(nn.Identity()), 8 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = wrapped(logits)
    assert torch.equal(cast, wrapped(logits))


@pytest.mark.parametrize("name", NAMES)
def test_gradient_through_every_layer_is_finite_also_where_a_table_is_zero(name: str) -> None:
    given, _ = synthetic_predictions(400, 4, temperature=2.0, split="val")
    found = CALIBRATORS[name](**QUICK.get(name, {})).fit(given.logits, (given.labels + (given.labels == 0)).clamp(max=2))
    logits = (3 * torch.randn(100, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
    found.as_layer()(logits).gather(1, logits.argmin(1, keepdim=True)).sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
