"""The rows of a comparison, which its tables, figures and page all show: runs that differ in their seed alone are one.

`calibrant.grid` adds tests, notes and the paper's numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

from calibrant.core.records import Entry
from calibrant.data import data_name
from calibrant.data.image_set import difference
from calibrant.engine.methods import METHODS, Look, complete_recipe, split_name
from calibrant.metrics.paired import mean_and_std
from calibrant.metrics.table import score_metrics
from calibrant.metrics.verdict import PALETTE, SIGNIFICANT, metric_of, write_interval

Dashes = str | tuple[float, tuple[float, ...]]

_LINES: dict[str, Dashes] = {
    "-": "-",
    ":": (0.0, (1.0, 1.1)),
    "--": (0.0, (4.0, 1.6)),
    "-.": (0.0, (5.0, 1.4, 1.2, 1.4)),
    "-..": (0.0, (5.0, 1.2, 1.0, 1.2, 1.0, 1.2)),
}
# From the ones that are easiest to tell apart when they are empty.
_MARKERS = ("o", "s", "^", "D", "v", "P", "*", "X", "<", ">", "d", "p", "h", "8")
# Colours in the order in which they are given to names without one of their own.
_SPARE = ("purple", "blue", "orange", "grey", "sky", "green", "vermillion", "black")

EMPTY = "–"
# Columns that describe a row, and their heads.
Info = Literal["choices", "preset", "trained", "epochs", "seeds", "calibrated"]
INFO_NAMES: dict[Info, str] = {
    "choices": "Weights, epoch",
    "preset": "Preset",
    "trained": "Trained on",
    "epochs": "Epochs",
    "seeds": "Seeds",
    "calibrated": "p if calibrated",
}
# How weights are averaged and the epoch is chosen: a method decides both unless they are set.
CHOICES = ("train.average", "train.select")


@dataclass(frozen=True)
class Style:
    """The look of a row: told apart by colour, and without colour by marker and line."""

    color: str
    marker: str
    line: Dashes
    filled: bool = True  # points of a variant (``+ts``, other settings) are not

    def options(self) -> dict[str, Any]:
        """Keyword arguments of a plotted line in this style."""
        face = self.color if self.filled else "white"
        edge = {"markeredgecolor": self.color, "markeredgewidth": 0.8, "markerfacecolor": face}
        return {"color": self.color, "linestyle": self.line, "marker": self.marker, **edge}


@dataclass(frozen=True)
class Column:
    """One column of numbers: key of a metric, what it is called, and whether it is in per cent."""

    key: str
    name: str
    percent: bool = True

    @property
    def heading(self) -> str:
        """What stands above it."""
        return f"{self.name} (%)" if self.percent else self.name


def metric_column(key: str) -> Column:
    """The column of a metric, in per cent unless it is no rate."""
    metric = metric_of(key)
    name = metric.short or metric.label
    return Column(key, name[0].upper() + name[1:], metric.unit == "%")


def columns_of(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Return the metrics to compare entries by, of those that some of them have."""
    known = {key for entry in entries for key in entry.scores}
    return tuple(key for key, metric in score_metrics(positive=True).items() if metric.compared and key in known)


@dataclass(frozen=True)
class Mean:
    """A number over runs: its mean and spread, in the unit of `calibrant.measure`."""

    mean: float
    std: float | None = None  # over runs, of two or more
    values: tuple[float, ...] = ()  # of every run, where known
    best: bool = False  # no row that it may be compared with, trained on as many examples, has a lower one, as printed
    p_value: float | None = None  # of the difference to what its table tests against, corrected
    over: Literal["seeds", "examples"] | None = None  # what that test sampled

    @property
    def differs(self) -> bool:
        """Whether it differs from what its table tests against significantly."""
        return self.p_value is not None and self.p_value < SIGNIFICANT

    def shown(self, column: Column, *, digits: int = 3) -> tuple[str, str | None]:
        """Mean and standard deviation as printed."""
        scale = 100 if column.percent else 1
        mean = f"{scale * self.mean:.{digits}f}"
        # What rounds to zero has no sign.
        mean = mean.removeprefix("-") if float(mean) == 0 else mean
        return mean, None if self.std is None else f"{scale * self.std:.{digits}f}"


