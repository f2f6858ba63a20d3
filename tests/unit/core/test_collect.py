"""Collecting logits from models of many kinds, without leaving a trace on them."""

from __future__ import annotations

import io
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant import Predictions
from calibrant.core.collect import collect_logits

X = torch.arange(12.0).reshape(4, 3)
Y = torch.tensor([0, 1, 1, 0])
BATCHES = [(X[:3], Y[:3]), (X[3:], Y[3:])]


def linear() -> nn.Linear:
    layer = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0, 0], [0, 0, 2]]))
    return layer


# Row i of X is 3i, 3i + 1, 3i + 2; the layer picks the first and twice the last.
EXPECTED = [[0, 4], [3, 10], [6, 16], [9, 22]]


class Returning(nn.Module):
    """A linear layer whose result is wrapped by a function."""

    def __init__(self, wrap: object) -> None:
        super().__init__()
        self.layer, self.wrap = linear(), wrap

    def forward(self, x: Tensor) -> object:
        return self.wrap(self.layer(x))


class Output(NamedTuple):
    logits: Tensor
    aux: Tensor


class Holder:
    def __init__(self, logits: Tensor) -> None:
        self.loss, self.logits = None, logits


@pytest.mark.parametrize(
    "wrap",
    [
        lambda z: z,
        lambda z: (z, None),
        lambda z: [z, z * 0],
        lambda z: {"loss": None, "logits": z},
        lambda z: {"out": z, "aux": z * 0},
        lambda z: Output(z, z * 0),
        Holder,
    ],
)
def test_collect_any_kind_of_output_gives_the_logits(wrap: object) -> None:
    logits, labels = collect_logits(Returning(wrap), BATCHES)
    assert logits.tolist() == EXPECTED
    assert labels.tolist() == Y.tolist()


def test_from_model_gives_predictions() -> None:
    predictions = Predictions.from_model(linear(), DataLoader(TensorDataset(X, Y), batch_size=3), split="test")
    assert predictions.logits.tolist() == EXPECTED
    assert predictions.split == "test"


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()

    def forward(self, pixel_values: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        assert mask is None or mask.shape == (4,)
        return {"logits": self.layer(pixel_values)}


class Dict(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["a"] + batch["b"]


class Two(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return first[:, :2] + second[:, :2]


class Pair(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0][:, :2] + pair[1][:, :2]


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (Keywords(), {"pixel_values": X, "labels": Y}),
        (Keywords(), {"pixel_values": X, "mask": torch.ones(4), "label": Y}),
        (Keywords(), {"pixel_values": X, "labels": Y, "image_id": ["a", "b", "c", "d"]}),
        (Keywords(), ({"pixel_values": X}, Y, "more")),
        (linear(), {"image": X, "label": Y}),
        (linear(), (X, Y.numpy(), torch.zeros(4))),
        (linear(), [X, Y.tolist()]),
    ],
)
def test_collect_any_kind_of_batch_reaches_the_model(model: nn.Module, batch: object) -> None:
    logits, labels = collect_logits(model, [batch])
    assert logits.tolist() == EXPECTED
    assert labels.tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("model", "inputs"),
    [(Dict(), {"a": X[:, :2], "b": X[:, :2]}), (Two(), (X, X)), (Two(), [X, X]), (Pair(), (X, X)), (Pair(), Output(X, X))],
)
def test_collect_nested_inputs_arrive_in_the_form_the_model_takes(model: nn.Module, inputs: object) -> None:
    assert collect_logits(model, [(inputs, Y)])[0].tolist() == (2 * X[:, :2]).tolist()


def test_collect_runs_in_eval_mode_without_gradients() -> None:
    seen: list[tuple[bool, bool]] = []
    model = nn.Sequential(linear(), nn.Dropout(0.99), nn.BatchNorm1d(2))
    model[1].register_forward_hook(lambda module, inputs, output: seen.append((module.training, torch.is_grad_enabled())))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    logits, _ = collect_logits(model, BATCHES)
    assert seen == [(False, False)] * 2
    assert not logits.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_collect_lazy_parameters_stay_trainable() -> None:
    model = nn.LazyLinear(2)
    collect_logits(model, BATCHES)
    model(X).sum().backward()
    assert model.weight.grad is not None


