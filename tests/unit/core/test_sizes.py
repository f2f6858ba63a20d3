from __future__ import annotations

from dataclasses import replace

import pytest

from calibrant.core.entry import Entry
from calibrant.core.sizes import common_size, usual_size
from figure_data import run_of


def sized(n: int, *, model: str | None = None, epochs: int | None = None) -> Entry:
    entry = run_of(model=model, epochs=epochs)
    return replace(entry, scores=replace(entry.scores, n=n))


@pytest.mark.parametrize(
    ("entries", "usual"),
    [
        ([], None),
        ([sized(5), sized(9), sized(7)], 9),
        ([sized(9), sized(5, model="mlp"), sized(7, model="mlp")], 5),
        ([sized(9), sized(7, epochs=3), sized(5, model="mlp", epochs=3)], 7),
    ],
)
def test_usual_size_is_that_of_the_first_run_or_else_the_largest(entries: list[Entry], usual: int | None) -> None:
    assert usual_size(entries) == usual


def test_common_size_is_none_where_seeds_differ() -> None:
    assert (common_size([sized(5), sized(5)]), common_size([sized(5), sized(6)]), common_size([])) == (5, None, None)
