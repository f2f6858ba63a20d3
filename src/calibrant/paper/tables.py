"""The paper's five tables, made of one's own runs. The paper's numbers are in `calibrant.grid.paper`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from calibrant.core.entry import Entry
from calibrant.core.registry import lookup
from calibrant.data import data_name
from calibrant.grid.layout import Cell, Column, Info, Line, Section, Table
from calibrant.grid.paper import load_paper, paper_table
from calibrant.grid.rows import Row, comparable, group_rows
from calibrant.grid.tables import (
    SIX,
    Style,
    build_table,
    common_settings,
    finish_table,
    line_of,
    paper_line,
    told_keys,
)
from calibrant.metrics.differences import Difference, compare_runs, holm
from calibrant.metrics.verdict import join_words

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
    order, places = {method: place for place, method in enumerate(_methods(name))}, list(paper_table("table1").rows)
    kept = _belonging(name, entries, any_model=any_model)
    if not kept:
        model = paper_table(name).model
        wanted = "" if any_model or model is None else f" with {model}"
        raise ValueError(f"{name}: `entries` must hold runs of {', '.join(order)}{wanted}, got none.")

    def place(row: Row) -> tuple[object, ...]:
        # The first row is no special case: a method's plain runs come before those with settings of their own, and runs of a
        # known network before those of which it is not said.
        data = (places.index(row.data), "") if row.data in places else (len(places), row.data)
        return data, row.model is None, row.model or "", order[row.method], len(row.settings)

    style = Style(paper=paper, calibrated=calibrated, test=test, labels="name", info=info)
    build = lookup(_BUILDERS, name, kind="table of the paper")
    return build(name, sorted(group_rows(kept), key=place), style)


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


def _six_metrics(name: str, rows: Sequence[Row], style: Style) -> Table:
    return build_table(rows, SIX, style, name=name, title=paper_table(name).title)


def _gain(name: str, rows: Sequence[Row], style: Style) -> Table:
    """Table 1 for two methods, and below them what the second gains."""
    table = _six_metrics(name, rows, style)
    sections = []
    for section in table.sections:
        ours = [line.row for line in section.lines if line.row is not None]
        with_sece = [row for row in ours if row.method == "flgamma-sece"]
        without = [row for row in ours if row.method == "flgamma"]
        pairs = [(a, b) for b in with_sece for a in without if comparable(a, b) and a.preset == b.preset]
        gains = tuple(_gain_line(a, b, table.columns) for a, b in pairs)
        sections.append(replace(section, lines=(*section.lines, *gains)))
    drawn = any(line.kind == "difference" for section in sections for line in section.lines)
    note = "Gain: with SECE minus without; negative is better." if drawn else _NO_GAIN
    return replace(table, sections=tuple(sections), notes=(*table.notes, note))


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


def _recent(name: str, rows: Sequence[Row], style: Style) -> Table:
    """ECE and error alone; the paper's lines are other papers' numbers and are all shown, also where we have no run."""
    # There is no row that the others are measured by.
    style = style._replace(test=False)
    table = build_table(rows, ("ece", "error"), style._replace(paper=False), name=name, title=paper_table(name).title)
    if not style.paper:
        return table
    sections = tuple(replace(section, lines=_published(section, table.columns)) for section in table.sections)
    return finish_table(replace(table, sections=sections), style)


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


def _differences(name: str, rows: Sequence[Row], style: Style) -> Table:
    """A line for every method, two columns for every data set: what it changes against cross-entropy."""
    data = list(dict.fromkeys(row.data for row in rows))
    columns = tuple(
        Column(f"{d}:{key}", f"Δ {label}", key, group=data_name(d), data=d)
        for d in data
        for key, label in (("error", "error"), ("ece", "ECE"))
    )
    sections = (Section("", _difference_lines(rows, columns, style)),)
    table = Table(name, paper_table(name).title, columns, sections, base="CE")
    if not any(line.kind == "difference" for line in table.lines):
        raise ValueError(f"{name}: `entries` must hold a run of ce, and one of another method that it may be compared with.")
    # Cross-entropy has no line here; how it was trained matters to all that have.
    beside = [line_of(row, (), style) for row in rows if row.method == "ce"]
    table = finish_table(table, style._replace(calibrated=False), beside=beside)
    averaged = "Method minus CE, mean ± standard deviation over the seeds that both have; negative is better."
    return replace(table, notes=(averaged, *table.notes[1:]))


def _difference_lines(rows: Sequence[Row], columns: Sequence[Column], style: Style) -> tuple[Line, ...]:
    # One line over several data sets: method, preset, epochs, network and settings.
    pairs: dict[tuple[object, ...], list[tuple[Row, Row]]] = {}
    for row in rows:
        if (base := _base_of(row, rows)) is not None:
            key = (row.method, row.preset, row.epochs, row.model, tuple(row.settings.items()))
            pairs.setdefault(key, []).append((base, row))
    lines = sorted(pairs.values(), key=lambda pairs: paper_table("table5").methods.index(pairs[0][1].method))
    found: list[dict[str, Difference]] = []
    for alike in lines:
        tested = [(row.data, compare_runs(base.runs, row.runs, ["error", "ece"], test=style.test)) for base, row in alike]
        found.append({f"{data}:{metric}": difference for data, by in tested for metric, difference in by.items()})
    corrected = {c.key: holm([own[c.key].p_value if c.key in own else None for own in found]) for c in columns}
    common, told, shown = common_settings(rows), told_keys(rows), []
    for place, (alike, own) in enumerate(zip(lines, found, strict=True)):
        cells = {c: Cell(d.mean, d.std, d.values, p_value=corrected[c][place], over=d.over) for c, d in own.items()}
        line = line_of(alike[0][1], (), style, common=common, told=told)
        runs, said = _say_runs({c.rpartition(":")[0]: d.n for c, d in own.items()})
        seeds, doubts = _common_seeds(alike), (*line.doubts, *said)
        shown.append(replace(line, cells=cells, kind="difference", runs=runs, seeds=seeds, doubts=doubts, row=None))
        if style.paper and all(other[0][1].method != line.method for other in lines[place + 1 :]):
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


_BUILDERS = {"table1": _six_metrics, "table2": _gain, "table3": _recent, "table4": _six_metrics, "table5": _differences}
