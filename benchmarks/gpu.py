"""Everything that needs a GPU, in one command of about three minutes; one JSON line a check.

    python benchmarks/gpu.py [--data-root DATA] [--only tests,meta,train] [--epochs 2]

``tests``: the tests marked `cuda`, which include a step with NCCL inside and two processes with synchronised BatchNorm on one
GPU. ``meta``: cost of the look-ahead steps as CUDA graphs (`meta.py`), and uncaptured if that should fail. ``train``: speed of
whole epochs beside a plain loop (`train.py`). What a check prints is shown where it fails. The exit code is the number of
checks that failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
HERE = ROOT / "benchmarks"


class Ended(NamedTuple):
    """How a command ended: exit code, everything it printed, and how long it took."""

    code: int
    text: str
    seconds: float


def call(arguments: Sequence[str], *, limit: float) -> Ended:
    """Run Python with ``arguments`` in the folder of the project; a command that takes too long ends with 124."""
    begun = time.monotonic()
    # The package need not be installed.
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            env=os.environ | {"PYTHONPATH": paths},
        )
        code, text = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        held = error.stdout or b""
        code, text = 124, held.decode(errors="replace") if isinstance(held, bytes) else held
    return Ended(code, text, round(time.monotonic() - begun, 1))


def records(text: str) -> list[dict[str, object]]:
    """JSON lines among what a command printed."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def marked_files() -> tuple[list[str], dict[str, str]]:
    """Test files that hold tests for a GPU, and those that need a package which is not installed, with its name."""
    found, lacking = [], {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "mark.cuda" not in text:
            continue
        names = re.findall(r"^(?:from|import) (\w+)", text, flags=re.MULTILINE)
        there = [name for name in names if (ROOT / "tests" / f"{name}.py").exists() or importlib.util.find_spec(name)]
        absent = sorted(set(names) - set(there))
        if absent:
            lacking[path.name] = absent[0]
        else:
            found.append(str(path))
    return found, lacking


def run_tests(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """The tests marked `cuda`."""
    if importlib.util.find_spec("pytest") is None:
        yield {"check": "tests", "ok": False, "skipped": "pytest is not installed"}
        return
    options = ["-o", "addopts=", "-q", "-m", "cuda", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--tb=short"]
    files, lacking = marked_files()
    ended = call(["-m", "pytest", *options, *files], limit=args.limit)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)\b", ended.text[-500:])}
    line = {"check": "tests", "ok": ended.code == 0, "code": ended.code, **counts, "left_out": lacking}
    yield line | {"seconds": ended.seconds, "said": ended.text}


def run_meta(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Cost of look-ahead steps."""
    for extra in ((), ("--eager",)):
        ended = call([str(HERE / "meta.py"), "--device", "cuda", "--turns", "9", *extra], limit=args.limit)
        found = records(ended.text)
        line = {"check": " ".join(("meta", *extra)), "ok": ended.code == 0, "code": ended.code, "seconds": ended.seconds}
        yield line | (found[-1] if found else {}) | {"said": ended.text}
        if found:
            return


def run_train(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Speed of whole epochs."""
    data = ["--data-root", args.data_root] if args.data_root else []
    command = [str(HERE / "train.py"), "--device", "cuda", "--epochs", str(args.epochs), "--check", *data]
    ended = call(command, limit=args.limit)
    for found in records(ended.text):
        yield {"check": "train", "ok": True} | found
    missed = [line for line in ended.text.splitlines() if line.startswith("missed: ")]
    yield {"check": "train", "ok": ended.code == 0, "missed": missed, "seconds": ended.seconds, "said": ended.text}


CHECKS = {"tests": run_tests, "meta": run_meta, "train": run_train}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks; return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="where CIFAR-10 lies; random bytes if not given")
    parser.add_argument("--only", default=",".join(CHECKS), help="checks, with commas between them")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of each program of `train`")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a check may take")
    args = parser.parse_args(arguments)
    failed = 0
    for name in args.only.split(","):
        for line in CHECKS[name](args):
            said = str(line.pop("said", ""))
            print(json.dumps(line), flush=True)
            if not line["ok"]:
                failed += 1
                print(said[-4000:], file=sys.stderr, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
