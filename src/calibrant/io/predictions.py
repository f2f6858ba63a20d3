"""Reading and writing files of predictions. The formats are in their own modules, the checks they share in `content`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from calibrant.core.checks import check_count
from calibrant.core.records import Predictions
from calibrant.io.arrow import require_pyarrow
from calibrant.io.atomic import atomic_writer
from calibrant.io.content import Fields, check_readable, from_predictions, one_sentence, one_split, to_predictions
from calibrant.io.delimited import iter_csv, read_csv, write_csv
from calibrant.io.extras import Extras
from calibrant.io.npz import read_npz, write_npz
from calibrant.io.parquet import iter_parquet, read_parquet, write_parquet
from calibrant.io.pt import read_pt, write_pt


@dataclass(frozen=True)
class _Format:
    read: Callable[[Path], tuple[Fields, Extras]]
    write: Callable[[Fields, Extras, BinaryIO], None]
    stream: Callable[..., Iterator[tuple[Fields, Extras]]] | None = None


FORMATS = {
    ".npz": _Format(read_npz, write_npz),
    ".csv": _Format(read_csv, write_csv, iter_csv),
    ".parquet": _Format(read_parquet, write_parquet, iter_parquet),
    ".pt": _Format(read_pt, write_pt),
}
# Endings that are not close in spelling to the one that holds the same kind of data.
_MEANT = {
    ".npy": ".npz",
    ".pth": ".pt",
    ".tsv": ".csv",
    ".txt": ".csv",
    ".pq": ".parquet",
    ".pkl": ".npz",
    ".json": ".csv",
    ".jsonl": ".csv",
}
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")


def load_predictions(
    path: str | Path, *, ignore_index: int | None = None, class_names: Sequence[str] | None = None
) -> Predictions:
    r"""Read predictions from a ``.npz``, ``.csv``, ``.parquet`` or ``.pt`` file. No file can run code.

    ``.npz`` and ``.pt`` (a dict of tensors) hold the keys ``logits`` or ``probs`` ``[N, C]`` (of a binary problem also ``[N]``
    or ``[N, 1]``: the probability of class 1, or its log-odds), ``labels`` ``[N]`` and optionally ``split``,
    ``weights`` ``[N]`` and ``class_names``; every further 1-D array of N values is a column to slice by.
    ``.csv`` and ``.parquet`` hold the columns ``p0…`` or ``logit0…``, ``label`` and optionally ``split`` (the same in every
    row) and ``weight``; every further column can be sliced by. Labels may be floating point if they are whole numbers, or
    names of classes where ``class_names`` are known. Weights may be called ``sample_weight``, too. Text has no precision:
    probabilities in a ``.csv`` are float64, unless float32 holds them exactly or their rows sum to one no better than float32
    rows do. Rows of probabilities that do not sum to one because they were rounded are divided by their sums; see
    `calibrant.io.rounding.without_rounding`.

    Args:
        path: The file; its ending says the format.
        ignore_index: Label that marks examples to leave out.
        class_names: Names of the classes in their order, in place of the file's.

    Returns:
        The record, checked. Raises ``ValueError``, ``OSError`` or (where pyarrow is missing) ``ImportError`` with one
        sentence that names the file and what to do.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "test.csv"
        >>> _ = path.write_text("p0,p1,label,city\n0.9,0.1,0,Oslo\n0.2,0.8,0,Bern\n")
        >>> predictions = load_predictions(path)
        >>> predictions, predictions.columns["city"].tolist()
        (Predictions(N=2, C=2, from probs), ['Oslo', 'Bern'])
    """
    check_readable(path)
    kind = _format_of(path)
    with one_sentence(path):
        fields, extras = kind.read(Path(path))
        return to_predictions(fields, path=path, extras=extras, ignore_index=ignore_index, class_names=class_names)


def save_predictions(predictions: Predictions, path: str | Path) -> None:
    """Write predictions to a ``.npz``, ``.csv``, ``.parquet`` or ``.pt`` file that `load_predictions` reads back exactly.

    The file appears complete or not at all, and replaces an older one of its name. Precision, class names and the types of
    slice columns, where a format has no place for them, are kept as JSON under the name ``calibrant``.

    Args:
        predictions: The record.
        path: The file; its ending says the format, as in `load_predictions`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "test.npz"
        >>> save_predictions(Predictions(logits=[[2.0, 0.0], [0.5, 1.0]], labels=[0, 1], split="test"), path)
        >>> load_predictions(path)
        Predictions(N=2, C=2, from logits, split=test)
    """
    kind = _format_of(path)
    if Path(path).suffix.lower() == ".parquet":
        require_pyarrow(path)
    fields = from_predictions(predictions)
    scores = predictions.logits if predictions.has_logits else predictions.probs
    extras = Extras(
        dtype=str(scores.dtype).removeprefix("torch."),
        class_names=predictions.class_names,
        columns={name: values.dtype.newbyteorder("=").str for name, values in predictions.columns.items()},
    )
    with atomic_writer(path) as handle:
        kind.write(fields, extras, handle)


def iter_prediction_batches(
    path: str | Path,
    *,
    batch_rows: int = 65536,
    columns: Sequence[str] | None = None,
    ignore_index: int | None = None,
    class_names: Sequence[str] | None = None,
) -> Iterator[Predictions]:
    """Read a file piece by piece, with the checks of `load_predictions`.

    ``.parquet`` and ``.csv`` are streamed: memory does not grow with the file. ``.npz`` and ``.pt`` are read whole first.

    Args:
        path: The file.
        batch_rows: Rows in a piece (the last one may be shorter, and one that ends at a border of the file's own pieces too).
        columns: Slice columns to read; None reads all. In a ``.csv`` they come as text.
        ignore_index: Label that marks examples to leave out; a piece in which all are is left out too.
        class_names: Names of the classes in their order, in place of the file's.

    Yields:
        Records of up to ``batch_rows`` examples. Raises as `load_predictions` does, once it comes to what is wrong.
    """
    check_count(batch_rows, where="iter_prediction_batches", name="batch_rows")
    check_readable(path)
    kind = _format_of(path)
    if kind.stream is None:
        whole = load_predictions(path, ignore_index=ignore_index, class_names=class_names)
        for start in range(0, len(whole), batch_rows):
            yield whole.subset(np.arange(start, min(start + batch_rows, len(whole))))
        return
    with one_sentence(path):
        first_row = 0
        splits: set[str] = set()
        for fields, extras in kind.stream(Path(path), batch_rows=batch_rows, columns=columns):
            rows = len(next(iter(fields.values())))
            splits.add(one_split(fields.get("split"), path) or "")
            one_split(np.array(list(splits)), path)
            if not _says_nothing(fields, ignore_index):
                yield to_predictions(
                    fields,
                    path=path,
                    extras=extras,
                    first_row=first_row,
                    ignore_index=ignore_index,
                    class_names=class_names,
                )
            first_row += rows
        if first_row == 0:
            raise ValueError(f"{path}: must hold at least one row of predictions, got only the header.")


def _says_nothing(fields: Fields, ignore_index: int | None) -> bool:
    """Whether all rows of a piece are ignored or weigh nothing, which is no mistake as long as others do."""
    spellings = (("label", "labels"), ("weight", "weights", "sample_weight"))
    labels, weights = (next((fields[name] for name in names if name in fields), None) for names in spellings)
    wanted: str | int | None = ignore_index
    if labels is not None and labels.dtype.kind in "UO":
        labels, wanted = np.char.strip(labels.astype(str)), str(ignore_index)
    ignored = labels is not None and ignore_index is not None and bool((labels == wanted).all())
    return ignored or (weights is not None and weights.dtype.kind in "fiu" and not weights.any())


def _format_of(path: str | Path) -> _Format:
    ending = Path(path).suffix.lower()
    if ending in FORMATS:
        return FORMATS[ending]
    if ending in _PACKED:
        raise ValueError(f"{path}: must not be compressed, got {ending!r}. Unpack it to {Path(path).stem} first.")
    near = [_MEANT[ending]] if ending in _MEANT else difflib.get_close_matches(ending, list(FORMATS), n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(f"{path}: the file name must end in {', '.join(FORMATS)}, got {ending or 'no ending'!r}.{hint}")