@dataclass(frozen=True)
class Row:
    """A row of a comparison: runs of one method under one setting, numbers of the "paper", or a "difference" of two rows.

    What is not known of it is None or empty.
    """

    label: str  # method, and in brackets what tells it from other rows
    method: str
    cells: Mapping[str, Mean]  # metric → number
    kind: Literal["ours", "paper", "difference"] = "ours"
    runs: tuple[Entry, ...] = field(default=(), repr=False)  # by rising seed; none of the paper and of differences
    preset: str | None = None
    epochs: int | None = None
    trained: int | None = None  # number of training examples
    model: str | None = None
    n_runs: int | None = None
    seeds: tuple[int, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)  # recipe keys that its method would have chosen otherwise
    recipe: Mapping[str, str] = field(default_factory=dict, repr=False)  # all keys; none of predictions from a file
    style: Style = Style("0.5", "o", "-")

    @property
    def examples(self) -> int | None:
        """Number of its test examples."""
        return self.runs[0].scores.n if self.runs else None

    @property
    def is_stale(self) -> bool:
        """Whether older code computed its p-values, and nothing is there to compute them again."""
        return any(run.facts.get("stale") for run in self.runs)

    @property
    def legend(self) -> str:
        """What a figure calls it: also whether its networks have averaged weights."""
        return self.label + " (averaged)" * (self.recipe.get("train.average", "no") != "no")

    @property
    def choices(self) -> str:
        """How its runs averaged weights and chose their epoch."""
        words = [self.recipe[key] for key in CHOICES if key in self.recipe]
        return ", ".join("raw" if word == "no" else word for word in words)

    def mean(self, key: str) -> float:
        """Mean of a metric; nan without one."""
        return self.cells[key].mean if key in self.cells else math.nan

    def run(self, seed: int | None = None) -> Entry:
        """The run of ``seed``; the last one if that is None or there is none of that seed."""
        return next((entry for entry in self.runs if entry.seed == seed and seed is not None), self.runs[-1])

    def info(self, name: Info) -> str:
        """What stands in one of the columns that describe it."""
        if name == "calibrated" and self.runs:
            # The runs share test examples, so that the bound of Bonferroni is what holds.
            joint = min(1.0, len(self.runs) * min(run.scores.ece_if_calibrated.p_value for run in self.runs))
            return (f"{joint:.3f}" if joint >= 0.001 else "< 0.001") + "‡" * self.is_stale
        found = {"choices": self.choices or None, "preset": self.preset, "epochs": self.epochs, "seeds": self.n_runs}
        found["trained"] = self.trained and f"{self.trained:,}"
        return str(found.get(name) or EMPTY)

    def spread(self, column: Column) -> str:
        """Standard deviation of a number as printed; a single run has its interval instead."""
        std = self.cells[column.key].shown(column)[1]
        if std is None and len(self.runs) == 1:
            return write_interval(self.runs[0].scores[column.key], "%" if column.percent else "") + "‡" * self.is_stale
        return "" if std is None else f"± {std}"


@dataclass(frozen=True)
class Section:
    """The rows of one data set and one network, or an unknown one, and the settings (``key=value``) that all have in common."""

    title: str
    rows: tuple[Row, ...]
    data: str = ""
    model: str | None = None
    common: tuple[str, ...] = ()

    @property
    def common_seed(self) -> int | None:
        """The highest seed that all rows with known seeds have, so that figures of single runs compare like with like."""
        seeds = [{*row.seeds} for row in self.rows if row.seeds]
        return max(set.intersection(*seeds), default=None) if seeds else None


