"""What a file's format cannot hold in its own way, and is written beside the data as a little JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.core.records import Column

# The key, column or metadata entry that holds the JSON.
EXTRAS_KEY = "calibrant"
# Kinds of numpy arrays that can be slice columns of a file: booleans, whole numbers, floating point, text and dates.
COLUMN_KINDS = "biufUM"
_TORCH_DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}


@dataclass(frozen=True)
class Extras:
    """What a format cannot hold in its own way.

    Attributes:
        dtype: Precision of the scores, or None where the file's own type says it.
        class_names: Names of the classes.
        columns: Name of a slice column → its numpy type.
    """

    dtype: str | None = None
    class_names: tuple[str, ...] | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the parts that say something, as JSON text; empty text if none does."""
        parts = {"dtype": self.dtype, "class_names": self.class_names, "columns": dict(self.columns)}
        said = {key: value for key, value in parts.items() if value}
        return json.dumps(said, ensure_ascii=False) if said else ""

    @classmethod
    def from_json(cls, text: str, *, path: str | Path) -> Extras:
        """Read what `to_json` wrote; empty text is a file that says nothing."""
        try:
            data = json.loads(text or "{}")
            names = data.get("class_names")
            columns = {str(name): str(kind) for name, kind in data.get("columns", {}).items()}
            dtype = data.get("dtype")
            if dtype is not None and dtype not in _TORCH_DTYPES:
                raise ValueError(dtype)
            return cls(dtype, None if names is None else tuple(str(name) for name in names), columns)
        except (ValueError, AttributeError, TypeError):
            raise ValueError(f"{path}: `{EXTRAS_KEY}` must hold what `save_predictions` wrote, got {text[:80]!r}.") from None

    def restore_scores(self, scores: Tensor) -> Tensor:
        """Return ``scores`` in the precision in which they were saved."""
        return scores if self.dtype is None else scores.to(_TORCH_DTYPES[self.dtype])

    def restore_column(self, values: Column, name: str, *, path: str | Path) -> Column:
        """Return a slice column in the type in which it was saved."""
        dtype = self.columns.get(name)
        if dtype is None:
            return values.astype(str) if values.dtype.kind == "O" else values
        try:
            wanted = np.dtype(dtype)
            if wanted.kind not in COLUMN_KINDS:
                raise TypeError(dtype)
            if wanted.kind == "b" and values.dtype.kind in "OU":
                return np.asarray(np.char.lower(values.astype(str)) == "true")
            return values.astype(wanted)
        except (TypeError, ValueError):
            raise ValueError(
                f"{path}: column `{name}` must hold {dtype}, as the file itself says, got {values.dtype}."
            ) from None
