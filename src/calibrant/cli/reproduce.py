"""``calibrant reproduce``: one of the paper's experiments in, a forecast, then its runs, table, figures and report out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from calibrant.grid.plan import Cell
    from calibrant.paper.reproduce import Reproduction

# Seconds from which on it is said how to make it shorter.
_LONG = 3600


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="table1, table2, table3, table4, table5 or figures.")],
    data: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Data sets, in place of the paper's.")] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N", help="How many seeds, or which: 0,3,7 (5; quick 3; figures 1).")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small network, few epochs, embedded data; labelled so.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where everything goes (reproduce/NAME).")] = None,
    preset: Annotated[str, typer.Option(metavar="NAME", help="default (works best) or paper (most literal).")] = "default",
    jobs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Runs at a time (cores, or what fits on GPUs).")] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:1.")] = None,
    data_root: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the data sets lie.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe, as train.epochs=20.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be run and how long it takes; run nothing.")
    ] = False,
) -> None:
    """Make one of the paper's tables, or its figures, with your own runs.

    Says beforehand how long that takes on this machine. Finished runs are not repeated, so the same command goes on where it
    stopped; the report has the paper's numbers below ours.
    """
    from calibrant.cli.train import merge_settings
    from calibrant.grid.plan import split_names
    from calibrant.grid.preflight import check_out, check_unchanged, load_finished
    from calibrant.paper.reproduce import plan_reproduction

    keys = {"train.device": device, "data.root": None if data_root is None else str(data_root)}
    changes = merge_settings(keys, settings or [])
    plan = plan_reproduction(name, data=split_names(data or []), seeds=seeds, quick=quick, preset=preset, settings=changes)
    folder = Path("reproduce", f"{name}-quick" if quick else name) if out is None else out
    check_out(folder)
    load_finished(plan.cells(), folder / "runs")
    left = plan.left(folder)
    if any(":" in cell.recipe.backbone.name for cell in left) and "" not in sys.path:
        # A factory of one's own is looked for where the command is called, here as in the runs.
        sys.path.insert(0, "")
    check_unchanged(plan.cells(), folder / "runs")
    missing = _missing_data(left, dry_run=dry_run)
    _say_plan(plan, folder, len(left))
    if missing:
        print(missing)
    if left:
        _say_forecast(plan, folder, jobs)
    if not dry_run:
        _run(plan, folder, jobs)


def _missing_data(left: Sequence[Cell], *, dry_run: bool) -> str:
    """What is to be said of data that are not there; raises where nothing could be run or, without them, be timed."""
    from calibrant.data import DATASETS
    from calibrant.grid.preflight import check_data, check_ready

    # Of published sets the sizes are known; anything else is a path, or misspelt.
    others = [cell for cell in left if (name := cell.recipe.data.name) not in DATASETS or DATASETS[name].embedded]
    check_data(others)
    check_ready(others)
    try:
        check_data(left)
    except (OSError, ValueError) as error:
        if not dry_run:
            raise
        return " ".join(str(error).split())
    return ""


def _say_plan(plan: Reproduction, folder: Path, left: int) -> None:
    cells = plan.cells()
    first = cells[0].recipe
    size = f"{len(plan.data)} x {len(plan.methods)} x {len(plan.seeds)}"
    print(f"{plan.name}: {plan.title}{' (quick version)' if plan.quick else ''}")
    print(f"  data     {', '.join(plan.data)}")
    print(f"  methods  {', '.join(plan.methods)}")
    print(f"  seeds    {', '.join(map(str, plan.seeds))}")
    networks = ", ".join(dict.fromkeys(cell.recipe.backbone.name for cell in cells))
    print(f"  network  {networks}, {first.train.epochs} epochs, preset {first.method.preset}")
    trained = sum(cell.base is None for cell in cells)
    print(
        f"  runs     {size} = {sum(cell.shown for cell in cells)}, of which {trained} are trained; {left} are left in {folder}"
    )


def _say_forecast(plan: Reproduction, folder: Path, jobs: int | None) -> None:
    from calibrant.paper.estimate import forecast

    def say(kind: str) -> None:
        print(f"calibrant: timing a few steps: {kind}", file=sys.stderr)

    found = forecast(plan.left(folder), jobs=jobs, report=say)
    for speed in found.speeds:
        print(f"  {speed.name}: {speed.train:,.0f} images/s, {write_time(speed.seconds)} a run, {speed.runs} left")
    beside = f", {found.at_once} at a time" if found.at_once > 1 else ""
    print(f"  time     {write_time(found.low)} to {write_time(found.high)} on {found.device}{beside}", flush=True)
    if found.high > _LONG:
        networks = {cell.recipe.backbone.name for cell in plan.cells()}
        smaller = [] if networks <= {"convnet", "mlp"} else ["`--set backbone.name=convnet`"]
        fewer = [option for option, values in (("`--data NAME`", plan.data), ("`--seeds 1`", plan.seeds)) if len(values) > 1]
        less = [*([] if plan.quick else ["`--quick`"]), *fewer, *smaller, "`--set train.epochs=N`"]
        print(f"  shorter  with {' or '.join([', '.join(less[:-1]), less[-1]] if less[1:] else less)}", flush=True)


def _run(plan: Reproduction, folder: Path, jobs: int | None) -> None:
    from calibrant.cli.compare import summarize
    from calibrant.cli.grid_display import GridDisplay
    from calibrant.cli.terminal import says_how_to_go_on
    from calibrant.paper.reproduce import run_reproduction

    with says_how_to_go_on(), GridDisplay() as display:
        found = run_reproduction(plan, out=folder, jobs=jobs, watch=display.watch)
    summarize(found)
    if found.failures:
        raise typer.Exit(1)


def write_time(seconds: float) -> str:
    """A duration in the unit that suits it.

    Example:
        >>> write_time(42), write_time(600), write_time(9000), write_time(400_000), write_time(3e8)
        ('42 s', '10 min', '2.5 h', '4.6 days', '9.5 years')
    """
    units = (("years", 31_557_600, 63_115_200, 1), ("days", 86_400, 172_800, 1), ("h", 3600, 5400, 1), ("min", 60, 100, 0))
    for unit, size, least, digits in units:
        if seconds >= least:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"
