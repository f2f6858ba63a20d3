from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from calibrant.grid.latex import to_latex
from calibrant.grid.latex_signs import _SIGNS, escape
from calibrant.grid.layout import Table
from calibrant.grid.tables import compare_table
from made_up_runs import run_of, seeds

_LATIN = "".join(map(chr, range(0xA1, 0x180)))
_ODD = "∆≤中文😀①＿ﬁ𝛾ά\u0301\x07\t\x00 --- ?`x \u202e№™€₂⁴\udc80"


def table_of(*names: str, metrics: tuple[str, ...] = ("error", "nll", "ece", "mce")) -> Table:
    theirs = [run_of(name, model=None, epochs=None, seed=None, preset=None) for name in names]
    return compare_table([*seeds("ce", 0.05), *seeds("flgamma-sece", 0.04), *theirs], metrics=metrics)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("∆≤2", r"$\Delta$$\le$2"),
        ("μ², naïve", r"$\mu$², naïve"),
        ("--set a---b", "-{}-set a-{}-{}-b"),
        ("line\nline\tx", "line line x"),
        ("中", "?"),
        ("\x07\x00", "??"),
        ("ąḿ＿①", r"am\_1"),
        ("a\u0301\u200b", "a"),
        ("?`", "?{}`"),
    ],
)
def test_escape_writes_what_pdflatex_can_print(text: str, written: str) -> None:
    assert escape(text) == written


def test_latex_wide_table_goes_over_both_columns_and_a_narrow_one_does_not() -> None:
    wide, narrow = to_latex(table_of()), to_latex(table_of(metrics=("ece",)))
    assert "\\begin{table*}[tb]" in wide
    assert wide.endswith("\\end{table*}\n")
    assert "\\begin{table}[htb]" in narrow
    assert narrow.endswith("\\end{table}\n")


def test_latex_caption_is_short_and_the_other_notes_stand_below() -> None:
    table = table_of()
    text = to_latex(table)
    caption = next(row for row in text.splitlines() if row.startswith("\\caption"))
    assert caption.removeprefix("\\caption") == "{" + escape(f"{table.title}. {table.notes[0]}") + "}"
    below = text[text.index("\\end{tabular}") :]
    assert len(table.notes) > 3
    assert all(escape(note) in below for note in table.notes[1:])
    alone = run_of("theirs", model=None, epochs=None, seed=None, preset=None)
    assert "minipage" not in to_latex(compare_table([alone], metrics=("error", "nll")))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
@pytest.mark.parametrize("columns", ["onecolumn", "twocolumn"])
def test_latex_compiles_whatever_rows_are_called(columns: str, tmp_path: Path) -> None:
    signs = "".join(_SIGNS)
    tables = [table_of(signs[:40], signs[40:80], signs[80:], _LATIN, _ODD), table_of(metrics=("ece",))]
    head = f"\\documentclass[{columns}]{{article}}\n\\usepackage{{booktabs,graphicx}}\n\\begin{{document}}\n"
    text = head + "\n".join(to_latex(table) for table in tables) + "\\end{document}\n"
    (tmp_path / "t.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
