"""Runs on a page: the rows of a comparison, their table, which of them differ from the best, and what that says in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from calibrant.core.scores import Entry, common_size, size_note, usual_size
from calibrant.data import data_name
from calibrant.metrics import METRICS
from calibrant.metrics.paired import compare_runs, holm, welch_t
from calibrant.metrics.table import score_metrics
from calibrant.metrics.verdict import SIGNIFICANT, join_words, write_interval, write_percent, write_value
from calibrant.report.rows import Group, Row, group_rows

# Behind a value that differs from that of the first row, as in tables.
_MARK = "†"
# Data set of predictions whose file cannot say it; see `calibrant.grid.collect`.
_UNKNOWN = "?"


class Verdict(NamedTuple):
    """What stands at the top of a page: a few words, paragraphs, and the tone that decides the colour.

    The tone is "over", "under", "both", "good" or "unsure", and "runs" for a comparison.
    """

    headline: str
    sentences: tuple[str, ...]
    tone: str


@dataclass(frozen=True)
class InTable:
    """What a table of runs says of a row, for the page to say the same.

    Attributes:
        section: Number of its part of the table; None where it is in none.
        is_base: Whether it is the row that the others of its part are tested against.
        p_values: Metric → p-value of the difference from that row, corrected; without those that were not tested.
        info: Head of a column that describes rows → what stands there.
        best: Metrics in which it is the best of the rows that it may be compared with.
    """

    section: int | None = None
    is_base: bool = False
    p_values: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)
    best: frozenset[str] = frozenset()


class TableRow(NamedTuple):
    """A row of a finished table: its label, texts of its cells with whether each is the best, and whether it is from print."""

    label: str
    cells: tuple[tuple[str, bool], ...]
    is_quoted: bool = False


class FinishedTable(NamedTuple):
    """A table whose numbers are written already: its title, heads, parts (title and rows each), and sentences below."""

    title: str
    heads: tuple[str, ...]
    parts: tuple[tuple[str, tuple[TableRow, ...]], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunRow(Row):
    """A row of figures with its data set, the name of its data set and network, and what a table says of it.

    ``size_note`` says how many test examples it is of where that is not the usual number of its place, so that it is not
    compared with the other rows.
    """

    data: str = ""
    place: str = ""
    size_note: str = ""
    told: InTable = InTable()

    def values(self, key: str) -> list[float]:
        """Value of a metric in every run that has it."""
        return [entry.scores[key].value for entry in self.runs if key in entry.scores]

    def mean(self, key: str) -> float:
        """Mean of a metric over the runs that have it; nan if none has."""
        values = self.values(key)
        return math.fsum(values) / len(values) if values else math.nan

    def cell(self, key: str) -> dict[str, object]:
        """Mean and standard deviation over seeds as text; a single run has its own interval instead."""
        values, unit = self.values(key), METRICS[key].unit
        if not values:
            return {"value": "", "mark": "", "spread": "", "is_best": False}
        spread = f"± {write_value(statistics.stdev(values), unit).removesuffix('%')}" if len(values) > 1 else ""
        mark = _MARK if self.told.p_values.get(key, 1.0) < SIGNIFICANT else ""
        interval = write_interval(next(entry.scores[key] for entry in self.runs if key in entry.scores), unit)
        return {
            "value": write_value(self.mean(key), unit),
            "mark": mark,
            "spread": spread or interval,
            "is_best": key in self.told.best,
        }


def place_of(group: Group) -> str:
    """Return what a page calls a data set and network."""
    return " · ".join(name for name in (_data_of(group), group.model) if name)


def _data_of(group: Group) -> str:
    return "" if group.data == _UNKNOWN else data_name(group.data)


def group_entries(entries: Sequence[Entry], *, told: Sequence[InTable] | None = None) -> list[RunRow]:
    """Put the seeds of each row together.

    Args:
        entries: Runs, in any order.
        told: For each, what a table says of its row; by default, the metrics in which no row of the same place is better.
    """
    said = {id(entry): part for entry, part in zip(entries, told or (), strict=told is not None)}
    found = []
    for group in group_rows(entries) if entries else ():
        usual = usual_size(entry for row in group.rows for entry in row.runs)
        for row in group.rows:
            place = {"data": _data_of(group), "place": place_of(group), "size_note": size_note(common_size(row.runs), usual)}
            found.append(RunRow(row.label, row.style, row.runs, told=said.get(id(row.runs[0]), InTable()), **place))
    return found if told is not None else [replace(row, told=InTable(best=_best(row, found))) for row in found]


def _best(row: RunRow, rows: Sequence[RunRow]) -> frozenset[str]:
    """Metrics in which no row of the same place, and of as many test examples, is better; none where it is alone."""
    beside = [other for other in rows if other.place == row.place and not other.size_note]
    keys = [key for key in columns_of(row.runs) if METRICS[key].better == "lower"]
    means = {key: [mean for other in beside if math.isfinite(mean := other.mean(key))] for key in keys}
    return frozenset(key for key in keys if row in beside and len(means[key]) > 1 and row.mean(key) == min(means[key]))


def columns_of(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Return the metrics to compare entries by, of those that some of them have."""
    known = {key for entry in entries for key in entry.scores}
    return tuple(key for key, metric in score_metrics().items() if metric.compared and key in known)


