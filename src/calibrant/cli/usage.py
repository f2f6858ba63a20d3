"""What stands below the options in the help of a command, examples and names, and how the command is called from here.

Names are written out, since help must not load torch; a test holds the names to their tables and the examples to the options.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from pathlib import Path

METHODS = (
    "ce, focal, flsd, ls-0.05, ls-0.1, mixup, mmce, brier, ce-dece, ce-sece, flgamma-dece, flgamma-sece, flgamma-skce, "
    "flgamma, adafocal, dual-focal, mbls, mbls-0, ecp, focal+sb-ece, focal+s-avuc, avuc, mdca, dca, patra, cpc, acls, crl"
)
NETWORKS = "resnet18, resnet34, resnet50, resnet110, wrn28-10, densenet100, convnet, mlp"
CALIBRATORS = (
    "temperature, attended_temperature, mc_temperature, ensemble_temperature, spline, joint_isotonic, platt, vector, beta, "
    "top_label_binning, histogram, bbq, isotonic, dirichlet, matrix, none, auto"
)
EXAMPLES = {
    "": (
        "calibrant measure predictions.npz",
        "calibrant repair val.npz test.npz --out repaired.npz",
        "calibrant report test.npz --fit val.npz --out report.html",
    ),
    "measure": (
        "calibrant measure test.npz",
        "calibrant measure test.csv --slice camera --by-class",
        "calibrant measure before.npz after.npz --json",
    ),
    "train": (
        "calibrant train --data digits --model convnet --epochs 30 --out runs/first",
        "calibrant train --data cifar10 --method focal+ts --set optim.lr=0.05",
        "calibrant train --resume --out runs/first",
    ),
    "repair": (
        "calibrant repair val.npz test.npz --out repaired.npz",
        "calibrant repair val.npz test.npz --method temperature --out repaired.npz",
    ),
    "report": (
        "calibrant report test.npz --fit val.npz --out report.html",
        "calibrant report --run runs --out runs.html",
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
_WORDS = {
    "": (
        "Begin with `calibrant demo`. `calibrant COMMAND --help` says more.",
        "Exit codes: 0 done, 1 something failed, 2 what was given cannot be used, 130 or 143 interrupted.",
    ),
    "train": (f"Methods: {METHODS}; any with +ts for temperature scaling.", f"Networks: {NETWORKS}."),
    "repair": (f"Calibrators: {CALIBRATORS}.",),
    "report": (f"Calibrators: {CALIBRATORS}.",),
    "compare": (f"Methods: {METHODS}; any with +ts for temperature scaling.",),
}


def usage(command: str) -> str:
    """What stands below the options of a command, or of ``calibrant`` itself if that is empty."""
    lines = [textwrap.fill(words, _WIDTH, break_on_hyphens=False) for words in _WORDS.get(command, ())]
    # The sign \b keeps the lines below it as they are; they would be broken within names.
    return "\n\n".join(f"\b\n{part}" for part in ["\n  ".join(["Examples:", *EXAMPLES[command]]), *lines])


def program() -> str:
    """How this very ``calibrant`` is called in the shell: with its path where that does not find it, as after ``make demo``."""
    here, found = Path(sys.argv[0]), shutil.which("calibrant")
    if here.name == "__main__.py":
        return "calibrant" if found else "python -m calibrant"
    if here.name != "calibrant" or (found and here.exists() and Path(found).samefile(here)):
        return "calibrant"
    path = os.path.relpath(here)
    if path.startswith(os.pardir):
        path = os.path.abspath(here)
    return shlex.quote(path if os.sep in path else os.path.join(os.curdir, path))
