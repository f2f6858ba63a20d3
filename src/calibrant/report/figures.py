"""The table of all figures of a comparison: each as files for print, and most as pictures in a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from calibrant.core.checks import check_count
from calibrant.core.entry import Entry
from calibrant.report.curves import (
    CURVES,
    PANELS,
    draw_gamma_confidence,
    draw_lines,
    draw_tradeoff,
    prepare_curves,
    prepare_gamma_confidence,
    prepare_gamma_epochs,
    prepare_robustness,
    prepare_tradeoff,
)
from calibrant.report.reliability import draw_reliability_grid, prepare_reliability
from calibrant.report.rows import Group, Row, group_rows
from calibrant.report.save import figure_stem, print_style, save_figure, svg_element

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigureKind:
    """One kind of figure.

    Attributes:
        prepare: Returns one record, with a ``label``, for each row of a group that has the data.
        draw: Draws these records under a title.
        needs: What a row must have to be shown.
        title: Heading on a page.
        about: Text below the heading.
        choices: Choices of a reader → options of ``draw``. Pages leave out figures without choices.
        least: Fewest records worth drawing.
        common: Whether most rows have the data, so that a row without them is mentioned.
        of_run: Whether ``prepare`` takes the ``seed`` of the run to show of each row.
        of_bins: Whether ``prepare`` takes ``n_bins``; there is then one figure per number of bins.
    """

    prepare: Callable[..., Sequence[Any]]
    draw: Callable[..., Figure]
    needs: str
    title: str = ""
    about: str = ""
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    least: int = 1
    common: bool = True
    of_run: bool = False
    of_bins: bool = False


FIGURES: dict[str, FigureKind] = {
    # Pages have diagrams of their own, with a slider for the bins.
    "reliability": FigureKind(
        prepare_reliability,
        draw_reliability_grid,
        "test predictions, or as many bins in its record",
        of_run=True,
        of_bins=True,
    ),
    "tradeoff": FigureKind(
        prepare_tradeoff,
        draw_tradeoff,
        "two rows or more with an error and an ECE",
        "Error against calibration error",
        "Lower left is best. The stepped line joins the methods that no other one beats in both. Bars are standard deviations "
        "over seeds.",
        {"": {"legend": False}},
        least=2,
    ),
    "robustness": FigureKind(
        prepare_robustness,
        partial(draw_lines, keys=("ece", "mce")),
        "test predictions or errors by number of bins",
        "Binned error against the number of bins",
        "More bins hold fewer examples each, so that chance alone raises the error of any model. The thin grey line is the "
        "error that it gives a calibrated model.",
        {key.upper(): {"keys": (key,), "legend": False} for key in ("ece", "mce")},
    ),
    "curves": FigureKind(
        prepare_curves,
        partial(draw_lines, keys=("test_ece", "test_error")),
        "a history of training",
        "Learning curves",
        "Lines are means over the seeds at the epochs that all of them evaluated, bands one standard deviation; dotted lines "
        "are drops of the learning rate. The table is about the epoch that a run kept (train.select), which need not be its "
        "last.",
        {PANELS[key][0].removesuffix(" (%)"): {"keys": (key,), "legend": False} for key in CURVES},
    ),
    "gamma-epochs": FigureKind(
        prepare_gamma_epochs,
        partial(draw_lines, keys=("gamma",)),
        "a gamma in its history",
        "Gamma while training",
        "Its mean over the test examples; the band is the spread over them, narrow where all share one gamma.",
        {"": {"legend": False}},
        common=False,
    ),
    "gamma-confidence": FigureKind(
        prepare_gamma_confidence,
        draw_gamma_confidence,
        "test predictions with a column `gamma`",
        "Gamma against confidence",
        "Every dot is a test example; lines are running means. The axis is stretched towards 1, where most examples of a good "
        "classifier lie.",
        {"": {"columns": 1}},
        common=False,
        of_run=True,
    ),
}


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
    n_bins: Sequence[int] = (10, 15, 20, 50, 100),
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
    done = Drawing([], {})
    for group in groups:
        shown_seed = group.common_seed if seed is None else seed
        for name, kind in FIGURES.items():
            for bins in n_bins if kind.of_bins else [None]:
                stem = figure_stem(name, group.data, group.model) + ("" if bins is None else f"-{bins}bins")
                records = _records(kind, group, seed=shown_seed, n_bins=bins)
                if len(records) < kind.least:
                    done.skipped[stem] = f"needs {kind.needs}"
                    continue
                without = [row.label for row in group.rows if row.label not in {record.label for record in records}]
                if without and kind.common:
                    done.skipped[stem] = f"leaves out {', '.join(without)}: needs {kind.needs}"
                title = _title(kind, group, seed=shown_seed, n_bins=bins)
                done.files.extend(save_figure(kind.draw(records, title=title), folder / stem))
    return done


def _records(kind: FigureKind, group: Group, *, seed: int | None, n_bins: int | None = None) -> Sequence[Any]:
    chosen: dict[str, int | None] = {"seed": seed} if kind.of_run else {}
    return kind.prepare(group.rows, **(chosen | ({"n_bins": n_bins} if kind.of_bins else {})))


def _title(kind: FigureKind, group: Group, *, seed: int | None, n_bins: int | None) -> str:
    seeds = {row.run(seed).seed for row in group.rows} - {None}
    said = [f"seed {seeds.pop()}"] if kind.of_run and len(seeds) == 1 else []
    return ", ".join([group.title, *said, *([] if n_bins is None else [f"{n_bins} bins"])])


def page_charts(groups: Sequence[Group]) -> list[dict[str, object]]:
    """The figures of runs as pictures in a page, one panel each and without legends of rows.

    A chart has a picture (``svg``) for each ``choice`` of a reader and each group (``place``, its number).
    """
    view: list[dict[str, object]] = []
    for name, kind in FIGURES.items():
        pictures = [
            {"place": place, "choice": choice, "svg": svg}
            for place, group in enumerate(groups)
            for choice, svg in _pictures(f"{name}-{place}", kind, group)
        ]
        choices = [choice for choice in kind.choices if any(choice == picture["choice"] for picture in pictures)]
        if choices:
            view.append({"name": name, "title": kind.title, "about": kind.about, "choices": choices, "pictures": pictures})
    return view


def _pictures(name: str, kind: FigureKind, group: Group) -> Iterator[tuple[str, str]]:
    if not kind.choices:
        return
    records = _records(kind, group, seed=group.common_seed)
    for number, (choice, options) in enumerate(kind.choices.items()):
        shown = [record for record in records if all(key in record.bands for key in options.get("keys", ()))]
        if len(shown) >= kind.least:
            label = f"{kind.title}{f': {choice}' if choice else ''}, {group.title}."
            yield choice, svg_element(kind.draw(shown, **options), name=f"{name}-{number}", label=label)


def swatch(row: Row, name: str) -> str:
    """The line and marker of a row as a small picture, for the legend of a page."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    with print_style():
        figure = Figure(figsize=(0.42, 0.14))
        figure.add_artist(Line2D((0.05, 0.5, 0.95), (0.5, 0.5, 0.5), markevery=[1], **row.style.options()))
    return svg_element(figure, name=name, label="")
