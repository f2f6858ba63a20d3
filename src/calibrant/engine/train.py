"""`train`: a recipe in, a trained network and, where asked for, a run folder out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from calibrant.engine.distributed import ALONE_GROUP, Group, joined_group
from calibrant.engine.folder import RunFolder, is_finished, load_run, read_facts
from calibrant.engine.loop import EpochRecord, Tick
from calibrant.engine.methods import split_name
from calibrant.engine.recipe import Recipe, load_recipe, recipe_of
from calibrant.engine.resolve import resolved
from calibrant.engine.result import Run
from calibrant.engine.run import Report, run_recipe
from calibrant.engine.same_data import check_data_now
from calibrant.engine.scaling import with_temperature
from calibrant.engine.shift import evaluate_shift, save_shift


def train(
    recipe: Recipe | Mapping[str, object] | str | Path,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    report: Report | None = None,
    tick: Tick | None = None,
) -> Run:
    """Train a classifier by a recipe.

    The run folder holds the resolved recipe, versions, the history of all epochs, TensorBoard events, the best epoch's weights,
    validation and test predictions and what was measured of the latter. Every file is complete or absent at any moment, so a
    run killed at any moment can go on. Under ``torchrun`` all processes call this function; the first one writes.

    Args:
        recipe: What to run: a `Recipe`, nested plain data, or the path of a TOML file.
        out: Run folder; None writes nothing.
        resume: Go on with the run in ``out`` if there is one; a finished one is read and returned (and evaluated under shift,
            if that is asked for only now). Data named by a path must still be those that it was trained on.
        report: Called with every epoch's record, in the first process.
        tick: Called after every step with the epoch, its steps done and all its steps, in the first process.

    Returns:
        The run, its model at the best epoch. Raises ``ValueError`` or ``OSError`` with one sentence if the recipe cannot be
        run or the folder not be written to.

    Example:
        >>> parts = {"data": "mixture", "backbone": "mlp", "method": "ce"}
        >>> recipe = {key: {"name": name} for key, name in parts.items()} | {"train": {"epochs": 2}}
        >>> run = train(recipe)
        >>> len(run.history), len(run.test)
        (2, 4000)
    """
    if isinstance(recipe, (str, Path)):
        recipe = load_recipe(recipe)
    elif not isinstance(recipe, Recipe):
        recipe = recipe_of(recipe)
    recipe = resolved(recipe)
    with joined_group(recipe.train.device) as group:
        if not group.leads:
            report = tick = None
        if out is None:
            return _completed(run_recipe(recipe, report=report, tick=tick, group=group), group)
        return _train_in_folder(recipe, Path(out), group, resume=resume, report=report, tick=tick)


def _train_in_folder(recipe: Recipe, out: Path, group: Group, *, resume: bool, report: Report | None, tick: Tick | None) -> Run:
    folder: RunFolder | None = None

    def begin() -> None:
        nonlocal folder
        folder = RunFolder(out, recipe, resume=resume)

    group.by_first(begin)

    def write(record: EpochRecord) -> None:
        if folder is not None:
            folder.epoch(record)
        if report is not None:
            report(record)

    try:
        if group.share(is_finished(out)):
            return group.by_first(lambda: _finished(recipe, out))
        run = run_recipe(
            recipe,
            checkpoint=out / "state.pt",
            resume=resume,
            report=write,
            begin=None if folder is None else folder.begin,
            tick=tick,
            group=group,
        )
        run = _completed(run, group)
        return run if folder is None else folder.finish(run)
    except (ValueError, FloatingPointError):
        if folder is not None:
            folder.abandon()
        raise
    finally:
        if folder is not None:
            folder.close()


def scale_run(base: str | Path, *, out: str | Path, resume: bool = False) -> Run:
    """Make the run of a method with ``+ts`` from a finished run of the method without, and write it to a folder of its own.

    Args:
        base: Folder of the finished run.
        out: Folder of the new run; what `train` would write for the method with ``+ts``.
        resume: Read and return a finished run that is there.

    Returns:
        The run after temperature scaling. Raises ``ValueError`` if ``base`` holds no finished run.
    """
    found = load_run(base)
    scaled = with_temperature(found)
    folder = RunFolder(out, scaled.recipe, resume=resume)
    try:
        if is_finished(out):
            return load_run(out)
        run = _with_shift(scaled)
        folder.begin_from(found)
        return folder.finish(run)
    finally:
        folder.close()


def _completed(run: Run, group: Group) -> Run:
    """What is done once with a trained network: temperature scaling and evaluation under shift, where the recipe asks."""
    return _with_shift(with_temperature(run) if split_name(run.recipe.method.name)[1] else run, group)


def _with_shift(run: Run, group: Group = ALONE_GROUP) -> Run:
    return replace(run, shift=evaluate_shift(run, group=group)) if run.recipe.data.shift else run


def _finished(recipe: Recipe, out: Path) -> Run:
    """Read a finished run; what it was not asked for at the time is added to its folder."""
    run = load_run(out)
    check_data_now(read_facts(out), recipe.data, where=str(out))
    if recipe.data.shift and not run.shift:
        # The recipe at hand says where the data lie and what to compute on; else the two are the same.
        run = _with_shift(replace(run, recipe=recipe))
        save_shift(out / "shift.json", run.shift)
    return run
