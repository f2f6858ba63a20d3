"""A calibrator as part of a network: the outputs of models it can read, and how they are called."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from calibrant.calibrators import TemperatureScaling
from calibrant.calibrators.log_space import keep_top
from calibrant.data.synthetic import synthetic_predictions

VAL, _ = synthetic_predictions(300, 3, temperature=2.0, split="val")
FOUND = TemperatureScaling().fit(VAL)
INPUTS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


class Returning(nn.Module):
    """A linear layer that returns its logits within something; its arguments have names, and a mask that matters."""

    def __init__(self, within: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.within = within

    def forward(self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None) -> object:
        assert input_ids is not None
        return self.within(self.head(input_ids if attention_mask is None else input_ids * attention_mask))


@pytest.mark.parametrize(
    "within",
    [
        lambda logits: logits,
        lambda logits: {"loss": logits.sum(), "logits": logits},
        lambda logits: SimpleNamespace(loss=None, logits=logits),
        lambda logits: (logits, logits + 1),
    ],
    ids=["tensor", "mapping", "attribute", "tuple"],
)
def test_wrapped_model_is_read_whatever_holds_its_logits_and_called_by_position_or_name(
    within: Callable[[Tensor], object],
) -> None:
    model = Returning(within)
    wrapped = FOUND.wrap(model).eval()
    mask = torch.tensor([1.0, 0.0, 1.0, 1.0])
    expected = FOUND.predict_log_proba(model.head(INPUTS * mask).detach())
    with torch.no_grad():
        by_position, by_name, mixed = (
            wrapped(INPUTS, mask),
            wrapped(attention_mask=mask, input_ids=INPUTS),
            wrapped(INPUTS, attention_mask=mask),
        )
    for found in (by_position, by_name, mixed):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("within", "message"),
    [
        (lambda logits: {"loss": logits}, r"`model` must return logits \[B, C\], .* got the keys loss\."),
        (lambda logits: (logits.sum(), logits), r"`model` must return logits \[B, C\], .* got \[\]\."),
    ],
)
def test_wrapped_model_without_logits_is_refused(within: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^CalibratedModel: {message}"):
        FOUND.wrap(Returning(within))(INPUTS)


def test_wrapped_model_called_by_name_survives_export() -> None:
    wrapped = FOUND.wrap(Returning(lambda logits: {"logits": logits})).eval()
    given = {"input_ids": INPUTS, "attention_mask": torch.ones(4)}
    program = torch.export.export(wrapped, (), given)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(**given), wrapped(**given))


def test_wrapped_transformers_model_gives_log_probabilities_of_its_logits() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 20}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=3, **sizes)).eval()
    batch = {"input_ids": torch.arange(10).reshape(2, 5), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    with torch.no_grad():
        torch.testing.assert_close(
            FOUND.wrap(model).eval()(**batch), FOUND.predict_log_proba(model(**batch).logits), atol=1e-6, rtol=1e-5
        )


def test_wrapped_model_is_given_a_first_argument_that_is_none() -> None:
    class Masked(nn.Module):
        def forward(self, mask: Tensor | None, x: Tensor) -> Tensor:
            return x if mask is None else x * mask

    wrapped = FOUND.wrap(Masked())
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(wrapped(None, x), wrapped(torch.ones(3), x))


def test_wrapped_model_runs_where_nothing_is_computed() -> None:
    assert FOUND.wrap(nn.Linear(4, 3)).to("meta")(torch.zeros(2, 4, device="meta")).shape == (2, 3)


def test_keep_top_raises_the_top_class_and_keeps_the_sum() -> None:
    flat = torch.full((1, 2), 0.5, dtype=torch.float64).log()
    found = keep_top(flat, torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    assert float(found.exp().sum()) == pytest.approx(1, abs=1e-12)
    assert float(found[0, 1] - found[0, 0]) == pytest.approx(2e-6, rel=1e-6)
    # Where the top class leads already, and where two tie, nothing changes.
    sure = torch.tensor([[0.1, 0.9]], dtype=torch.float64).log()
    assert torch.equal(keep_top(sure, torch.tensor([[0.0, 1.0]], dtype=torch.float64)), sure)
    assert torch.equal(keep_top(flat, torch.zeros(1, 2, dtype=torch.float64)), flat)
