"""The command `calibrant`: its sub-commands, and how it ends. What they do is in their own modules, loaded when called."""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn, get_type_hints

import typer

from calibrant.cli.data import data_app
from calibrant.cli.reproduce import reproduce
from calibrant.cli.results import results_app
from calibrant.cli.usage import Command, Commands
from calibrant.engine.recipe import KEYS, Recipe, value_of

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")
app.add_typer(results_app, name="results", short_help="Keep finished runs as small records; make a page of them.")
Files = Annotated[list[Path], typer.Argument(metavar="FILE", help="Files of predictions: .npz, .csv, .parquet or .pt.")]
ClassNames = Annotated[Path | None, typer.Option(metavar="FILE", help="Names of the classes, one a line or JSON.")]
IgnoreIndex = Annotated[int | None, typer.Option(metavar="LABEL", help="Leave out examples with this label.")]


def with_recipe_options(*flags: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options of a recipe; it gets what was said as ``keys``, dotted key → value, None for nothing."""
    names = {key.flag.removeprefix("--").replace("-", "_"): name for name, key in KEYS.items() if key.flag in flags}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def called(**given: object) -> None:
            said = {name: given.pop(argument) for argument, name in names.items()}
            command(**given, keys={name: None if value is False else value for name, value in said.items()})

        hints = get_type_hints(command, include_extras=True)
        own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(command).parameters.values() if p.name != "keys"]
        more = [
            inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY, **_option(name)) for argument, name in names.items()
        ]
        keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + more
        called.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in keywords}
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        return called

    return decorate


def _option(name: str) -> dict[str, object]:
    """Type and default of the option of a recipe's key."""
    key, default = KEYS[name], value_of(Recipe(), name)
    help = f"{key.help[0].upper()}{key.help[1:]}"
    if isinstance(default, bool):
        return {"annotation": Annotated[bool, typer.Option(key.flag, help=f"{help}.")], "default": default}
    kind = int if isinstance(default, int) else str
    shown = typer.Option(key.flag, metavar=key.metavar, help=f"{help} ({key.unset if default is None else default}).")
    return {"annotation": Annotated[kind | None, shown], "default": None}


def _show_version(wanted: bool) -> None:
    if wanted:
        from calibrant import __version__

        typer.echo(f"calibrant {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version.")] = False,
) -> None:
    """A classifier's confidence you can trust: measure it, train for it, repair it, compare methods."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(cls=Command)
def measure(
    files: Files,
    n_bins: Annotated[int, typer.Option(min=1, metavar="M", help="Bins of the binned metrics.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of tables.")] = False,
    by_class: Annotated[bool, typer.Option("--by-class", help="Show every class, worst first.")] = False,
    slice_by: Annotated[
        str | None, typer.Option("--slice", metavar="COLUMN", help="Measure each group of this column too.")
    ] = None,
    class_names: ClassNames = None,
    ignore_index: IgnoreIndex = None,
    resamples: Annotated[int, typer.Option(min=20, metavar="N", help="Bootstrap resamples for the intervals.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the bootstrap.")] = 0,
) -> None:
    """Measure the calibration of predictions in files.

    Every number comes with its 95% interval; several files are compared with the first, on the same examples.
    """
    from calibrant.cli.measure import measure_files

    measure_files(
        files,
        n_bins=n_bins,
        as_json=as_json,
        by_class=by_class,
        slice_by=slice_by,
        class_names=class_names,
        ignore_index=ignore_index,
        resamples=resamples,
        seed=seed,
    )


@app.command(cls=Command)
@with_recipe_options(*(key.flag for key in KEYS.values() if key.flag))
def train(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE.toml", help="Recipe; options change it (defaults in brackets).")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Run folder (runs/DATA-MODEL-METHOD-seedN).")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe, as optim.lr=0.2.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    *,
    keys: dict[str, object],
) -> None:
    """Train a calibrated classifier.

    The run folder gets the recipe, the history of every epoch, the best weights, predictions and what was measured of them.
    A run that was interrupted, even killed, goes on with --resume. Under torchrun several processes share every batch.
    """
    from calibrant.cli.train import train_model

    train_model(recipe, options=keys, settings=settings or [], out=out, resume=resume)


@app.command(cls=Command)
def repair(
    fit: Annotated[Path, typer.Argument(metavar="VAL", help="Predictions to fit on; not those of the test set.")],
    file: Annotated[Path, typer.Argument(metavar="TEST", help="Predictions to repair.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the repaired predictions.")],
    method: Annotated[str, typer.Option(metavar="NAME", help="Calibrator, of those below; auto chooses one.")] = "auto",
    calibrator: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write what was fitted (JSON).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of tables.")] = False,
    class_names: ClassNames = None,
    ignore_index: IgnoreIndex = None,
    n_bins: Annotated[int, typer.Option(min=1, metavar="M", help="Bins of the binned metrics.")] = 15,
    resamples: Annotated[int, typer.Option(min=20, metavar="N", help="Bootstrap resamples for the intervals.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the bootstrap.")] = 0,
) -> None:
    """Repair predictions: fit a calibrator on VAL, apply it to TEST.

    Prints what was measured before and after, with 95% intervals, and the paired test of the difference.
    """
    from calibrant.cli.repair import Options, repair_file

    repair_file(fit, file, Options(method, out, calibrator, as_json, n_bins, resamples, seed, class_names, ignore_index))


@app.command(cls=Command, short_help="Write one HTML page of predictions, or of runs.")
def report(
    out: Annotated[Path, typer.Option(metavar="FILE.html", help="Where to write the page.")],
    file: Annotated[Path | None, typer.Argument(metavar="TEST", help="Test predictions, or a run folder.")] = None,
    fit: Annotated[Path | None, typer.Option(metavar="VAL", help="Held-out predictions to fit calibrators on.")] = None,
    runs: Annotated[
        list[Path] | None, typer.Option("--run", metavar="FOLDER", help="A run, or a folder of runs; may be repeated.")
    ] = None,
    method: Annotated[str, typer.Option(metavar="NAME", help="Calibrator, of those below; auto tries all.")] = "auto",
    class_names: ClassNames = None,
    ignore_index: IgnoreIndex = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the page.")] = None,
    n_bins: Annotated[int, typer.Option(min=1, metavar="M", help="Bins of the binned metrics.")] = 15,
    resamples: Annotated[int, typer.Option(min=20, metavar="N", help="Bootstrap resamples for the intervals.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the bootstrap.")] = 0,
) -> None:
    """Write a report: one HTML file that opens anywhere, without network.

    A verdict in plain words, the reliability diagram for any number of bins, classes, every metric with its interval; with
    --fit what calibrators would bring, with --run the learning curves and the comparison of runs.
    """
    from calibrant.cli.report import Options, write_report

    write_report(file, Options(out, fit, runs or [], method, class_names, ignore_index, title, n_bins, resamples, seed))


@app.command(cls=Command, short_help="Train methods on data sets from seeds; tables and a report.")
@with_recipe_options("--model", "--epochs", "--preset", "--data-root", "--device")
def compare(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where runs, tables, figures and the report go.")],
    recipe: Annotated[Path | None, typer.Argument(metavar="RECIPE.toml", help="What the runs have in common.")] = None,
    methods: Annotated[
        str,
        typer.Option(metavar="A,B+ts,…", help="Methods; others are tested against the first. None: compare what --add names."),
    ] = "",
    data: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Data sets or paths, with commas or repeated.")] = None,
    seeds: Annotated[str, typer.Option(metavar="N", help="How many seeds, from 0, or which: 0,3,7.")] = "1",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe; METHOD:KEY=VALUE for one.")
    ] = None,
    add: Annotated[
        list[str] | None, typer.Option(metavar="[DATA=]PATH", help="Others' runs, predictions or records as rows.")
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Put the paper's numbers below ours.")] = False,
    figures: Annotated[bool, typer.Option(help="Whether to draw figures.")] = True,
    jobs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Runs at a time (cores, or what fits on GPUs).")] = None,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="Threads of a run on the CPU.")] = 1,
    retries: Annotated[int, typer.Option(min=0, metavar="N", help="Tries after a run was killed or ran out of memory.")] = 1,
    on: Annotated[str, typer.Option(metavar="WHERE", help="local, or ray for a Ray cluster.")] = "local",
    ray_address: Annotated[str | None, typer.Option(metavar="ADDRESS", help="A running Ray cluster (one is started).")] = None,
    *,
    keys: dict[str, object],
) -> None:
    """Compare methods: train each on every data set from every seed, and write tables, figures and a report.

    Finished runs are not repeated and interrupted ones go on, so the same command again completes what is missing.
    """
    from calibrant.cli.compare import Options, compare_methods

    options = Options(out, seeds, jobs, threads, on, ray_address, retries, add or [], paper, figures)
    compare_methods(recipe, data=data or [], methods=methods, keys=keys, settings=settings or [], options=options)


app.command(cls=Command, short_help="Make one of the paper's tables, or its figures, anew.")(reproduce)


@app.command(cls=Command, short_help="See it work: four ways to train, compared, in a minute.")
def demo(
    only_measure: Annotated[
        bool, typer.Option("--measure", help="Train nothing; measure a classifier of known true error.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Networks that each method trains (3).")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Epochs of each (60).")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where --measure writes its predictions (a temporary folder).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Seed of the classifier that --measure makes (0).")
    ] = None,
) -> None:
    """Train four ways on embedded data and compare how far their confidence can be trusted."""
    unread = {"--seeds": seeds, "--epochs": epochs} if only_measure else {"--out": out, "--seed": seed}
    when = "with" if only_measure else "without"
    for option, given in unread.items():
        if given is not None:
            remedy = "Leave it out, or leave out `--measure`." if only_measure else "Leave it out, or add `--measure`."
            raise ValueError(f"demo: `{option}` must be given where it is read, got it {when} `--measure`. {remedy}")
    if only_measure:
        from calibrant.cli.demo import run_measure_demo

        run_measure_demo(out, seed=seed or 0)
        return
    from calibrant.cli.demo import run_training_demo

    run_training_demo(seeds=seeds or 3, epochs=epochs or 60)


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and leave the process: 0 if all went well, 2 with one sentence on bad input."""
    warnings.showwarning = _show_warning
    # Threads that wait by spinning make a busy machine up to ten times slower; torch reads this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal without Unicode shows question marks; it does not crash.
            stream.reconfigure(errors="replace")
    try:
        code = app(arguments, prog_name="calibrant", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _end("interrupted.", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        code = _explain(error)
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Exception) -> int:
    """Turn an exception into an exit code and one sentence on standard error."""
    if os.environ.get("CALIBRANT_TRACEBACK"):
        raise error
    if isinstance(error, typer.Abort):
        return _end("interrupted.", 130)
    if hasattr(error, "format_message"):  # what typer raises about arguments; its class has moved between versions
        said = _in_plain_words(error.format_message()).rstrip(".")
        context = getattr(error, "ctx", None)
        command = "calibrant" if context is None else context.command_path
        said = f"{said}{'' if said.endswith('?') else '.'} Run `{command} --help` for what there is."
        return 2 if _is_echo() else _end(said, 2)
    if isinstance(error, (ValueError, OSError, ImportError)) or _is_failed_fit(error):
        return 2 if _is_echo() else _end(str(error), 2)
    return _end(
        f"something went wrong inside calibrant ({type(error).__name__}: {error}). Please report it with what "
        "CALIBRANT_TRACEBACK=1 prints before the same command.",
        1,
    )


def _in_plain_words(said: str) -> str:
    # What typer says of numbers is meant for programmers, and differs between versions.
    said = re.sub(
        r"Input should be a valid integer.*|'[^']*' is not a valid int\w*( range)?", "it must be a whole number", said
    )
    return re.sub(r"Input should be greater than or equal to|\S+ is not in the range x>=", "it must be at least ", said)


def _is_echo() -> bool:
    """Whether ``torchrun`` has started another process on this machine that finds the same fault in what it was given."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("LOCAL_RANK", "0") != "0"


def _is_failed_fit(error: Exception) -> bool:
    # Whoever raised a FitError has loaded its module; loading it here would load torch to explain a mistyped option.
    checks = sys.modules.get("calibrant.core.checks")
    return checks is not None and isinstance(error, checks.FitError)


def _end(sentence: str, code: int) -> int:
    print(f"calibrant: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def _show_warning(message: object, *_: object, **__: object) -> None:
    print(f"calibrant: warning: {' '.join(str(message).split())}", file=sys.stderr)
