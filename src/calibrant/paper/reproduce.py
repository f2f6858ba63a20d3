"""The paper's experiments with one's own runs: which grid each takes, its five tables and reports, and the page of all results.

The paper's numbers are in `calibrant.grid.tables`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

from calibrant.core.checks import lookup
from calibrant.core.records import Entry
from calibrant.data import DATASETS
from calibrant.engine.recipe import Recipe, override
from calibrant.grid.collect import catalogue_order, load_results, result_name
from calibrant.grid.compare import Comparison, compare
from calibrant.grid.export import escape_markdown, to_markdown, write_outputs
from calibrant.grid.schedule import Cell, Watch, parse_seeds, plan_cells
from calibrant.grid.tables import compare_table, differences, load_paper, notes_of, paper_notes
from calibrant.io.files import write_file
from calibrant.report.figures import FIGURES, draw_all
from calibrant.report.rows import CHOICES, Column, Info, Mean, Row, Section, Table, comparable, settings_of
from calibrant.report.save import clear_figures

# Methods of the paper's reliability diagrams and learning curves.
_DRAWN: tuple[str, ...]
_DRAWN = ("ce", "ce+ts", "focal", "flsd", "ls-0.05", "mmce", "ce-dece", "flgamma-dece", "ce-sece", "flgamma-sece")
_DRAWN_DATA = ("cifar10", "cifar100")
# Bins of the paper's reliability diagrams.
_BINS = (10, 20, 50, 100)
_QUICK_DATA, _QUICK_SEEDS = "mixture", 3
# Long enough for a small network to become over-confident; the protocol of the paper is not made for 1,600 images.
_QUICK: dict[str, object] = {"train.epochs": 40, "train.batch_size": 50, "train.reduction": "mean", "train.clip_norm": 0.0}
_QUICK |= {"train.select": "last", "train.average": "no", "optim.lr": 0.05, "optim.weight_decay": 5e-3, "data.meta": 200}
# For the other embedded set, which the paper's protocol may suit.
_SHORT: dict[str, object] = {"train.epochs": 20}
# For sets of real size: one to three minutes a run on CIFAR-10 on one core, where an epoch of ResNet-18 takes an hour.
_SMALL: dict[str, object] = {"train.epochs": 3, "backbone.name": "convnet"}
_QUICK_NOTE = (
    "Quick version: a small network and a short schedule, on small data unless others were named, to see that everything "
    "works. Nothing here can be held against the paper or against full runs."
)
# Columns that every table of the page has.
_INFO: tuple[Info, ...] = ("preset", "epochs")
# What stands below a figure, by how its file's name begins.
_CAPTIONS = {
    "reliability": "Reliability diagrams",
    "robustness": "ECE and MCE against the number of bins (chance alone makes both rise with it)",
    "curves": "ECE and error over the epochs",
    "gamma-epochs": "Mean and spread of gamma over the epochs",
    "tradeoff": "Error against ECE",
}


@dataclass(frozen=True)
class Reproduction:
    """One of the paper's experiments, ready to be run; see `plan_reproduction`.

    ``recipe`` is what all runs have in common, None for the small networks of embedded data; ``settings`` come on top.
    """

    name: str
    title: str
    data: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    recipe: Recipe | None
    settings: Mapping[str, object]
    quick: bool = False

    def cells(self, out: Path = Path()) -> tuple[Cell, ...]:
        """All of its runs."""
        return plan_cells(self.data, self.methods, self.seeds, out=out, recipe=self.recipe, settings=self.settings)


def plan_reproduction(
    name: str,
    *,
    data: Sequence[str] = (),
    seeds: int | str | Sequence[int] | None = None,
    quick: bool = False,
    settings: Mapping[str, object] | None = None,
) -> Reproduction:
    """Say which grid one of the paper's experiments takes: ``"table1"`` to ``"table5"``, or ``"figures"``.

    By default it has five seeds for a table and one for the figures. The ``quick`` version has three, a few epochs of a small
    network, and embedded data unless others are named; all that it writes says so.

    Example:
        >>> plan = plan_reproduction("table2", seeds=2)
        >>> plan.data, plan.methods, len(plan.cells())
        (('cifar10', 'cifar100'), ('flgamma', 'flgamma-sece'), 8)
    """
    tables = load_paper().tables
    lookup(dict.fromkeys([*tables, "figures"]), name, kind="experiment of the paper")
    table = tables.get(name)
    usual = _QUICK_SEEDS if quick else 1 if table is None else 5
    methods, sets = (_DRAWN, _DRAWN_DATA) if table is None else (table.methods, tuple(table.rows))
    title = "The paper's figures" if table is None else table.title
    model = (table and table.model) or "resnet18"
    return Reproduction(
        name=name,
        title=f"{title} (quick version)" if quick else title,
        data=tuple(data) or ((_QUICK_DATA,) if quick else sets),
        methods=("ce", *methods) if name == "table5" else methods,
        seeds=tuple(parse_seeds(usual if seeds is None else seeds)),
        # Without a recipe, embedded data get a small network; the paper's protocol is asked for by name.
        recipe=None if quick else override(Recipe(), {"backbone.name": model}),
        settings=(_quick_settings(data) if quick else {}) | dict(settings or {}),
        quick=quick,
    )


def _quick_settings(data: Sequence[str]) -> dict[str, object]:
    if set(data) <= {_QUICK_DATA}:
        return _QUICK
    return _SHORT if all(name in DATASETS and DATASETS[name].embedded for name in data) else _SMALL


def run_reproduction(plan: Reproduction, *, out: str | Path, jobs: int | None = None, watch: Watch | None = None) -> Comparison:
    """Run what is left of an experiment, and write its table, its figures and ``report.html``; arguments as of `compare`."""
    return compare(
        plan.data,
        methods=plan.methods,
        seeds=plan.seeds,
        recipe=plan.recipe,
        settings=plan.settings,
        out=out,
        jobs=jobs,
        watch=watch,
        write=partial(write_experiment, plan),
    )


def write_experiment(
    plan: Reproduction, entries: Sequence[Entry], folder: Path, missing: Sequence[str] = ()
) -> tuple[Table, tuple[Path, ...]]:
    """Write the table (four forms), ``figures/`` and ``report.html`` of an experiment's runs, as `compare` wants it."""
    shown = [replace(entry, data=f"{entry.data} (quick)") for entry in entries] if plan.quick else entries
    drawn = plan.name == "figures"
    table = None if drawn else make_paper_table(plan.name, shown, paper=not plan.quick)
    # Where runs of cross-entropy failed there may be no differences to it, but there are still results.
    table = table or compare_table(shown, paper=not plan.quick, calibrated=True)
    name, notes = (f"{plan.name}-quick", [_QUICK_NOTE]) if plan.quick else (plan.name, [])
    table = replace(table, name=name, title=plan.title, notes=(*missing, *notes, *table.notes))
    title = plan.title if drawn else f"Table {plan.name.removeprefix('table')}: {plan.title}"
    return write_outputs(shown, folder, table=table, title=title, bins=_BINS if drawn else (15,))


