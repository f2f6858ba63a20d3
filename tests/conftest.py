"""What holds for every test."""

from __future__ import annotations

import gc
import importlib.util
import random
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from calibrant.calibrators import CalibrationWarning

# The tests' tensors are small, and several workers share the machine: handing some twenty numbers to a second thread makes a
# gradient check ten times slower.
torch.set_num_threads(1)

# The tests that need a GPU run without it, on machines that have little installed.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # The same examples every time, kept nowhere, and no limit that a busy machine could miss.
    settings.register_profile(
        "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is marked `cuda` where there is no such device."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays anyway: torch and other large libraries."""
    gc.freeze()


@pytest.fixture
def quiet() -> Iterator[None]:
    """Tiny and odd data make a fit warn, as it must; the warnings have tests of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        yield


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
