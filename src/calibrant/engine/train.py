"""`train`: a recipe in, a trained network and, where asked for, a run folder out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from calibrant.core.records import Predictions, Split
from calibrant.core.scores import Scores
from calibrant.data.shift import CORRUPTIONS, SEVERITIES, corrupt
from calibrant.engine.folder import RunFolder, is_finished, load_run, read_facts, restore_state, save_checkpoint, save_shift
from calibrant.engine.hardware import ALONE_GROUP, Group, choose_hardware, joined_group
from calibrant.engine.loop import Assembly, Tick, assemble, check_same_data, load_data, run_epoch, validate
from calibrant.engine.methods import resolved, split_name
from calibrant.engine.network import Shape
from calibrant.engine.recipe import Recipe, load_recipe, recipe_of
from calibrant.engine.result import (
    Alternative,
    BestEpoch,
    Candidate,
    EpochRecord,
    EvalSet,
    Run,
    copy_state,
    epoch_scores,
)
from calibrant.meta.network import own_randomness

Report = Callable[[EpochRecord], None]


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
    wanted = resolved(recipe if isinstance(recipe, Recipe) else recipe_of(recipe))
    with joined_group(wanted.train.device) as group, ExitStack() as stack:
        folder: RunFolder | None = None
        if out is not None:
            path, opened = Path(out), []
            group.by_first(lambda: opened.append(stack.enter_context(RunFolder(path, wanted, resume=resume))))
            finished = group.by_first(lambda: _finished(wanted, path) if is_finished(path) else None)
            if finished is not None:
                return finished
            folder = opened[0] if opened else None
        run = _train(wanted, group, folder, report=report, tick=tick)
        if split_name(wanted.method.name)[1]:
            run = with_temperature(run)
        run = _with_shift(run, group)
        return run if folder is None else folder.finish(run)


def _with_shift(run: Run, group: Group = ALONE_GROUP) -> Run:
    return replace(run, shift=evaluate_shift(run, group=group)) if run.recipe.data.shift else run


def _finished(recipe: Recipe, out: Path) -> Run:
    """Read a finished run; what it was not asked for at the time is added to its folder."""
    run = load_run(out)
    check_same_data(read_facts(out), recipe.data, where=str(out))
    if recipe.data.shift and not run.shift:
        # The recipe at hand says where the data lie and what to compute on; else the two are the same.
        run = _with_shift(replace(run, recipe=recipe))
        save_shift(out, run.shift)
    return run


def with_temperature(run: Run) -> Run:
    """Return a run as that of its method with ``+ts``: predictions after temperature scaling, fitted on its validation part.

    Weights and history stay. It lies in no folder yet.
    """
    from calibrant.calibrators.temperature import TemperatureScaling

    if run.temperature is not None:
        return run
    temperature = float(TemperatureScaling().fit(run.val).temperature_)
    name = split_name(run.recipe.method.name)[0]
    recipe = replace(run.recipe, method=replace(run.recipe.method, name=f"{name}+ts"))
    val, test = (part.replace(logits=part.logits / temperature) for part in (run.val, run.test))
    return replace(run, recipe=recipe, val=val, test=test, temperature=temperature, folder=None, shift={})


def scale_run(base: str | Path, *, out: str | Path, resume: bool = False) -> Run:
    """Make the run of a method with ``+ts`` from the folder ``base`` of a finished run without, and write it to ``out``.

    ``resume`` reads and returns a finished run that is there.
    """
    found = load_run(base)
    scaled = with_temperature(found)
    with RunFolder(Path(out), scaled.recipe, resume=resume) as folder:
        if is_finished(out):
            return load_run(out)
        run = _with_shift(scaled)
        folder.write_beginning(read_facts(Path(base)) | {"base": str(base), "finished": None}, found.history)
        return folder.finish(run)


def _train(recipe: Recipe, group: Group, folder: RunFolder | None, *, report: Report | None, tick: Tick | None) -> Run:
    assembly = assemble(recipe, group=group)
    hardware, epochs = assembly.hardware, recipe.train.epochs
    choices = _choices(recipe, n_val=len(assembly.data.val))
    history: list[EpochRecord] = []
    found = group.by_first(lambda: None if folder is None else folder.load_checkpoint(assembly))
    if found is not None:
        restore_state(assembly.state(), found["state"])
        kept = {"best": found["best"]} | found.get("alternatives", {})
        if choices.keys() - kept.keys():
            raise ValueError(
                "train: `train.alternatives` must be set from the start, got a run begun without. Use another folder."
            )
        for name, choice in choices.items():
            choice.restore(kept[name])
        history = [EpochRecord(**record) for record in found["history"]]
    if folder is not None:
        folder.begin(assembly, history)
    saved = time.monotonic()
    started = saved - (history[-1].seconds or 0.0 if history else 0.0)
    # The caller's global generators, which dropout draws from, stay as they were.
    with hardware.active(), own_randomness(hardware.device):
        for epoch in range(len(history), epochs):
            _seed_epoch(recipe.seed, epoch, group)
            record = run_epoch(assembly, epoch, started=started, tick=tick if group.rank == 0 else None)
            history.append(record)
            _offer(assembly, record, choices)
            if folder is not None:
                if epoch + 1 == epochs or time.monotonic() - saved >= recipe.train.checkpoint_every_seconds:
                    records = [dict(vars(record)) for record in history]
                    kept = {name: choice.state() for name, choice in choices.items()}
                    state = {"state": copy_state(assembly.state()), "best": kept.pop("best"), "alternatives": kept}
                    save_checkpoint(state | {"history": records}, folder.path / "state.pt")
                    saved = time.monotonic()
                folder.epoch(record)
            if report is not None and group.rank == 0:
                report(record)
        return _finish(assembly, choices, tuple(history))


def _seed_epoch(seed: int, epoch: int, group: Group) -> None:
    """Seed what layers draw from the global generators by epoch, so that a resumed run draws the same."""
    torch.manual_seed(((seed * 1_000_003 + epoch) * 65_537 + group.rank) % 2**63)


def _choices(recipe: Recipe, *, n_val: int) -> dict[str, BestEpoch]:
    """The best epoch of a run and, where asked for, that of other rules and weights, by name."""
    train = recipe.train
    kinds = () if not train.alternatives else ("raw",) if train.average == "no" else ("raw", "averaged")
    # The run's own comes last, so that the network ends with its weights.
    rules = {f"{kind}-{rule}": rule for kind in kinds for rule in ("error", "error+nll")} | {"best": train.select}
    return {name: BestEpoch(rule, n_val=n_val, within=train.select_within) for name, rule in rules.items()}


def _offer(assembly: Assembly, record: EpochRecord, choices: Mapping[str, BestEpoch]) -> None:
    """Offer an epoch to every choice; those that keep it share a copy of its weights."""
    raw, average = record, assembly.averages.get("average")
    if len(choices) > 1 and average is not None and record.val_error is not None:
        scores = epoch_scores(validate(assembly, record.epoch), assembly.val.labels)
        raw = replace(record, val_error=scores["error"], val_nll=scores["nll"], val_ece=scores["ece"])

    @cache
    def copied(averaged: bool) -> dict[str, Tensor]:
        return copy_state(_weights(assembly, averaged=averaged))

    for name, choice in choices.items():
        averaged = average is not None and not name.startswith("raw")
        choice.offer(record if averaged else raw, partial(copied, averaged))


def _weights(assembly: Assembly, *, averaged: bool = False) -> dict[str, Tensor]:
    """What a best epoch keeps: the network, or the average of its weights, and the hyper-parameters that belong to it."""
    state, average = assembly.state(), assembly.averages.get("average")
    found = {name: value for name, value in state.items() if name.startswith(("model.", "objective.hyper."))}
    if averaged and average is not None:
        found |= {f"model.{name}": mean for name, mean in average.means.items()}
    return found


def _finish(assembly: Assembly, choices: Mapping[str, BestEpoch], history: tuple[EpochRecord, ...]) -> Run:
    found = {name: _predict(assembly, choice.best) for name, choice in choices.items()}
    best, weights, model = found.pop("best"), choices["best"].best.weights, assembly.model
    hyper = {name.removeprefix("objective.hyper."): v.cpu() for name, v in weights.items() if "objective.hyper." in name}
    return Run(
        recipe=assembly.recipe,
        history=history,
        best_epoch=best.epoch,
        val=best.val,
        test=best.test,
        hyper=hyper,
        network=lambda: model,
        inputs=Shape(*(getattr(assembly.data.train, name) for name in Shape._fields)),
        alternatives=found,
    )


def _predict(assembly: Assembly, chosen: Candidate) -> Alternative:
    restore_state(_weights(assembly), chosen.weights)
    predict = partial(EvalSet.predict, model=assembly.model, forward=assembly.eval_forward, gamma=assembly.objective.gamma)
    return Alternative(chosen.epoch, predict(assembly.val, split=Split.VAL), predict(assembly.test, split=Split.TEST))


def evaluate_shift(run: Run, *, group: Group = ALONE_GROUP) -> dict[str, Scores]:
    """Measure a finished run on the test set corrupted in every way, at every severity.

    Args:
        run: A finished run, for instance ``load_run(folder)``. Its recipe says where the data lie and where to compute.
        group: Processes that share the work.

    Returns:
        ``"gaussian_noise-1"`` … ``"contrast-5"`` → what `calibrant.measure` says of the predictions, after temperature scaling
        where the run has it. Raises ``ValueError`` if the test labels are no longer those of the run.

    Example:
        >>> parts = {"data": "mixture", "backbone": "mlp", "method": "ce"}
        >>> run = train({key: {"name": name} for key, name in parts.items()} | {"train": {"epochs": 2, "device": "cpu"}})
        >>> scores = evaluate_shift(run)
        >>> len(scores), scores["contrast-5"]["error"].value > scores["contrast-1"]["error"].value
        (15, True)
    """
    from calibrant.metrics.measure import measure

    test = load_data(run.recipe.data).test
    if not torch.equal(test.labels, run.test.labels):
        raise ValueError(
            f"evaluate_shift: `data` must be what the run was tested on, got other test labels in {run.recipe.data.name}. "
            "Put the old data back."
        )
    hardware = choose_hardware(device=run.recipe.train.device, precision=run.recipe.train.precision, group=group)
    found = {}
    for kind, severity in product(CORRUPTIONS, SEVERITIES):
        worse = replace(test, images=corrupt(test.images, kind=kind, severity=severity), posterior=None)
        logits = run.logits_of(worse, hardware)
        predictions = Predictions(logits=logits, labels=test.labels, split=Split.TEST, class_names=test.class_names)
        # Fewer resamples than usual, as there are many sets.
        found[f"{kind}-{severity}"] = measure(predictions, n_resamples=200)
    return found
