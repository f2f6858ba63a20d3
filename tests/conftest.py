"""What holds for every test."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# The tests' tensors are small, and several workers share the machine: handing some twenty numbers to a second thread makes a
# gradient check ten times slower.
torch.set_num_threads(1)

# The same examples every time, kept nowhere, and no limit that a busy machine could miss.
settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def seed_everything() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Seed what fixtures draw, whichever test is the first to ask for them."""
    seed_everything()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Seed what a test draws, whatever ran before it in the same process."""
    seed_everything()
    return (yield)
