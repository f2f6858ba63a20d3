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
    # One pixel each, and plain labels that add up to one.
    assert read([0.0, 1.0, 0.0]) == [0, 1, 0]
    assert read([[1.0], [1.0]]) == [[1], [1]]


def test_class_indices_of_booleans_and_of_numbers_in_text() -> None:
    assert read([True, False]) == [1, 0]
    assert read([[" 1", "0"], ["2 ", "1"]]) == [[1, 0], [2, 1]]


def test_class_indices_of_names_are_their_places() -> None:
    assert read(["dog", "cat"], names=[" cat ", "dog"]) == [1, 0]
    assert read([["dog", "cat"], ["cat", "cat"]], names=["cat", "dog"]) == [[1, 0], [0, 0]]
    # Of two classes of one name, the first.
    assert read(["cat", "dog"], names=["cat", "dog", "cat"]) == [0, 1]
    # Where a class is called like the label to leave out, that is left out.
    assert read(["7", "cat"], names=["7", "cat"], ignore_index=7) == [7, 1]


@pytest.mark.parametrize(
    ("labels", "names", "said"),
    [
        ([0.0, np.inf], None, "got inf in row 11"),
        ([0.0, np.nan], None, "got no label in row 11"),
        ([1 + 1j], None, "got complex128. Write the index of every class"),
        (["99999999999999999999"], None, "got '99999999999999999999' in row 10"),
        ([["cat", "dog"], ["cat", "cow"]], ["cat", "dog"], r"got 'cow' in row \d+. Name every class"),
        (np.array([b"cat", b"\xff"]), ["cat", "dog"], "got '\ufffd' in row 11"),
    ],
)
def test_class_indices_what_is_none_is_said_with_its_row(labels: object, names: list[str] | None, said: str) -> None:
    with pytest.raises(ValueError, match=rf"^x\.npz: `labels` must be class indices.*{said}"):
        read(labels, names=names, first_row=10)
