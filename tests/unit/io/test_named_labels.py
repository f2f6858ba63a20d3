"""Labels that are names of classes, and weights under the name that scikit-learn has for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from calibrant.core.records import Predictions
from calibrant.io import iter_prediction_batches, load_predictions, survey_predictions

NAMES = ("cat", "dog", "eel")
PROBS = np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5], [0.5, 0.5, 0.0]])
LABELS = ["dog", "cat", "eel", "dog"]
WEIGHTS = [1.0, 2.0, 3.0, 4.0]


def write(path: Path, labels: Any, **more: Any) -> Path:
    """Write predictions in the format that the file's ending says, as other programs do."""
    if path.suffix == ".npz":
        np.savez(path, probs=PROBS, labels=np.array(labels), **more)
    elif path.suffix == ".pt":
        torch.save({"probs": torch.from_numpy(PROBS), "labels": list(labels), **more}, path)
    else:
        table = {f"p{k}": PROBS[:, k].tolist() for k in range(3)} | {"label": list(labels)} | more
        if path.suffix == ".csv":
            rows = zip(*table.values(), strict=True)
            path.write_text("\n".join(",".join(map(str, row)) for row in [tuple(table), *rows]) + "\n", encoding="utf-8")
        else:
            pq.write_table(pa.table(table), path)
    return path


def read_whole(path: Path, **options: Any) -> Predictions:
    return load_predictions(path, **options)


def read_in_pieces(path: Path, **options: Any) -> Predictions:
    parts = list(iter_prediction_batches(path, batch_rows=3, **options))
    labels, probs = torch.cat([part.labels for part in parts]), torch.cat([part.probs for part in parts])
    return Predictions(probs=probs, labels=labels, class_names=parts[0].class_names)


@pytest.mark.parametrize("read", [read_whole, read_in_pieces])
@pytest.mark.parametrize("ending", [".npz", ".pt", ".csv", ".parquet"])
def test_labels_that_are_names_become_indices_by_the_names_given(
    tmp_path: Path, ending: str, read: Callable[..., Predictions]
) -> None:
    path = write(tmp_path / f"x{ending}", LABELS)
    found = read(path, class_names=NAMES)
    assert found.labels.tolist() == [1, 0, 2, 1]
    assert found.class_names == NAMES
    # Names of another order are another order.
    assert read(path, class_names=NAMES[::-1]).labels.tolist() == [1, 2, 0, 1]
    with pytest.raises(ValueError, match=r"among the class names, got 'eel' in row 2."):
        read(path, class_names=("cat", "dog", "eels"))
    with pytest.raises(ValueError, match="`class_names` must hold C = 3 names, got 2"):
        read(path, class_names=NAMES[:2])
    with pytest.raises(ValueError, match=r"among the class names, got 'cow' in row 3"):
        read(write(tmp_path / f"y{ending}", [*LABELS[:3], "cow"]), class_names=NAMES)
    with pytest.raises(ValueError, match="got 'dog' in row 0. Give indices"):
        read(path)


@pytest.mark.parametrize("read", [read_whole, read_in_pieces])
def test_labels_that_are_names_may_begin_with_examples_to_leave_out(tmp_path: Path, read: Callable[..., Predictions]) -> None:
    path = write(tmp_path / "x.csv", [-100, " -100", "eel", "dog"])
    assert read(path, class_names=NAMES, ignore_index=-100).labels.tolist() == [2, 1]
    with pytest.raises(ValueError, match=r"among the class names, got '-100' in row 0\..*`--ignore-index`"):
        read(path, class_names=NAMES)
    with pytest.raises(ValueError, match=r"got 'eel' in row 2\. Give indices"):
        load_predictions(path, ignore_index=-100)
    # Whole pieces that are left out.
    write(path, ["-100", "-100", " -100 ", "dog"])
    assert read(path, class_names=NAMES, ignore_index=-100).labels.tolist() == [1]
    write(path, ["", "dog", "eel", "dog"])
    with pytest.raises(ValueError, match=r"got .* in row 0"):
        read(path, class_names=NAMES)
    write(path, [-100, -100, -100, 2])
    assert read(path, ignore_index=-100).labels.tolist() == [2]


@pytest.mark.parametrize("ending", [".npz", ".pt"])
def test_labels_that_are_names_become_indices_by_the_names_in_the_file(tmp_path: Path, ending: str) -> None:
    names = np.array(NAMES) if ending == ".npz" else list(NAMES)
    found = load_predictions(write(tmp_path / f"x{ending}", LABELS, class_names=names))
    assert found.labels.tolist() == [1, 0, 2, 1]


@pytest.mark.parametrize("ending", [".npz", ".csv", ".parquet"])
def test_labels_that_are_numbers_in_text_are_indices(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"x{ending}", ["1", "0", "2", "1"])
    assert load_predictions(path).labels.tolist() == [1, 0, 2, 1]
    assert load_predictions(path, class_names=NAMES).labels.tolist() == [1, 0, 2, 1]


def test_labels_in_bytes_and_a_column_of_lists_are_read_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", probs=PROBS, labels=np.array(LABELS).astype("S"))
    assert load_predictions(tmp_path / "x.npz", class_names=NAMES).labels.tolist() == [1, 0, 2, 1]
    pq.write_table(pa.table({"probs": PROBS.tolist(), "label": pa.array(LABELS).dictionary_encode()}), tmp_path / "x.parquet")
    assert load_predictions(tmp_path / "x.parquet", class_names=NAMES).labels.tolist() == [1, 0, 2, 1]
    survey = survey_predictions(tmp_path / "x.parquet")
    assert survey is not None
    assert survey.num_classes == 3


@pytest.mark.parametrize("name", ["weight", "weights", "sample_weight"])
@pytest.mark.parametrize("ending", [".npz", ".pt", ".csv", ".parquet"])
def test_weights_are_read_under_each_of_their_names(tmp_path: Path, ending: str, name: str) -> None:
    path = write(tmp_path / f"x{ending}", [1, 0, 2, 1], **{name: WEIGHTS})
    found = load_predictions(path)
    assert found.weights is not None
    assert found.weights.tolist() == WEIGHTS
    assert found.columns == {}
    pieces = list(iter_prediction_batches(path, batch_rows=3, columns=[]))
    assert [part.weights.tolist() for part in pieces if part.weights is not None] == [WEIGHTS[:3], WEIGHTS[3:]]


def test_labels_of_a_csv_may_be_true_and_false(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("score,label\n0.7,True\n0.2,False\n0.4,true\n")
    assert load_predictions(tmp_path / "x.csv").labels.tolist() == [1, 0, 1]
