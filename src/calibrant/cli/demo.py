"""``calibrant demo``: what a user would see, on predictions whose true calibration error is known."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console

from calibrant.cli.page import show_prose, show_scores
from calibrant.cli.reading import measure_file
from calibrant.cli.request import Request
from calibrant.cli.usage import program
from calibrant.core.records import Predictions
from calibrant.core.words import write_interval, write_value
from calibrant.data.synthetic import synthetic_predictions
from calibrant.io import save_predictions

_EXAMPLES = 10_000
_TEMPERATURES = {"day": 1.6, "night": 3.2}


def run_demo(folder: Path | None, *, seed: int) -> None:
    """Make predictions, write them to a file, measure the file and compare with the truth.

    Args:
        folder: Where to write; a temporary folder by default.
        seed: Seed of the synthetic classifier.
    """
    console = Console(highlight=False)
    day, night = _TEMPERATURES.values()
    show_prose(
        console,
        f"A synthetic classifier of 10 classes makes {_EXAMPLES:,} predictions, half by day and half by night. Its logits are "
        f"{day} times too large by day and {night} times by night, so its true calibration error is known.",
    )
    predictions, truth = _predictions(seed)
    folder = Path(tempfile.mkdtemp(prefix="calibrant-")) if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "demo.npz"
    save_predictions(predictions, path)
    measured = measure_file(path, Request(by_class=True, slice_by="light", seed=seed))
    show_scores(measured, all_classes=False, console=console)
    ece = measured.scores["ece"]
    found = "holds it" if ece.low <= truth <= ece.high else "misses it, as one in twenty does"
    show_prose(
        console,
        f"Measured {write_value(ece.value, '%')}, true {write_value(truth, '%')}: the 95% interval "
        f"{write_interval(ece, '%')}% {found}.",
        style="bold",
    )
    console.print(f"\nThe predictions are in {path}. Look at them again, or at your own, with", soft_wrap=True)
    console.print(f"\n  {program()} measure {shlex.quote(str(path))} --slice light\n", soft_wrap=True)


def _predictions(seed: int) -> tuple[Predictions, float]:
    parts = [
        synthetic_predictions(_EXAMPLES // len(_TEMPERATURES), temperature=temperature, seed=2 * seed + k)
        for k, temperature in enumerate(_TEMPERATURES.values())
    ]
    light = np.repeat(list(_TEMPERATURES), _EXAMPLES // len(_TEMPERATURES))
    whole = Predictions(
        logits=np.concatenate([part.logits.numpy() for part, _ in parts]),
        labels=np.concatenate([part.labels.numpy() for part, _ in parts]),
        split="test",
        columns={"light": light},
    )
    # Over-confident by day and by night: errors do not cancel, and the truth of the whole is the mean of the parts'.
    return whole, sum(truth for _, truth in parts) / len(parts)
