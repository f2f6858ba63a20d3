"""Streaming metrics over two real processes give the numbers of one."""

from __future__ import annotations

import warnings
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor

from helpers import mixed_gaps

LIMIT_S = 600
# (examples of the first process, of the second): all kept, more than are kept, and one process without any.
SHARES = {"few": (700, 1300), "many": (30_000, 41_000), "lopsided": (1500, 0)}


def data(case: str, rank: int) -> tuple[Tensor, Tensor]:
    sizes = SHARES[case]
    probs, labels = mixed_gaps(sum(sizes), num_classes=4, seed=len(case))
    first = sum(sizes[:rank])
    return probs[first : first + sizes[rank]], labels[first : first + sizes[rank]]


def work(rank: int, folder: str) -> None:
    from calibrant.metrics.streaming import CalibrationSuite

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=LIMIT_S)
    )
    results: dict[str, object] = {}
    for case in SHARES:
        suite = CalibrationSuite(num_classes=4)
        probs, labels = data(case, rank)
        for part in range(0, len(labels), 9000):
            suite.update(probs[part : part + 9000], labels[part : part + 9000])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*was called before the ``update``")  # The process without examples.
            results[case] = {
                "values": suite.compute(),
                "bins": suite.bins(n_bins=5).count,
                "local": int(suite.count[0]),
                "n": suite.summary().n,
            }
    torch.save(results, f"{folder}/rank{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_two_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    from calibrant.metrics.streaming import CalibrationSuite

    running = torch.multiprocessing.spawn(work, args=(str(tmp_path),), nprocs=2, join=False)
    expected: dict[str, dict[str, Tensor]] = {}
    for case in SHARES:
        suite = CalibrationSuite(num_classes=4)
        for rank in (0, 1):
            probs, labels = data(case, rank)
            if len(labels):
                suite.update(probs, labels)
        expected[case] = suite.compute()
    while not running.join(timeout=LIMIT_S):
        pass
    for rank in (0, 1):
        results = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        for case, sizes in SHARES.items():
            found = results[case]
            assert found["local"] == sizes[rank]
            assert found["n"] == sum(sizes)
            assert float(found["bins"].sum()) == sum(sizes)
            assert set(found["values"]) == set(expected[case])
            for key, value in expected[case].items():
                assert abs(float(found["values"][key] - value)) <= 1e-12, (case, key)
