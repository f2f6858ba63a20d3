"""What the charts of runs are drawn from: the records of the figures, as plain values and small enough to embed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from calibrant.core.binning import equal_width_bins
from calibrant.core.entry import Entry
from calibrant.core.records import Bins
from calibrant.core.summary import top_labels
from calibrant.metrics.diagram import PALETTE
from calibrant.report.bands import Band, band_of
from calibrant.report.curves import learning_rate_drops
from calibrant.report.gamma import GammaPanel, prepare_gamma_confidence, prepare_gamma_epochs
from calibrant.report.page_bins import bin_rows
from calibrant.report.page_runs import Group, mean_of
from calibrant.report.reliability import counts_examples, error_and_ece, kept_bins
from calibrant.report.robustness import prepare_robustness, usual_ece
from calibrant.report.style import Style
from calibrant.report.tradeoff import prepare_tradeoff

# What a learning curve can show, and how the page calls it; the first one that a run has is shown first.
CURVES = {
    "test_ece": "test ECE",
    "test_error": "test error",
    "test_nll": "test NLL",
    "val_ece": "validation ECE",
    "val_error": "validation error",
    "val_nll": "validation NLL",
    "train_loss": "training loss",
}
# Numbers of bins of the diagrams side by side, between which a reader can choose.
GRID_STOPS = (10, 15, 20, 30, 40, 50, 75, 100)
# Points of a learning curve that are kept: more could not be told apart on a screen.
_MOST_POINTS = 240
# Dots of right, and of wrong, predictions in a chart of gammas.
_MOST_DOTS = 400
# Of a line on the page; dashes are written as multiples of it.
_LINE_WIDTH = 2.2
_COLOURS = {value: name for name, value in PALETTE.items()}


def runs_view(groups: Sequence[Group]) -> list[dict[str, object]]:
    """Everything the charts of runs are drawn from, a mapping for each group.

    Its numbers are those of the figures: means over seeds at the points that all of them have, no learning curves for rows
    that were repaired afterwards, and diagrams and gammas of the last seed that all rows of a place have.
    """
    front = _front(groups)
    return [
        {
            "label": group.label,
            "place": group.place,
            "look": look_of(group.row.style),
            "points": (points := _points(group.entries)),
            "mean": [mean_of(values) for values in zip(*points, strict=True)],
            "front": place in front,
            "curves": _curves(group),
            "drops": _drops(group),
            "gamma": _gamma_epochs(group),
            "dots": _gamma_dots(group),
            "sweep": _sweep(group),
            "diagram": _diagram(group.row.run(group.seed)),
        }
        for place, group in enumerate(groups)
    ]


def look_of(style: Style) -> dict[str, object]:
    """Write the look that figures give a row as the page does: name of its colour, letter of its marker, dashes, filled or not.

    Example:
        >>> from calibrant.report.style import METHOD_STYLES
        >>> look_of(METHOD_STYLES["flsd"])
        {'hue': 'green', 'marker': '^', 'dash': '8.8 3.5', 'filled': True}
    """
    dashes = () if isinstance(style.line, str) else style.line[1]
    dash = " ".join(f"{_LINE_WIDTH * length:.1f}" for length in dashes)
    return {"hue": _COLOURS[style.color], "marker": style.marker, "dash": dash, "filled": style.filled}


def _front(groups: Sequence[Group]) -> set[int]:
    """Which groups are on the Pareto front of error and ECE of their place."""
    found: set[int] = set()
    for place in {group.place for group in groups}:
        known = [k for k, group in enumerate(groups) if group.place == place and _points(group.entries)]
        points = prepare_tradeoff([groups[k].row for k in known])
        found |= {k for k, point in zip(known, points, strict=True) if point.best}
    return found


def _points(entries: Sequence[Entry]) -> list[list[float]]:
    """Error and ECE of every run that has both."""
    both = [[entry.scores[key].value for key in ("error", "ece") if key in entry.scores] for entry in entries]
    return [pair for pair in both if len(pair) == 2 and math.isfinite(sum(pair))]


def _is_repaired(group: Group) -> bool:
    """Whether the histories are those of networks before a repair, and so not the row's own."""
    return any(entry.temperature is not None for entry in group.entries)


