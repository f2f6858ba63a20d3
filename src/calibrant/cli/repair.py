"""``calibrant repair``: fit on one file, repair another, and show what that changed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrant.calibrators import AutoCalibrator, Calibrator, Identity, Ranked, Repaired
from calibrant.calibrators.fit_data import refuse_other_names, refuse_test_split
from calibrant.calibrators.repair import calibrator_of, measure_repair
from calibrant.cli.page import _heading, show_prose
from calibrant.cli.tables import comparison_table, paired_table
from calibrant.cli.terminal import Row, check_destination, fit_table, progress_bar
from calibrant.io import load_class_names, load_predictions, save_predictions
from calibrant.io.predictions import FORMATS
from calibrant.metrics.verdict import tell_effect, verdict


@dataclass(frozen=True)
class Options:
    """The options of the command, as typed."""

    method: str
    out: Path
    calibrator: Path | None
    as_json: bool
    n_bins: int
    resamples: int
    seed: int
    class_names: Path | None = None
    ignore_index: int | None = None


def repair_file(fit_path: Path, path: Path, options: Options) -> None:
    """Fit on ``fit_path``, repair ``path``, write the repaired predictions and print what changed.

    With ``--json`` one object is printed: ``method``, ``chosen``, ``learned`` (without what is large), ``before`` and
    ``after`` as in ``calibrant measure --json``, ``paired`` (after minus before) and, for several methods, ``ranking``.
    """
    calibrator = calibrator_of(options.method)
    _check_out(options, inputs=(fit_path, path))
    names = None if options.class_names is None else load_class_names(options.class_names)
    fit_data, given = (
        load_predictions(source, ignore_index=options.ignore_index, class_names=names) for source in (fit_path, path)
    )
    refuse_test_split(fit_data, where=str(fit_path))
    if fit_data.num_classes != given.num_classes:
        raise ValueError(f"{path}: must have the {fit_data.num_classes} classes of {fit_path}, got {given.num_classes}.")
    refuse_other_names(given, fit_data, what=f"{path}:", of=str(fit_path))
    with _progress(calibrator):
        calibrator.fit(fit_data)
    with progress_bar("measuring before and after", None):
        done = measure_repair(calibrator, given, n_bins=options.n_bins, n_resamples=options.resamples, seed=options.seed)
    done = replace(done, before=replace(done.before, file=str(path)), after=replace(done.after, file=str(options.out)))
    save_predictions(done.predictions, options.out)
    if options.calibrator is not None:
        calibrator.save(options.calibrator)
    if options.as_json:
        print(_to_json(done, options))
    else:
        _show(done, f"{len(fit_data):,} examples of {fit_path.name}, applied to {len(given):,} of {path.name}", options)


def _check_out(options: Options, *, inputs: tuple[Path, ...]) -> None:
    """Raise before a long fit if its result could not be written, or would replace what it is made from."""
    check_destination(options.out, FORMATS)
    if options.calibrator is not None:
        check_destination(options.calibrator, (".json",))
    for path in (options.out, options.calibrator):
        if path is not None and any(path.exists() and given.exists() and path.samefile(given) for given in inputs):
            raise ValueError(f"{path}: the result must not replace the predictions it is made from. Give it another name.")


@contextmanager
def _progress(calibrator: Calibrator) -> Iterator[None]:
    methods = calibrator.n_methods if isinstance(calibrator, AutoCalibrator) else None
    with progress_bar("fitting", methods) as advance:
        if isinstance(calibrator, AutoCalibrator):
            calibrator.on_progress(lambda name, done, total: advance(1))
        yield


def _show(done: Repaired, data: str, options: Options) -> None:
    console = Console(highlight=False)
    _heading(console, "Repair", f"fitted on {data}")
    show_prose(console, done.advice, style="bold")
    if isinstance(done.calibrator, AutoCalibrator):
        console.print()
        auto = done.calibrator
        console.print(ranking_table(auto.ranking_, auto.best_name_, score=auto.scoring.upper(), width=console.width))
    _heading(console, "Before and after", "best values in bold")
    console.print(comparison_table({"before": done.before, "after": done.after}, width=console.width))
    _heading(console, "After minus before", "on the same examples, paired bootstrap")
    console.print(paired_table(done.paired, width=console.width))
    console.print()
    show_prose(console, f"before: {verdict(done.before)}")
    show_prose(console, f"after: {verdict(done.after)}")
    if not isinstance(done.fitted, Identity):
        show_prose(console, f"The repair {tell_effect(done.before, done.after, done.paired, it='the ECE')}", style="bold")
    console.print(f"\nThe repaired predictions are in {options.out}.\n", soft_wrap=True)


def _to_json(done: Repaired, options: Options) -> str:
    calibrator, chosen = done.calibrator, options.method
    data: dict[str, object] = {"method": options.method, "out": str(options.out)}
    if isinstance(calibrator, AutoCalibrator):
        learned = calibrator.to_dict()["learned"]
        assert isinstance(learned, dict)
        data["ranking"], data["advice"] = learned["ranking"], learned["advice"]
        chosen, calibrator = calibrator.best_name_, calibrator.best_
    data["chosen"] = chosen
    data["learned"] = {name: value.tolist() for name, value in calibrator.learned_values().items() if value.numel() <= 100}
    data["preserves_accuracy"] = calibrator.preserves_accuracy
    data["before"], data["after"] = (json.loads(scores.to_json()) for scores in (done.before, done.after))
    data["paired"] = {
        key: {name: value if abs(value) < float("inf") else None for name, value in test._asdict().items()}
        for key, test in done.paired.items()
    }
    return json.dumps(data, indent=2, allow_nan=False)


def ranking_table(ranking: Sequence[Ranked], chosen: str, *, score: str, width: int) -> Table:
    """Methods by their held-out score, best first, with what each gains on doing nothing."""
    rows: list[Row] = []
    for entry in ranking:
        name = Identity.label if entry.name == "none" else entry.name
        style = "bold green" if entry.name == chosen else ""
        if entry.failure is not None:
            rows.append([Text(name, style="dim"), "n/a", "", "", Text("not used", style="dim")])
            continue
        gain, ends = f"{entry.gain:+.4f}", f"{entry.gain_low:+.4f} – {entry.gain_high:+.4f}"
        # Doing nothing gains nothing; and where that has an infinite score, a gain on it says nothing.
        idle = entry.name == "none" or not all(map(math.isfinite, (entry.gain, entry.gain_low, entry.gain_high)))
        rows.append(
            [
                Text(name, style=style),
                Text(f"{entry.score:.4f}", style=style),
                "" if idle else gain.replace("-", "−"),
                Text("" if idle else ends.replace("-", "−"), style="dim"),
                Text("chosen" if entry.name == chosen else "", style=style),
            ]
        )
    return fit_table(("Method", f"Held-out {score}", "Gain", "95% interval", ""), rows, width=width, drop=(3, 4))
