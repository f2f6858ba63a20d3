"""Where a run comes from: versions, device, commit and command, as plain data."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from calibrant.engine.hardware import Hardware


def provenance(hardware: Hardware) -> dict[str, object]:
    """Return what is needed to repeat a run besides its recipe."""
    from calibrant import __version__

    return {
        "calibrant": __version__,
        "commit": package_commit(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": device_name(hardware.device),
        "precision": hardware.precision,
        "compiled": hardware.compiled,
        "captured": hardware.captured,
        "command": sys.argv,
    }


def device_name(device: torch.device) -> str:
    """Name of a GPU, or what the CPU calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"cpu ({platform.processor() or platform.machine()}, {threads} thread{'' if threads == 1 else 's'})"


def package_commit(folder: Path | None = None) -> str | None:
    """Commit of the git checkout that the package lies in, ``-dirty`` behind it where files differ; None outside of one.

    Args:
        folder: Folder of the package; the installed one by default.
    """
    place = Path(__file__).parents[1] if folder is None else folder

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # An environment inside some other project's checkout is not a checkout of this package: its files must be tracked there.
    if not git("ls-files", "--error-unmatch", "__init__.py"):
        return None
    commit = git("rev-parse", "HEAD")
    return f"{commit}-dirty" if commit and git("status", "--porcelain", "--", ".") else commit
