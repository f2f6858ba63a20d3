"""The paper's five tables, made of one's own runs, and all results as one page of Markdown.

The paper's numbers are in `calibrant.grid.paper`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

from calibrant.core.scores import Entry
from calibrant.grid.collect import load_results, result_name
from calibrant.grid.export import escape_markdown, to_markdown
from calibrant.grid.paper import load_paper, paper_table
from calibrant.grid.rows import catalogue_order
from calibrant.grid.tables import compare_table, notes_of, paper_notes, row_of_paper
from calibrant.io.files import atomic_writer
from calibrant.metrics.paired import compare_runs, holm
from calibrant.report.rows import CHOICES, Cell, Column, Info, Row, Section, Table, comparable, settings_of

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


def make_paper_table(name: str, entries: Iterable[Entry], *, paper: bool = False, info: tuple[Info, ...] = ()) -> Table | None:
    """Make one of the paper's tables of the runs that belong to it, in the paper's order.

    ``table1`` compares all methods by six metrics, ``table2`` shows what SECE adds to a learned gamma, ``table3`` holds recent
    methods against gamma-Net by ECE and error, ``table4`` is Table 1 for DenseNet, ``table5`` shows differences to
    cross-entropy.

    Args:
        name: ``"table1"`` to ``"table5"``.
        entries: Runs; those of other methods are left out.
        paper: Put the paper's numbers below ours.
        info: Columns that are shown in any case; epochs and preset are shown where they differ.

    Returns:
        The table; None if no run belongs to it, or none may be held against one of cross-entropy. Raises ``ValueError`` if the
        name is unknown.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> runs = [Entry("cifar10", method, scores, model="resnet18", epochs=350) for method in ("flsd", "ce", "brier")]
        >>> [row.label for row in make_paper_table("table1", runs).rows]
        ['CE', 'FLSD']
    """
    source = paper_table(name)
    methods = ("ce", *source.methods) if name == "table5" else source.methods
    order = {data: place for place, data in enumerate(paper_table("table1").rows)}
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
    pairs = [(row, [base for base in bases if comparable(base, row)]) for row in section.rows if row.method != "ce"]
    pairs = [(row, found) for row, found in pairs if found]
    tests = [compare_runs(found[0].runs, row.runs, [column.key for column in columns]) for row, found in pairs]
    corrected = {c.key: holm([test[c.key].p_value if c.key in test else None for test in tests]) for c in columns}
    rows = []
    for place, ((row, found), test) in enumerate(zip(pairs, tests, strict=True)):
        cells = {key: Cell(d.mean, d.std, d.values, p_value=corrected[key][place], over=d.over) for key, d in test.items()}
        seeds = tuple(sorted({*row.seeds} & {*found[0].seeds}))
        rows.append(replace(row, cells=cells, kind="difference", runs=(), n_runs=len(seeds) or None, seeds=seeds))
    return tuple(rows)


def _beside(name: str, section: Section) -> tuple[Row, ...]:
    """Put the numbers of Table 3 or 5 of the paper below ours, method by method; Table 3 shows all that were published."""
    source, rows = paper_table(name), []
    for method in dict.fromkeys([*source.methods, *(row.method for row in section.rows)]):
        ours = [row for row in section.rows if row.method == method]
        rows += ours
        for row in source.rows.get(section.data, ()) if ours or name == "table3" else ():
            label = f"published: {row.label}{f' [{row.model}]' if row.model else ''}" if name == "table3" else "in the paper"
            rows += [row_of_paper(row, table=name, label=label)] if row.method == method else []
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
    """Write all results as Markdown, the paper's numbers beside them where it has some.

    Args:
        entries: Runs, as `calibrant.grid.collect.load_results` reads them.
        link: The folder of their records, relative to the page.
        command: What makes the page again.
        figures: Paths of figures, relative to the page.

    Returns:
        The page; the same entries give the same text. Rows are in the order of the catalogue, each method's plain runs before
        those with settings of their own, whatever the order of the entries.
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
    """Write the page of all records of a folder, and its figures where asked for.

    Args:
        folder: Folder of records.
        out: The page.
        figures: Folder for the figures, as PNG; those of an earlier page there are replaced. None shows those that are there
            in ``figures/`` beside the page.

    Returns:
        The page and the figures. Raises ``ValueError`` or ``OSError`` with one sentence if it cannot be.
    """
    entries, page = load_results(folder), Path(out)
    page.parent.mkdir(parents=True, exist_ok=True)
    place = page.parent / "figures" if figures is None else Path(figures)
    drawn = sorted(place.glob("*.png")) if figures is None else _draw(entries, place)
    words = ["calibrant", "results", "render", _relative(folder), "--out", _relative(page)]
    words += ["--figures", _relative(place)] if drawn else []
    links = [_relative(file, page.parent) for file in drawn]
    text = render_results(entries, link=_relative(folder, page.parent), command=shlex.join(words), figures=links)
    with atomic_writer(page) as handle:
        handle.write(text.encode())
    return [page, *([] if figures is None else drawn)]


def _head(entries: Sequence[Entry], command: str) -> str:
    machines = dict.fromkeys(str(entry.facts["machine"]) for entry in entries if "machine" in entry.facts)
    seconds = sum(float(str(entry.facts.get("seconds", 0))) for entry in entries if entry.temperature is None)
    return (
        "# Results\n\n"
        f"Runs: {len(entries)}, on {', '.join(machines) or 'an unknown machine'}, {_duration(seconds)} of training.\n"
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
        said.append(f"{facts['machine']}, {_duration(float(str(facts.get('seconds', 0))))}")
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


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _draw(entries: Sequence[Entry], folder: Path) -> list[Path]:
    from calibrant.report.figures import FIGURES, draw_all
    from calibrant.report.save import clear_figures

    clear_figures(folder, FIGURES)
    drawn = draw_all(sorted(entries, key=catalogue_order), folder, n_bins=(15,)).files
    for file in drawn:
        if file.suffix != ".png":
            file.unlink()
    return sorted(file for file in drawn if file.suffix == ".png")


def _relative(path: str | Path, start: str | Path = ".") -> str:
    return Path(os.path.relpath(path, start)).as_posix()
