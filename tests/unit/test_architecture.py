"""The rules of the house that a machine can check: who imports whom, sizes, names, and that importing changes nothing."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from typer.testing import CliRunner

from calibrant.cli.main import app

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "calibrant"
SOURCES = sorted(SRC.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
# The table of docs/architecture.md: room -> the rooms it may import.
MAY_IMPORT = {
    room: set(re.findall(r"`(\w+)`", rooms))
    for room, rooms in re.findall(r"^\| `(\w+)` \| ([^|]*) \|", PAGE, flags=re.MULTILINE)
}
# The command line, the front door, and what is for test suites, may import every room.
FREE = {"cli", "__init__", "__main__", "testing"}
# (file, function, room): imports of a lower room that are allowed inside that function only. The record is the natural
# place for users to look for `load` and `save`, while files are read and written in `io` alone.
LAZY_EXCEPTIONS = {
    ("core/records.py", "load", "io"),
    ("core/records.py", "save", "io"),
    ("calibrators", "load", "io"),
    ("calibrators", "save", "io"),
    ("core/records.py", "_repr_html_", "plot"),
    ("core/records.py", "plot", "plot"),
}
FORBIDDEN_MODULES = {"utils", "util", "common", "misc", "helpers"}
SECOND_SPELLINGS = {"num_bins", "nbins", "bins_num", "y_pred", "y_true", "target", "targets", "preds", "lamda", "n_classes"}


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions_around(tree: ast.Module) -> Iterator[tuple[ast.AST, str | None]]:
    """Every node with the name of the innermost function that holds it."""

    def walk(node: ast.AST, function: str | None) -> Iterator[tuple[ast.AST, str | None]]:
        yield node, function
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inner)

    return walk(tree, None)


def imports_of(source: str) -> Iterator[tuple[str, tuple[str, ...], str | None]]:
    """Module, imported names and enclosing function of every import, relative ones excluded (the linter bans them)."""
    for node, function in functions_around(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, (), function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, tuple(alias.name for alias in node.names), function


def import_faults(where: str, source: str) -> list[str]:
    """What the file ``where`` (a path below the package) imports against the table of rooms."""
    room = where.split("/")[0].removesuffix(".py")
    if room in FREE:
        return []
    if room not in MAY_IMPORT:
        return [f"{where}: `{room}` is no room of the house"]
    faults = []
    for module, names, function in imports_of(source):
        parts = module.split(".")
        if parts[0] != "calibrant" or (len(parts) == 1 and names == ("__version__",)):
            continue
        targets = [parts[1]] if len(parts) > 1 else [name if (SRC / name).is_dir() else "calibrant" for name in names or ("",)]
        for target in targets:
            lazily = {(where, function, target), (room, function, target)} & LAZY_EXCEPTIONS
            if target not in MAY_IMPORT[room] | {room} and not lazily:
                faults.append(f"{where}: {room} must not import {target}")
            elif target != room and any(n.startswith("_") for n in (*names, *parts[1:])):
                faults.append(f"{where}: a private name of {target} is imported from {module}")
    return faults


def test_table_of_rooms_has_every_room_and_points_up() -> None:
    modules = {path.stem for path in SRC.glob("*.py")} - FREE
    assert set(MAY_IMPORT) == modules | {path.parent.name for path in SOURCES if path.parent.parent == SRC}
    rooms = list(MAY_IMPORT)
    assert all(allowed <= set(rooms[:number]) for number, allowed in enumerate(MAY_IMPORT.values()))


def test_imports_of_every_room_point_up_the_table() -> None:
    faults = [f for path in SOURCES for f in import_faults(path.relative_to(SRC).as_posix(), path.read_text())]
    assert faults == []


def test_import_faults_are_found_and_nothing_else() -> None:
    for where, line, fault in (
        ("core/records.py", "from calibrant.io import load_predictions", "core must not import io"),
        ("core/records.py", "def load():\n    import calibrant.losses", "core must not import losses"),
        ("losses/per_sample.py", "from calibrant import Predictions", "losses must not import calibrant"),
        ("losses/per_sample.py", "from calibrant import metrics", "losses must not import metrics"),
        ("metrics/binned.py", "from calibrant.core.binning import _interpolate", "a private name of core"),
        ("metrics/binned.py", "from calibrant.core._secret import x", "a private name of core"),
        ("kitchen/soup.py", "", "`kitchen` is no room"),
    ):
        assert [f for f in import_faults(where, line) if fault in f], line
    for where, line in (
        ("core/records.py", "def load():\n    from calibrant.io import load_predictions"),
        ("metrics/binned.py", "from calibrant.metrics.binned import _own"),
        ("grid/tables.py", "from calibrant.report.figures import x"),
        ("cli/main.py", "from calibrant.grid import x"),
        ("engine/folder.py", "from calibrant import __version__"),
    ):
        assert import_faults(where, line) == [], line


class Trace:
    """Which functions of ours are called, by module; what a module calls while it is imported does not count."""

    def __init__(self) -> None:
        self.called: dict[str, set[str]] = defaultdict(set)
        self.until: dict[str, set[str]] = {}
        self._importing = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> Trace | None:
        code = frame.f_code
        if not (code.co_filename.startswith(f"{SRC}/") and code.co_filename.endswith(".py")):
            return None
        frame.f_trace_lines = False
        imported, saves = code.co_name == "<module>", code.co_name == "save_predictions"
        if imported:
            self._importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not self._importing:
            path = Path(code.co_filename).relative_to(SRC).with_suffix("")
            self.called[".".join(path.parts)].add(code.co_qualname)
        elif event == "return" and saves and Path(frame.f_locals["path"]).name == "test.npz":
            self.until = {module: set(names) for module, names in self.called.items()}
        return self if imported or saves else None

    def command(self, *words: str) -> None:
        """Run a command of ours and watch it."""
        before = sys.gettrace()
        threading.settrace(self)
        sys.settrace(self)
        try:
            done = CliRunner().invoke(app, words)
        finally:
            sys.settrace(before)
            threading.settrace(None)  # type: ignore[arg-type]
        assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """What is called on the way from ``calibrant train`` to ``test.npz``, and by ``calibrant report`` of that run."""
    folder = tmp_path_factory.mktemp("road")
    first, second = Trace(), Trace()
    words = {"data": "digits", "model": "convnet", "method": "ce", "epochs": "1", "out": str(folder / "run")}
    first.command("train", *(word for name, value in words.items() for word in (f"--{name}", value)))
    second.command("report", str(folder / "run"), "--out", str(folder / "report.html"), "--resamples", "100")
    return first.until, second.called


def steps(heading: str) -> list[str]:
    """The functions of a numbered list of the page, below the line that begins with ``heading``."""
    part = PAGE[PAGE.index(f"\n{heading}") :]
    return re.findall(r"^\d+\. `([\w.]+)`:", part.partition("\n\n")[2].partition("\n\n")[0], flags=re.MULTILINE)


def is_called(step: str, called: dict[str, set[str]]) -> bool:
    """Whether a function, or a method of a class, was called."""
    room, module, name = step.split(".", maxsplit=2)
    return any(f"{found}.".startswith(f"{name}.") for found in called.get(f"{room}.{module}", ()))


def test_road_on_the_page_is_the_one_that_is_taken(road: tuple[dict[str, set[str]], dict[str, set[str]]]) -> None:
    for heading, called in zip(("From `calibrant train", "From there to `report.html`"), road, strict=True):
        named = steps(heading)
        assert len(named) > 10
        assert [step for step in named if not is_called(step, called)] == []


def test_road_runs_through_as_few_files_as_the_page_says(road: tuple[dict[str, set[str]], dict[str, set[str]]]) -> None:
    limits = re.search(r"at most (\d+) of our files, the second in at most (\d+) more", PAGE)
    assert limits
    to_predictions, to_report = road
    more = set(to_report) - set(to_predictions)
    assert len(to_predictions) <= int(limits[1]), "\n".join(sorted(to_predictions))
    assert len(more) <= int(limits[2]), "\n".join(sorted(more))


def test_source_files_have_telling_names() -> None:
    assert [label(path) for path in SOURCES if FORBIDDEN_MODULES & set(path.relative_to(SRC).with_suffix("").parts)] == []


def test_source_does_not_use_torchscript() -> None:
    # PyTorch tells of a script method as if it were its own: pyproject.toml could not ignore its warnings but for ours.
    pattern = re.compile(r"^[^#\n]*(torch\.jit|ScriptModule|script_method)", flags=re.MULTILINE)
    assert [label(path) for path in SOURCES if pattern.search(path.read_text())] == []


def printing_lines(source: str) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def test_source_outside_the_command_line_prints_nothing() -> None:
    assert printing_lines("x = 1\nprint(x)\nself.print(x)") == [2]
    assert [label(path) for path in SOURCES if "cli" not in path.parts and printing_lines(path.read_text())] == []


def second_spellings(source: str) -> list[str]:
    """Arguments of public functions, and fields of public classes, whose word has another spelling in this package."""
    found = []

    def walk(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            name = getattr(child, "name", "")
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and (not name.startswith("_") or name == "__init__"):
                given = child.args
                words = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                found.extend(f"{name}({word})" for word in words if word in SECOND_SPELLINGS)
            elif isinstance(child, ast.ClassDef) and not name.startswith("_"):
                fields = [f.target.id for f in child.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)]
                found.extend(f"{name}.{word}" for word in fields if word in SECOND_SPELLINGS)
                walk(child)

    walk(ast.parse(source))
    return found


def test_public_signatures_use_no_second_spelling() -> None:
    source = (
        "def f(a, *, num_bins=15): pass\ndef _f(target): pass\n"
        "class A:\n    lamda: float\n    def __init__(self, y_pred): target = 1\n    def _g(self, target): pass\n"
    )
    assert second_spellings(source) == ["f(num_bins)", "A.lamda", "__init__(y_pred)"]
    assert {label(path): found for path in SOURCES if (found := second_spellings(path.read_text()))} == {}


# Spelt in two halves, so that this file is clean of them.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b|raise Not" + r"ImplementedError|pragma: " + r"no cover")


def test_files_leave_nothing_unfinished() -> None:
    assert [label(path) for path in (*SOURCES, *TESTS) if UNFINISHED.search(path.read_text())] == []


def unchecked_tests(source: str) -> list[str]:
    """Test functions that hold no ``assert`` and call neither ``raises``, ``warns`` nor anything named ``assert_*``."""

    def checks(node: ast.AST) -> bool:
        if isinstance(node, ast.Assert):
            return True
        if not isinstance(node, ast.Call):
            return False
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name in ("raises", "warns") or name.startswith("assert_")

    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not any(checks(inner) for inner in ast.walk(node))
    ]


def test_every_test_asserts() -> None:
    source = (
        "def test_a(): f() == 1\n"
        "def test_b():\n    with pytest.raises(ValueError): f()\n"
        "def test_c(): torch.testing.assert_close(a, b)\n"
        "class TestX:\n    def test_d(self): pass\n"
    )
    assert unchecked_tests(source) == ["test_a", "test_d"]
    assert {label(path): found for path in TESTS if (found := unchecked_tests(path.read_text()))} == {}


def test_test_files_have_unique_names() -> None:
    names = Counter(path.name for path in TESTS if path.name.startswith("test_"))
    assert [name for name, times in names.items() if times > 1] == []


PROBE = """
import json, logging, os, random, sys, time, warnings
import numpy as np
import torch

