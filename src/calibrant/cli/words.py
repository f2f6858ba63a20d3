"""The words of tables on a terminal; they are those of every other page, and live in `calibrant.core.words`."""

from calibrant.core.words import (
    METRICS,
    SIGNIFICANT,
    Metric,
    count_examples,
    direction,
    is_miscalibrated,
    metric_of,
    verdict,
    worst_slice,
    write_interval,
    write_p,
    write_value,
)

__all__ = [
    "METRICS",
    "SIGNIFICANT",
    "Metric",
    "count_examples",
    "direction",
    "is_miscalibrated",
    "metric_of",
    "verdict",
    "worst_slice",
    "write_interval",
    "write_p",
    "write_value",
]
