"""The paper's experiments by name: which grid each table takes, and the report that comes of it. Running is `compare`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from calibrant.core.entry import Entry
from calibrant.core.registry import lookup
from calibrant.data import DATASETS
from calibrant.engine.folder import is_finished
from calibrant.engine.recipe import Recipe, override
from calibrant.grid.compare import Comparison, compare
from calibrant.grid.export import page_rows, to_page_table, write_page, write_table
from calibrant.grid.layout import Table
from calibrant.grid.paper import load_paper, paper_table
from calibrant.grid.plan import Cell, parse_seeds, plan_cells
from calibrant.grid.schedule import Watch
from calibrant.grid.tables import compare_table
from calibrant.paper.tables import has_differences, make_paper_table

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
# What the title of Table 4 calls its network.
_DENSENET = "DenseNet (100 layers)"
_QUICK_NOTE = (
    "Quick version: a small network and a short schedule, on small data unless others were named, to see that everything "
    "works. Nothing here can be held against the paper or against full runs."
)
_ALIKE_NOTE = (
    "All methods predict with the weights of the last epoch as they are (train.average=no, train.select=last), also those "
    "whose preset averages weights and chooses an epoch."
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

    def left(self, out: str | Path) -> tuple[Cell, ...]:
        """Those that are not finished in ``out``."""
        return tuple(cell for cell in self.cells() if not is_finished(Path(out) / "runs" / cell.name))


def plan_reproduction(
    name: str,
    *,
    data: Sequence[str] = (),
    seeds: int | str | Sequence[int] | None = None,
    quick: bool = False,
    preset: str = "default",
    settings: Mapping[str, object] | None = None,
) -> Reproduction:
    """Say which grid one of the paper's experiments takes.

    Args:
        name: ``"table1"`` to ``"table5"``, or ``"figures"``.
        data: Data sets, in place of the paper's.
        seeds: How many, from 0, or which; five for a table and one for the figures by default.
        quick: A small version: a few epochs of a small network, three seeds, on embedded data unless others are named. It is
            labelled in all that it writes.
        preset: Settings of methods that learn on held-out data: "default" is what works best, "paper" the most literal reading.
        settings: Dotted recipe keys on top, as ``{"train.device": "cpu"}``.

    Returns:
        The plan. Raises ``ValueError`` if the name is unknown.

    Example:
        >>> plan = plan_reproduction("table2", seeds=2)
        >>> plan.data, plan.methods, len(plan.cells())
        (('cifar10', 'cifar100'), ('flgamma', 'flgamma-sece'), 8)
    """
    lookup(dict.fromkeys([*load_paper().tables, "figures"]), name, kind="experiment of the paper")
    usual = _QUICK_SEEDS if quick else 1 if name == "figures" else 5
    table = None if name == "figures" else paper_table(name)
    methods = _DRAWN if table is None else table.methods
    sets = _DRAWN_DATA if table is None else tuple(table.rows)
    model = (table and table.model) or "resnet18"
    full = override(Recipe(), {"backbone.name": model})
    plan = Reproduction(
        name=name,
        title="The paper's figures" if table is None else table.title,
        data=tuple(data) or ((_QUICK_DATA,) if quick else sets),
        methods=("ce", *methods) if name == "table5" else methods,
        seeds=tuple(parse_seeds(usual if seeds is None else seeds)),
        # Without a recipe, embedded data get a small network; the paper's protocol is asked for by name.
        recipe=None if quick else full,
        settings={"method.preset": preset} | (_quick_settings(data) if quick else {}) | dict(settings or {}),
        quick=quick,
    )
    # Where the title names the paper's network and others are trained, these are named.
    networks = dict.fromkeys(cell.recipe.backbone.name for cell in plan.cells())
    named = plan.title if table is None or [*networks] == [table.model] else plan.title.replace(_DENSENET, ", ".join(networks))
    return replace(plan, title=named)


def _quick_settings(data: Sequence[str]) -> dict[str, object]:
    if set(data) <= {_QUICK_DATA}:
        return _QUICK
    return _SHORT if all(name in DATASETS and DATASETS[name].embedded for name in data) else _SMALL


def run_reproduction(
    plan: Reproduction, *, out: str | Path, jobs: int | None = None, threads: int = 1, watch: Watch | None = None
) -> Comparison:
    """Run what is left of an experiment, and write its table, its figures and ``report.html``.

    Args:
        plan: The experiment.
        out: Folder for everything; finished runs in it are not repeated.
        jobs: Runs at a time; see `compare`.
        threads: Threads of a run on the CPU.
        watch: Called with the board and what happened on it.

    Returns:
        The comparison. Raises as `compare`, with the way to get data that are missing.
    """
    return compare(
        plan.data,
        methods=plan.methods,
        out=out,
        seeds=plan.seeds,
        recipe=plan.recipe,
        settings=plan.settings,
        jobs=jobs,
        threads=threads,
        watch=watch,
        write=partial(write_report, plan),
    )


def write_report(
    plan: Reproduction, entries: Sequence[Entry], folder: Path, missing: Sequence[str] = ()
) -> tuple[Table, tuple[Path, ...]]:
    """Write the table (four forms), ``figures/`` and ``report.html`` of an experiment's runs, as `compare` wants it."""
    from calibrant.report.page_runs import columns_of

    shown = [replace(entry, data=f"{entry.data} (quick)") for entry in entries] if plan.quick else list(entries)
    table = _table(plan, shown)
    table = replace(table, notes=(*missing, *table.notes))
    files = write_table(table, folder)
    rows = page_rows(compare_table(shown, metrics=columns_of(shown), calibrated=True))
    heading = plan.title if plan.name == "figures" else f"Table {plan.name.removeprefix('table')}: {plan.title}"
    title = f"{heading}, quick version" if plan.quick else heading
    bins = _BINS if plan.name == "figures" else (15,)
    return table, (*files, *write_page(rows, folder, tables=[to_page_table(table)], title=title, bins=bins))


def _table(plan: Reproduction, entries: Sequence[Entry]) -> Table:
    # Where runs of cross-entropy failed there may be no differences to it, but there are still results.
    alone = plan.name == "table5" and not has_differences(entries)
    if plan.name == "figures" or alone:
        table = compare_table(entries, paper=not plan.quick, calibrated=True, labels="name", name=plan.name, title=plan.title)
    else:
        made = make_paper_table(plan.name, entries, paper=not plan.quick, calibrated=True, any_model=True)
        table = replace(made, title=plan.title)
    if not plan.quick:
        return table
    quick = f"{table.title} (quick version)"
    alike = (plan.settings.get("train.average"), plan.settings.get("train.select")) == ("no", "last")
    notes = (_QUICK_NOTE, *([_ALIKE_NOTE] if alike else []), *table.notes)
    return replace(table, name=f"{table.name}-quick", title=quick, notes=notes)
