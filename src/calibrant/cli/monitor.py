"""``calibrant monitor``: a stream of predictions in, what was measured in each window of time out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.text import Text

from calibrant.cli.measure import Request
from calibrant.cli.terminal import Row, Terminal, check_destination, fit_table, progress_bar, say, show_prose
from calibrant.core.records import Column, Predictions
from calibrant.core.registry import lookup
from calibrant.core.scores import without_nan
from calibrant.io import iter_prediction_batches
from calibrant.io.predictions import FORMATS
from calibrant.metrics.monitor import CalibrationMonitor, Watched
from calibrant.metrics.verdict import write_interval, write_value

_ALARM = 3


def monitor_stream(
    paths: Sequence[Path],
    *,
    time: str,
    window: str,
    tolerance: float,
    false_alarms: float,
    figure: Path | None,
    fail_on_alarm: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Measure every window of the stream in ``paths``, print them, draw them; ``how`` as in `Request`."""
    if figure is not None:
        check_destination(figure, (".png", ".pdf"))
    request, files = Request(**how), find_files(paths)
    monitor = CalibrationMonitor(
        window=None if window == "value" else window,  # type: ignore[arg-type]
        tolerance=tolerance,
        false_alarms=false_alarms,
        n_bins=request.n_bins,
    )
    with progress_bar("reading", len(files)) as advance:
        for file in files:
            for batch, times in read_times(file, time, request):
                monitor.update(batch, times)
            advance(1)
    with progress_bar("measuring", None):
        watched = monitor.result(n_resamples=request.resamples, seed=request.seed)
    if figure is not None:
        from calibrant.report.monitor import draw_monitor
        from calibrant.report.save import save_figure

        save_figure(draw_monitor(watched), figure.with_suffix(""))
    if as_json:
        say(json.dumps(without_nan(watched.to_dict()), indent=2, allow_nan=False))
    else:
        show_windows(watched)
    if fail_on_alarm and watched.first_alarm is not None:
        raise typer.Exit(_ALARM)


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files of predictions in files and folders, those of a folder by name."""
    found = []
    for path in paths:
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in FORMATS) if path.is_dir() else [path]
        if not inside:
            raise FileNotFoundError(f"{path}: must hold files of predictions ({', '.join(FORMATS)}), got none.")
        found += inside
    return found


def read_times(file: Path, time: str, request: Request) -> Iterator[tuple[Predictions, Column]]:
    """Batches of a file with their times, from a column, or from a folder named ``TIME=VALUE`` as partitions are."""
    parts = dict(part.split("=", 1) for part in file.parts if "=" in part)
    for batch in iter_prediction_batches(file, columns=[] if time in parts else [time], **request.reading):
        known = {time: np.full(len(batch), parts[time])} if time in parts else batch.columns
        yield batch, lookup(known, time, kind=f"column of {file}")


def show_windows(watched: Watched) -> None:
    """Print a line for every window, and what they come to."""
    console = Terminal()
    rows: list[Row] = [
        [
            window.name,
            f"{window.scores.n:,}",
            write_value(window.scores["error"].value, "%"),
            Text(write_value(window.scores["ece"].value, "%"), style="bold"),
            Text(write_interval(window.scores["ece"], "%"), style="dim"),
            Text(write_value(window.scores.ece_if_calibrated.mean, "%"), style="dim"),
            write_value(window.bias.value, "%", signed=True),
            f"{window.evidence:,.2f}" if window.evidence < 1e4 else "over 10,000",
            Text("alarm" if window.alarm else "", style="bold red"),
        ]
        for window in watched.windows
    ]
    headers = ("Window", "Examples", "Error", "ECE", "95% interval", "If calibrated", "Bias", "Evidence", "")
    console.print(fit_table(headers, rows, width=console.width, drop=(5, 4, 2)))
    console.print()
    first, off = watched.first_alarm, f"{100 * watched.tolerance:g} points"
    if first is None:
        quiet = f"No alarm: these {len(rows)} windows do not prove that probabilities are off by more than {off}."
        show_prose(console, quiet, style="bold")
    else:
        chance = f"An alarm without cause, in any window, has a chance of {100 * watched.false_alarms:g}% at most."
        alarm = f"Alarm in {first.name}: probabilities are off by more than {off}. {chance}"
        show_prose(console, alarm, style="bold red")
