"""How many threads a fit takes: one where others cost more than they bring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(*, when: bool) -> Iterator[None]:
    """Compute with one thread, if ``when``, and go back to as many as before.

    Hundreds of short steps wait for the slowest thread at each. On two cores that others used too, a matrix for 5,000
    examples of 10 classes took 13 s with two threads and 0.7 s with one; containers that see more cores than they may use
    are as slow.
    """
    before = torch.get_num_threads()
    if not when or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
