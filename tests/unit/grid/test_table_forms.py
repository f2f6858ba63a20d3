from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from calibrant.core.entry import Entry
from calibrant.grid.export import CSV_COLUMNS, to_csv, to_json, write_table
from calibrant.grid.latex import to_latex
from calibrant.grid.latex_signs import escape as latex_escape
from calibrant.grid.layout import Table
from calibrant.grid.markdown import escape as markdown_escape
from calibrant.grid.markdown import to_markdown
from calibrant.grid.paper_tables import make_paper_table, make_paper_tables
from calibrant.grid.tables import compare_table
from made_up_runs import run_of, seeds


def test_table5_other_epochs_than_cross_entropy_are_not_compared() -> None:
    with pytest.raises(ValueError, match="table5: `entries` must hold a run of ce, and one of another method"):
        make_paper_table("table5", [run_of("ce"), run_of("focal", epochs=20)])


def test_make_paper_tables_makes_those_that_have_their_runs() -> None:
    assert list(make_paper_tables([run_of("ce")])) == ["table1"]
    assert list(make_paper_tables([run_of("ce"), run_of("flgamma"), run_of("flgamma-sece")])) == ["table1", "table2", "table5"]
    assert list(make_paper_tables([run_of("mdca"), run_of("ce-dece", model="densenet100")])) == ["table3", "table4"]
    assert make_paper_tables([run_of("brier")]) == {}
    # A short run has no cross-entropy of its length to differ from.
    assert list(make_paper_tables([run_of("ce"), run_of("focal", epochs=20)])) == ["table1"]


def everything() -> Table:
    runs = [*seeds("ce", 0.05), *seeds("focal", 0.08), run_of("flgamma-sece", preset="paper")]
    runs += [run_of("50%_of & {mine}|~^\\#$", model=None, epochs=None), run_of("ce", data="cifar100")]
    return compare_table(runs, paper=True, calibrated=True, title="Everything: 100% & more")


def test_markdown_every_line_of_a_table_has_as_many_cells() -> None:
    text = to_markdown(everything())
    for block in text.split("\n\n"):
        rows = [row for row in block.splitlines() if row.startswith("|")]
        assert len({len(re.split(r"(?<!\\)\|", row)) for row in rows}) <= 1
    assert "50%\\_of & {mine}\\|~^\\\\#$" in text
    assert markdown_escape("a_b|c") == "a\\_b\\|c"


def test_markdown_columns_stay_below_each_other_with_wide_letters() -> None:
    text = to_markdown(compare_table([run_of("ce"), run_of("模型"), run_of("a\u0301bcdef")], metrics=("ece",), test=False))
    rows = [row for row in text.splitlines() if row.startswith("| ")]
    # A terminal gives each of these letters two places, and an accent of its own none.
    assert rows[1].startswith("| ce     |")
    assert rows[2].startswith("| 模型   |")
    assert rows[3].startswith("| a\u0301bcdef |")


def test_markdown_bold_and_mark_stand_around_the_number() -> None:
    table = compare_table([*seeds("ce", 0.05), *seeds("focal", 0.02, jitter=0.0)])
    row = next(row for row in to_markdown(table).splitlines() if row.startswith("| focal"))
    assert "**2.000 ± 0.000**†" in row


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


def test_latex_escape_sets_gamma_as_an_index() -> None:
    assert latex_escape("FLγ-SECE ± 5%") == r"FL$_{\gamma}$-SECE $\pm$ 5\%"


def test_csv_is_tidy_with_full_precision() -> None:
    table = compare_table([run_of("ce", 1 / 3, seed=0), run_of("ce", 0.3, seed=1)], paper=True, calibrated=True)
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert list(rows[0]) == list(CSV_COLUMNS)
    assert len(rows) == 6 + 1 + 6
    first = rows[0]
    assert (first["metric"], first["source"], first["seeds"], first["runs"]) == ("error", "ours", "0 1", "2")
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


def test_write_table_writes_four_forms(tmp_path: Path) -> None:
    files = write_table(compare_table([run_of("ce")], name="mine"), tmp_path / "new")
    assert [file.name for file in files] == ["mine.md", "mine.tex", "mine.csv", "mine.json"]
    assert all(file.stat().st_size > 100 for file in files)


def test_write_table_of_a_name_that_is_no_text_writes_the_rest(tmp_path: Path) -> None:
    files = write_table(compare_table([run_of("m\udc80"), run_of("ce")], test=False), tmp_path)
    assert all("m?" in file.read_text(encoding="utf-8") for file in files)


def test_compare_table_predictions_join_the_first_network_and_say_no_setting() -> None:
    lr = "calibrant train --set optim.lr=0.2"
    theirs = run_of("theirs", model=None, epochs=None, preset=None, seed=None)
    table = compare_table([theirs, run_of("ce", command=lr), run_of("ce", model="mlp", command=lr)], test=False)
    assert [(section.model, len(section.lines)) for section in table.sections] == [("resnet18", 2), ("mlp", 1)]
    assert [line.settings for line in table.lines] == [(), ("optim.lr=0.2",), ("optim.lr=0.2",)]
    assert "Settings: optim.lr=0.2." in table.notes


def test_compare_table_size_is_that_of_the_runs_and_unknown_where_seeds_differ() -> None:
    def sized(entry: Entry, n: int) -> Entry:
        return replace(entry, scores=replace(entry.scores, n=n))

    theirs = sized(run_of("theirs", model=None, epochs=None, preset=None, seed=None), 500)
    parts = [run_of("parts", model=None, epochs=None, preset=None, seed=seed) for seed in (0, 1)]
    table = compare_table([theirs, run_of("ce"), parts[0], sized(parts[1], 500)], test=False)
    assert [line.examples for line in table.lines] == [500, 10000, None]
    notes = [note for note in table.notes if "test examples" in note]
    assert notes == [
        "theirs on cifar10: 500 test examples, other rows 10,000; not compared with them.",
        "parts on cifar10: seeds of different numbers of test examples, other rows 10,000; not compared with them.",
    ]


def test_compare_table_explains_bold_of_any_section() -> None:
    table = compare_table([run_of("ce"), run_of("ce", model="mlp"), run_of("focal", 0.01, model="mlp")], test=False)
    assert any(note.startswith("Bold: the lowest") for note in table.notes)


def test_paper_table_puts_plain_runs_before_those_with_settings() -> None:
    table = make_paper_table("table1", [run_of("ce", 0.01, command="calibrant train --set optim.lr=0.4"), run_of("ce")])
    assert [line.settings for line in table.lines if line.kind == "ours"] == [(), ("optim.lr=0.4",)]
