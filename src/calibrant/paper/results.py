"""All results as one page of Markdown: the paper's tables made of them, the runs behind them, and their figures."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from calibrant.core.entry import Entry
from calibrant.data import data_name
from calibrant.grid.export import escape_markdown, page_rows, to_markdown
from calibrant.grid.layout import Info, paper_notes
from calibrant.grid.paper import load_paper
from calibrant.grid.records import load_results, make_folder, result_name
from calibrant.grid.rows import catalogue_order, group_rows
from calibrant.grid.tables import SIX, Style, build_table, compare_table
from calibrant.io.files import atomic_writer
from calibrant.paper.tables import make_paper_tables
from calibrant.report.save import figure_stem

# Columns that every table of the page has.
_INFO: tuple[Info, ...] = ("preset", "epochs")
# What stands below a figure, by how its file's name begins.
_CAPTIONS = {
    "reliability": "Reliability diagrams.",
    "robustness": "ECE and MCE against the number of bins; chance alone makes both rise with it.",
    "curves": "ECE and error over the epochs.",
    "gamma-epochs": "Mean and spread of gamma over the epochs.",
    "tradeoff": "Error against ECE.",
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
        entries: Runs, as `calibrant.grid.records.load_results` reads them.
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
        kept = tuple(note for note in table.notes if note.removeprefix("The paper's ") not in notes)
        title = f"Table {name.removeprefix('table')}: {table.title}"
        parts.append(to_markdown(replace(table, title=title, notes=kept), heading="##"))
    if others:
        style = Style(calibrated=True, labels="name", info=_INFO)
        parts.append(to_markdown(build_table(group_rows(others), SIX, style, name="others", title="Other runs"), heading="##"))
    parts += [_figures(figures, entries)] if figures else []
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


def _figures(figures: Sequence[str], entries: Sequence[Entry]) -> str:
    places = dict.fromkeys((entry.data, entry.model) for entry in entries)
    lines = ["## Figures\n"]
    for path in figures:
        caption = escape_markdown(_caption(Path(path).stem, list(places)))
        lines.append(f"![{caption}]({_address(path)})\n\n{caption}\n")
    return "\n".join(lines)


def _caption(name: str, places: Sequence[tuple[str, str | None]]) -> str:
    """What a figure shows, by the name of its file; names of data sets and networks may themselves hold dashes."""
    for kind, text in _CAPTIONS.items():
        for data, model in places:
            bins = re.fullmatch(re.escape(figure_stem(kind, data, model)) + r"(?:-(\d+)bins)?", name)
            if bins is not None:
                words = [data_name(data), *([model] if model else []), *([f"{bins[1]} bins"] if bins[1] else [])]
                return f"{', '.join(words)}. {text}"
    return name


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
    effective = facts.get("effective")
    if isinstance(effective, Mapping):
        said.append(", ".join(f"{key}={value}" for key, value in effective.items()))
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
