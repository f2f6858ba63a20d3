"""The paper's experiments by name: which grid each table takes, and the report of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from calibrant.core.registry import lookup
from calibrant.core.scores import Entry
from calibrant.data import DATASETS
from calibrant.engine.recipe import Recipe, override
from calibrant.grid.compare import Comparison, compare
from calibrant.grid.export import write_page, write_table
from calibrant.grid.paper import load_paper
from calibrant.grid.schedule import Cell, Watch, parse_seeds, plan_cells
from calibrant.grid.tables import compare_table
from calibrant.paper.tables import make_paper_table
from calibrant.report.rows import Table

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

    def cells(self) -> tuple[Cell, ...]:
        """All of its runs."""
        return plan_cells(self.data, self.methods, self.seeds, recipe=self.recipe, settings=self.settings)


def plan_reproduction(
    name: str,
    *,
    data: Sequence[str] = (),
    seeds: int | str | Sequence[int] | None = None,
    quick: bool = False,
    settings: Mapping[str, object] | None = None,
) -> Reproduction:
    """Say which grid one of the paper's experiments takes.

    Args:
        name: ``"table1"`` to ``"table5"``, or ``"figures"``.
        data: Data sets, in place of the paper's.
        seeds: How many, from 0, or which; five for a table and one for the figures by default.
        quick: A small version: a few epochs of a small network, three seeds, on embedded data unless others are named. It is
            labelled in all that it writes.
        settings: Dotted recipe keys on top, as ``{"train.device": "cpu"}``.

    Returns:
        The plan. Raises ``ValueError`` if the name is unknown.

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
    grid = {"methods": plan.methods, "seeds": plan.seeds, "recipe": plan.recipe, "settings": plan.settings}
    return compare(plan.data, out=out, jobs=jobs, watch=watch, write=partial(write_report, plan), **grid)  # type: ignore[arg-type]


def write_report(
    plan: Reproduction, entries: Sequence[Entry], folder: Path, missing: Sequence[str] = ()
) -> tuple[Table, tuple[Path, ...]]:
    """Write the table (four forms), ``figures/`` and ``report.html`` of an experiment's runs, as `compare` wants it."""
    from calibrant.report.page_runs import columns_of

    shown = [replace(entry, data=f"{entry.data} (quick)") for entry in entries] if plan.quick else list(entries)
    table = None if plan.name == "figures" else make_paper_table(plan.name, shown, paper=not plan.quick)
    # Where runs of cross-entropy failed there may be no differences to it, but there are still results.
    table = table or compare_table(shown, paper=not plan.quick, calibrated=True)
    name, notes = (f"{plan.name}-quick", [_QUICK_NOTE]) if plan.quick else (plan.name, [])
    table = replace(table, name=name, title=plan.title, notes=(*missing, *notes, *table.notes))
    files = write_table(table, folder)
    runs = compare_table(shown, metrics=columns_of(shown), calibrated=True)
    drawn = plan.name == "figures"
    title = plan.title if drawn else f"Table {plan.name.removeprefix('table')}: {plan.title}"
    page = write_page(runs, folder, above=table, title=title, bins=_BINS if drawn else (15,))
    return table, (*files, *page)