def table_view(rows: Sequence[RunRow], tables: Sequence[FinishedTable]) -> dict[str, object]:
    """What the template writes of the comparison table; ``tables`` are finished ones on the same page.

    Where one of them shows every metric of this table but the Brier score, this one is closed until a reader opens it.
    """
    keys = columns_of(entry for row in rows for entry in row.runs)
    tested = {key for row in rows for key in row.told.p_values}
    shown = {short_name(key) for key in keys if key != "brier"}
    return {
        "info": list(dict.fromkeys(head for row in rows for head in row.told.info)),
        "columns": {key: short_name(key) for key in keys},
        "parts": [(place, list(part)) for place, part in groupby(rows, key=lambda row: row.place)],
        "untested": join_words([short_name(key) for key in keys if key not in tested] or [""]) if tested else "",
        "is_repeated": any(shown <= {head.removesuffix(" (%)") for head in table.heads} for table in tables),
        "has_seeds": any(len(row.runs) > 1 for row in rows),
        "has_single": any(len(row.runs) == 1 for row in rows),
    }


def short_name(key: str) -> str:
    """Name of a metric in the head of a narrow column."""
    name = METRICS[key].short or METRICS[key].label
    return name[0].upper() + name[1:]


def give_runs_verdict(rows: Sequence[RunRow], *, n_runs: int) -> Verdict:
    """Say what comparing ``n_runs`` runs found, with a paragraph for each data set and network.

    It names the rows of the least calibration error and of the least error, and those that so many runs do not tell from them;
    see `labels_not_told`.
    """
    places = [list(part) for _, part in groupby(rows, key=lambda row: row.place)]
    found = [_tell_place(here, rows) for here in places]
    sentences = found[0] if len(found) == 1 else [" ".join(told) for told in found]
    runs = "1 run" if n_runs == 1 else f"{n_runs} runs"
    return Verdict(f"{_tell_rows(rows)}, {runs}", tuple(sentences), "runs")


def _tell_rows(rows: Sequence[RunRow]) -> str:
    """Say how many methods there are, and on what."""
    methods, labels = len({row.runs[0].method for row in rows}), len({row.label for row in rows})
    several = f"{methods} methods" if methods == labels else f"{labels} rows of {methods} method{'s' * (methods > 1)}"
    data, networks = len({row.data for row in rows}), len({row.runs[0].model for row in rows} - {None})
    one = f"{rows[0].data} with {networks} networks" if networks > 1 else rows[0].place
    where = f" on {data} data sets" if data > 1 else f" on {one}" if one else ""
    return (several if labels > 1 else rows[0].label) + where


def _tell_place(here: Sequence[RunRow], rows: Sequence[RunRow]) -> list[str]:
    """What was found on one data set and network."""
    on = f"On {here[0].place or 'data without a name'}, " if here[0].place or len(here) < len(rows) else ""
    best, accurate = leader(here, "ece", "error"), leader(here, "error", "ece")
    if best is None or accurate is None:
        return [f"{on}{'no' if on else 'No'} run has both an error and a calibration error (ECE)."]
    held = _comparable(here, "error", "ece")
    sentences = [_name_leaders(best, accurate, on)]
    if len(held) == 1:
        # The headline names a single row.
        name = best.label if len(rows) > 1 else "it" if on else "It"
        numbers = f"an error of {_percent(best, 'error')} and a calibration error (ECE) of {_percent(best, 'ece')}"
        sentences = [f"{on}{name} has {numbers}."]
    if any(leading.mean(key) != min(row.mean(key) for row in held) for key, leading in (("ece", best), ("error", accurate))):
        sentences.append("Rows that have no run of the same length and settings beside them are left out here.")
    apart = [row.label for row in here if row.size_note]
    if apart:
        is_are = "is" if len(apart) == 1 else "are"
        sentences.append(f"{join_words(apart)} {is_are} of another number of test examples and not compared.")
    same = [row.label for row in held if row.mean("error") == accurate.mean("error") and row is not accurate]
    if same:
        sentences.append(f"{join_words(same)} {'has' if len(same) == 1 else 'have'} the same error.")
    near = labels_not_told(here, {"ece": best, "error": accurate})
    near["error"] = [label for label in near["error"] if label not in same]
    return sentences + _tell_unclear({"ECE": (best, near["ece"]), "error": (accurate, near["error"])}, here)


