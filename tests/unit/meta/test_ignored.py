"""Tokens and ignored labels: a learner takes the steps that it takes on the labelled rows alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant.meta import MetaBatches, MetaLearner

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(6, 5, 4, generator=G), torch.randint(3, (6, 5), generator=G)
X_META, Y_META = torch.randn(8, 5, 4, generator=G), torch.randint(3, (8, 5), generator=G)
Y[:, 3:], Y_META[::2, 2:] = -100, -100


def make(**options: Any) -> MetaLearner:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return MetaLearner(model, optimizer, **{"every": 1, "generator": torch.Generator().manual_seed(1), **options})


def assert_alike(first: MetaLearner, second: MetaLearner) -> None:
    for a, b in zip(first.network.inner.parameters(), second.network.inner.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    for name, value in first.hyper.items():
        torch.testing.assert_close(value, second.hyper[name])


@pytest.mark.parametrize(
    "options", [{}, {"lookahead": "full"}, {"preset": "paper", "clip": 1.0}, {"regularizer": "unitwise-l2"}]
)
def test_steps_on_padded_tokens_are_those_on_the_labelled_ones(options: dict[str, Any]) -> None:
    padded, plain = make(ignore_index=-100, **options), make(**options)
    start = {name: value.clone() for name, value in plain.hyper.items()}
    for _ in range(3):
        found = padded.step(X, Y, X_META, Y_META)
        expected = plain.step(X[Y >= 0], Y[Y >= 0], X_META[Y_META >= 0], Y_META[Y_META >= 0])
        torch.testing.assert_close(found.loss, expected.loss)
        torch.testing.assert_close(found.meta_value, expected.meta_value)
    assert any(not torch.equal(value, start[name]) for name, value in plain.hyper.items())
    assert_alike(padded, plain)


def test_ignored_rows_that_are_no_numbers_do_no_harm() -> None:
    padded, plain = make(ignore_index=-100), make(ignore_index=-100)
    bad = torch.where((Y_META < 0).unsqueeze(2), float("nan"), X_META)
    padded.step(X, Y, bad, Y_META)
    plain.step(X, Y, X_META, Y_META)
    assert_alike(padded, plain)


def test_own_loop_and_meta_batches_of_tokens() -> None:
    stepped, own = (make(ignore_index=-100, meta_batches=MetaBatches(X_META, Y_META, batch_size=8)) for _ in range(2))
    stepped.step(X, Y, X_META, Y_META)
    features, logits = own.forward(X)
    assert (features.shape, logits.shape) == ((30, 8), (30, 3))
    own.meta_update(features, logits, Y, X_META, Y_META)
    own.loss(features, logits, Y).backward()
    own.optimizer.step()
    assert_alike(stepped, own)
    assert own.step(X, Y).meta_value is not None


def test_ignored_label_without_an_index_names_it() -> None:
    with pytest.raises(ValueError, match="ignore_index=-100"):
        make().step(X, Y, X_META, Y_META)


def test_logits_of_pooled_tokens_are_refused() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(x).mean(1)
            return out

    model = Pooled()
    learner = MetaLearner(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"`head` takes \[6, 5, 4\], not \[B, d\]"):
        learner.step(X, Y[:, 0], X_META, Y_META[:, 0])


@pytest.mark.parametrize("lookahead", ["head", "full"])
def test_batch_of_ignored_labels_alone_changes_nothing_but_the_count(lookahead: str) -> None:
    learner = make(ignore_index=-100, lookahead=lookahead)
    start = {name: value.clone() for name, value in learner.hyper.items()}
    found = learner.step(X, torch.full_like(Y, -100), X_META, Y_META)
    assert (float(found.loss), found.meta_value) == (0.0, None)
    assert learner.step(X, Y, X_META, torch.full_like(Y_META, -100)).meta_value is None
    assert all(torch.equal(value, start[name]) for name, value in learner.hyper.items())
    assert all(bool(p.isfinite().all()) for p in learner.network.inner.parameters())
    assert learner.step(X, Y, X_META, Y_META).meta_value is not None


def test_labels_of_another_number_than_rows_of_logits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`labels` must be one for each of 30 rows of logits, got \[6, 4\]"):
        make(ignore_index=-100).step(X, Y[:, 1:], X_META, Y_META)