def _curves(group: Group) -> dict[str, list[list[float]]]:
    if _is_repaired(group):
        return {}
    bands = {key: band_of(group.row, [entry.curve(key) for entry in group.entries]) for key in CURVES}
    return {key: _columns(band, band.std) for key, band in bands.items() if band is not None}


def _drops(group: Group) -> list[int]:
    return [] if _is_repaired(group) else list(learning_rate_drops(group.entries[0]))


def _gamma_epochs(group: Group) -> list[list[float]]:
    """Epochs, mean of gamma over the test examples, and its spread over them."""
    gamma = prepare_gamma_epochs([group.row])
    return [] if gamma is None else _columns(gamma.mean[0], gamma.std[0].mean)


def _sweep(group: Group) -> dict[str, object]:
    """ECE and MCE against the number of bins: numbers, means over seeds, and their spread.

    Where it is known, ``chance`` has what a calibrated model would show, and the ECE ``rank`` by which the page finds, of the
    rows that are shown, the one to show it for.
    """
    found = prepare_robustness([group.row])
    if found is None:
        return {}
    view: dict[str, object] = {"ece": _columns(found.ece[0], found.ece[0].std), "mce": _columns(found.mce[0], found.mce[0].std)}
    if found.chance is not None:
        bands = {"ece": _columns(found.chance.ece, None), "mce": _columns(found.chance.mce, None)}
        view["chance"] = {"rank": usual_ece(found.ece[0]), **bands}
    return view


def _columns(band: Band, spread: Sequence[float] | None) -> list[list[float]]:
    """Places, means and spreads (empty where there are none) of at most so many points; the last one is always there."""
    step = max(math.ceil(len(band.x) / _MOST_POINTS), 1)
    columns = (band.x, band.mean, spread or ())
    return [[_digits(value) for value in reversed(column[::-1][::step])] for column in columns]


def _gamma_dots(group: Group) -> dict[str, list[list[float]]]:
    """Confidence and gamma, of right and of wrong predictions: some examples, and the running means of all."""
    panels = prepare_gamma_confidence([group.row], seed=group.seed)
    if not panels or len(panels[0].gamma) == 0:
        return {}
    panel = panels[0]
    found: dict[str, list[list[float]]] = {}
    for right, name in ((True, "right"), (False, "wrong")):
        found[name] = _some(panel, right=right)
        found[f"{name}Mean"] = [[_digits(value) for value in part.tolist()] for part in panel.means[right]]
    return found


def _some(panel: GammaPanel, *, right: bool) -> list[list[float]]:
    chosen = np.flatnonzero(panel.correct == right)
    # Evenly by confidence, so that sparse regions are not lost.
    chosen = chosen[np.argsort(panel.confidence[chosen], kind="stable")]
    chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, min(len(chosen), _MOST_DOTS)).round().astype(int))]
    return [[_digits(value) for value in part[chosen].tolist()] for part in (panel.confidence, panel.gamma)]


def _diagram(entry: Entry) -> dict[str, object]:
    """Error of one run, and for every number of bins the ECE and the rows of `bin_rows`; None where they are not known."""
    stops: list[dict[str, object] | None] = []
    error = math.nan
    for bins, scale in _binned(entry):
        if bins is None:
            stops.append(None)
            continue
        error, ece = error_and_ece(entry, bins)
        stops.append({"ece": ece, "rows": bin_rows(bins, scale=scale)})
    return {"error": error, "stops": stops} if any(stops) else {}


def _binned(entry: Entry) -> Iterator[tuple[Bins | None, float]]:
    """The bins of one run at every stop, of a record those that it keeps, and how many examples a unit of their count is."""
    if entry.test is None:
        for n_bins in GRID_STOPS:
            bins = kept_bins(entry, n_bins)
            # Of examples with weights a record does not tell how many they are worth.
            yield bins if bins is not None and counts_examples(entry, bins) else None, 1.0
        return
    top = top_labels(entry.test)
    total = float(len(top.confidence)) if top.weights is None else float(top.weights.sum())
    effective = total if top.weights is None else total**2 / float((top.weights**2).sum())
    for n_bins in GRID_STOPS:
        yield equal_width_bins(top, n_bins=n_bins), effective / total


def _digits(value: float) -> float:
    """Six significant digits, which are more than a chart can show."""
    return float(f"{value:.6g}")