@dataclass(frozen=True)
class Table:
    """A whole table."""

    name: str  # for file names and references, as ``table1``
    title: str
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    info: tuple[Info, ...] = ("seeds",)  # columns that describe the rows, before the numbers
    notes: tuple[str, ...] = ()
    base: str = "the first row"  # what its rows are tested against

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows of all sections."""
        return tuple(row for section in self.sections for row in section.rows)

    def varies(self, name: Info) -> bool:
        """Whether rows are known to differ in a column that describes them."""
        return len({row.info(name) for row in self.rows} - {EMPTY}) > 1

    @property
    def heads(self) -> list[str]:
        """Names of all columns."""
        return ["Method", *(INFO_NAMES[name] for name in self.info), *(column.heading for column in self.columns)]


def group_rows(entries: Sequence[Entry]) -> list[Section]:
    """Put the seeds of a row together, and the rows of a data set and network.

    A label is the method's, with what tells its rows apart: preset, settings, epochs, or the number of test examples. A method
    has the same colour, marker and line in all sections. A row of unknown network joins the first network of its data set.

    Args:
        entries: Runs, in any order.

    Returns:
        The sections, in the order in which their first runs came, with every metric of their rows. Raises ``ValueError`` if
        there are no entries, if two runs of a row have one seed, or none, or if its runs had different data.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> entries = [Entry("coins", method, scores, seed=seed) for seed in (1, 0) for method in ("ce", "focal")]
        >>> [(row.label, row.seeds) for row in group_rows(entries)[0].rows]
        [('CE', (0, 1)), ('Focal', (0, 1))]
    """
    if not entries:
        raise ValueError("group_rows: `entries` must hold at least one run, got none.")
    first = {entry.data: entry.model for entry in reversed(entries) if entry.model is not None}
    found: dict[tuple[str, str | None], dict[object, list[Entry]]] = {}
    for entry in entries:
        rows = found.setdefault((entry.data, entry.model or first.get(entry.data)), {})
        rows.setdefault(row_key(entry), []).append(entry)
    sections = [_section(data, model, [_row(runs) for runs in rows.values()]) for (data, model), rows in found.items()]
    styles = styles_of((row.method, _variant(row, section)) for section in sections for row in section.rows)
    return [
        replace(part, rows=tuple(replace(row, style=styles[row.method, _variant(row, part)]) for row in part.rows))
        for part in sections
    ]


def row_key(entry: Entry) -> tuple[object, ...]:
    """Return what the seeds of a row share: data, network, method, preset, epochs and settings."""
    return entry.data, entry.model, entry.method, _preset(entry), entry.epochs, tuple(settings_of(entry).items())


def settings_of(entry: Entry) -> dict[str, str]:
    """Return what was set for a run besides data, method, network, epochs and seed, and that changes the result."""
    return complete_recipe(entry.method, entry.preset, entry.recipe)[1]


def trained_alike(first: Row, second: Row) -> bool:
    """Whether two rows had as many training examples, as far as is known."""
    return len({first.trained, second.trained} - {None}) < 2


def comparable(first: Row, second: Row) -> bool:
    """Whether two rows may be compared: same test examples, network, epochs, preset and settings, those of the method aside.

    What was told to one of the two must be so for the other, too; averaging and selection may be what each method chooses where
    neither was told. Predictions from a file may be compared with everything on the same examples.
    """
    if (first.runs[0].data, first.examples) != (second.runs[0].data, second.examples):
        return False
    if first.runs[0].is_foreign or second.runs[0].is_foreign:
        return True
    if (first.model, first.epochs) != (second.model, second.epochs) or len({first.preset, second.preset} - {None}) > 1:
        return False
    told = {key for key in {**first.settings, **second.settings} if not key.startswith("method.")}
    return all(first.recipe.get(key) == second.recipe.get(key) for key in told)


def common_settings(rows: Iterable[Row]) -> tuple[str, ...]:
    """Settings that all rows of which something is known have, told or by their method's choice."""
    known = [row for row in rows if row.epochs is not None]
    said = sorted({pair for row in known for pair in row.settings.items()})
    return tuple(f"{key}={value}" for key, value in said if all(row.recipe.get(key) == value for row in known))


def _preset(entry: Entry) -> str | None:
    """The preset of a run; methods that learn nothing on held-out data train the same under every one."""
    base = split_name(entry.method)[0]
    return None if base in METHODS and not METHODS[base].learns else entry.preset


def _row(runs: Sequence[Entry]) -> Row:
    """The runs of a row, checked, with their numbers; it has no label yet."""
    first, seeds = runs[0], [run.seed for run in runs]
    what = f"{first.method} on {first.data} ({', '.join(run.folder or 'a record' for run in runs)})"
    if len(runs) > 1 and (None in seeds or len({*seeds}) < len(seeds)):
        known = ", ".join("unknown" if seed is None else str(seed) for seed in seeds)
        raise ValueError(
            f"tables: runs of one row must have different seeds, got seeds {known} of {what}. Leave one out, or rename it."
        )
    for one, other in combinations(map(_facts_of_data, runs), 2):
        if differ := difference(one, other):
            raise ValueError(f"tables: runs of one row must have the same data, got {differ} of {what}. Leave one out.")
    by_seed = tuple(sorted(runs, key=lambda run: run.seed or 0))
    values = {key: [run.scores[key].value for run in by_seed] for key in first.scores if all(key in run.scores for run in runs)}
    recipe, settings = complete_recipe(first.method, first.preset, first.recipe)
    return Row(
        label="",
        method=first.method,
        cells={key: Mean(*mean_and_std(found), tuple(found)) for key, found in values.items()},
        runs=by_seed,
        preset=_preset(first),
        epochs=first.epochs,
        trained=_trained(first),
        model=first.model,
        n_runs=len(runs),
        seeds=tuple(run.seed for run in by_seed if run.seed is not None),
        settings=settings,
        recipe={} if first.is_foreign and not first.recipe else recipe,
    )


def _facts_of_data(entry: Entry) -> dict[str, object]:
    facts: Mapping[str, Any] = entry.facts
    # Earlier releases held out more for some methods.
    used = {} if (trained := _trained(entry)) is None else {"train_examples": trained}
    return {**(facts.get("data") or {}), **used, "test_examples": entry.scores.n}


def _trained(entry: Entry) -> int | None:
    parts: Any = entry.facts.get("examples", {})
    trained: int | None = parts.get("train")
    return trained