def world():
    loggers = {n: str(getattr(l, "handlers", [])) for n, l in logging.root.manager.loggerDict.items()}
    return {
        "environment": dict(os.environ),
        "dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": [torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32],
        "matmul": torch.get_float32_matmul_precision(),
        "torch seed": torch.random.get_rng_state().sum().item(),
        "numpy seed": str(np.random.get_state()[1].sum()),
        "random seed": hash(random.getstate()),
        "numpy errors": np.geterr(),
        "warnings": [str(f) for f in warnings.filters],
        "log": [logging.root.level, str(logging.root.handlers), {k: v for k, v in loggers.items() if v != "[]"}],
        "hooks": [str(sys.excepthook), str(sys.displayhook)],
    }

before, modules = world(), set(sys.modules)
start = time.process_time()
import calibrant
import calibrant.metrics
import calibrant.losses
calibrant.measure, calibrant.Predictions
seconds = time.process_time() - start
after = world()
loaded = sorted({m.partition(".")[0] for m in set(sys.modules) - modules})
print(json.dumps({"changed": [k for k in before if before[k] != after[k]], "loaded": loaded, "seconds": seconds}))
"""

HEAVY = set(
    "torchmetrics matplotlib sklearn scipy pyarrow rich pandas typer lightning transformers accelerate torchvision tqdm".split()
)


def test_import_calibrant_changes_nothing_and_is_light() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True, check=True, timeout=600)
    found = json.loads(done.stdout)
    assert found["changed"] == []
    assert not HEAVY & set(found["loaded"])
    # Processor time, as a busy machine makes others wait; about a tenth of it on a quiet one.
    assert found["seconds"] < 2
