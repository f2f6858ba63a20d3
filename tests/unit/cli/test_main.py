"""How the command ends: its exit codes, its one sentence, and what it does before it loads anything heavy."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import __version__
from calibrant.cli import main

# What starts a new interpreter counts; everything else runs in this one.
QUICK = "import sys; from calibrant.cli.main import run\ntry: run(['--help'])\nfinally: print(*sys.modules, file=sys.stderr)"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with warnings.catch_warnings(), pytest.raises(SystemExit) as ended:
        main.run(list(arguments))
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


@pytest.fixture(autouse=True)
def _keep_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.delenv("CALIBRANT_TRACEBACK", raising=False)


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_run_without_command_shows_help(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "measure" in out
    assert "demo" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("measure",), "Missing argument 'FILE'. Run `calibrant measure --help`"),
        (("measure", "--colour", "x.npz"), "No such option: --colour"),
        (("mesure", "x.npz"), "Did you mean 'measure'? Run `calibrant --help`"),
        (("measure", "x.npz", "--n-bins", "0"), "--n-bins"),
        (("measure", "x.npz", "--n-bins", "100000000"), "--n-bins"),
        (("measure", "x.npz", "--resamples", "100000000"), "--resamples"),
        # With fewer no p-value could fall below 5 %, and any error would be called chance.
        (("measure", "x.npz", "--resamples", "99"), "--resamples"),
        (("measure", "x.npz", "--ignore-index", "9" * 40), "--ignore-index"),
        (("measure", "nowhere.npz"), "nowhere.npz: there is no such file"),
        (("measure", "x.xyz"), "x.xyz: there is no such file"),
        (("measure", "."), ".: must hold files of predictions"),
        (("demo", "--out", "x"), "must be given with `--measure`"),
        (("demo", "--measure", "--seeds", "2"), "must be given with `--measure`"),
    ],
)
def test_run_bad_input_ends_with_2_and_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("calibrant: ")
    assert said in err
    assert err.count("\n") == 1


def test_run_internal_error_says_how_to_report_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise KeyError("a bug\nof ours")

    monkeypatch.setattr(main, "app", fail)
    code, out, err = run(capsys, "measure")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "something went wrong inside calibrant (KeyError: 'a bug\\nof ours')" in err
    assert "CALIBRANT_TRACEBACK=1" in err
    monkeypatch.setenv("CALIBRANT_TRACEBACK", "1")
    with pytest.raises(KeyError, match="a bug"):
        main.run(["measure"])


@pytest.mark.parametrize("take", [lambda: np.empty(10**17), lambda: torch.empty(10**17)], ids=["numpy", "torch"])
def test_run_out_of_memory_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, take: Callable[[], object]
) -> None:
    monkeypatch.setattr(main, "app", lambda *_, **__: take())
    code, out, err = run(capsys, "measure")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "more memory than there is" in err


def test_run_interrupted_ends_with_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "app", interrupt)
    assert run(capsys) == (130, "", "calibrant: interrupted.\n")


def test_run_warnings_go_to_standard_error_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(*arguments: object, **options: object) -> None:
        warnings.simplefilter("always")
        warnings.warn("few\nexamples", UserWarning, stacklevel=1)

    monkeypatch.setattr(main, "app", warn)
    assert run(capsys) == (0, "", "calibrant: warning: few examples\n")


def test_command_is_a_module_whose_help_loads_neither_torch_nor_pyarrow() -> None:
    python = {"capture_output": True, "text": True, "timeout": 600}
    done = subprocess.run([sys.executable, "-m", "calibrant", "--version"], **python)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"calibrant {__version__}\n", "")
    done = subprocess.run([sys.executable, "-c", QUICK], **python)
    assert done.returncode == 0
    loaded = set(done.stderr.split())
    assert "typer" in loaded
    assert not loaded & {"torch", "numpy", "pyarrow", "scipy", "matplotlib"}