def _name_leaders(best: RunRow, accurate: RunRow, on: str) -> str:
    if best is accurate:
        return (
            f"{on}{best.label} has both the least calibration error (ECE {_percent(best, 'ece')}) and the least error "
            f"({_percent(best, 'error')})."
        )
    return (
        f"{on}{best.label} has the least calibration error (ECE {_percent(best, 'ece')}, error {_percent(best, 'error')}); "
        f"{accurate.label} errs least ({_percent(accurate, 'error')}, ECE {_percent(accurate, 'ece')})."
    )


def _tell_unclear(unclear: Mapping[str, tuple[RunRow, list[str]]], here: Sequence[RunRow]) -> list[str]:
    """Say of which rows too few runs are known to tell them from the best; a metric has the best row and these."""
    told: dict[tuple[str, str], list[str]] = {}
    for what, (best, names) in unclear.items():
        if names:
            counts = [len(row.runs) for row in here if row is best or row.label in names]
            few, many = min(counts), max(counts)
            number = str(many) if few == many else f"{few} to {many}"
            runs = "One run each is too little" if many == 1 else f"{number} seeds are too few"
            told.setdefault((runs, join_words(names)), []).append(what)
    return [f"{runs} to tell the {join_words(what)} of {names} from the least." for (runs, names), what in told.items()]


def _percent(row: RunRow, key: str) -> str:
    return write_percent(row.mean(key))


def _comparable(rows: Sequence[RunRow], key: str, then: str) -> list[RunRow]:
    """Rows that have both metrics; a part of the test set counts only where there is nothing else."""
    known = [row for row in rows if math.isfinite(row.mean(key) + row.mean(then))]
    return [row for row in known if not row.size_note] or known


def leader(rows: Sequence[RunRow], key: str, then: str) -> RunRow | None:
    """The row with the least mean of a metric, of equal ones that with the least of another; None where no row has both.

    Rows that are marked as best go before those that are not: these may have nothing to be compared with.
    """
    known = _comparable(rows, key, then)
    marked = [row for row in known if key in row.told.best]
    return min(marked or known, key=lambda row: (row.mean(key), row.mean(then)), default=None)


def labels_not_told(rows: Sequence[RunRow], leaders: Mapping[str, RunRow]) -> dict[str, list[str]]:
    """Find the rows that these runs do not tell from the best one of a metric.

    A pair that a table of these rows tests has the table's p-value, so that the two never contradict each other. Others are
    told apart by `calibrant.metrics.paired.compare_runs`, over seeds or over test examples; where that tests nothing, by
    Welch's t over their seeds; and a single run beside several, or without its predictions, by 95 % intervals that do not meet.
    The tests that are not the table's are corrected after Holm, those of a metric together.

    Args:
        rows: Rows of one place; a part of the test set is left out.
        leaders: Metric → its best row.
    """
    found = {}
    for key, best in leaders.items():
        rivals = [row for row in rows if row is not best and not row.size_note and row.mean(key) >= best.mean(key)]
        p_values = [_in_table(best, row, key) for row in rivals]
        corrected = iter(holm([_p_value(best, row, key) for row, p in zip(rivals, p_values, strict=True) if p is None]))
        tested = [(row, next(corrected) if p is None else p) for row, p in zip(rivals, p_values, strict=True)]
        found[key] = [row.label for row, p in tested if (_meet(best, row, key) if p is None else not p < SIGNIFICANT)]
    return found


def _in_table(best: RunRow, row: RunRow, key: str) -> float | None:
    """P-value of the pair in a table, where that tests one of the two against the other."""
    if best.told.section != row.told.section:
        return None
    return next((b.told.p_values.get(key) for a, b in ((best, row), (row, best)) if a.told.is_base), None)


def _p_value(best: RunRow, row: RunRow, key: str) -> float | None:
    """P-value of the difference; None where nothing could be tested, or where intervals of single runs tell enough."""
    if len(best.runs) == len(row.runs) == 1 and not _meet(best, row, key):
        # Resampling would only take time.
        return None
    found = compare_runs(best.runs, row.runs, [key])
    p_value = found[key].p_value if key in found else None
    return welch_t(best.values(key), row.values(key)) if p_value is None else p_value


def _meet(best: RunRow, row: RunRow, key: str) -> bool:
    """Whether the 95 % intervals of any two runs of the two rows meet."""
    highest = max((entry.scores[key].high for entry in best.runs if key in entry.scores), default=math.nan)
    return any(entry.scores[key].low <= highest for entry in row.runs if key in entry.scores)
