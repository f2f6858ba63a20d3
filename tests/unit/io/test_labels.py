from __future__ import annotations

import numpy as np
import pytest

from calibrant.io.labels import class_indices


def read(labels: object, **options: object) -> list[object]:
    given = {"names": None, "path": "x.npz", "first_row": 0, "ignore_index": None, **options}
    found = class_indices(np.asarray(labels), **given)  # type: ignore[arg-type]
    assert found.dtype == np.int64
    return found.tolist()


def test_class_indices_one_hot_rows_are_refused_only_if_every_row_is_one() -> None:
    with pytest.raises(ValueError, match=r"^x\.npz: `labels` must be class indices \[N\], got \[2, 3\]\. They look one-hot"):
        read([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    # Labels of two pixels each, of which those of the first happen to add up to one.
    assert read([[0.0, 1.0], [2.0, 2.0]]) == [[0, 1], [2, 2]]
    # One pixel each.
    assert read([[1.0], [1.0]]) == [[1], [1]]
