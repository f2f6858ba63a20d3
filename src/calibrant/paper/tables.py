"""The paper's five tables, made of one's own runs, and all results as one page of Markdown.

The paper's numbers are in `calibrant.grid.paper`.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from calibrant.core.scores import Entry
from calibrant.data import data_name
from calibrant.grid.collect import load_results, make_folder, result_name
from calibrant.grid.export import escape_markdown, page_rows, to_markdown
from calibrant.grid.paper import load_paper, paper_table
from calibrant.grid.rows import CHOICES, Row, catalogue_order, comparable, group_rows, settings_of
from calibrant.grid.tables import (
    INFO_NAMES,
    Cell,
    Column,
    Info,
    Line,
    Section,
    Table,
    choice_words,
    common_settings,
    compare_table,
    line_of,
    paper_line,
    paper_notes,
)
from calibrant.io.files import atomic_writer
from calibrant.metrics import METRICS
from calibrant.metrics.paired import Difference, compare_runs, holm
from calibrant.metrics.verdict import join_words, write_interval, write_value

_NO_GAIN = "No gain is given: that takes runs of FLγ and FLγ-SECE with the same preset, epochs and settings."


def make_paper_table(
    name: str,
    entries: Iterable[Entry],
    *,
    paper: bool = False,
    calibrated: bool = False,
    test: bool = True,
    any_model: bool = False,
    info: tuple[Info, ...] = (),
) -> Table:
    """Make one of the paper's tables of the runs that belong to it, in the paper's order and layout.

    ``table1`` compares all methods by six metrics, ``table2`` shows what SECE adds to a learned gamma, ``table3`` holds recent
    methods against gamma-Net by ECE and error, ``table4`` is Table 1 for DenseNet, ``table5`` shows differences to
    cross-entropy.

    Args:
        name: ``"table1"`` to ``"table5"``.
        entries: Runs; those of other methods and networks are left out.
        paper: Put the paper's numbers below ours.
        calibrated: Add the column of p-values of `Scores.ece_if_calibrated` (not in Table 5).
        test: Whether to test differences.
        any_model: Take runs of every network, not only the paper's.
        info: Columns that are shown in any case; epochs and preset are shown where they differ.

    Returns:
        The table. Raises ``ValueError`` if the name is unknown or no run belongs to it.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> runs = [Entry("cifar10", method, scores, model="resnet18", epochs=350) for method in ("flsd", "ce", "brier")]
        >>> [line.label for line in make_paper_table("table1", runs, test=False).lines]
        ['CE', 'FLSD']
    """
    source = paper_table(name)
    methods, places = _methods(name), list(paper_table("table1").rows)
    kept = _belonging(name, entries, any_model=any_model)
    if not kept:
        wanted = "" if any_model or source.model is None else f" with {source.model}"
        raise ValueError(f"{name}: `entries` must hold runs of {', '.join(methods)}{wanted}, got none.")

    def place(entry: Entry) -> tuple[object, ...]:
        # The first row is no special case: a method's plain runs come before those with settings of their own, and runs of a
        # known network before those of which it is not said.
        data = (places.index(entry.data), "") if entry.data in places else (len(places), entry.data)
        return data, entry.model is None, entry.model or "", methods.index(entry.method), len(settings_of(entry))

    kept.sort(key=place)
    if name == "table5":
        return _differences(group_rows(kept), paper=paper, test=test, info=info)
    build = partial(compare_table, kept, calibrated=calibrated, labels="name", info=info, name=name, title=source.title)
    if name != "table3":
        table = build(paper=paper, test=test)
        return _with_gains(table) if name == "table2" else table
    # There is no row that the others are measured by.
    table = build(metrics=("ece", "error"), test=False)
    lines = [_published(section, table.columns) if paper else section.lines for section in table.sections]
    return replace(table, sections=tuple(replace(s, lines=found) for s, found in zip(table.sections, lines, strict=True)))


def make_paper_tables(entries: Sequence[Entry], *, info: tuple[Info, ...] = ()) -> dict[str, Table]:
    """Make those of the paper's tables for which there are runs, beside its numbers: name → table, in the paper's order.

    Table 2 takes both of its methods, Table 3 one that is not the paper's own, Table 5 cross-entropy and another.
    """
    found = {}
    for name in load_paper().tables:
        kept = _belonging(name, entries)
        methods = {entry.method for entry in kept}
        least = {
            "table2": methods == {"flgamma", "flgamma-sece"},
            "table3": bool(methods - {"flgamma-sece"}),
            "table5": name == "table5" and has_differences(kept),
        }
        if methods and least.get(name, True):
            found[name] = make_paper_table(name, entries, paper=True, calibrated=True, info=info)
    return found


def has_differences(entries: Iterable[Entry]) -> bool:
    """Whether some run may be held against one of cross-entropy, as Table 5 does."""
    rows = group_rows(entries)
    return any(_base_of(row, rows) is not None for row in rows)


def _methods(name: str) -> tuple[str, ...]:
    printed = paper_table(name).methods
    return ("ce", *printed) if name == "table5" else printed


def _belonging(name: str, entries: Iterable[Entry], *, any_model: bool = False) -> list[Entry]:
    methods, model = _methods(name), paper_table(name).model
    return [e for e in entries if e.method in methods and (any_model or model is None or e.model in (model, None))]


def _with_gains(table: Table) -> Table:
    """Add what the second method of Table 2 gains over the first."""
    sections = []
    for section in table.sections:
        ours = [line.row for line in section.lines if line.row is not None]
        pairs = [(a, b) for a in ours for b in ours if (a.method, b.method) == ("flgamma", "flgamma-sece")]
        gains = tuple(_gain_line(a, b, table.columns) for a, b in pairs if comparable(a, b))
        sections.append(replace(section, lines=(*section.lines, *gains)))
    drawn = any(line.kind == "difference" for section in sections for line in section.lines)
    note = "Gain: with SECE minus without; negative is better." if drawn else _NO_GAIN
    return replace(table, sections=tuple(sections), remarks=(*table.remarks, note))


def _gain_line(first: Row, second: Row, columns: Sequence[Column]) -> Line:
    found = compare_runs(first.runs, second.runs, [c.metric for c in columns], test=False)
    cells = {c.key: Cell(*found[c.metric][:2], found[c.metric].values) for c in columns if c.metric in found}
    return Line(
        label="gain from SECE",
        method=second.method,
        cells=cells,
        kind="difference",
        preset=second.preset,
        epochs=second.epochs,
        model=second.model,
        runs=max(difference.n for difference in found.values()) or None,
        seeds=_common_seeds([(first, second)]),
    )


def _published(section: Section, columns: Sequence[Column]) -> tuple[Line, ...]:
    source = paper_table("table3")
    lines: list[Line] = []
    for method in dict.fromkeys([*source.methods, *(line.method for line in section.lines)]):
        lines += [line for line in section.lines if line.method == method]
        for row in source.rows.get(section.data or "", ()):
            if row.method == method:
                network = f" [{row.model}]" if row.model else ""
                lines.append(paper_line(row, table="table3", columns=columns, label=f"published: {row.label}{network}"))
    return tuple(lines)


def _differences(rows: Sequence[Row], *, paper: bool, test: bool, info: Sequence[Info]) -> Table:
    """A line for every method, two columns for every data set: what it changes against cross-entropy."""
    columns = tuple(
        Column(f"{d}:{key}", f"Δ {label}", key, group=data_name(d), data=d)
        for d in dict.fromkeys(row.data for row in rows)
        for key, label in (("error", "error"), ("ece", "ECE"))
    )
    common = tuple(common_settings(rows))
    lines = _difference_lines(rows, columns, paper=paper, test=test, common=common)
    if not lines:
        raise ValueError("table5: `entries` must hold a run of ce, and one of another method that it may be compared with.")
    # Cross-entropy has no line here; how it was trained matters to all that have.
    base = dict.fromkeys(choice_words(line_of(row, (), "name").choices) for row in rows if row.method == "ce")
    said = tuple(f"{INFO_NAMES['choices']} of CE: {words}." for words in base if words)
    sections = (Section("", lines, common=common),)
    title = paper_table("table5").title
    return Table("table5", title, columns, sections, tuple(info), remarks=said, base="CE", tested=test)


def _difference_lines(
    rows: Sequence[Row], columns: Sequence[Column], *, paper: bool, test: bool, common: Sequence[str]
) -> tuple[Line, ...]:
    # One line over several data sets: method, preset, epochs, network and settings.
    pairs: dict[tuple[object, ...], list[tuple[Row, Row]]] = {}
    for row in rows:
        if (base := _base_of(row, rows)) is not None:
            key = (row.method, row.preset, row.epochs, row.model, tuple(row.settings.items()))
            pairs.setdefault(key, []).append((base, row))
    lines = sorted(pairs.values(), key=lambda pairs: paper_table("table5").methods.index(pairs[0][1].method))
    found: list[dict[str, Difference]] = []
    for alike in lines:
        tested = [(row.data, compare_runs(base.runs, row.runs, ["error", "ece"], test=test)) for base, row in alike]
        found.append({f"{data}:{metric}": difference for data, by in tested for metric, difference in by.items()})
    corrected = {c.key: holm([own[c.key].p_value if c.key in own else None for own in found]) for c in columns}
    shown = []
    for place, (alike, own) in enumerate(zip(lines, found, strict=True)):
        cells = {c: Cell(d.mean, d.std, d.values, p_value=corrected[c][place], over=d.over) for c, d in own.items()}
        line = line_of(alike[0][1], (), "name", common=common)
        runs, said = _say_runs({c.rpartition(":")[0]: d.n for c, d in own.items()})
        seeds, doubts = _common_seeds(alike), (*line.doubts, *said)
        shown.append(replace(line, cells=cells, kind="difference", runs=runs, seeds=seeds, doubts=doubts, row=None))
        if paper and all(other[0][1].method != line.method for other in lines[place + 1 :]):
            shown.append(_paper_differences(line.method, columns))
    return tuple(shown)


def _say_runs(runs: Mapping[str, int]) -> tuple[int | None, tuple[str, ...]]:
    """How many seeds a line has on every data set; where they differ no number, and a sentence."""
    if len(set(runs.values())) < 2:
        return next(iter(runs.values()), 0) or None, ()
    return None, (f"seeds in common with CE are {join_words([f'{n} on {data_name(data)}' for data, n in runs.items()])}",)


def _common_seeds(pairs: Sequence[tuple[Row, Row]]) -> tuple[int, ...]:
    """Seeds that both rows of a pair have; none where pairs differ in that."""
    found = {tuple(sorted({*one.seeds} & {*other.seeds})) for one, other in pairs}
    return found.pop() if len(found) == 1 else ()


def _base_of(row: Row, rows: Sequence[Row]) -> Row | None:
    """The row of cross-entropy that another may be compared with."""
    if row.method == "ce":
        return None
    return next((r for r in rows if r.method == "ce" and comparable(r, row) and r.model == row.model), None)


def _paper_differences(method: str, columns: Sequence[Column]) -> Line:
    source = paper_table("table5")
    rows = {column.key: source.row(column.data or "", method) for column in columns}
    cells = {c.key: Cell(*row.values[c.metric]) for c in columns if (row := rows[c.key]) is not None and c.metric in row.values}
    return Line("in the paper", method, cells, "paper", epochs=source.epochs, model=source.model, runs=source.seeds)


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


def render_results(
    entries: Sequence[Entry],
    *,
    source: str,
    link: str,
    figures: Sequence[str] = (),
    out: str = "docs/results.md",
    drawn: str | None = "docs/figures",
) -> str:
    """Write all results as Markdown, the paper's numbers beside them where it has some.

    Args:
        entries: Runs, as `calibrant.grid.collect.load_results` reads them.
        source: The folder they come from, as it is to be named.
        link: The same, relative to the page.
        figures: Paths of figures, relative to the page.
        out: The page, as it is to be named in the command that makes it.
        drawn: The folder of the figures, likewise; None where that command draws none.

    Returns:
        The page; the same entries give the same text. Rows are in the order of the catalogue, each method's plain runs before
        those with settings of their own, whatever the order of the entries.
    """
    entries = sorted(entries, key=catalogue_order)
    tables = make_paper_tables(entries, info=_INFO)
    shown = {
        (section.data, section.model, line.method) for t in tables.values() for section in t.sections for line in section.lines
    }
    others = [entry for entry in entries if (entry.data, entry.model, entry.method) not in shown]
    quoted = any(line.kind == "paper" for table in tables.values() for line in table.lines)
    words = ["calibrant", "results", "render", source, "--out", out, *([] if drawn is None else ["--figures", drawn])]
    parts = [_head(entries, source, shlex.join(words), quoted=quoted)]
    told: dict[str, None] = {}
    for name, table in tables.items():
        # What is known about the paper's numbers stands once, at the end of the page.
        notes = paper_notes(table)
        told |= dict.fromkeys(notes)
        kept = [note for note in table.notes if note.removeprefix("The paper's ") not in notes]
        title = f"Table {name.removeprefix('table')}: {table.title}"
        parts.append(to_markdown(replace(table, title=title), heading="##", notes=kept))
    if others:
        table = compare_table(others, calibrated=True, labels="name", info=_INFO, name="others", title="Other runs")
        parts.append(to_markdown(table, heading="##"))
    parts += [_figures(figures)] if figures else []
    return "\n".join([*parts, _runs(entries, link), _about_paper(list(told))])


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
    make_folder(page.parent)
    place = page.parent / "figures" if figures is None else Path(figures)
    drawn = sorted(place.glob("*.png")) if figures is None else _draw(entries, place)
    named = _portable([Path(folder), page, place])
    text = render_results(
        entries,
        source=named[0],
        link=_relative(Path(folder), page.parent),
        figures=[_relative(file, page.parent) for file in drawn],
        out=named[1],
        drawn=named[2] if drawn or figures is not None else None,
    )
    with atomic_writer(page) as handle:
        handle.write(text.encode())
    return [page, *([] if figures is None else drawn)]


def _head(entries: Sequence[Entry], source: str, command: str, *, quoted: bool) -> str:
    machines = dict.fromkeys(str(entry.facts["machine"]) for entry in entries if "machine" in entry.facts)
    seconds = sum(float(str(entry.facts.get("seconds", 0))) for entry in entries if entry.temperature is None)
    count = f"{len(entries)} run{'' if len(entries) == 1 else 's'}"
    beside = f", beside the numbers of [the paper]({load_paper().url})" if quoted else ""
    return (
        "# Results\n\n"
        f"{count} on {', '.join(machines) or 'an unknown machine'}, {_duration(seconds)} of training{beside}.\n"
        "Epochs, preset and number of seeds stand in every row; a shorter run is never shown as a full one, and bold compares\n"
        "only rows of the same length. Numbers are of the test set; no epoch was chosen by it.\n"
        "The command and the machine of every run stand below.\n\n"
        f"This page is made from the records in `{source}/`; edit nothing here. After adding one:\n\n```\n{command}\n```\n"
    )


def _figures(figures: Sequence[str]) -> str:
    lines = ["## Figures\n"]
    for path in figures:
        # A figure is called KIND-DATA-NETWORK.
        kind = next((kind for kind in _CAPTIONS if Path(path).stem.startswith(f"{kind}-")), "")
        caption = escape_markdown(f"{_CAPTIONS.get(kind, 'Figure')}: {Path(path).stem.removeprefix(f'{kind}-')}.")
        lines.append(f"![{caption}]({_address(path)})\n\n{caption}\n")
    return "\n".join(lines)


def _runs(entries: Sequence[Entry], link: str) -> str:
    lines = ["## Runs\n", "What every row was made of; the record holds all metrics with their 95 % intervals.\n"]
    for entry in sorted(entries, key=result_name):
        name = Path(entry.folder).name if entry.folder else result_name(entry)
        lines.append(f"- [`{name}`]({_address(f'{link}/{name}')}): {'; '.join(_facts(entry))}.")
        lines += [f"  `{entry.facts['command']}`"] if "command" in entry.facts else []
    return "\n".join(lines) + "\n"


def _address(path: str) -> str:
    """A path as the address of a link: spaces and brackets would end it."""
    return quote(path, safe="/+=,@~")


def _facts(entry: Entry) -> list[str]:
    facts = entry.facts
    said = [f"{entry.epochs} epochs, seed {entry.seed}"]
    said += [] if entry.best_epoch is None else [f"taken from epoch {entry.best_epoch + 1}"]
    said += [] if entry.temperature is None else [f"temperature {entry.temperature:.3f}"]
    chosen = {key: value for key, value in entry.recipe.items() if key in CHOICES}
    said += [", ".join(f"{key}={value}" for key, value in (facts.get("effective") or chosen).items())]  # type: ignore[attr-defined]
    if not facts.get("stale"):
        for key, unit in (("nll", ""), ("ece", "%")):
            value = entry.scores[key]
            said.append(f"{METRICS[key].short} {write_value(value.value, unit)} ({write_interval(value, unit)})")
    if "machine" in facts:
        time = f", {_duration(float(str(facts['seconds'])))}" if "seconds" in facts else ""
        said.append(f"{facts['machine']}{time}")
    for name in ("versions", "examples"):
        found = facts.get(name)
        if isinstance(found, Mapping):
            said.append(
                ", ".join(f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in found.items())
            )
    return said + ([str(facts["note"])] if facts.get("note") else [])


def _about_paper(notes: Sequence[str]) -> str:
    lines = [
        "## About the paper's numbers\n",
        "What was found in checking its tables against each other and against the text:\n",
        *(f"- {note}" for note in notes),
    ]
    for claim in load_paper().claims:
        if "note" in claim:
            lines.append(f"- Text: {claim['text']} {claim['points']['mean']} points on average, it says. {claim['note']}")
    return "\n".join(lines) + "\n"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _draw(entries: Sequence[Entry], folder: Path) -> list[Path]:
    from calibrant.report.figures import FIGURES, draw_all
    from calibrant.report.save import clear_figures

    make_folder(folder)
    rows = page_rows(compare_table(sorted(entries, key=catalogue_order), test=False)).entries
    with TemporaryDirectory() as place:
        drawn = [file for file in draw_all(rows, place, n_bins=(15,)).files if file.suffix == ".png"]
        clear_figures(folder, FIGURES)
        make_folder(folder)
        return [Path(shutil.copyfile(file, folder / file.name)) for file in sorted(drawn)]


def _portable(paths: Sequence[Path]) -> list[str]:
    """The paths as they are named on any machine: from here, or from the folder that holds them all."""
    here, full = Path.cwd(), [Path(os.path.abspath(path)) for path in paths]
    start = here if all(path.is_relative_to(here) for path in full) else Path(os.path.commonpath([p.parent for p in full]))
    return [path.relative_to(start).as_posix() for path in full]


def _relative(path: Path, start: Path) -> str:
    return Path(os.path.relpath(path.resolve(), start.resolve())).as_posix()
