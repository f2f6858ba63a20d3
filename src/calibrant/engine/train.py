"""`train`: a recipe in, a trained network and, if wanted, a run folder out.

First comes everything that a run needs, with its step; then the loop over an epoch: step, evaluate, record. A step runs the
same lines eagerly on any device and, captured once, as a CUDA graph; nothing in it waits for the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

from calibrant.core.records import Predictions, Scores, Split
from calibrant.data.image_set import DataSet, fingerprint, split_indices
from calibrant.data.synthetic import CORRUPTIONS, SEVERITIES, corrupt
from calibrant.engine.batches import RunData, TrainBatches, check_same_data, load_data
from calibrant.engine.methods import learns, make_plan, resolved, split_name
from calibrant.engine.recipe import DataPart, Recipe, check_recipe, load_recipe, recipe_of
from calibrant.engine.run import (
    Alternative,
    BestEpoch,
    Candidate,
    EpochRecord,
    EvalSet,
    Run,
    RunFolder,
    copy_state,
    epoch_scores,
    is_finished,
    load_run,
    read_facts,
    restore_state,
    save_checkpoint,
    save_shift,
)
from calibrant.engine.setup import (
    ALONE_GROUP,
    FeatureFunction,
    Group,
    InputShape,
    build_averages,
    build_network,
    build_optimizer,
    choose_hardware,
    drops,
    feature_function,
    joined_group,
    learning_rate,
)
from calibrant.meta.step import gathering_norms, meta_mode, own_randomness, set_learning_rate

# Called with the record of every epoch.
Report = Callable[[EpochRecord], None]
# Called with the epoch, how many of its steps are done, and how many it has.
Tick = Callable[[int, int, int], None]
# Examples for new BatchNorm statistics: enough for their noise not to show in error and ECE.
_STATISTICS_EXAMPLES = 2560


def divide(data: DataSet, recipe: Recipe) -> RunData:
    """Split a data set as a recipe says; the test set is never divided. Only the training part is cropped and mirrored."""
    part, whole = recipe.data, data.train
    train, val, meta = (whole.pick(rows) for rows in divide_rows(len(whole), recipe))
    pad, flip = whole.pad if part.pad is None else part.pad, whole.flip if part.flip is None else part.flip
    train = replace(train, pad=pad if part.augment else 0, flip=flip and part.augment)
    return RunData(train, val, meta if len(meta) else None, data.test)


def divide_rows(n: int, recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """Return which of ``n`` images are for training, validation and meta steps; raise ``ValueError`` if there are too few.

    The published protocol holds out a tenth for methods that learn; by default these learn on the validation part.
    """
    part, apart = recipe.data, learns(recipe) and recipe.method.preset == "paper"
    val = n // 10 if part.val is None else part.val
    meta = (n // 10 if apart else 0) if part.meta is None else part.meta
    return split_indices(n, val=val, meta=meta, seed=recipe.seed)


def fits_on_device(data: RunData, part: DataPart, *, device: torch.device) -> bool:
    """Whether the images of a run are kept on the device.

    They may take a third of the free memory, or a half with padding; the network and its activations need the rest.
    """
    if part.place != "auto" or device.type != "cuda":
        return part.place != "host"
    parts = (data.train, data.val, data.test, *([] if data.meta is None else [data.meta]))
    free, _ = torch.cuda.mem_get_info(device)
    return sum(part.images.numel() for part in parts) <= free // 3


class Assembly:
    """A run ready to start: everything that its steps read and change, and the steps themselves."""

    def __init__(self, recipe: Recipe, *, group: Group = ALONE_GROUP) -> None:
        """Build everything that a recipe describes; raise ``ValueError`` or ``OSError`` if something cannot be built."""
        self.recipe = recipe = resolved(recipe)
        check_recipe(recipe)
        train = recipe.train
        # This finds wrong options before the data are read; the second plan knows the size of the training part.
        make_plan(recipe)
        whole = load_data(recipe.data)
        self.data, self.fingerprint = divide(whole, recipe), fingerprint(whole)
        num_train = len(self.data.train)
        self.objective = make_plan(recipe, num_train=num_train)
        self.steps = train.epochs * (num_train // train.batch_size)
        compiled = train.compile if self.objective.compilable else "no"
        self.hardware = choose_hardware(
            device=train.device, precision=train.precision, compiled=compiled, graph=train.graph, steps=self.steps, group=group
        )
        self.model = build_network(recipe, self.data.train, self.hardware, uses_head=learns(recipe))
        with self.hardware.active():
            self._prepare()

    def _prepare(self) -> None:
        """Make batches, optimizer, averages and hyper-parameters, and capture the steps if the hardware does."""
        recipe, data, model, hardware, train = self.recipe, self.data, self.model, self.hardware, self.recipe.train
        resident = fits_on_device(data, recipe.data, device=hardware.device)
        self.batches = TrainBatches(data.train, hardware, batch_size=train.batch_size, seed=recipe.seed, resident=resident)
        self.val, self.test = (EvalSet(part, hardware, resident=resident) for part in (data.val, data.test))
        # Images → (features, logits); in evaluation never compiled.
        self.forward, self.eval_forward = self.compiled(model), feature_function(model)
        self.optimizer = build_optimizer(model.parameters(), recipe.optim)
        self.averages = build_averages(model, train, steps=self.steps, watched=self.objective.watched)
        self._average = torch.compile(self._follow_weights) if hardware.compiled else self._follow_weights
        self.objective.start(self)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=hardware.device)
        kinds = {False, self.objective.has_meta} if hardware.captured else ()
        self._replay = {
            kind: capture_step(partial(self.step, with_meta=kind), state=list(self.state().values())) for kind in sorted(kinds)
        }

    def compiled(self, model: nn.Module) -> FeatureFunction:
        """Images → (features, logits) of a network, compiled if the recipe says so."""
        plain = feature_function(model)
        return torch.compile(plain) if self.hardware.compiled else plain

    def step(self, *, with_meta: bool) -> None:
        """Take one step on the next batch."""
        self.optimizer.zero_grad(set_to_none=True)
        batch = self.batches.next()
        with self.hardware.autocast():
            features, logits = self.forward(self.objective.inputs(batch))
        if self.hardware.precision == "bf16":
            features, logits = features.float(), logits.float()
        loss = self.objective.loss(batch, features, logits, with_meta=with_meta)
        loss.backward()
        self.hardware.group.add_up([p.grad for p in self.parameters if p.grad is not None])
        if self.recipe.train.clip_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.recipe.train.clip_norm, foreach=True)
        self.optimizer.step()
        self._average()
        self.loss_sum += loss.detach()

    def _follow_weights(self) -> None:
        """Add the weights to every average; compiled, a single kernel reads them for all averages."""
        for average in self.averages.values():
            average.update()

    def take(self, *, with_meta: bool) -> None:
        """Take a step on the next batch, captured or not; with a meta step if ``with_meta`` and the method has any.

        One is due every ``objective.every`` steps. Images that are not on the device are sent there first.
        """
        with_meta = with_meta and self.objective.has_meta
        self.batches.feed()
        if with_meta:
            self.objective.feed()
        if with_meta in self._replay:
            self._replay[with_meta]()
        else:
            self.step(with_meta=with_meta)

    def state(self) -> dict[str, Tensor]:
        """Every tensor that steps change: weights, statistics, momentum, hyper-parameters, cursors; by name."""
        kept = {f"model.{name}": value for name, value in self.model.state_dict(keep_vars=False).items()}
        for name, value in self.model.named_parameters():
            entries = self.optimizer.state.get(value, {})
            kept |= {f"optimizer.{name}.{key}": entry for key, entry in entries.items() if isinstance(entry, Tensor)}
        parts = {"objective": self.objective.state(), "batches": self.batches.state()}
        parts |= {name: average.state() for name, average in self.averages.items()}
        kept |= {f"{name}.{key}": value for name, state in parts.items() for key, value in state.items()}
        return kept | {"loss_sum": self.loss_sum}


def capture_step(step: Callable[[], None], *, state: Sequence[Tensor]) -> Callable[[], None]:
    """Record ``step`` as a CUDA graph and return a function that replays it.

    Capturing needs a few ordinary runs first (lazy initialisation, autotuning, compilation). They change the ``state``, which
    is saved before and put back afterwards.
    """
    saved = [tensor.detach().clone() for tensor in state]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    with torch.no_grad():
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)
    torch.cuda.synchronize()
    return graph.replay


def run_epoch(assembly: Assembly, epoch: int, *, started: float, tick: Tick | None = None) -> EpochRecord:
    """Train for one epoch, evaluate if due, and return the record of the epoch.

    ``started`` is when the run began (`time.monotonic`). Raises ``FloatingPointError`` if the loss or the predictions are no
    longer finite.
    """
    objective, recipe, batches = assembly.objective, assembly.recipe, assembly.batches
    train, averages, group = recipe.train, assembly.averages.values(), assembly.hardware.group
    lr = learning_rate(recipe.optim, epoch, epochs=train.epochs)
    set_learning_rate(assembly.optimizer, lr)
    objective.begin_epoch(epoch)
    for average in averages:
        if average.by_phase and drops(recipe.optim, epoch, epochs=train.epochs):
            average.forget()
    steps = batches.begin_epoch(epoch, kept=objective.kept())
    assembly.loss_sum.zero_()
    begun = time.monotonic()
    for place in range(steps):
        try:
            assembly.take(with_meta=place % objective.every == 0)
        except ValueError as error:
            if epoch == place == 0:
                raise
            # A loss may be the first to notice, and refuse, what an earlier step has done to the network.
            raise _diverged(f"training broke down in epoch {epoch + 1} ({str(error).rstrip('.')})", recipe) from error
        if tick is not None:
            tick(epoch, place + 1, steps)
    if objective.has_meta:  # its loss is that of this process's examples
        group.add_up([assembly.loss_sum])
    total = float(assembly.loss_sum)  # waits for the device: the epoch is over
    examples = steps * batches.batch_size
    speed = examples / (time.monotonic() - begun)
    # BatchNorm that was not synchronised has seen other images in each process; all must predict with one network.
    seen = [buffer for buffer in assembly.model.buffers() if buffer.is_floating_point()]
    group.average(seen + [mean for average in averages for mean in average.buffer_means])
    loss = total / (examples if train.reduction == "sum" else steps)
    if not math.isfinite(loss):
        raise _diverged(f"the loss became {loss} in epoch {epoch + 1}", recipe)
    scores = _end_epoch(assembly, epoch)
    return EpochRecord(epoch, lr, loss, images_per_second=speed, seconds=time.monotonic() - started, **scores)


def _diverged(what: str, recipe: Recipe) -> FloatingPointError:
    """Return the error for a run that diverged; ``what`` counts epochs from 1, as all output does."""
    off = not recipe.train.clip_norm
    clip = "clip the gradient with `train.clip_norm`, which is 0 (off)" if off else "lower `train.clip_norm` too"
    return FloatingPointError(f"train: {what}. Lower `optim.lr`, or {clip}.")


def _end_epoch(assembly: Assembly, epoch: int) -> dict[str, float]:
    """End an epoch for the objective, and return its scores if an evaluation is due.

    If the objective learns from the validation part, it does so after every epoch: how often a run is evaluated does not
    change the training.
    """
    model, objective, forward, val = assembly.model, assembly.objective, assembly.eval_forward, assembly.val
    train, average = assembly.recipe.train, assembly.averages.get("average")
    due = (epoch + 1) % train.eval_every_epochs == 0 or epoch + 1 == train.epochs
    if not (due or objective.learns_from_val()):
        objective.end_epoch(None, val.labels)
        return {}
    if average is not None and average.by_phase and gathering_norms(model):
        with average.applied(keep=True):
            _pass_again(assembly, epoch)
        assembly.hardware.group.average(average.buffer_means)
    with nullcontext() if average is None else average.applied():
        logits = validate(assembly, epoch)
        objective.end_epoch(logits, val.labels)
        if not due:
            return {}
        test, gammas = assembly.test.run(model, forward, gamma=objective.gamma)
    scores = {f"val_{name}": value for name, value in epoch_scores(logits, val.labels).items()}
    scores |= {f"test_{name}": value for name, value in epoch_scores(test, assembly.test.labels).items()}
    if gammas is not None:
        scores |= {"gamma_mean": float(gammas.mean()), "gamma_std": float(gammas.std(correction=0))}
    return scores


def validate(assembly: Assembly, epoch: int) -> Tensor:
    """Return the validation logits of the network as it is."""
    logits, _ = assembly.val.run(assembly.model, assembly.eval_forward)
    # The last step may have broken the network, which no loss would show.
    if not bool(torch.isfinite(logits.amax(1)).all()):
        raise _diverged(f"the logits are no longer finite after epoch {epoch + 1}", assembly.recipe)
    return logits


@torch.no_grad()
def _pass_again(assembly: Assembly, epoch: int) -> None:
    """Pass the first batches of the epoch through the network again, only for BatchNorm's statistics."""
    batches, objective = assembly.batches, assembly.objective
    steps = batches.begin_epoch(epoch, kept=objective.kept())
    with meta_mode(assembly.model, "gather"), assembly.hardware.autocast():
        for _ in range(min(steps, -(-_STATISTICS_EXAMPLES // batches.batch_size))):
            batches.feed()
            assembly.eval_forward(objective.inputs(batches.next()))


def train(
    recipe: Recipe | Mapping[str, object] | str | Path,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    report: Report | None = None,
    tick: Tick | None = None,
) -> Run:
    """Train a classifier by a recipe.

    The run folder holds the resolved recipe, versions, the history of all epochs, TensorBoard events, the weights of the best
    epoch, validation and test predictions, and scores of the latter. At any moment every file is complete or absent, so a run
    that was killed can go on. Under ``torchrun`` all processes call this function; the first one writes.

    Args:
        recipe: What to run: a `Recipe`, nested plain data, or the path of a TOML file.
        out: Run folder; None writes nothing.
        resume: Continue the run in ``out`` if there is one. A finished one is read and returned (and evaluated under shift, if
            that is new). Data named by a path must not have changed.
        report: Called with the record of every epoch, in the first process.
        tick: Called after every step with the epoch, how many of its steps are done, and how many it has; in the first process.

    Returns:
        The run, with the model of its best epoch. Raises ``ValueError`` or ``OSError`` if the recipe cannot be run or the
        folder cannot be written to.

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
    """Read a finished run; add the evaluation under shift to its folder if that is new."""
    run = load_run(out)
    check_same_data(read_facts(out), recipe.data, where=str(out))
    if recipe.data.shift and not run.shift:
        # This recipe says where the data are and where to compute; otherwise the two are the same.
        run = _with_shift(replace(run, recipe=recipe))
        save_shift(out, run.shift)
    return run


def with_temperature(run: Run) -> Run:
    """Return the run of the same method with ``+ts``: with temperature scaling, fitted on the validation part.

    Weights and history stay the same. The new run has no folder yet.
    """
    from calibrant.calibrators import TemperatureScaling

    if run.temperature is not None:
        return run
    temperature = float(TemperatureScaling().fit(run.val).temperature_)
    name = split_name(run.recipe.method.name)[0]
    recipe = replace(run.recipe, method=replace(run.recipe.method, name=f"{name}+ts"))
    val, test = (part.replace(logits=part.logits / temperature) for part in (run.val, run.test))
    return replace(run, recipe=recipe, val=val, test=test, temperature=temperature, folder=None, shift={})


def scale_run(base: str | Path, *, out: str | Path, resume: bool = False) -> Run:
    """Make the run of a method with ``+ts`` from the folder ``base`` of a finished run without it, and write it to ``out``.

    With ``resume``, a finished run in ``out`` is read and returned.
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
    assembly = Assembly(recipe, group=group)
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
            choice.candidates = [Candidate(**held) for held in kept[name]]
        history = [EpochRecord(**record) for record in found["history"]]
    if folder is not None:
        folder.begin(assembly, history)
    saved = time.monotonic()
    started = saved - (history[-1].seconds or 0.0 if history else 0.0)
    # The global generators, which dropout draws from, stay as the caller had them.
    with hardware.active(), own_randomness(hardware.device):
        for epoch in range(len(history), epochs):
            # Seeded by epoch, so that the layers of a resumed run draw the same numbers.
            torch.manual_seed(((recipe.seed * 1_000_003 + epoch) * 65_537 + group.rank) % 2**63)
            record = run_epoch(assembly, epoch, started=started, tick=tick if group.rank == 0 else None)
            history.append(record)
            _offer(assembly, record, choices)
            if folder is not None:
                if epoch + 1 == epochs or time.monotonic() - saved >= recipe.train.checkpoint_every_seconds:
                    records = [dict(vars(record)) for record in history]
                    kept = {name: [held._asdict() for held in choice.candidates] for name, choice in choices.items()}
                    state = {"state": copy_state(assembly.state()), "best": kept.pop("best"), "alternatives": kept}
                    save_checkpoint(state | {"history": records}, folder.path / "state.pt")
                    saved = time.monotonic()
                folder.epoch(record)
            if report is not None and group.rank == 0:
                report(record)
        return _finish(assembly, choices, tuple(history))


def _choices(recipe: Recipe, *, n_val: int) -> dict[str, BestEpoch]:
    """Return the choice of the best epoch and, with `train.alternatives`, by other rules and weights, by name."""
    train = recipe.train
    kinds = () if not train.alternatives else ("raw",) if train.average == "no" else ("raw", "averaged")
    # The run's own choice is last, so that the network ends up with its weights.
    rules = {f"{kind}-{rule}": rule for kind in kinds for rule in ("error", "error+nll")} | {"best": train.select}
    return {name: BestEpoch(rule, n_val=n_val, within=train.select_within) for name, rule in rules.items()}


def _offer(assembly: Assembly, record: EpochRecord, choices: Mapping[str, BestEpoch]) -> None:
    """Offer an epoch to every choice; those that keep it share one copy of its weights."""
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
    """Return what is kept of a best epoch: the network, or the average of its weights, and its hyper-parameters."""
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
        inputs=InputShape(*(getattr(assembly.data.train, name) for name in InputShape._fields)),
        alternatives=found,
    )


def _predict(assembly: Assembly, chosen: Candidate) -> Alternative:
    restore_state(_weights(assembly), chosen.weights)
    predict = partial(EvalSet.predict, model=assembly.model, forward=assembly.eval_forward, gamma=assembly.objective.gamma)
    return Alternative(chosen.epoch, predict(assembly.val, split=Split.VAL), predict(assembly.test, split=Split.TEST))


def evaluate_shift(run: Run, *, group: Group = ALONE_GROUP) -> dict[str, Scores]:
    """Measure a finished run on the test set corrupted in every way, at every severity.

    Returns ``"gaussian_noise-1"`` … ``"contrast-5"`` → scores of the predictions, after temperature scaling if the run has it.
    Its recipe says where the data are and where to compute.
    """
    from calibrant.metrics.measure import measure

    test = load_data(run.recipe.data).test
    hardware = choose_hardware(device=run.recipe.train.device, precision=run.recipe.train.precision, group=group)
    found = {}
    for kind, severity in product(CORRUPTIONS, SEVERITIES):
        worse = replace(test, images=corrupt(test.images, kind=kind, severity=severity), posterior=None)
        logits = run.logits_of(worse, hardware)
        predictions = Predictions(logits=logits, labels=test.labels, split=Split.TEST, class_names=test.class_names)
        # Fewer resamples than usual, as there are many sets.
        found[f"{kind}-{severity}"] = measure(predictions, n_resamples=200)
    return found