def make_paper_table(name: str, entries: Iterable[Entry], *, paper: bool = False, info: tuple[Info, ...] = ()) -> Table | None:
    """Make one of the paper's tables of the runs that belong to it, in the paper's order; other runs are left out.

    ``table1`` compares all methods by six metrics, ``table2`` shows what SECE adds to a learned gamma, ``table3`` holds recent
    methods against gamma-Net by ECE and error, ``table4`` is Table 1 for DenseNet, ``table5`` shows differences to
    cross-entropy. Returns None if no run belongs to it, or none may be held against one of cross-entropy.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> runs = [Entry("cifar10", method, scores, model="resnet18", epochs=350) for method in ("flsd", "ce", "brier")]
        >>> [row.label for row in make_paper_table("table1", runs).rows]
        ['CE', 'FLSD']
    """
    tables = load_paper().tables
    source = lookup(tables, name, kind="table of the paper")
    methods = ("ce", *source.methods) if name == "table5" else source.methods
    order = {data: place for place, data in enumerate(tables["table1"].rows)}
    kept = [entry for entry in entries if entry.method in methods]
    # A method's plain runs come before those with settings of their own.
    kept.sort(key=lambda entry: (order.get(entry.data, 3), methods.index(entry.method), len(settings_of(entry))))
    if not kept:
        return None
    build = partial(compare_table, kept, info=info, name=name, title=source.title)
    if name not in ("table3", "table5"):
        return build(paper=paper, calibrated=True)
    # No row of these tables is what the others are tested against: Table 3 has none, Table 5 leaves it out.
    table = build(metrics=("ece", "error") if name == "table3" else ("error", "ece"), test=False, calibrated=name == "table3")
    sections, columns = [], tuple(replace(c, name=f"Δ {c.name}") if name == "table5" else c for c in table.columns)
    for section in table.sections:
        rows = section.rows if name == "table3" else _differences(section, table.columns)
        rows = _beside(name, replace(section, rows=rows)) if paper else rows
        sections += [replace(section, rows=rows)] if rows else []
    shown = replace(table, columns=columns, sections=tuple(sections), base="CE")
    return replace(shown, notes=notes_of(shown, tested=name == "table5")) if sections else None


