"""The command `calibrant`: its sub-commands, their options and help, and how it ends. What they do is loaded when called."""

from __future__ import annotations

import inspect
import os
import sys
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from calibrant.cli.terminal import Options, progress_bar, say, says_how_to_go_on
from calibrant.engine.recipe import KEYS, Recipe, value_of

EXAMPLES = {
    "": (
        "calibrant measure predictions.npz",
        "calibrant repair val.npz test.npz --out repaired.npz",
        "calibrant report test.npz --fit val.npz --out report.html",
    ),
    "measure": (
        "calibrant measure test.npz",
        "calibrant measure test.csv --slice camera --by-class",
        "calibrant measure runs/first --fail-if 'ece>0.05'",
        "calibrant measure before.npz after.npz --json",
        "calibrant measure 's3://bucket/predictions/*.parquet' --slice date --ray",
    ),
    "train": (
        "calibrant train --data digits --model convnet --epochs 30 --out runs/first",
        "calibrant train --data cifar10 --method focal+ts --set optim.lr=0.05",
        "calibrant train --resume --out runs/first",
    ),
    "predict": ("calibrant predict runs/first photos --out photos.csv",),
    "repair": (
        "calibrant repair val.npz test.npz --out repaired.npz",
        "calibrant repair val.npz test.npz --out repaired.npz --save-calibrator c.json",
    ),
    "apply": ("calibrant apply c.json new.csv --out calibrated.csv",),
    "report": (
        "calibrant report test.npz --fit val.npz --out report.html",
        "calibrant report --run runs --out runs.html",
    ),
    "decide": ("calibrant decide val.npz test.npz", "calibrant decide val.npz test.npz --max-error 0.01"),
    "monitor": (
        "calibrant monitor predictions/ --time date --window week --figure drift.png",
        "calibrant monitor stream.parquet --time served_at --fail-on-alarm",
    ),
    "compare": (
        "calibrant compare --data digits --methods ce,ce+ts,focal --seeds 3 --out comparison",
        "calibrant compare --data birds --add ours.npz --add theirs.npz --out comparison",
    ),
    "reproduce": (
        "calibrant reproduce table1 --quick",
        "calibrant reproduce table1 --data cifar10 --seeds 3 --dry-run",
    ),
    "demo": (
        "calibrant demo",
        "calibrant demo --measure --out .",
    ),
}
_WIDTH = 76
# What is said beside the examples; braces stand for the names in a table, whose module is loaded when the help is shown.
_METHODS = (
    "Methods: {}; any with +ts for temperature scaling. docs/train.md lists the options of each.",
    "calibrant.engine.methods",
    "METHODS",
)
_CALIBRATORS = ("Calibrators: {}.", "calibrant.calibrators", "CALIBRATORS")
_WORDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "": (
        ("Begin with `calibrant demo`. `calibrant COMMAND --help` says more.",),
        ("Exit codes: 0 done, 1 something failed, 2 wrong input, 3 a broken limit or an alarm, 130 or 143 interrupted.",),
    ),
    "train": (_METHODS, ("Networks: {}.", "calibrant.backbones", "BACKBONES")),
    "repair": (_CALIBRATORS,),
    "report": (_CALIBRATORS,),
    "compare": (_METHODS,),
}


AsJson = Annotated[bool, typer.Option("--json", help="Write JSON instead of tables.")]
Jobs = Annotated[int | None, typer.Option(min=1, metavar="N", help="Runs at a time (cores, or what fits on GPUs).")]
Root = Annotated[
    Path | None, typer.Option("--data-root", "--root", metavar="FOLDER", help="Folder of data sets (~/.cache/calibrant/data).")
]


_MEASURING = tuple(field.name for field in fields(Options))
_READING = ("class_names", "ignore_index", "prob_column", "label_column")


