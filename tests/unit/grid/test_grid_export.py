"""A table as Markdown, LaTeX, CSV and JSON, and on a page."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from calibrant.grid.export import (
    _SIGNS,
    CSV_COLUMNS,
    escape_latex,
    escape_markdown,
    to_csv,
    to_json,
    to_latex,
    to_markdown,
)
from calibrant.grid.tables import compare_table
from calibrant.report.page import render_page
from calibrant.report.rows import Column, Mean, Row, Section, Table
from made_up_runs import run_of, seeds


def everything() -> Table:
    runs = [*seeds("ce", 0.05), *seeds("focal", 0.08), run_of("flgamma-sece", preset="paper")]
    runs += [run_of("50%_of & {mine}|~^\\#$", model=None, epochs=None), run_of("ce", data="cifar100")]
    return compare_table(runs, paper=True, calibrated=True, title="Everything: 100% & more")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-cmd", "@SUM(A1)", "\t=1"])
def test_csv_names_are_no_formulas_and_numbers_keep_their_sign(name: str) -> None:
    table = compare_table([run_of(name, data=name, model=name, told=f"{name}=1")], metrics=("error", "ece"))
    (row, _) = csv.DictReader(io.StringIO(to_csv(table)))
    assert [row[key] for key in ("data", "model", "method")] == [f"'{name}"] * 3
    assert row["settings"].startswith("'")
    below = replace(table.rows[0], cells={"ece": Mean(-0.01, values=(-0.01, -0.02))}, kind="difference")
    text = to_csv(replace(table, sections=(replace(table.sections[0], rows=(below,)),)))
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["mean"], row["values"]) == ("-0.01", "-0.01 -0.02")


def test_markdown_every_line_of_a_table_has_as_many_cells() -> None:
    text = to_markdown(everything())
    for block in text.split("\n\n"):
        rows = [row for row in block.splitlines() if row.startswith("|")]
        assert len({len(re.split(r"(?<!\\)\|", row)) for row in rows}) <= 1
    assert "50%\\_of & {mine}\\|~^\\\\#$" in text
    assert escape_markdown("a_b|c") == "a\\_b\\|c"


def balance(text: str) -> int:
    """Opening minus closing braces, those that are printed left out."""
    plain = text.replace("\\{", "").replace("\\}", "")
    return plain.count("{") - plain.count("}")


def test_latex_rows_are_whole_and_everything_is_escaped() -> None:
    text = to_latex(everything())
    body = text[text.index("\\toprule") : text.index("\\bottomrule")]
    widths = set()
    for row in body.splitlines():
        if row.endswith("\\\\"):
            spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
            widths.add(len(re.findall(r"(?<!\\)&", row)) + 1 + sum(spans) - len(spans))
    columns = re.search(r"\\begin\{tabular\}\{(l r*|lr*)\}", text)
    assert columns is not None
    assert widths == {len(columns[1])}
    assert balance(text) == 0
    # A table that is too wide shrinks: the brace that is opened before it is closed behind it.
    assert [balance(row) for row in text.splitlines() if balance(row)] == [1, -1]
    assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    assert text.count("\\begin{") == text.count("\\end{")
    # A bare sign would end the line as a comment, or the document as an error; two comments are there on purpose.
    bare = [row for row in text.splitlines() if re.search(r"(?<!\\)[%#]", row)]
    assert [row[:8] for row in bare] == ["% needs ", "\\resizeb"]
    assert text.isascii()
    assert r"50\%\_of \& \{mine\}$|$\textasciitilde{}\textasciicircum{}\textbackslash{}\#\$" in text


def test_csv_is_tidy_with_full_precision() -> None:
    table = compare_table([run_of("ce", 1 / 3, seed=0), run_of("ce", 0.3, seed=1)], paper=True, calibrated=True)
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert list(rows[0]) == list(CSV_COLUMNS)
    assert len(rows) == 6 + 1 + 6
    first = rows[0]
    assert (first["metric"], first["source"], first["seeds"], first["runs"]) == ("error", "ours", "0 1", "2")
    assert first["test_over"] == ""
    assert [float(value) for value in first["values"].split()] == [1 / 3, 0.3]
    assert float(first["mean"]) == (1 / 3 + 0.3) / 2
    assert rows[6]["metric"] == "p_if_calibrated"
    assert (rows[7]["source"], rows[7]["mean"], rows[7]["values"]) == ("paper", "0.04812", "")


def test_json_holds_every_cell_and_is_strict() -> None:
    runs = [run_of("ce"), run_of("focal", float("nan"))]
    found = json.loads(to_json(compare_table(runs)), parse_constant=lambda name: pytest.fail(name))
    section = found["sections"][0]
    assert (section["data"], section["model"]) == ("cifar10", "resnet18")
    assert section["lines"][0]["cells"]["ece"]["mean"] == 0.04
    assert section["lines"][1]["cells"]["error"]["mean"] is None


def table_of(*names: str, metrics: tuple[str, ...] = ("error", "nll", "ece", "mce")) -> Table:
    theirs = [run_of(name, model=None, epochs=None, seed=None, preset=None) for name in names]
    return compare_table([*seeds("ce", 0.05), *seeds("flgamma-sece", 0.04), *theirs], metrics=metrics)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Δ≤2", r"$\Delta$$\le$2"),
        ("--set a---b", "-{}-set a-{}-{}-b"),
        ("5 ± 1 – 2", r"5 $\pm$ 1 -- 2"),
        ("naïve FLγ", r"naïve FL$_{\gamma}$"),
    ],
)
def test_escape_writes_what_pdflatex_can_print(text: str, written: str) -> None:
    assert escape_latex(text) == written


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
@pytest.mark.parametrize("columns", ["onecolumn", "twocolumn"])
def test_latex_compiles_whatever_rows_are_called(columns: str, tmp_path: Path) -> None:
    tables = [table_of("".join(_SIGNS).replace("\0", "")), table_of(metrics=("ece",))]
    head = f"\\documentclass[{columns}]{{article}}\n\\usepackage{{booktabs,graphicx}}\n\\begin{{document}}\n"
    text = head + "\n".join(to_latex(table) for table in tables) + "\\end{document}\n"
    (tmp_path / "t.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


COLUMNS = (Column("error", "Error"), Column("ece", "ECE"))
OURS = Row("mine <b>", "ce", {"error": Mean(0.05, 0.002), "ece": Mean(0.01, best=True, p_value=0.001)}, n_runs=3)
THEIRS = Row("in the paper", "ce", {"ece": Mean(0.04056, 0.00092)}, n_runs=5, kind="paper")
TABLE = Table("t", "A <title>", COLUMNS, (Section("CIFAR-10", (OURS, THEIRS)), Section("", (OURS,))), notes=("One & all.",))


def test_page_shows_another_table_before_the_runs() -> None:
    page = render_page(table=compare_table([run_of("ce")]), above=TABLE)
    assert page.index("A &lt;title&gt;</h2>") < page.index('id="runs"')
    assert '<th scope="rowgroup" colspan="4"><b>CIFAR-10</b></th>' in page
    assert page.count('scope="rowgroup"') == 2
    assert "mine &lt;b&gt;</th>" in page
    assert '<td><b>1.000</b><span class="dagger">†</span><small></small></td>' in page
    assert re.search(r'<tr class="quiet"><th scope="row">in the paper.*?4.056<small>± 0.092</small>', page, re.DOTALL)
    assert "One &amp; all." in page
