"""Showing a training run: a live bar where a person watches, one line an epoch where not, and a few words at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from calibrant.data.shift import CORRUPTIONS, SEVERITIES
from calibrant.engine.evaluate import epoch_scores
from calibrant.engine.result import EpochRecord, Run

_BAR = 12
_REASON = {
    "error": "lowest validation error",
    "nll": "lowest validation NLL",
    "error+nll": "lowest validation NLL near the lowest error",
    "error+ece": "lowest validation ECE near the lowest error",
    "last": "the last",
}


class EpochDisplay:
    """Shows epochs as they end.

    Args:
        epochs: Epochs of the whole run.
        shown: Whether to show anything (processes beside the first do not).
        console: Where to; standard output by default.
    """

    def __init__(self, epochs: int, *, shown: bool = True, console: Console | None = None) -> None:
        self.epochs, self.shown = epochs, shown
        self.console = Console(highlight=False, soft_wrap=True) if console is None else console
        self._live = shown and self.console.is_terminal
        columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(bar_width=_BAR), TextColumn("{task.fields[words]}"))
        self._bar = Progress(*columns, console=self.console, disable=not self._live)
        self._task = self._bar.add_task("", total=float(epochs), epoch=f"1/{epochs}", words="preparing")
        self._began: float | None = None
        self._first = self._done = self._moved = 0.0
        self._last: list[str] = []

    def __enter__(self) -> EpochDisplay:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def report(self, record: EpochRecord) -> None:
        """Show an epoch that has ended."""
        if self._began is None:
            # The run's first sign of life is the end of an epoch: nothing is known of its beginning.
            self._began, self._first = time.monotonic(), record.epoch + 1.0
        self._done = record.epoch + 1.0
        self._last = epoch_words(record)
        if self._live:
            self._move(record.epoch, self._done)
        elif self.shown:
            self.console.print("  ".join([f"epoch {record.epoch + 1}/{self.epochs}", *self._last, *self._eta(self._done)]))

    def tick(self, epoch: int, step: int, steps: int) -> None:
        """Move the bar within an epoch, ten times a second at most."""
        now = time.monotonic()
        if not self._live or now - self._moved < 0.1:
            return
        self._moved, part = now, epoch + step / steps
        if self._began is None:
            self._began, self._first = now, part
        self._move(epoch, part)

    def _move(self, epoch: int, done: float) -> None:
        place = f"{epoch + 1}/{self.epochs}"
        room = self.console.width - len(f"epoch {place} ") - _BAR - 1
        words = fit_words([*self._last, *self._eta(done)], width=room)
        self._bar.update(self._task, completed=done, epoch=place, words=words)

    def _eta(self, done: float) -> list[str]:
        if self._began is None or done <= self._first or done >= self.epochs:
            return []
        left = (time.monotonic() - self._began) / (done - self._first) * (self.epochs - done)
        return [f"{duration_words(left)} left"]


def fit_words(words: Sequence[str], *, width: int) -> str:
    """Join ``words``; where the room is short the loss is left out first, then the speed, then what comes last.

    Example:
        >>> fit_words(["loss 0.5", "error 9%", "ECE 2%", "800 images/s", "0:09 left"], width=30)
        'error 9%  ECE 2%  0:09 left'
    """
    kept = list(words)
    for start in ("loss ", "images/s", "gamma "):
        if len("  ".join(kept)) > width:
            kept = [word for word in kept if not (word.startswith(start) or word.endswith(start))]
    return "  ".join(kept)[: max(width, 0)]


def epoch_words(record: EpochRecord) -> list[str]:
    """Return what an epoch's line says: loss, validation error and ECE, gamma and speed."""
    words = [f"loss {record.train_loss:.4f}"]
    if record.val_error is not None and record.val_ece is not None:
        words += [f"val error {100 * record.val_error:.2f}%", f"ECE {100 * record.val_ece:.2f}%"]
    if record.gamma_mean is not None and record.gamma_std is not None:
        words.append(f"gamma {record.gamma_mean:.2f}±{record.gamma_std:.2f}")
    if record.images_per_second is not None:
        words.append(f"{record.images_per_second:,.0f} images/s")
    return words


def duration_words(seconds: float) -> str:
    """Return a duration as ``1:02:03`` or ``2:03``.

    Example:
        >>> duration_words(3723.4), duration_words(59.6)
        ('1:02:03', '1:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def shift_table(run: Run) -> str:
    """Return error and ECE under every corruption, a row for each, as text."""
    lines = [f"{'under shift, error / ECE in %':30}" + "".join(f"{f'severity {severity}':>14}" for severity in SEVERITIES)]
    for kind in CORRUPTIONS:
        scores = [run.shift[f"{kind}-{severity}"] for severity in SEVERITIES]
        cells = [f"{100 * found['error'].value:.2f} / {100 * found['ece'].value:.2f}" for found in scores]
        lines.append(f"{kind:30}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


def write_summary(run: Run) -> None:
    """Say what came of a run."""
    scores = epoch_scores(run.test.logits, run.test.labels)
    chosen = f"epoch {run.best_epoch + 1} of {len(run.history)} ({_REASON[run.recipe.train.select]})"
    scaled = "" if run.temperature is None else f", logits divided by {run.temperature:.3f}"
    print(f"test error {100 * scores.error:.2f}%, ECE {100 * scores.ece:.2f}%, NLL {scores.nll:.4f} at {chosen}{scaled}")
    if run.shift:
        print(shift_table(run))
    if run.folder is not None:
        print(f"written to {run.folder}; look closer with `calibrant measure {run.folder / 'test.npz'}`")
