"""The paper's experiments with your own runs: the grid of each, its five tables and reports, and the page of all results.

The paper's numbers are in `calibrant.grid.tables`.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
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
from calibrant.report.rows import Column, Info, Mean, Row, Section, Table, comparable, settings_of
from calibrant.report.save import clear_figures, figure_stem

# Methods of the paper's reliability diagrams and learning curves.
_DRAWN: tuple[str, ...]
_DRAWN = ("ce", "ce+ts", "focal", "flsd", "ls-0.05", "mmce", "ce-dece", "flgamma-dece", "ce-sece", "flgamma-sece")
_DRAWN_DATA = ("cifar10", "cifar100")
# Bins of the paper's reliability diagrams.
_BINS = (10, 20, 50, 100)
_QUICK_DATA, _QUICK_SEEDS = "mixture", 3
# Long enough for a small network to become over-confident; the protocol of the paper is not made for 1,600 images.
QUICK: dict[str, object] = {"train.epochs": 40, "train.batch_size": 50, "train.reduction": "mean", "train.clip_norm": 0.0}
QUICK |= {"train.select": "last", "train.average": "no", "optim.lr": 0.05, "optim.weight_decay": 5e-3, "data.meta": 200}
# For the other embedded set, which the paper's protocol may suit.
_SHORT: dict[str, object] = {"train.epochs": 20}
# For sets of real size: one to three minutes a run on CIFAR-10 on one core, where an epoch of ResNet-18 takes an hour.
_SMALL: dict[str, object] = {"train.epochs": 3, "backbone.name": "convnet"}
_QUICK_NOTE = (
    "Quick version: a small network and a short schedule, on small data unless others were named, to see that everything "
    "works. Do not compare it with the paper or with full runs."
)
# Columns that every table of the page has.
_INFO: tuple[Info, ...] = ("preset", "epochs")
_RANKS = (
    "Rows are ranked by NLL, but only against rows with the same weights, choice of epoch, preset, epochs and number of "
    "training examples: other comparisons are not fair."
)


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
        return QUICK
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

    ``table1`` compares all methods by six metrics, ``table2`` shows what SECE adds to a learned gamma, ``table3`` compares
    recent methods with gamma-Net by ECE and error, ``table4`` is Table 1 for DenseNet, ``table5`` shows differences to
    cross-entropy. Returns None if no run belongs to it, or none may be compared with one of cross-entropy.
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

    Tables 2 and 3, which compare methods, have data sets with runs of two. Table 5 has those on which a difference was tested:
    the others are plain to see in Table 1.
    """
    found = {}
    for name, source in load_paper().tables.items():
        kept = [entry for entry in entries if source.model is None or entry.model in (source.model, None)]
        table = make_paper_table(name, kept, paper=True, info=info)
        sections = tuple(part for part in table.sections if _adds(name, part)) if table else ()
        if table and sections:
            found[name] = replace(table, sections=sections)
    return found


def _adds(name: str, section: Section) -> bool:
    """Whether a section of a table of the paper says something that Tables 1 and 4 do not."""
    if name == "table5":
        return any(cell.p_value is not None for row in section.rows for cell in row.cells.values())
    return name in ("table1", "table4") or len({row.method for row in section.rows if row.kind != "paper"}) > 1