def _differences(section: Section, columns: Sequence[Column]) -> tuple[Row, ...]:
    """What each row changes against one of cross-entropy that it may be compared with, over the seeds that both have."""
    bases = [row for row in section.rows if row.method == "ce"]
    others = [row for row in section.rows if row.method != "ce"]
    pairs = [(base, row) for row in others for base in [base for base in bases if comparable(base, row)][:1]]
    rows = []
    for (base, row), tests in zip(pairs, differences(pairs, columns), strict=True):
        cells = {key: Mean(d.mean, d.std, d.values, p_value=d.p_value, over=d.over) for key, d in tests.items()}
        seeds = tuple(sorted({*row.seeds} & {*base.seeds}))
        rows.append(replace(row, cells=cells, kind="difference", runs=(), n_runs=len(seeds) or None, seeds=seeds))
    return tuple(rows)


def _beside(name: str, section: Section) -> tuple[Row, ...]:
    """Put the numbers of Table 3 or 5 of the paper below ours, method by method; Table 3 shows all that were published."""
    source, rows = load_paper().tables[name], []
    for method in dict.fromkeys([*source.methods, *(row.method for row in section.rows)]):
        ours = [row for row in section.rows if row.method == method]
        rows += ours
        for row in source.rows.get(section.data, ()) if ours or name == "table3" else ():
            label = f"published: {row.label}{f' [{row.model}]' if row.model else ''}" if name == "table3" else "in the paper"
            rows += [replace(row, label=label)] if row.method == method else []
    return tuple(rows)


def make_paper_tables(entries: Sequence[Entry], *, info: tuple[Info, ...] = ()) -> dict[str, Table]:
    """Make those of the paper's tables for which there are runs with its network, beside its numbers: name → table.

    Tables 2, 3 and 5, which hold methods against each other, take runs of two.
    """
    found = {}
    for name, source in load_paper().tables.items():
        kept = [entry for entry in entries if source.model is None or entry.model in (source.model, None)]
        table = make_paper_table(name, kept, paper=True, info=info)
        ours = {row.method for row in table.rows if row.kind != "paper"} if table else set()
        if table is not None and (len(ours) > 1 or name in ("table1", "table4", "table5")):
            found[name] = table
    return found


def render_results(entries: Sequence[Entry], *, link: str, command: str, figures: Sequence[str] = ()) -> str:
    """Write all results as Markdown, the paper's numbers beside them where it has some; the order of entries does not matter.

    ``link`` is the folder of their records, and ``figures`` are paths, both relative to the page; ``command`` makes it again.
    """
    entries = sorted(entries, key=catalogue_order)
    tables = make_paper_tables(entries, info=_INFO)
    shown = {(part.data, part.model, row.method) for table in tables.values() for part in table.sections for row in part.rows}
    others = [entry for entry in entries if (entry.data, entry.model, entry.method) not in shown]
    parts, told = [_head(entries, command)], dict[str, None]()
    for name, table in tables.items():
        # What is known about the paper's numbers stands once, at the end of the page.
        notes = paper_notes(table)
        told |= dict.fromkeys(notes)
        kept = [note for note in table.notes if note.removeprefix("The paper's ") not in notes]
        title = f"Table {name.removeprefix('table')}: {table.title}"
        parts.append(to_markdown(replace(table, title=title, notes=tuple(kept)), heading="##"))
    if others:
        table = compare_table(others, calibrated=True, info=_INFO, name="others", title="Other runs")
        parts.append(to_markdown(table, heading="##"))
    parts += ["## Figures\n", *map(_figure, figures)] if figures else []
    parts += ["## Runs\n", "What every row was made of; the record holds all metrics with their 95 % intervals.\n"]
    parts += ["\n".join(_run(entry, link) for entry in sorted(entries, key=result_name)) + "\n"]
    return "\n".join([*parts, _about_paper(list(told))])


