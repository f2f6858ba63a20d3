"""Every public function takes every kind of array, in every layout of memory, and finds the same in it."""

from __future__ import annotations

import os
from dataclasses import is_dataclass
from importlib import import_module
from importlib.util import find_spec

import matplotlib as mpl
import numpy as np
import pytest
import torch

from calibrant import Predictions, measure, metrics, plot
from calibrant.calibrators import CALIBRATORS
from calibrant.decisions import PredictionSets, SelectiveClassifier, cheapest_action
from calibrant.metrics import METRICS
from helpers import mixed_gaps

mpl.use("Agg")
# JAX rounds to float32 unless told not to.
os.environ.setdefault("JAX_ENABLE_X64", "1")


class Foreign:
    """An array of a library that numpy can read, as those of JAX and CuPy."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.values

    def __len__(self) -> int:
        return len(self.values)


def spread(values: np.ndarray) -> np.ndarray:
    """The same values with others between them in memory."""
    return np.repeat(np.repeat(values, 2, axis=0), 3, axis=-1)[::2, ..., ::3] if values.ndim == 2 else np.repeat(values, 2)[::2]


def read_only(values: np.ndarray) -> np.ndarray:
    copy = values.copy()
    copy.flags.writeable = False
    return copy


def frame(library: str, values: np.ndarray) -> object:
    module = import_module(library)
    return module.DataFrame(values) if values.ndim == 2 else module.Series(values)


ARRAYS = {
    "transposed": np.asfortranarray,
    "spread": spread,
    "reversed": lambda values: values[::-1].copy()[::-1],
    "read-only": read_only,
    "big-endian": lambda values: values.astype(values.dtype.newbyteorder(">")),
    "tensor": lambda values: torch.from_numpy(values.T.copy()).t() if values.ndim == 2 else torch.from_numpy(values),
    "expanded": lambda values: torch.from_numpy(values).unsqueeze(1).expand(-1, 2, *values.shape[1:])[:, 0],
    "with gradient": lambda values: torch.from_numpy(values).requires_grad_(values.dtype.kind == "f"),
    "list": lambda values: values.tolist(),
    "list of arrays": list,
    "pandas": lambda values: frame("pandas", values),
    "pandas, other index": lambda values: frame("pandas", values).iloc[::-1].iloc[::-1].set_axis(range(7, 7 + len(values))),
    "pandas, nullable": lambda values: frame("pandas", values).convert_dtypes(),
    "polars": lambda values: frame("polars", values),
    "jax": lambda values: import_module("jax.numpy").asarray(values),
    "foreign": Foreign,
}
# Of the libraries that are installed here.
KINDS = [kind for kind in ARRAYS if (name := kind.partition(",")[0]) not in ("pandas", "polars", "jax") or find_spec(name)]


def streamed(probs: object, labels: object) -> object:
    suite = metrics.CalibrationSuite(num_classes=2)
    suite.update(probs, labels)
    return [suite.compute()["ece"], suite.compute()["nll"]]


def fitted(name: str) -> object:
    return lambda probs, labels: CALIBRATORS[name]().fit(probs, labels).predict_proba(probs)


def drawn(ax: object) -> object:
    heights, lines = [bar.get_height() for bar in ax.patches], [np.asarray(line.get_ydata()).tolist() for line in ax.lines]
    mpl.pyplot.close("all")
    return heights, lines


# What is found in probabilities [N, 2], or logits of calibrators, and labels [N].
FUNCTIONS = {
    **{name: METRICS[name] for name in METRICS},
    **{f"{name} calibrator": fitted(name) for name in ("temperature", "isotonic", "dirichlet")},
    "measure": lambda probs, labels: measure(probs, labels, n_resamples=100).to_dict(),
    "measure probs=": lambda probs, labels: measure(probs=probs, labels=labels, n_resamples=100).to_dict(),
    "weights": lambda probs, labels: metrics.expected_calibration_error(probs, labels, weights=labels),
    "Predictions": lambda probs, labels: Predictions(probs=probs, labels=labels, weights=labels).probs,
    "columns": lambda probs, labels: Predictions(probs=probs, labels=labels, columns={"x": labels}).columns["x"],
    "explain": lambda probs, labels: str(metrics.explain(probs, labels)),
    "reliability_bins": metrics.reliability_bins,
    "brier_decomposition": metrics.brier_decomposition,
    "class_calibration_errors": metrics.class_calibration_errors,
    "null_distribution": lambda probs, labels: metrics.null_distribution(probs, labels, n_resamples=100),
    "if_calibrated": lambda probs, labels: metrics.if_calibrated(probs, labels, n_resamples=100),
    "CalibrationSuite": streamed,
    "SelectiveClassifier": lambda probs, labels: SelectiveClassifier(max_error=0.9).fit(probs, labels).predict(probs),
    "PredictionSets": lambda probs, labels: PredictionSets().fit(probs, labels).predict(probs),
    "cheapest_action": lambda probs, labels: cheapest_action(probs, [[0, 1], [5, 0]]),
    "plot.reliability": lambda probs, labels: drawn(plot.reliability(probs, labels)),
    "plot.confidence_histogram": lambda probs, labels: drawn(plot.confidence_histogram(probs, labels)),
    "plot.compare": lambda probs, labels: drawn(plot.compare({"a": probs}, labels)),
}
# And in the probability of the positive class alone.
BINARY = {
    "measure": lambda p, labels: measure(p, labels, n_resamples=100).to_dict(),
    "measure logits=": lambda p, labels: measure(logits=p, labels=labels, n_resamples=100).to_dict(),
    "binary_ece": METRICS["binary_ece"],
    "calibrator": lambda p, labels: CALIBRATORS["platt"]().fit(p, labels).predict_proba(p),
    "from_binary": lambda p, labels: Predictions.from_binary(probs=p, labels=labels).probs,
    "SelectiveClassifier": lambda p, labels: SelectiveClassifier(max_error=0.9).fit(p, labels).predict(p),
    "cheapest_action": lambda p, labels: cheapest_action(p, [[0, 1], [5, 0]]),
    "plot.reliability": lambda p, labels: drawn(plot.reliability(p, labels)),
}


def plain(found: object) -> object:
    """What was found, as lists of numbers."""
    if isinstance(found, (np.ndarray, torch.Tensor)):
        return found.tolist()
    return plain(vars(found)) if is_dataclass(found) else {**found} if isinstance(found, dict) else found


@pytest.mark.filterwarnings("ignore::calibrant.calibrators.CalibrationWarning")  # few examples, looked at twice
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_finds_the_same_in_every_kind_of_array(name: str) -> None:
    probs, labels = (given.numpy() for given in mixed_gaps(60, 2))
    scores = np.log(probs.clip(1e-6)) if name.endswith("calibrator") else probs
    expected = str(plain(FUNCTIONS[name](scores, labels)))
    for kind in KINDS:
        assert str(plain(FUNCTIONS[name](ARRAYS[kind](scores), ARRAYS[kind](labels)))) == expected, kind


@pytest.mark.filterwarnings("ignore::calibrant.calibrators.CalibrationWarning")  # fitted on what it is applied to
@pytest.mark.parametrize("name", BINARY)
def test_function_finds_the_same_in_every_kind_of_vector(name: str) -> None:
    probs, labels = (given.numpy() for given in mixed_gaps(60, 2))
    expected = str(plain(BINARY[name](np.ascontiguousarray(probs[:, 1]), labels)))
    for kind in KINDS:
        for shaped in (probs[:, 1], probs[:, 1:]):
            assert str(plain(BINARY[name](ARRAYS[kind](shaped), ARRAYS[kind](labels)))) == expected, kind


@pytest.mark.parametrize("library", [name for name in ("pandas", "polars") if find_spec(name)])
def test_columns_may_be_a_data_frame(library: str) -> None:
    table = import_module(library).DataFrame({"site": ["a", "b"], "age": [3, 4]})
    columns = Predictions.from_binary(probs=[0.2, 0.8], labels=[0, 1], columns=table).columns
    assert {name: values.tolist() for name, values in columns.items()} == {"site": ["a", "b"], "age": [3, 4]}
