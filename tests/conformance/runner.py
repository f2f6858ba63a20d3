"""Run the conformance cases of ``metrics.json`` and ``objectives.json`` against any library.

    python tests/conformance/runner.py                    # calibrant
    python tests/conformance/runner.py --peer torchmetrics
    python tests/conformance/runner.py --adapter my.module:TABLE

An adapter is a mapping from metric name ("ece", "binary_ece", "mce", "ace", "average_ce", "classwise_ece", "mmce", "brier")
to a function ``(probs, labels, n_bins) -> float`` of numpy arrays. A metric that it does not have is skipped. The file needs
numpy alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

Adapter = Mapping[str, Callable[..., float]]
CASES = [Path(__file__).with_name(name) for name in ("metrics.json", "objectives.json")]


class Outcome(NamedTuple):
    """What came of a case: "pass", "fail" or "skip", and why."""

    id: str
    verdict: str
    detail: str


def load_cases() -> list[dict]:
    """Return the cases of all files."""
    return [case for path in CASES for case in json.loads(path.read_text())["cases"]]


def arrays(case: dict) -> tuple[np.ndarray, np.ndarray]:
    """Return the arguments of a case as numpy arrays."""
    swapped = "swapped" in str(case["expect"].get("error"))
    probs = np.array(case.get("probs", case.get("logits")), dtype=np.int64 if swapped else np.float64)
    if "shape" in case:
        probs = probs.reshape(case["shape"])
    labels = np.array(case["labels"], dtype=np.float64 if swapped else np.int64)
    repeat = case.get("repeat", 1)
    probs = np.concatenate([probs] * repeat).astype(case.get("dtype", probs.dtype))
    return probs, np.concatenate([labels] * repeat)


def run_case(case: dict, adapter: Adapter) -> Outcome:
    """Run one case."""
    if case["metric"] not in adapter:
        return Outcome(case["id"], "skip", f"no {case['metric']}")
    probs, labels = arrays(case)
    expect = case["expect"]
    try:
        value = float(adapter[case["metric"]](probs, labels, case["n_bins"]))
    except Exception as error:  # any refusal counts, by whatever exception and in whatever words
        verdict = "pass" if "error" in expect else "fail"
        return Outcome(case["id"], verdict, f"raised {type(error).__name__}: {error}")
    if "error" in expect:
        return Outcome(case["id"], "fail", f"gave {value:.6g} where an error was due")
    if "above" in expect:
        held = expect["above"] < value < float("inf")
        return Outcome(case["id"], "pass" if held else "fail", f"gave {value:.9g}, should exceed {expect['above']:g}")
    if not abs(value - expect["value"]) <= expect["tolerance"]:
        return Outcome(case["id"], "fail", f"gave {value:.9g}, should be {expect['value']:.9g}")
    return Outcome(case["id"], "pass", f"{value:.9g}")


def calibrant_adapter() -> Adapter:
    """Our own functions."""
    from calibrant import metrics

    def binned(function: Callable[..., float]) -> Callable[..., float]:
        return lambda probs, labels, n_bins: function(probs, labels, n_bins=n_bins)

    def plain(function: Callable[..., float]) -> Callable[..., float]:
        return lambda probs, labels, n_bins: function(probs, labels)

    return objective_functions() | {
        "ece": binned(metrics.expected_calibration_error),
        "binary_ece": binned(metrics.binary_expected_calibration_error),
        "mce": binned(metrics.maximum_calibration_error),
        "ace": binned(metrics.adaptive_calibration_error),
        "average_ce": binned(metrics.average_calibration_error),
        "classwise_ece": binned(metrics.classwise_calibration_error),
        "mmce": plain(metrics.maximum_mean_calibration_error),
        "brier": plain(metrics.brier_score),
    }


def objective_functions() -> dict[str, Callable[..., float]]:
    """Our own objectives, temperature and streaming suite, as functions ``(logits, labels, n_bins) -> float``."""
    import torch

    from calibrant.calibrators import TemperatureScaling
    from calibrant.losses import DCA, CrossEntropyLoss, mmce_penalty, weighted_mmce_penalty
    from calibrant.metrics import CalibrationSuite

    def ratio(above: Callable[..., torch.Tensor], below: Callable[..., torch.Tensor]) -> Callable[..., float]:
        def call(logits: np.ndarray, labels: np.ndarray, n_bins: int) -> float:
            z, y = torch.from_numpy(logits), torch.from_numpy(labels)
            return float(above(z, y) / below(z, y))

        return call

    def added(weight: float) -> Callable[..., torch.Tensor]:
        return lambda z, y: (CrossEntropyLoss() + weight * DCA())(z, y) - CrossEntropyLoss()(z, y)

    def growth(logits: np.ndarray, labels: np.ndarray, n_bins: int) -> float:
        suite = CalibrationSuite(num_classes=logits.shape[1], n_bins=n_bins)
        sizes = []
        for _ in range(50):
            suite.update(logits=torch.from_numpy(logits), labels=torch.from_numpy(labels))
            state = [getattr(suite, name) for name in suite._defaults]
            parts = [t for item in state for t in (item if isinstance(item, list) else [item])]
            sizes.append(sum(t.numel() * t.element_size() for t in parts))
        return sizes[-1] / sizes[0]

    def plain(function: Callable[..., torch.Tensor]) -> Callable[..., float]:
        return lambda z, y, n_bins: float(function(torch.from_numpy(z), torch.from_numpy(y)))

    return {
        "weighted_mmce": plain(lambda z, y: weighted_mmce_penalty(z, y, normalization="paper")),
        "mmce_penalty": plain(mmce_penalty),
        "penalty_weight_ratio": ratio(added(2.0), added(1.0)),
        "sum_over_mean": ratio(CrossEntropyLoss(reduction="sum") + 0.5 * DCA(), CrossEntropyLoss() + 0.5 * DCA()),
        "temperature": lambda z, y, n_bins: float(TemperatureScaling().fit(z, y).temperature_),
        "state_growth": growth,
    }


def torchmetrics_adapter() -> Adapter:
    """The functions of torchmetrics."""
    import torch
    from torchmetrics.functional import classification as tm

    def many(norm: str) -> Callable[..., float]:
        def call(probs: np.ndarray, labels: np.ndarray, n_bins: int) -> float:
            p, y = torch.from_numpy(probs), torch.from_numpy(labels)
            return float(tm.multiclass_calibration_error(p, y, num_classes=p.shape[1], n_bins=n_bins, norm=norm))

        return call

    def binary(probs: np.ndarray, labels: np.ndarray, n_bins: int) -> float:
        return float(tm.binary_calibration_error(torch.from_numpy(probs), torch.from_numpy(labels), n_bins=n_bins))

    return {"ece": many("l1"), "mce": many("max"), "binary_ece": binary}


def netcal_adapter() -> Adapter:
    """The classes of netcal."""
    from netcal import metrics as nc

    return {
        "ece": lambda p, y, n: nc.ECE(n).measure(p, y),
        "binary_ece": lambda p, y, n: nc.ECE(n).measure(p, y),
        "mce": lambda p, y, n: nc.MCE(n).measure(p, y),
        "ace": lambda p, y, n: nc.ECE(n, equal_intervals=False).measure(p, y),
        "average_ce": lambda p, y, n: nc.ACE(n).measure(p, y),
        "mmce": lambda p, y, n: nc.MMCE().measure(p, y),
    }


PEERS = {"calibrant": calibrant_adapter, "torchmetrics": torchmetrics_adapter, "netcal": netcal_adapter}


def main() -> int:
    """Print one line a case; return 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=sorted(PEERS), default="calibrant")
    parser.add_argument("--adapter", metavar="MODULE:NAME", help="a mapping from metric name to function")
    arguments = parser.parse_args()
    if arguments.adapter:
        module, _, name = arguments.adapter.partition(":")
        adapter = getattr(importlib.import_module(module), name)
    else:
        adapter = PEERS[arguments.peer]()
    outcomes = [run_case(case, adapter) for case in load_cases()]
    for outcome in outcomes:
        print(f"{outcome.verdict:5} {outcome.id}: {outcome.detail}")
    failed = sum(outcome.verdict == "fail" for outcome in outcomes)
    print(f"{len(outcomes) - failed} of {len(outcomes)} cases hold or are not applicable")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