def runs(place: str, *shared: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that has nothing but a signature and a docstring.

    The arguments go by keyword to the function at ``place``, ``module:name`` in this room, which is loaded when called. Those
    of `Options` that are ``shared`` are added, and options of a recipe, given by their flags; the latter arrive as ``options``,
    dotted key → value, None where not said.
    """
    recipe = {key.flag.removeprefix("--").replace("-", "_"): name for name, key in KEYS.items() if key.flag in shared}
    hints = get_type_hints(Options, include_extras=True)
    known = {name: (getattr(Options, name), hints[name]) for name in shared if name in hints}
    known |= {argument: _option(name) for argument, name in recipe.items()}

    def decorate(described: Callable[..., None]) -> Callable[..., None]:
        def command(**given: object) -> None:
            module, _, function = place.partition(":")
            if recipe:
                said = {name: given.pop(argument) for argument, name in recipe.items()}
                given["options"] = {name: None if value is False else value for name, value in said.items()}
            getattr(import_module(f"calibrant.cli.{module}"), function)(**given)

        own, kind = inspect.signature(described, eval_str=True), inspect.Parameter.KEYWORD_ONLY
        added = [inspect.Parameter(name, kind, default=usual, annotation=hint) for name, (usual, hint) in known.items()]
        whole = own.replace(parameters=[*own.parameters.values(), *added])
        command.__signature__ = whole  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in whole.parameters.values()}
        command.__name__, command.__doc__ = described.__name__, described.__doc__
        return command

    return decorate


def _option(name: str) -> tuple[object, object]:
    """Default and annotation of the option of a recipe's key."""
    key, default = KEYS[name], value_of(Recipe(), name)
    text, is_switch = f"{key.help[0].upper()}{key.help[1:]}", isinstance(default, bool)
    usual = "" if is_switch else f" ({key.unset if default is None else default})"
    kind: Any = bool if is_switch else (int if isinstance(default, int) else str) | None
    shown = typer.Option(key.flag, metavar=None if is_switch else key.metavar, help=f"{text}{usual}.")
    return default if is_switch else None, Annotated[kind, shown]


class _Usage:
    name: str | None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write examples below the options and, where the command takes them, the names there are."""
        command = self.name if self.name in EXAMPLES else ""
        formatter.write("\n  ".join(["\nExamples:", *EXAMPLES[command]]) + "\n")
        for text, *table in _WORDS.get(command, ()):
            names = ", ".join(getattr(import_module(table[0]), table[1])) if table else ""
            formatter.write(f"\n{textwrap.fill(text.format(names), _WIDTH, break_on_hyphens=False)}\n")


class Command(_Usage, TyperCommand):
    """A command whose help ends in examples."""


class Commands(_Usage, TyperGroup):
    """The same for a command that has commands."""


def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def start(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False
) -> None:
    """A classifier's confidence you can trust: measure it, train for it, repair it, compare methods."""
    if version:
        typer.echo(f"calibrant {import_module('calibrant').__version__}")
        raise typer.Exit
    _show_help(context)


app = typer.Typer(
    cls=Commands,
    callback=start,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_GROUP: dict[str, Any] = {"callback": _show_help, "invoke_without_command": True, "rich_markup_mode": None}
data_app = typer.Typer(help="List data sets and download them.", **_GROUP)
results_app = typer.Typer(help="Keep results of finished runs as small records and make a page of them.", **_GROUP)


@app.command(cls=Command)
@runs("measure:measure_files", *_MEASURING)
def measure(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="A file of predictions, or many as one: a folder, 'parts/*.parquet', s3://…"),
    ],
    as_json: AsJson = False,
    by_class: Annotated[bool, typer.Option("--by-class", help="Show every class, worst first.")] = False,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="LIMIT", help="End with exit code 3 if a score breaks this limit: 'ece>0.05', 'ece.high>0.05'."),
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Read files on the workers of a Ray cluster.")] = False,
) -> None:
    """Measure the calibration of predictions in files.

    Every number comes with its 95% interval; several files are compared with the first, on the same examples.
    """


