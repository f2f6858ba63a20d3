"""The record of a finished run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from calibrant.core.records import Predictions
from calibrant.core.scores import Scores
from calibrant.engine.loop import EpochRecord
from calibrant.engine.recipe import Recipe


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        recipe: What was run.
        history: One record an epoch.
        best_epoch: Epoch whose weights the model and the predictions have.
        val: Predictions on the validation part; with ``+ts`` after temperature scaling, as ``test``.
        test: Predictions on the test set. Methods with a gamma have it for every example in the column ``gamma``.
        hyper: The learned hyper-parameters, name → value; empty for methods without.
        network: Builds or returns the network; see `model`.
        temperature: What ``+ts`` divided the logits by, or None.
        folder: Where the run was written, or None.
        shift: ``"gaussian_noise-1"`` … → scores on the corrupted test set, where they were asked for (`data.shift`).
    """

    recipe: Recipe
    history: tuple[EpochRecord, ...]
    best_epoch: int
    val: Predictions
    test: Predictions
    hyper: dict[str, Tensor]
    network: Callable[[], nn.Module] = field(repr=False)
    temperature: float | None = None
    folder: Path | None = None
    shift: Mapping[str, Scores] = field(default_factory=dict, repr=False)

    @cached_property
    def model(self) -> nn.Module:
        """The network at the best epoch, in evaluation mode; its logits are those before temperature scaling."""
        return self.network().eval()

    @staticmethod
    def load(folder: str | Path) -> Run:
        """Read a finished run from its folder; see `calibrant.engine.folder.load_run`."""
        from calibrant.engine.folder import load_run

        return load_run(folder)
