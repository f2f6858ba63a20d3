"""Reading and writing users' files: the only room that does. Nothing read here can run code."""

from calibrant.io.files import load_class_names
from calibrant.io.predictions import (
    find_files,
    iter_prediction_batches,
    load_predictions,
    rewrite_predictions,
    sample_columns,
    save_logits,
    save_predictions,
    survey_predictions,
)

__all__ = [
    "find_files",
    "iter_prediction_batches",
    "load_class_names",
    "load_predictions",
    "rewrite_predictions",
    "sample_columns",
    "save_logits",
    "save_predictions",
    "survey_predictions",
]
