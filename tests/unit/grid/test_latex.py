from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from calibrant.grid.latex import to_latex
from calibrant.grid.latex_signs import _SIGNS, escape
from calibrant.grid.layout import Table
from calibrant.grid.paper_tables import make_paper_table
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


def label_of(table: Table) -> str:
    return next(row for row in to_latex(table).splitlines() if row.startswith("\\label")).removeprefix("\\label")


def test_latex_labels_of_two_comparisons_differ_by_data_and_network() -> None:
    found = [
        compare_table([run_of("ce", data=data, model=model)], test=False) for data in ("x_y", "é z") for model in ("mlp", "a:b")
    ]
    assert [label_of(table) for table in found] == [
        "{tab:comparison-x-y-mlp}",
        "{tab:comparison-x-y-a:b}",
        "{tab:comparison-z-mlp}",
        "{tab:comparison-z-a:b}",
    ]
    runs = [run_of(method, data=data) for method in ("ce", "focal") for data in ("cifar10", "birds")]
    table5 = make_paper_table("table5", runs, paper=True, test=False)
    assert label_of(table5) == "{tab:table5-cifar10-birds-resnet18}"
    table3 = make_paper_table("table3", [run_of("adafocal", data="cifar10")], paper=True, test=False)
    assert label_of(table3) == "{tab:table3-cifar10-resnet18}"


def test_latex_differences_have_a_minus_and_rules_below_the_columns_of_each_data_set() -> None:
    errors = {"ce": 0.05, "focal": 0.04}
    runs = [run_of(method, error, data=data) for data in ("cifar10", "cifar100") for method, error in errors.items()]
    text = to_latex(make_paper_table("table5", runs, test=False))
    assert "\\cmidrule(lr){3-4} \\cmidrule(lr){5-6}\n" in text
    assert "Focal & 1 & $-$1.000 & 0.000 & $-$1.000 & 0.000 \\\\\n" in text


@pytest.mark.parametrize("name", ["[3] theirs", "*best"])
def test_latex_row_that_begins_with_a_bracket_or_star_is_not_read_as_part_of_the_row_before(name: str) -> None:
    text = to_latex(table_of(name))
    assert f"\n{{}}{name} & " in text
    assert "\n{}ce" not in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
@pytest.mark.parametrize("columns", ["onecolumn", "twocolumn"])
def test_latex_compiles_whatever_rows_are_called(columns: str, tmp_path: Path) -> None:
    signs = "".join(_SIGNS)
    tables = [table_of(signs[:40], signs[40:80], signs[80:], _LATIN, _ODD, "[3] x", "*x"), table_of(metrics=("ece",))]
    head = f"\\documentclass[{columns}]{{article}}\n\\usepackage{{booktabs,graphicx}}\n\\begin{{document}}\n"
    text = head + "\n".join(to_latex(table) for table in tables) + "\\end{document}\n"
    (tmp_path / "t.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
