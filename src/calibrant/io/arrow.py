"""Between Arrow columns and numpy arrays; pyarrow is optional and loaded only by a file that needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.records import Column
from calibrant.io.table import LABELS, is_number_column


def require_pyarrow(path: str | Path) -> None:
    """Raise ``ImportError`` that says how to install pyarrow if it is missing."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ImportError(f"{path}: reading and writing .parquet needs pyarrow. Run `pip install pyarrow`.") from None


def has_pyarrow() -> bool:
    """Whether pyarrow can be imported."""
    try:
        import pyarrow.csv  # noqa: F401
    except ImportError:
        return False
    return True


def to_numpy(column: Any, name: str, *, path: str | Path) -> Column | None:
    """Return an Arrow column as numpy: numbers as they are, a missing one as NaN, text as ``str``, missing text as "".

    Lists of numbers of one length become ``[N, C]``. Columns of other kinds (structs, bytes) give None.
    """
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    kind = column.type
    if kinds.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind)
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        if name in ("probs", "logits"):
            return _stack_lists(column, name, path)
        if is_number_column(name):
            raise ValueError(
                f"{path}: column `{name}` must hold numbers, got lists. Name a column of lists `probs` or `logits`."
            )
        return None
    is_text = kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)
    # Names of classes become indices where their order is known.
    if is_number_column(name) and not (is_text and name in LABELS) and not (kinds.is_floating(kind) or kinds.is_integer(kind)):
        column = _cast_to_number(column, name, path)
        kind = column.type
    if kinds.is_floating(kind) or kinds.is_integer(kind) or kinds.is_timestamp(kind) or kinds.is_date(kind):
        return np.asarray(column.to_numpy())
    if kinds.is_boolean(kind) and column.null_count == 0:
        return np.asarray(column.to_numpy())
    if kinds.is_decimal(kind):
        return np.asarray(column.cast("float64").to_numpy())
    if kinds.is_null(kind):
        return np.full(len(column), "")
    if kinds.is_nested(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return None
    return np.asarray(pc.fill_null(column.cast("string"), "").to_numpy()).astype(str)


def _cast_to_number(column: Any, name: str, path: str | Path) -> Any:
    import pyarrow as pa

    try:
        return column.cast("float64")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        shown = next((value for value in column.to_pylist() if not _is_number(value)), column.type)
        raise ValueError(f"{path}: column `{name}` must hold numbers, got {str(shown)!r}. Save it as numbers.") from None


def _stack_lists(column: Any, name: str, path: str | Path) -> Column:
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1 or lengths[0] is None:
        said = ", ".join("none" if length is None else str(length) for length in lengths[:4])
        raise ValueError(f"{path}: `{name}` must hold one score for each class in every row, got rows of {said} scores.")
    flat = pc.list_flatten(column)
    flat = flat if kinds.is_floating(flat.type) else _cast_to_number(flat, name, path)
    return np.asarray(flat.to_numpy()).reshape(-1, lengths[0])


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return value is None
    return True
