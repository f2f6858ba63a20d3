from __future__ import annotations

import re

from calibrant.grid.layout import Cell, Column, Line, Section, Table
from calibrant.grid.page_table import name_methods, to_page_table
from calibrant.grid.tables import compare_table
from calibrant.report.page import render_page
from calibrant.report.page_runs import group_entries
from made_up_runs import run_of

COLUMNS = (Column("error", "Error", "error"), Column("ece", "ECE", "ece"))
OURS = Line("mine <b>", "ce", {"error": Cell(0.05, 0.002), "ece": Cell(0.01, best=True, p_value=0.001)}, runs=3)
THEIRS = Line("in the paper", "ce", {"ece": Cell(0.04056, 0.00092)}, runs=5, kind="paper")
TABLE = Table("t", "A <title>", COLUMNS, (Section("CIFAR-10", (OURS, THEIRS)), Section("", (OURS,))), notes=("One & all.",))


def test_to_page_table_writes_numbers_as_the_other_forms_do() -> None:
    found = to_page_table(TABLE)
    assert (found.title, found.heads, found.notes) == (
        "A <title>",
        ("Method", "Seeds", "Error (%)", "ECE (%)"),
        ("One & all.",),
    )
    (first, (ours, theirs)), (second, _) = found.parts
    assert (first, second) == ("CIFAR-10", "")
    assert ours.cells == (("3", False), ("5.000 ± 0.200", False), ("1.000†", True))
    assert theirs.cells == (("5", False), ("–", False), ("4.056 ± 0.092", False))
    assert (ours.is_quoted, theirs.is_quoted) == (False, True)


def test_page_shows_a_finished_table_before_the_runs() -> None:
    page = render_page(entries=[run_of("ce")], tables=[to_page_table(TABLE)])
    assert page.index("A &lt;title&gt;</h2>") < page.index('id="runs"')
    assert '<th scope="rowgroup" colspan="4"><b>CIFAR-10</b></th>' in page
    assert page.count('scope="rowgroup"') == 1
    assert "mine &lt;b&gt;</th>" in page
    assert "<td><b>1.000†</b></td>" in page
    assert re.search(r'<td class="quiet">4.056 ± 0.092</td>', page)
    assert "One &amp; all." in page


def test_name_methods_gives_rows_and_notes_the_names_of_figures() -> None:
    table = compare_table(
        [run_of("patra"), run_of("ls-0.05"), run_of("flgamma-sece"), run_of("theirs", epochs=None, model=None)]
    )
    named = name_methods(table)
    assert [line.label for line in table.lines] == ["patra", "ls-0.05", "flgamma-sece", "theirs"]
    assert [line.label for line in named.lines] == ["Huber-DCA", "LS-0.05", "FLγ-SECE", "theirs"]
    assert any(note.startswith("By preset, FLγ-SECE predicts") for note in named.notes)
    # The page's own rows have the same names.
    assert [group.label for group in group_entries([run_of("patra"), run_of("ls-0.05")])] == ["Huber-DCA", "LS-0.05"]
