"""Whether a run has come to anything: a network that diverged, or learned nothing, is said to have."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from calibrant.engine.loop import EpochRecord

# How many times the loss of a guess is no longer the beginning of training, or a penalty on top of it.
_FAR = 10
# Epochs after which a network that is no better than a guess is worth a word: shorter runs may have hardly begun.
_PATIENCE = 3


class TrainWarning(UserWarning):
    """A run ends, but its network is of no use."""


def has_diverged(record: EpochRecord, *, num_classes: int) -> bool:
    r"""Whether both the training loss and the validation NLL of an epoch are far above those of a guess, :math:`\log C`.

    Either alone may be honest: a method's loss may hold a penalty, and statistics of BatchNorm that have seen few batches, or
    an overfitted network, may give a high NLL.

    Example:
        >>> has_diverged(EpochRecord(0, 0.1, 98374.4, val_nll=5e8), num_classes=10)
        True
        >>> has_diverged(EpochRecord(0, 0.1, 2.1, val_nll=40.0), num_classes=10)
        False
    """
    limit = _FAR * math.log(num_classes)
    return record.train_loss > limit and record.val_nll is not None and record.val_nll > limit


def is_guess(history: Sequence[EpochRecord], *, num_classes: int, n_val: int) -> bool:
    r"""Whether no epoch's validation error is two standard errors below that of a guess, :math:`1 - 1/C`.

    Args:
        history: One record an epoch; of fewer than three nothing is said.
        num_classes: Number of classes C.
        n_val: Validation examples.

    Example:
        >>> history = [EpochRecord(epoch, 0.1, 2.3, val_error=error) for epoch, error in enumerate((0.88, 0.91, 0.9))]
        >>> is_guess(history, num_classes=10, n_val=100), is_guess(history[:2], num_classes=10, n_val=100)
        (True, False)
    """
    errors = [record.val_error for record in history if record.val_error is not None]
    guess = 1 - 1 / num_classes
    return len(history) >= _PATIENCE and bool(errors) and min(errors) > guess - 2 * math.sqrt(guess * (1 - guess) / n_val)


class Outlook:
    """Warns once when a run diverges, and at its end if it has come to nothing.

    Args:
        num_classes: Number of classes.
        n_val: Validation examples.
        shown: Whether to warn (processes beside the first do not).
    """

    def __init__(self, *, num_classes: int, n_val: int, shown: bool = True) -> None:
        self._num_classes, self._n_val, self._shown, self._said = num_classes, n_val, shown, False

    def epoch(self, record: EpochRecord) -> None:
        """Look at an epoch that is not the last."""
        if self._shown and not self._said and has_diverged(record, num_classes=self._num_classes):
            self._said = True
            _warn(f"the loss is {_loss(record)} after epoch {record.epoch + 1}, {self._guess()}. Lower `optim.lr`.")

    def end(self, history: Sequence[EpochRecord]) -> None:
        """Look at a run that has ended."""
        if not self._shown:
            return
        if has_diverged(history[-1], num_classes=self._num_classes):
            _warn(f"training diverged: its loss ended at {_loss(history[-1])}, {self._guess()}. Lower `optim.lr`.")
        elif is_guess(history, num_classes=self._num_classes, n_val=self._n_val):
            least = min(record.val_error for record in history if record.val_error is not None)
            _warn(
                f"the network is no better than a guess: its lowest validation error is {100 * least:.1f} %, that of a guess "
                f"{100 * (1 - 1 / self._num_classes):.1f} %. Lower `optim.lr`, train for longer, or look at data and labels."
            )

    def _guess(self) -> str:
        return f"that of a guess {math.log(self._num_classes):.2f}"


def _loss(record: EpochRecord) -> str:
    return f"{record.train_loss:.4g} an example"


def _warn(text: str) -> None:
    warnings.warn(f"train: {text}", TrainWarning, stacklevel=5)
