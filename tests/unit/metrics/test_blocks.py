from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant.metrics.blocks import Blocks


def test_few_examples_are_drawn_alone_and_in_order() -> None:
    blocks = Blocks(5)
    assert len(blocks) == 5
    assert blocks.index.tolist() == [0, 1, 2, 3, 4]


def test_many_examples_are_in_blocks_of_equal_size_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.metrics.blocks._BLOCKS", 10)
    blocks = Blocks(1004)
    assert len(blocks) == 10
    assert sorted(np.bincount(blocks.index).tolist()) == [100] * 6 + [101] * 4
    assert not np.array_equal(blocks.index, np.arange(1004) % 10)
    assert np.array_equal(blocks.index, Blocks(1004).index)
    assert not np.array_equal(blocks.index, Blocks(1004, seed=1).index)


@pytest.mark.parametrize("dense", [0.0, 1.0])
def test_columns_and_sum_add_up_the_examples_of_a_block(monkeypatch: pytest.MonkeyPatch, dense: float) -> None:
    monkeypatch.setattr("calibrant.metrics.blocks._BLOCKS", 2)
    monkeypatch.setattr("calibrant.metrics.blocks._DENSE", dense)
    blocks = Blocks(3)
    blocks.index = np.array([0, 1, 0])
    ones = np.eye(2, dtype=np.float32)
    all_of_them = blocks.columns(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 0]), rows=2) @ ones
    assert all_of_them.tolist() == [[5.0, 2.0], [0.0, 0.0]]
    some = blocks.columns(torch.tensor([1.0, 8.0]), torch.tensor([1, 0]), rows=2, number=torch.tensor([2, 1])) @ ones
    assert some.tolist() == [[0.0, 8.0], [1.0, 0.0]]
    assert blocks.sum(torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])).tolist() == [[5.0, 2.0], [50.0, 20.0]]