@pytest.mark.parametrize("fails", [False, True])
def test_collect_restores_every_module_mode(fails: bool) -> None:
    def wrap(z: Tensor) -> Tensor:
        if fails:
            raise RuntimeError("broken")
        return z

    model = nn.Sequential(nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3)), Returning(wrap))
    model.train()
    model[0][1].eval()
    before = [module.training for module in model.modules()]
    if fails:
        with pytest.raises(RuntimeError, match="broken"):
            collect_logits(model, BATCHES)
    else:
        collect_logits(model, BATCHES)
    assert [module.training for module in model.modules()] == before
    assert before.count(False) == 1


def test_collect_dense_outputs_keep_their_shape() -> None:
    images = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    logits, labels = collect_logits(nn.Identity(), [(images, torch.zeros(2, 4, 5, dtype=torch.long))] * 2)
    assert logits.shape == (4, 3, 4, 5)
    assert labels.shape == (4, 4, 5)


def test_collect_dense_outputs_of_several_sizes_are_flattened() -> None:
    first, second = torch.arange(12.0).reshape(1, 2, 2, 3), torch.arange(4.0).reshape(1, 2, 2, 1)
    batches = [(first, torch.zeros(1, 2, 3, dtype=torch.long)), (second, torch.ones(1, 2, 1, dtype=torch.long))]
    logits, labels = collect_logits(nn.Identity(), batches)
    assert logits.tolist() == [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11], [0, 2], [1, 3]]
    assert labels.tolist() == [0] * 6 + [1] * 2


def test_collect_shows_a_bar_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    for stream, progress, shown in ((io.StringIO(), True, False), (Terminal(), False, False), (Terminal(), True, True)):
        monkeypatch.setattr("sys.stderr", stream)
        assert collect_logits(linear(), BATCHES, progress=progress)[0].tolist() == EXPECTED
        assert ("predicting" in stream.getvalue()) == shown
        monkeypatch.undo()
        monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.parametrize(
    ("model", "loader", "said"),
    [
        (BATCHES, linear(), "`model` must be a torch.nn.Module, got list. Pass the model, then the loader"),
        (linear(), [], "`loader` must hold at least one batch, got none"),
        (linear(), [X], "a batch must be .inputs, labels. or a mapping with `labels` .* got Tensor"),
        (linear(), [(X,)], "a batch must be .* got tuple"),
        (linear(), [{"image": X}], "a batch must be .* got the keys image"),
        (Returning(lambda z: "text"), BATCHES, "`model` must return logits .*, got str"),
        (Returning(lambda z: {"loss": z}), BATCHES, "`model` must return logits .* got dict"),
        (Returning(lambda z: z[:, 0]), BATCHES, r"`model` must return logits \[B, C\], .* got \[3\]. For one log-odds z"),
        (Returning(lambda z: z[:, :1]), BATCHES, r"must be \[N, C\] with C >= 2"),
        (linear(), [(X, Y[:2])], r"`labels` must be \[N\] = \[4\], got \[2\]"),
        (linear(), [(X, torch.eye(2)[Y])], "one-hot"),
        (linear(), [(X, Y.float())], "`labels` must be integer class indices, got torch.float32"),
        (nn.Identity(), [(torch.zeros(2, 3), Y[:2]), (torch.zeros(2, 4), Y[:2])], r"same number of classes .* got \[3, 4\]"),
    ],
)
def test_collect_bad_input_says_what_is_wrong(model: nn.Module, loader: list[object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        collect_logits(model, loader)


@pytest.mark.cuda
def test_collect_cuda_model_gives_logits_on_the_cpu() -> None:
    logits, labels = collect_logits(linear().cuda(), [({"input": X}, Y)])
    assert logits.device.type == labels.device.type == "cpu"
    assert logits.tolist() == EXPECTED