def write_results_page(folder: str | Path, *, out: str | Path, figures: str | Path | None = None) -> list[Path]:
    """Write the page of all records of a folder, and as PNG its figures into another; return the files.

    Figures of an earlier page are replaced. If ``figures`` is None, the page shows those in ``figures/`` beside it.
    """
    entries, page = load_results(folder), Path(out)
    page.parent.mkdir(parents=True, exist_ok=True)
    place = page.parent / "figures" if figures is None else Path(figures)
    drawn = sorted(place.glob("*.png")) if figures is None else _draw(entries, place)
    words = ["calibrant", "results", "render", _relative(folder), "--out", _relative(page)]
    words += ["--figures", _relative(place)] if drawn else []
    links = [_relative(file, page.parent) for file in drawn]
    text = render_results(entries, link=_relative(folder, page.parent), command=shlex.join(words), figures=links)
    write_file(page, text)
    return [page, *([] if figures is None else drawn)]


def _head(entries: Sequence[Entry], command: str) -> str:
    machines = dict.fromkeys(str(entry.facts["machine"]) for entry in entries if "machine" in entry.facts)
    seconds = sum(float(str(entry.facts.get("seconds", 0))) for entry in entries if entry.temperature is None)
    return (
        "# Results\n\n"
        f"Runs: {len(entries)}, on {', '.join(machines) or 'an unknown machine'}, {write_duration(seconds)} of training.\n"
        f"Where [the paper]({load_paper().url}) has numbers for the same, they stand below ours.\n"
        "Epochs, preset and number of seeds stand in every row; a shorter run is never shown as a full one, and bold compares\n"
        "only rows of the same length. Numbers are of the test set; no epoch was chosen by it.\n"
        "The command and the machine of every run stand below.\n\n"
        f"This page is made from the records of its runs; edit nothing here. After adding one:\n\n```\n{command}\n```\n"
    )


def _figure(path: str) -> str:
    # A figure is called KIND-DATA-NETWORK.
    kind = next((kind for kind in _CAPTIONS if Path(path).stem.startswith(f"{kind}-")), "")
    caption = escape_markdown(f"{_CAPTIONS.get(kind, 'Figure')}: {Path(path).stem.removeprefix(f'{kind}-')}.")
    return f"![{caption}]({_address(path)})\n\n{caption}\n"


def _run(entry: Entry, link: str) -> str:
    name, facts = result_name(entry), entry.facts
    said = [f"{entry.epochs} epochs, seed {entry.seed}"]
    said += [] if entry.best_epoch is None else [f"taken from epoch {entry.best_epoch + 1}"]
    said += [] if entry.temperature is None else [f"temperature {entry.temperature:.3f}"]
    said += [", ".join(f"{key}={value}" for key, value in entry.recipe.items() if key.startswith(CHOICES))]
    if "machine" in facts:
        said.append(f"{facts['machine']}, {write_duration(float(str(facts.get('seconds', 0))))}")
    for found in (facts.get(name) for name in ("versions", "examples")):
        pairs = found.items() if isinstance(found, Mapping) else ()
        said.append(", ".join(f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in pairs))
    said.append(str(facts.get("note", "")))
    line = f"- [`{name}`]({_address(f'{link}/{name}')}): {'; '.join(filter(None, said))}."
    return f"{line}\n  `{facts['command']}`" if "command" in facts else line


def _address(path: str) -> str:
    """A path as the address of a link: spaces and brackets would end it."""
    return quote(path, safe="/+=,@~")


def _about_paper(notes: Sequence[str]) -> str:
    said = [f"- {note}" for note in notes]
    for claim in load_paper().claims:
        if "note" in claim:
            said.append(f"- Text: {claim['text']} {claim['points']['mean']} points on average, it says. {claim['note']}")
    head = "What was found in checking its tables against each other and against the text:"
    return "\n".join(["## About the paper's numbers\n", f"{head}\n", *said]) + "\n"


def write_duration(seconds: float) -> str:
    """A duration in the unit that suits it: seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _draw(entries: Sequence[Entry], folder: Path) -> list[Path]:
    clear_figures(folder, FIGURES)
    return sorted(draw_all(sorted(entries, key=catalogue_order), folder, n_bins=(15,), kinds=("png",)).files)


def _relative(path: str | Path, start: str | Path = ".") -> str:
    return Path(os.path.relpath(path, start)).as_posix()