@app.command(cls=Command)
@runs("train:train_model", *(key.flag for key in KEYS.values() if key.flag))
def train(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE.toml", help="Recipe; options change it (defaults in brackets).")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Run folder (runs/DATA-MODEL-METHOD-seedN).")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe, as optim.lr=0.2.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
) -> None:
    """Train a calibrated classifier.

    The run folder gets the recipe, the history of every epoch, the best weights, and predictions with their scores.
    --resume continues a run that was interrupted or killed. Under torchrun several processes share every batch.
    """


@app.command(cls=Command, short_help="Predict new images with a trained run.")
@runs("train:predict_images")
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="A folder of pictures, a picture, or an .npz of images.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write the logits of all images.")] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="Where to compute: auto, cpu, cuda or cuda:1.")] = "auto",
) -> None:
    """Predict new images, which need no labels, with a trained run.

    Images are resized and normalised like the training images. Prints class and probability of the first twenty.
    """


@app.command(cls=Command)
@runs("repair:repair_file", *_MEASURING)
def repair(
    fit: Annotated[Path, typer.Argument(metavar="VAL", help="Predictions to fit on; not those of the test set.")],
    file: Annotated[Path, typer.Argument(metavar="TEST", help="Predictions to repair.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the repaired predictions.")],
    method: Annotated[str, typer.Option(metavar="NAME", help="One of the calibrators below; auto chooses.")] = "auto",
    calibrator: Annotated[
        Path | None,
        typer.Option(
            "--save-calibrator", "--calibrator", metavar="FILE", help="Where to save the fitted calibrator: .json or .onnx."
        ),
    ] = None,
    floor: Annotated[
        float | None, typer.Option(min=0.0, metavar="P", help="Raise smaller probabilities to P before the fit.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Repair predictions: fit a calibrator on VAL, apply it to TEST.

    Prints the scores before and after, with 95% intervals and a paired test of the difference.
    """


@app.command(cls=Command, short_help="Apply a saved calibrator to new predictions.")
@runs("repair:apply_calibrator", "prob_column", "label_column")
def apply(
    calibrator: Annotated[
        Path, typer.Argument(metavar="CALIBRATOR", help="Calibrator saved by `repair --save-calibrator` (.json).")
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Predictions, with or without labels.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the calibrated predictions.")],
) -> None:
    """Apply a saved calibrator to new predictions, which need no labels."""


@app.command(cls=Command, short_help="Write one HTML page about predictions or runs.")
@runs("repair:write_report", *_MEASURING)
def report(
    out: Annotated[Path, typer.Option(metavar="FILE.html", help="Where to write the page.")],
    file: Annotated[Path | None, typer.Argument(metavar="TEST", help="Test predictions, or a folder of runs.")] = None,
    fit: Annotated[Path | None, typer.Option(metavar="VAL", help="Held-out predictions to fit calibrators on.")] = None,
    runs: Annotated[
        list[Path] | None, typer.Option("--run", metavar="FOLDER", help="A run, or a folder of runs; may be repeated.")
    ] = None,
    method: Annotated[str, typer.Option(metavar="NAME", help="One of the calibrators below; auto tries all.")] = "auto",
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the page.")] = None,
) -> None:
    """Write a report: one HTML file that opens anywhere, without a network.

    It has a verdict in plain words, the reliability diagram for any number of bins, and every metric with its interval.
    --fit adds what calibrators would do, --run learning curves and a comparison of runs.
    """


@app.command(cls=Command, short_help="Find confidence thresholds that guarantee an error.")
@runs("repair:decide", *_READING)
def decide(
    fit: Annotated[Path, typer.Argument(metavar="VAL", help="Predictions to learn on; not those of the test set.")],
    file: Annotated[Path, typer.Argument(metavar="TEST", help="Predictions to try it on.")],
    max_errors: Annotated[
        list[float] | None, typer.Option("--max-error", metavar="SHARE", help="Error to guarantee; may be repeated.")
    ] = None,
    delta: Annotated[float, typer.Option(metavar="SHARE", help="Chance that a guarantee fails.")] = 0.05,
    as_json: AsJson = False,
) -> None:
    """Find confidence thresholds that guarantee an error, and the share of examples that they answer."""


@app.command(cls=Command, short_help="Watch predictions over time and raise an alarm.")
@runs("measure:monitor_stream", *_READING, "n_bins", "resamples", "seed")
def monitor(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Files of predictions, or folders of them.")],
    time: Annotated[str, typer.Option(metavar="COLUMN", help="Column of dates, or NAME of folders NAME=DATE.")] = "date",
    window: Annotated[
        str, typer.Option(metavar="LENGTH", help="hour, day, week or month; value: one window for each value.")
    ] = "day",
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="How far probabilities may be off without an alarm.")
    ] = 0.02,
    false_alarms: Annotated[float, typer.Option(metavar="SHARE", help="Chance of ever raising a false alarm.")] = 0.05,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a chart, as FILE.png and FILE.pdf.")] = None,
    fail_on_alarm: Annotated[bool, typer.Option("--fail-on-alarm", help="End with exit code 3 on an alarm.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure predictions in windows of time, and say when the model is no longer calibrated.

    The chance of a false alarm is for all windows together, however many there will be. Files are read piece by piece.
    """


@app.command(cls=Command, short_help="Train and compare methods; write tables and a report.")
@runs("compare:compare_methods", "--model", "--epochs", "--preset", "--data-root", "--device")
def compare(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where runs, tables, figures and the report go.")],
    recipe: Annotated[Path | None, typer.Argument(metavar="RECIPE.toml", help="What the runs have in common.")] = None,
    methods: Annotated[
        str,
        typer.Option(metavar="A,B+ts,…", help="Methods; each is tested against the first. None: compare what --add names."),
    ] = "",
    data: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Data sets or paths; use commas, or repeat it.")
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="N", help="How many seeds, from 0, or which: 0,3,7.")] = "1",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe; METHOD:KEY=VALUE for one method."),
    ] = None,
    add: Annotated[
        list[str] | None, typer.Option(metavar="[DATA=]PATH", help="Runs, predictions or records to add as rows.")
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Put the paper's numbers below yours.")] = False,
    figures: Annotated[bool, typer.Option(help="Whether to draw figures.")] = True,
    jobs: Jobs = None,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="Threads of a run on the CPU.")] = 1,
    retries: Annotated[
        int, typer.Option(min=0, metavar="N", help="Retries of a run that was killed or ran out of memory.")
    ] = 1,
    on: Annotated[str, typer.Option(metavar="WHERE", help="local, or ray for a Ray cluster.")] = "local",
    ray_address: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Ray cluster to use (default: start one).")] = None,
) -> None:
    """Train every method on every data set with every seed, and write tables, figures and a report.

    Run the same command again to complete what is missing: finished runs are not repeated, interrupted ones continue.
    """


