"""How a finished run holds up under shift: its predictions on corrupted copies of the test set, and their scores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch

from calibrant.core.records import Predictions, Split
from calibrant.core.scores import Scores
from calibrant.data.shift import CORRUPTIONS, SEVERITIES, corrupt
from calibrant.engine.evaluate import EvalSet
from calibrant.engine.hardware import ALONE_GROUP, Group, choose_hardware
from calibrant.engine.network import feature_function
from calibrant.engine.result import Run
from calibrant.engine.setup import load_data
from calibrant.io.files import atomic_writer


def shifted_predictions(run: Run, *, seed: int = 0, group: Group = ALONE_GROUP) -> Iterator[tuple[str, Predictions]]:
    """Predict on the test set corrupted in every way, at every severity, one set at a time.

    Args:
        run: A finished run. Its recipe says where the data lie and on which device to compute.
        seed: Seed of the noise; one seed gives every run the same images.
        group: Processes that share the work.

    Yields:
        ``"gaussian_noise-1"`` … ``"contrast-5"`` and the predictions, after temperature scaling where the run has it. Raises
        ``ValueError`` if the test labels are no longer those of the run.
    """
    train, test = run.recipe.train, load_data(run.recipe.data).test
    if not torch.equal(test.labels, run.test.labels):
        raise ValueError(
            f"evaluate_shift: `data` must be what the run was tested on, got other test labels in {run.recipe.data.name}. "
            "Put the old data back."
        )
    hardware = choose_hardware(device=train.device, precision=train.precision, group=group)
    model = run.network().to(hardware.device, hardware.dtype).eval()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    forward = feature_function(model)
    for kind, severity in product(CORRUPTIONS, SEVERITIES):
        worse = replace(test, images=corrupt(test.images, kind=kind, severity=severity, seed=seed), posterior=None)
        # Not around the loop: what is set in it must not be in force while whoever asked for the predictions works on them.
        with hardware.active():
            # Each set passes once, so it need not lie on the device.
            logits = EvalSet(worse, hardware, resident=False).run(model, forward).logits.cpu() / (run.temperature or 1.0)
        found = Predictions(logits=logits, labels=test.labels, split=Split.TEST, class_names=test.class_names)
        yield f"{kind}-{severity}", found


def evaluate_shift(run: Run, *, seed: int = 0, n_resamples: int = 200, group: Group = ALONE_GROUP) -> dict[str, Scores]:
    """Measure a finished run on the test set corrupted in every way, at every severity; see `shifted_predictions`.

    Args:
        run: A finished run, for instance ``Run.load(folder)``.
        seed: Seed of the noise.
        n_resamples: Resamples behind the intervals; fewer than `calibrant.measure` takes, as there are many sets.
        group: Processes that share the work.

    Returns:
        ``"gaussian_noise-1"`` … ``"contrast-5"`` → what `calibrant.measure` says.

    Example:
        >>> from calibrant.engine.train import train
        >>> parts = {"data": "mixture", "backbone": "mlp", "method": "ce"}
        >>> run = train({key: {"name": name} for key, name in parts.items()} | {"train": {"epochs": 2, "device": "cpu"}})
        >>> scores = evaluate_shift(run)
        >>> len(scores), scores["contrast-5"]["error"].value > scores["contrast-1"]["error"].value
        (15, True)
    """
    from calibrant.metrics.measure import measure

    found = shifted_predictions(run, seed=seed, group=group)
    return {name: measure(predictions, n_resamples=n_resamples) for name, predictions in found}


def save_shift(path: Path, shift: Mapping[str, Scores], *, seed: int = 0) -> None:
    """Write scores under shift as JSON: the seed, and for every set what ``calibrant measure --json`` would say."""
    content = {"seed": seed, "sets": {name: scores.to_dict() for name, scores in shift.items()}}
    with atomic_writer(path) as handle:
        handle.write((json.dumps(content, indent=2) + "\n").encode())


def load_shift(path: Path) -> dict[str, Scores]:
    """Read what `save_shift` wrote; empty where there is no such file."""
    if not path.exists():
        return {}
    try:
        return {name: Scores.from_dict(found) for name, found in json.loads(path.read_text(encoding="utf-8"))["sets"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"load_run: `{path}` must hold what `calibrant train --shift` wrote, got: {error!r}.") from None