def _section(data: str, model: str | None, rows: Sequence[Row]) -> Section:
    names = [data_name(data) if data != "?" else "Data without a name", *([model] if model else [])]
    common = common_settings(rows)
    named = [replace(_mark_best(row, rows), label=_label(row, rows, common)) for row in rows]
    return Section(", ".join(map(plain_text, names)), tuple(named), data, model, common)


def _label(row: Row, rows: Sequence[Row], common: Sequence[str]) -> str:
    presets = {other.preset for other in rows if other.method == row.method}
    said = [row.preset] if row.preset not in (None, "default") and len(presets) > 1 else []
    told = [(key, value) for key, value in row.settings.items() if f"{key}={value}" not in common]
    said += [f"{key.rpartition('.')[2]}={value}" for key, value in told]
    said += [f"{row.epochs} epochs"] if row.epochs and len({other.epochs for other in rows} - {None}) > 1 else []
    said += [f"{row.examples:,} examples"] if row.examples != max(other.examples or 0 for other in rows) else []
    brackets = f" ({plain_text(', '.join(filter(None, said)), longest=120)})" if said else ""
    return plain_text(method_name(row.method)) + brackets


def _variant(row: Row, section: Section) -> str:
    """What tells a row from the first one of its method; nothing for that one."""
    return "" if row.label == next(other.label for other in section.rows if other.method == row.method) else row.label


def _mark_best(row: Row, rows: Sequence[Row]) -> Row:
    """Mark the printed values that no row that may be compared surpasses; a row without a rival is not the best.

    Predictions from a file do not count where all other runs have another length or other settings.
    """
    others = [other for other in rows if other is not row and comparable(row, other) and trained_alike(row, other)]
    cells = dict(row.cells)
    if all(other.runs[0].is_foreign for other in others) and sum(not other.runs[0].is_foreign for other in rows) > 1:
        return row
    for key, cell in row.cells.items():
        column, better = metric_column(key), metric_of(key).better
        sign = -1 if better == "higher" else 1
        own, *rivals = (sign * float(other.cells[key].shown(column)[0]) for other in (row, *others) if key in other.cells)
        if better is not None and rivals and math.isfinite(own):
            # A record keeps what is infinite as no number.
            cells[key] = replace(cell, best=all(own <= rival for rival in rivals if not math.isnan(rival)))
    return replace(row, cells=cells)


def method_name(method: str) -> str:
    """Return what a method is called in print; a name that is not in the catalogue stays as it is."""
    base, scaled = split_name(method)
    name = METHODS[base].label if base in METHODS else base
    return f"{name} (TS)" if scaled else name


def plain_text(name: str, *, longest: int = 40) -> str:
    """Return a name that a user chose on one line, shortened in the middle if it is long."""
    # A name read from a file system may hold half a surrogate pair, which no font and no file format has.
    said = " ".join(name.encode(errors="replace").decode().split())
    return said if len(said) <= longest else f"{said[: longest - 13]}…{said[-12:]}"


def styles_of(variants: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Style]:
    """Give every ``(method, variant)`` its look.

    A known method always has the same marker and line, and the same colour unless another method has it and one is free. A
    variant of a method (``+ts``, or other settings, in words) has its colour, an empty marker and other dashes: the first has
    the method's marker, every further one another marker. Unknown names take what is free.
    """
    wanted = [(*split_name(method), method, variant) for method, variant in dict.fromkeys(variants)]
    given, lines = dict.fromkeys(base for base, *_ in wanted), [*_LINES]
    # In the order of the catalogue: of two methods with one colour the first keeps it.
    order = [*(base for base in METHODS if base in given), *(base for base in given if base not in METHODS)]
    looks: dict[str, Look] = {}
    for place, base in enumerate(order):
        free = (_SPARE[place % len(_SPARE)], _MARKERS[place % len(_MARKERS)], lines[place % len(lines)])
        looks[base] = (METHODS[base].look if base in METHODS else None) or free
    spare = [color for color in _SPARE if color not in {look[0] for look in looks.values()}]
    colors: dict[str, str] = {}
    for base, (color, *_) in looks.items():
        colors[base] = color if color not in colors.values() or not spare else spare.pop(0)
    found, count = {}, Counter[str]()
    for base, scaled, method, variant in wanted:
        is_variant = scaled or bool(variant)
        count[base] += is_variant
        number = is_variant * count[base]
        marker = _MARKERS[(_MARKERS.index(looks[base][1]) + max(number - 1, 0)) % len(_MARKERS)]
        dashes = _LINES[lines[(lines.index(looks[base][2]) + number) % len(lines)]]
        found[method, variant] = Style(PALETTE[colors[base]], marker, dashes, filled=not number)
    return found