@app.command(cls=Command, short_help="Reproduce one of the paper's tables, or its figures.")
@runs("compare:reproduce", "--preset", "--device", "--data-root")
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="table1, table2, table3, table4, table5 or figures.")],
    data: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Data sets, in place of the paper's.")] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N", help="How many seeds, or which: 0,3,7 (5; quick 3; figures 1).")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small network, few epochs, embedded data.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where everything goes (reproduce/NAME).")] = None,
    jobs: Jobs = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe, as train.epochs=20.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, and start none.")] = False,
) -> None:
    """Make one of the paper's tables, or its figures, with your own runs.

    Finished runs are not repeated: run the same command again to continue. The report has the paper's numbers below yours.
    """


@app.command(cls=Command, short_help="Train a small network four ways and compare them, in a minute.")
@runs("train:run_demo")
def demo(
    only_measure: Annotated[
        bool, typer.Option("--measure", help="Train nothing; measure predictions whose true error is known.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Networks that each method trains (3).")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Epochs of each (60).")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where --measure writes its predictions (a temporary folder).")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="Seed of these predictions (0).")] = None,
) -> None:
    """Train a small network four ways and compare how far its confidence can be trusted."""


@data_app.command("list", short_help="Show every data set and whether it is there.")
def list_sets(root: Root = None) -> None:
    """Show every data set that can be named, and whether it is there."""
    from calibrant.data import DATASETS, DEFAULT_ROOT

    for name, source in DATASETS.available().items():
        fetch = f"to fetch, {source.bytes / 1e6:.0f} MB"
        state = "embedded" if source.embedded else "there" if source.is_there(root) else fetch
        say(f"{name:14} {state:18} {source.about}")
    say(
        f"in {root or DEFAULT_ROOT}; get one with `calibrant data fetch NAME`.",
        "A folder of class folders, or an .npz of images, is named by its path: `calibrant train --data PATH`.",
    )


