"""``calibrant repair``: fit on one file, repair another, and show what that changed."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from calibrant.calibrators import CALIBRATORS, AutoCalibrator, Calibrator, Identity, Ranked, Repaired
from calibrant.calibrators.auto import calibrator_of, measure_repair
from calibrant.calibrators.fit_data import check_same_classes, refuse_test_split
from calibrant.cli.measure import Request, comparison_table, paired_table, parts_table, predictions_in, tests_to_dict
from calibrant.cli.terminal import Row, Terminal, check_destination, duration_words, fit_table, say, show_heading, show_prose
from calibrant.core.records import Predictions
from calibrant.core.scores import Estimate
from calibrant.io import rewrite_predictions, save_predictions
from calibrant.io.files import atomic_writer
from calibrant.io.predictions import FORMATS
from calibrant.metrics import METRICS
from calibrant.metrics.verdict import tell_effect, verdict, worst_slice, write_estimate

# Seconds between two lines about progress where standard error is no terminal.
_SILENT_SECONDS = 10.0


def repair_file(
    fit: Path, file: Path, *, out: Path, method: str, calibrator: Path | None, floor: float | None, as_json: bool, **how: Any
) -> None:
    """Fit on ``fit``, repair ``file``, write the repaired predictions and print what changed; ``how`` as in `Request`.

    With ``as_json`` one object is printed: ``method``, ``chosen``, ``learned`` (without what is large), ``before`` and
    ``after`` as in ``calibrant measure --json``, ``paired`` (after minus before) and, for several methods, ``ranking``.
    """
    CALIBRATORS[method]  # a wrong name is told before anything is read
    check_destination(out, FORMATS)
    if calibrator is not None:
        check_destination(calibrator, (".json", ".onnx"))
    if out.resolve() in (fit.resolve(), file.resolve()):
        raise ValueError(f"{out}: the result must not replace the predictions it is made from. Give it another name.")
    request = Request(**how)
    fit_data, given = load_pair(fit, file, request)
    done = fit_and_measure(method, fit_data, given, request, floor=floor)
    done = replace(done, before=replace(done.before, file=str(file)), after=replace(done.after, file=str(out)))
    save_predictions(done.predictions, out)
    if calibrator is not None:
        save_calibrator(done.calibrator, calibrator)
    if as_json:
        say(_to_json(done, method))
    else:
        _show(done, f"fitted on {len(fit_data):,} examples of {fit.name}, applied to {len(given):,} of {file.name}")


def save_calibrator(calibrator: Calibrator, path: Path) -> None:
    """Write a fitted calibrator as JSON, or as an ONNX model from logits ``[N, C]`` to log-probabilities."""
    if path.suffix.lower() == ".json":
        calibrator.save(path)
        return
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise ImportError(f"{path}: must be .json where ONNX is not installed. `pip install 'calibrant[onnx]'`.") from None
    layer, example = calibrator.as_layer().eval(), torch.zeros(2, calibrator.num_classes_)
    with warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(
            *(layer, (example,)),
            input_names=["logits"],
            output_names=["log_probs"],
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    assert program is not None
    with atomic_writer(path) as handle:
        handle.write(program.model_proto.SerializeToString())


def apply_calibrator(calibrator: Path, file: Path, *, out: Path) -> None:
    """Write to ``out`` what a saved calibrator makes of the predictions in ``file``."""
    check_destination(out, FORMATS)
    fitted = Calibrator.load(calibrator)
    rewrite_predictions(predictions_in(file), out, fitted.apply)
    say(f"The calibrated predictions are in {out}.")


def load_pair(fit: Path, file: Path, request: Request) -> tuple[Predictions, Predictions]:
    """Read predictions to fit on and to repair; raise with one sentence if they do not go together."""
    fit_data, given = request.load(fit), request.load(file)
    refuse_test_split(fit_data, where=str(fit))
    check_same_classes(fit_data, given, what=f"{fit}:", of=str(file))
    return fit_data, given


def fit_and_measure(
    method: str, fit_data: Predictions, given: Predictions, request: Request, *, floor: float | None = None
) -> Repaired:
    """Fit ``method``, apply it, and measure before and after, with progress on standard error."""
    calibrator = calibrator_of(method)
    terminal = Terminal(stderr=True)
    start = told = time.monotonic()

    def tell(name: str, done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        left = f", about {duration_words((now - start) / done * (total - done))} left" if done else ""
        text = f"trying {name}, fit {done + 1} of {total} or fewer{left}"
        status.update(text)
        # A file or a pipe gets a line now and then.
        if not terminal.is_terminal and now - told > _SILENT_SECONDS:
            say(text, error=True)
            told = now

    with terminal.status("fitting") as status:
        if isinstance(calibrator, AutoCalibrator):
            calibrator.on_progress(tell)
        calibrator.fit(fit_data, floor=floor)
        status.update("measuring before and after")
        return measure_repair(calibrator, given, slice_by=request.slice_by, **request.bootstrap)


def _show(done: Repaired, data: str) -> None:
    console = Terminal()
    show_heading(console, "Repair", data)
    show_prose(console, done.advice, style="bold")
    if isinstance(done.calibrator, AutoCalibrator):
        auto = done.calibrator
        console.print()
        console.print(ranking_table(auto.ranking_, score=auto.scoring.upper(), width=console.width))
    is_same = isinstance(done.fitted, Identity)
    show_heading(console, "Unchanged" if is_same else "Before and after", "" if is_same else "best values in bold")
    sides = {"before": done.before} if is_same else {"before": done.before, "after": done.after}
    console.print(comparison_table(sides, width=console.width))
    for side, scores in sides.items():
        if scores.slices:
            show_heading(console, f"Groups {side}", worst_slice(scores))
            console.print(parts_table("Group", scores.slices, width=console.width, total=scores.weight))
    if not is_same:
        show_heading(console, "After minus before", "on the same examples, paired bootstrap")
        console.print(paired_table(done.paired, width=console.width))
    console.print()
    for side, scores in sides.items():
        show_prose(console, f"{side}: {verdict(scores)}")
    if not is_same:
        show_prose(console, f"The repair {tell_effect(done.before, done.after, done.paired, it='the ECE')}", style="bold")
    how = "as they were" if is_same else f"repaired by {done.fitted.label}"
    if done.calibrator.floor_:
        how += f", with probabilities of at least {done.calibrator.floor_:.3g}"
    console.print(f"\n{done.after.file} holds the predictions {how}.\n", soft_wrap=True)


def ranking_table(ranking: Sequence[Ranked], *, score: str, width: int) -> Table:
    """Methods by their held-out score, best first, how each changes that of doing nothing, and why it was chosen or not."""
    rows: list[Row] = []
    for entry in ranking:
        name = Identity.label if entry.name == "none" else entry.name
        style = "dim" if entry.failure else "bold green" if entry.note == "chosen" else ""
        found = "n/a" if entry.failure else f"{entry.score:.4f}"
        change = Estimate(-entry.gain, -entry.gain_high, -entry.gain_low)
        is_told = entry.name != "none" and not entry.failure
        told = write_estimate(change, METRICS["nll"], signed=True) if is_told else ("", "")
        ends = (Text(name, style=style), Text(found, style=style), Text(entry.note, style=style))
        rows.append([*ends[:2], told[0], Text(told[1], style="dim"), ends[2]])
    return fit_table(("Method", f"Held-out {score}", "Change", "95% interval", ""), rows, width=width, drop=(3, 4))


def _to_json(done: Repaired, method: str) -> str:
    data: dict[str, object] = {"method": method, "out": done.after.file, "chosen": method}
    if isinstance(done.calibrator, AutoCalibrator):
        learned = done.calibrator.to_dict()["learned"]
        assert isinstance(learned, dict)
        data |= {"ranking": learned["ranking"], "advice": learned["advice"], "chosen": done.calibrator.best_name_}
    learned_values = done.fitted.learned_values().items()
    data["learned"] = {name: value.tolist() for name, value in learned_values if value.numel() <= 100}
    data["preserves_accuracy"] = done.fitted.preserves_accuracy
    data["before"], data["after"] = (json.loads(scores.to_json()) for scores in (done.before, done.after))
    data["paired"] = tests_to_dict(done.paired)
    return json.dumps(data, indent=2, allow_nan=False)
