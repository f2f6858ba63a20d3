"""``calibrant reproduce``: one of the paper's experiments; ``calibrant results``: records of runs, and a page of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from calibrant.cli.compare import GridDisplay, summarize
from calibrant.cli.terminal import says_how_to_go_on
from calibrant.cli.train import find_own_networks, merge_settings
from calibrant.data import DATASETS
from calibrant.grid.collect import find_runs, load_run_entry
from calibrant.grid.plan import Cell, split_names
from calibrant.grid.preflight import check_data, check_out, check_ready, check_unchanged, load_finished
from calibrant.grid.records import save_results
from calibrant.paper import estimate
from calibrant.paper.reproduce import Reproduction, plan_reproduction, run_reproduction
from calibrant.paper.results import write_results_page

# Seconds from which on it is said how to make it shorter.
_LONG = 3600


def reproduce(
    name: str,
    *,
    data: Sequence[str] | None,
    seeds: str | None,
    quick: bool,
    out: Path | None,
    jobs: int | None,
    settings: Sequence[str] | None,
    dry_run: bool,
    options: Mapping[str, object],
) -> None:
    """Say what an experiment takes, then run what is left of it and print its table; arguments as those of the command."""
    changes = merge_settings(options, settings or [])
    plan = plan_reproduction(name, data=split_names(data or []), seeds=seeds, quick=quick, settings=changes)
    folder = Path("reproduce", f"{name}-quick" if quick else name) if out is None else out
    check_out(folder)
    load_finished(plan.cells(), folder / "runs")
    left = plan.left(folder)
    find_own_networks([cell.recipe for cell in left])
    check_unchanged(plan.cells(), folder / "runs")
    missing = _missing_data(left, dry_run=dry_run)
    _say_plan(plan, folder, len(left))
    if missing:
        print(missing)
    if left:
        _say_forecast(plan, left, jobs)
    if not dry_run:
        with says_how_to_go_on(), GridDisplay() as display:
            found = run_reproduction(plan, out=folder, jobs=jobs, watch=display.watch)
        summarize(found)


def _missing_data(left: Sequence[Cell], *, dry_run: bool) -> str:
    """What is to be said of data that are not there; raises where nothing could be run or, without them, be timed."""
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
    networks = ", ".join(dict.fromkeys(cell.recipe.backbone.name for cell in cells))
    size = f"{len(plan.data)} x {len(plan.methods)} x {len(plan.seeds)} = {sum(cell.shown for cell in cells)}"
    trained = sum(cell.base is None for cell in cells)
    print(f"{plan.name}: {plan.title}{' (quick version)' if plan.quick else ''}")
    print(f"  data     {', '.join(plan.data)}")
    print(f"  methods  {', '.join(plan.methods)}")
    print(f"  seeds    {', '.join(map(str, plan.seeds))}")
    print(f"  network  {networks}, {first.train.epochs} epochs, preset {first.method.preset}")
    print(f"  runs     {size}, of which {trained} are trained; {left} are left in {folder}")


def _say_forecast(plan: Reproduction, left: Sequence[Cell], jobs: int | None) -> None:
    found = estimate.forecast(
        left, jobs=jobs, report=lambda kind: print(f"calibrant: timing a few steps: {kind}", file=sys.stderr)
    )
    for speed in found.speeds:
        print(f"  {speed.name}: {speed.train:,.0f} images/s, {write_time(speed.seconds)} a run, {speed.runs} left")
    beside = f", {found.at_once} at a time" if found.at_once > 1 else ""
    print(f"  time     {write_time(found.low)} to {write_time(found.high)} on {found.device}{beside}", flush=True)
    if found.high > _LONG:
        ways = {
            "`--quick`": not plan.quick,
            "`--data NAME`": len(plan.data) > 1,
            "`--seeds 1`": len(plan.seeds) > 1,
            "`--set backbone.name=convnet`": not {cell.recipe.backbone.name for cell in plan.cells()} <= {"convnet", "mlp"},
        }
        shorter = ", ".join(way for way, helps in ways.items() if helps)
        print(f"  shorter  with {shorter + ' or ' if shorter else ''}`--set train.epochs=N`", flush=True)


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


def add_results(runs: Sequence[Path], *, to: Path, note: str | None) -> None:
    """Keep what was measured of finished runs as records in the folder ``to``, and print their names."""
    found = {path: find_runs(path) for path in runs}
    for path, there in found.items():
        if not there.finished:
            got = f"{len(there.unfinished)} not finished" if there.unfinished else "none" if path.exists() else "nothing there"
            got = "a file" if path.is_file() else got
            raise ValueError(f"{path}: must hold finished runs, got {got}. Name a folder that was `--out` of train or compare.")
    folders = dict.fromkeys(folder for there in found.values() for folder in there.finished)
    for file in save_results([load_run_entry(folder) for folder in folders], to, note=note):
        print(file)


def render_results(folder: Path, *, out: Path, figures: Path | None) -> None:
    """Make one page of all records in a folder, and print what was written."""
    for file in write_results_page(folder, out=out, figures=figures):
        print(file)
