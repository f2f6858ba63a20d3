"""What makes the numbers of a row doubtful: a temperature at its bound, or one that was fitted on few examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from calibrant.core.entry import Entry
from calibrant.grid.layout import Table


def doubts_of(runs: Sequence[Entry]) -> tuple[str, ...]:
    """Say what the fit of a temperature warned of, from what runs and records keep of it.

    Args:
        runs: The runs of a row; those without temperature scaling have nothing to doubt here.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> doubts_of([Entry("coins", "ce+ts", scores, temperature=t, seed=s) for s, t in enumerate((1e5, 1.4))])
        ('the temperature of seed 0 ended at its bound 100000; do not trust it',)
    """
    from calibrant.calibrators.temperature import TemperatureScaling

    scaled = [entry for entry in runs if entry.temperature is not None]
    if not scaled:
        return ()
    usual, found = TemperatureScaling(), []
    for bound in usual.bounds:
        held = [entry for entry in scaled if math.isclose(float(entry.temperature or 1.0), bound, rel_tol=1e-6)]
        if held:
            found.append(f"the temperature{_seeds(held, runs)} ended at its bound {bound:g}; do not trust it")
    few = sorted({n for entry in scaled if (n := _fitted_on(entry)) < usual.fewest_samples(entry.scores.num_classes)})
    if few:
        found.append(f"its temperature was fitted on {' or '.join(map(str, few))} validation examples, which are few")
    return tuple(found)


def doubt_notes(table: Table) -> list[str]:
    """Say which lines of a table hold doubtful numbers, and why."""
    return [
        f"{line.label}{f' on {section.data}' if section.data else ''}: {doubt}."
        for section in table.sections
        for line in section.lines
        for doubt in line.doubts
    ]


def _seeds(held: Sequence[Entry], runs: Sequence[Entry]) -> str:
    seeds = [str(entry.seed) for entry in held if entry.seed is not None]
    if len(runs) == 1 or len(seeds) < len(held):
        return ""
    return f" of seed{'' if len(seeds) == 1 else 's'} {', '.join(seeds)}"


def _fitted_on(entry: Entry) -> float:
    """How many validation examples there were; infinitely many where that is not known."""
    examples = entry.facts.get("examples")
    found = examples.get("val") if isinstance(examples, Mapping) else None
    return found if isinstance(found, int) else math.inf
