"""The table of all figures of a comparison, and drawing every one of them that the runs allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from calibrant.core.checks import check_count
from calibrant.core.entry import Entry
from calibrant.report.curves import draw_curves, prepare_curves
from calibrant.report.gamma import (
    draw_gamma_confidence,
    draw_gamma_epochs,
    prepare_gamma_confidence,
    prepare_gamma_epochs,
)
from calibrant.report.reliability import draw_reliability_grid, prepare_reliability, shows_reliability
from calibrant.report.robustness import draw_robustness, prepare_robustness
from calibrant.report.rows import Group, Row, group_rows
from calibrant.report.save import figure_stem, save_figure
from calibrant.report.tradeoff import draw_tradeoff, prepare_tradeoff

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Options(NamedTuple):
    """What can be chosen of the figures.

    Attributes:
        n_bins: Numbers of bins, for each of which there is a grid of reliability diagrams.
        seed: Which run of a row figures of a single run show; its last one by default.
    """

    n_bins: tuple[int, ...] = (10, 15, 20, 50, 100)
    seed: int | None = None


class FigureKind(NamedTuple):
    """One kind of figure.

    Attributes:
        draw: Gives the figures of a group, each with what is added to the name of its file; none if no row has the data.
        needs: What a row must have to be shown.
        lacks: What of the figures a row is missing in, as text to put behind its name: empty where that is all of them; None
            where it is in all.
        common: Whether most rows have it, so that one without is worth a word.
    """

    draw: Callable[[Group, Options], Iterator[tuple[str, Figure]]]
    needs: str
    lacks: Callable[[Row, Options], str | None]
    common: bool = True


class Drawing(NamedTuple):
    """What `draw_all` did.

    Attributes:
        files: The files written.
        skipped: Why a figure was not drawn, or which rows it leaves out and why, by the figure's name.
    """

    files: list[Path]
    skipped: dict[str, str]


def draw_all(
    entries: Sequence[Entry],
    out_folder: str | Path,
    *,
    n_bins: Sequence[int] = Options().n_bins,
    seed: int | None = None,
) -> Drawing:
    """Write every figure that the runs allow, as PNG and PDF: one set for each data set and network.

    Rows of unknown network are in the set of every network of their data, and have one of their own where there is none.

    Args:
        entries: Runs and predictions of any number of data sets.
        out_folder: Where the files go; made if it is not there.
        n_bins: Numbers of bins, for each of which there is a grid of reliability diagrams.
        seed: Which run of a row figures of a single run show, its last one if it has none of this seed; by default the highest
            seed that all rows have.

    Returns:
        The files, and the reason for each figure that could not be drawn. Raises ``ValueError`` if there are no entries.

    Example:
        >>> import tempfile
        >>> from calibrant import Predictions, measure
        >>> test = Predictions(probs=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]] * 40, labels=[0, 1, 1] * 40)
        >>> done = draw_all([Entry("coins", "ce", measure(test), test=test)], tempfile.mkdtemp(), n_bins=(10,))
        >>> [file.name for file in done.files if file.suffix == ".pdf"]
        ['reliability-coins-10bins.pdf', 'robustness-coins.pdf']
        >>> done.skipped["curves-coins"]
        'needs a history of training'
    """
    for number in n_bins:
        check_count(number, where="draw_all", name="n_bins")
    groups = group_rows(entries)
    folder = Path(out_folder)
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    skipped: dict[str, str] = {}
    for group in groups:
        options = Options(tuple(n_bins), group.common_seed if seed is None else seed)
        for name, kind in FIGURES.items():
            stem = figure_stem(name, group.data, group.model)
            drawn = [save_figure(figure, folder / f"{stem}{more}") for more, figure in kind.draw(group, options)]
            files += [file for pair in drawn for file in pair]
            without = [f"{row.label}{lacks}" for row in group.rows if (lacks := kind.lacks(row, options)) is not None]
            if not drawn:
                skipped[stem] = f"needs {kind.needs}"
            elif without and kind.common:
                skipped[stem] = f"leaves out {', '.join(without)}: needs {kind.needs}"
    return Drawing(files, skipped)


def _reliability(group: Group, options: Options) -> Iterator[tuple[str, Figure]]:
    for number in options.n_bins:
        panels = prepare_reliability(group.rows, n_bins=number, seed=options.seed)
        if panels:
            title = f"{_title_of_run(group, options)}, {number} bins"
            yield f"-{number}bins", draw_reliability_grid(panels, title=title)


def _curves(group: Group, options: Options) -> Iterator[tuple[str, Figure]]:
    found = prepare_curves(group.rows) or prepare_curves(group.rows, split="val")
    if found is not None:
        yield "", draw_curves(found, title=group.title)


def _gamma_epochs(group: Group, options: Options) -> Iterator[tuple[str, Figure]]:
    found = prepare_gamma_epochs(group.rows)
    if found is not None:
        yield "", draw_gamma_epochs(found, title=group.title)


def _gamma_confidence(group: Group, options: Options) -> Iterator[tuple[str, Figure]]:
    panels = prepare_gamma_confidence(group.rows, seed=options.seed)
    if panels:
        yield "", draw_gamma_confidence(panels, title=_title_of_run(group, options))


def _robustness(group: Group, options: Options) -> Iterator[tuple[str, Figure]]:
    found = prepare_robustness(group.rows)
    if found is not None:
        yield "", draw_robustness(found, title=group.title)


def _tradeoff(group: Group, options: Options) -> Iterator[tuple[str, Figure]]:
    points = prepare_tradeoff(group.rows)
    if len(points) > 1:
        yield "", draw_tradeoff(points, title=group.title)


def _title_of_run(group: Group, options: Options) -> str:
    seeds = {row.run(options.seed).seed for row in group.rows} - {None}
    known = f", seed {seeds.pop()}" if len(seeds) == 1 else ""
    return f"{group.title}{known}"


def _unless(shows: Callable[[Row], bool]) -> Callable[[Row, Options], str | None]:
    return lambda row, options: None if shows(row) else ""


def _lacks_bins(row: Row, options: Options) -> str | None:
    missing = [str(n) for n in options.n_bins if not shows_reliability(row, n_bins=n, seed=options.seed)]
    if not missing:
        return None
    return "" if len(missing) == len(options.n_bins) else f" with {', '.join(missing)} bins"


def _has_history(row: Row) -> bool:
    return any(run.history for run in row.runs) and all(run.temperature is None for run in row.runs)


FIGURES: dict[str, FigureKind] = {
    "reliability": FigureKind(_reliability, "test predictions, or as many bins in its record", _lacks_bins),
    "curves": FigureKind(_curves, "a history of training", _unless(_has_history)),
    "gamma-epochs": FigureKind(
        _gamma_epochs, "a gamma in its history", _unless(lambda row: bool(row.runs[0].curve("gamma_mean")[0])), common=False
    ),
    "gamma-confidence": FigureKind(
        _gamma_confidence,
        "test predictions with a column `gamma`",
        _unless(lambda row: any(run.test is not None and "gamma" in run.test.columns for run in row.runs)),
        common=False,
    ),
    "robustness": FigureKind(
        _robustness,
        "test predictions or errors by number of bins",
        _unless(lambda row: any(run.test is not None or run.sweep is not None for run in row.runs)),
    ),
    "tradeoff": FigureKind(
        _tradeoff, "two rows or more with an error and an ECE", _unless(lambda row: bool(prepare_tradeoff([row])))
    ),
}