def rank_rows(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Number rows by NLL, in groups that had the same chances; the group with the lowest NLL comes first."""
    groups: dict[object, list[Row]] = {}
    for row in sorted((row for row in rows if math.isfinite(row.mean("nll"))), key=lambda row: row.mean("nll")):
        # Methods that learn nothing on held-out data have no preset: they train as under the default one.
        groups.setdefault((row.choices, row.preset or "default", row.epochs, row.trained), []).append(row)
    return tuple(
        replace(row, label=f"{place}. " * (len(group) > 1) + row.label)
        for group in groups.values()
        for place, row in enumerate(group, 1)
    )


def render_results(entries: Sequence[Entry], *, link: str, command: str, figures: Sequence[str] = (), note: str = "") -> str:
    """Write all results as Markdown, the paper's numbers beside them where it has some; the order of entries does not matter.

    ``link`` is the folder of their records, and ``figures`` are paths, both relative to the page; ``command`` makes it again.
    It begins with the ``note``.
    """
    entries = sorted(entries, key=catalogue_order)
    drawn = {kind: [path for path in figures if Path(path).stem.startswith(f"{kind}-")] for kind in FIGURES}
    tradeoffs = {Path(path).stem: path for path in drawn.pop("tradeoff")}
    ranked = compare_table(entries, metrics=("nll", "error", "ece"), info=_INFO, test=False, name="ranking")
    tables = make_paper_tables(entries, info=_INFO)
    shown = {(part.data, part.model, row.method) for table in tables.values() for part in table.sections for row in part.rows}
    others = [entry for entry in entries if (entry.data, entry.model, entry.method) not in shown]
    parts = ["# Results\n", *([note] if note else []), f"{FIGURES['tradeoff'].about} {_RANKS}\n"]
    for section in ranked.sections:
        path = tradeoffs.get(figure_stem("tradeoff", section.data, section.model))
        part = replace(ranked, sections=(replace(section, rows=rank_rows(section.rows)),), notes=())
        parts += [f"## {section.title}\n", *([_picture(section.title, path)] if path else [])]
        parts += [to_markdown(part, heading=None)]
    parts += ["\n".join(ranked.notes) + "\n", _about_page(entries, command)]
    # A note stands below the first table that needs it, what is known about the paper's numbers at the end of the page.
    told, known = set(ranked.notes), dict[str, None]()
    if others:
        tables["others"] = compare_table(others, calibrated=True, info=_INFO, name="others", title="Other runs")
    for name, table in tables.items():
        found = paper_notes(table)
        known |= dict.fromkeys(found)
        kept = [note for note in table.notes if note not in told and note.removeprefix("The paper's ") not in found]
        told |= {*kept}
        title = f"Table {name[-1]}: {table.title}" if name in load_paper().tables else table.title
        parts.append(to_markdown(replace(table, title=title, notes=tuple(kept)), heading="##"))
    for kind, paths in drawn.items():
        parts += [f"## {FIGURES[kind].title}\n", f"{FIGURES[kind].about}\n"] if paths else []
        parts += [_picture(Path(path).stem.removeprefix(f"{kind}-"), path) for path in paths]
    return "\n".join([*parts, _runs(entries, link), _about_paper(list(known))])


def write_results_page(folder: str | Path, *, out: str | Path, figures: str | Path | None = None) -> list[Path]:
    """Write the page of all records of a folder, and as PNG its figures into another; return the files.

    Figures of an earlier page are replaced. If ``figures`` is None, the page shows those in ``figures/`` beside it. It
    begins with the ``note.md`` among the records.
    """
    entries, page = load_results(folder), Path(out)
    page.parent.mkdir(parents=True, exist_ok=True)
    place = page.parent / "figures" if figures is None else Path(figures)
    drawn = sorted(place.glob("*.png")) if figures is None else _draw(entries, place)
    words = ["calibrant", "results", "render", _relative(folder), "--out", _relative(page)]
    words += ["--figures", _relative(place)] if drawn else []
    links = [_relative(file, page.parent) for file in drawn]
    said = Path(folder) / "note.md"
    note = said.read_text(encoding="utf-8") if said.exists() else ""
    text = render_results(entries, link=_relative(folder, page.parent), command=shlex.join(words), figures=links, note=note)
    write_file(page, text)
    return [page, *([] if figures is None else drawn)]


def _about_page(entries: Sequence[Entry], command: str) -> str:
    seconds = sum(float(str(entry.facts.get("seconds", 0))) for entry in entries if entry.temperature is None)
    return (
        "## About this page\n\n"
        f"It shows {len(entries)} runs, {write_duration(seconds)} of training. All numbers are of the test set, which chose\n"
        f"nothing. Numbers of [the paper]({load_paper().url}) stand below ours.\n"
        "The page is made from the records of its runs. To change it, add a record and run\n\n"
        f"```\n{command}\n```\n"
    )


def _picture(text: str, path: str) -> str:
    return f"![{escape_markdown(text)}]({_address(path)})\n"


def _runs(entries: Sequence[Entry], link: str) -> str:
    """A line for every run; what all have in common stands once."""
    said = [(entry, _facts_of(entry)) for entry in sorted(entries, key=result_name)]
    common = [fact for fact in said[0][1] if len(said) > 1 and all(fact in facts for _, facts in said)]
    lines = [
        "## Runs\n",
        "A record holds the whole recipe and all metrics.",
        *([f"All runs: {'; '.join(common)}."] if common else []),
        "",
    ]
    for entry, facts in said:
        name, own = result_name(entry), [fact for fact in facts if fact not in common]
        lines.append(f"- [`{name}`]({_address(f'{link}/{name}')}): {'; '.join(own)}.")
        lines += [f"  `{entry.facts['command']}`"] if "command" in entry.facts else []
    return "\n".join(lines) + "\n"


def _facts_of(entry: Entry) -> list[str]:
    facts: Mapping[str, Any] = entry.facts
    said = [f"{entry.epochs} epochs", f"seed {entry.seed}"]
    said += [] if entry.best_epoch is None else [f"taken from epoch {entry.best_epoch + 1}"]
    said += [] if entry.temperature is None else [f"temperature {entry.temperature:.3f}"]
    said += [write_duration(facts["seconds"])] if "seconds" in facts else []
    said += [str(facts.get("machine", "")), ", ".join(f"{name} {found}" for name, found in facts.get("versions", {}).items())]
    return [*filter(None, said), *filter(None, str(facts.get("note", "")).split("; "))]


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