@data_app.command("fetch", short_help="Download data sets and check them.")
def fetch_sets(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets: cifar10, mnist …")], root: Root = None
) -> None:
    """Download data sets and check them. An interrupted download continues."""
    from calibrant.data import DATASETS

    for source in [DATASETS[name] for name in names]:
        title = f"{source.name}, {source.bytes / 1e6:.0f} MB"
        with says_how_to_go_on(), progress_bar(title, source.bytes) as advance:
            files = source.fetch(root, report=advance)
        say(f"{source.name}: {', '.join(map(str, files)) or 'there is nothing to fetch'}")


@results_app.command("add", short_help="Keep the results of finished runs as records.")
@runs("compare:add_results")
def add_results(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or folders of them.")],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the records go.")] = Path("results"),
    repair: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Add a record after this calibrator (or auto); may be repeated.")
    ] = None,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="A note for readers about these runs.")] = None,
) -> None:
    """Keep the results of finished runs as JSON: scores, command, machine, versions, curves and predictions.

    A run with train.alternatives gets a record for each of its choices. Repairs are fitted on the run's validation part.
    """


@results_app.command("render", short_help="Make one page of all records.")
@runs("compare:render_results")
def render_results(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of records.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the page goes (Markdown).")],
    figures: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Draw figures too, as PNG into this folder.")] = None,
) -> None:
    """Make one page of all records: a ranking, the paper's tables with its numbers, figures and runs."""


app.add_typer(data_app, name="data")
app.add_typer(results_app, name="results", short_help="Keep results as small records and make a page of them.")


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and leave the process: 0 if all went well, 2 with one sentence on bad input."""
    warnings.showwarning = lambda message, *_, **__: _end(0, f"warning: {message}")  # type: ignore[assignment]
    # Threads that wait by spinning make a busy machine up to ten times slower; torch reads this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal without Unicode shows question marks; it does not crash.
            stream.reconfigure(errors="replace")
    try:
        code = app(arguments, prog_name="calibrant", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        code = _end(130, "interrupted.")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        if os.environ.get("CALIBRANT_TRACEBACK"):
            raise
        code = _end(*_explain(error))
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Exception) -> tuple[int, str]:
    """Exit code and sentence for an exception."""
    if hasattr(error, "format_message"):  # what typer raises about arguments; its class has moved between versions
        said, context = error.format_message(), getattr(error, "ctx", None)
        command = "calibrant" if context is None else context.command_path
        stop = "" if said.endswith(("?", ".")) else "."
        return 2, f"{said}{stop} Run `{command} --help` for what there is."
    from calibrant.core.checks import FitError
    from calibrant.io.files import is_out_of_memory

    if isinstance(error, (ValueError, OSError, ImportError, FloatingPointError, FitError)):
        return 2, str(error)
    if is_out_of_memory(error):
        return 1, f"this takes more memory than there is ({error}). Give it less at a time, or more memory."
    what = f"something went wrong inside calibrant ({type(error).__name__}: {error})"
    return 1, f"{what}. Please report it with what CALIBRANT_TRACEBACK=1 prints before the same command."


def _end(code: int, sentence: str) -> int:
    say(f"calibrant: {' '.join(sentence.split())}", error=True)
    return code
