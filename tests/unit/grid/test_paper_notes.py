from __future__ import annotations

from calibrant.grid.captions import paper_notes
from calibrant.grid.latex import to_latex
from calibrant.grid.paper import load_paper
from calibrant.grid.paper_notes import notes_about, say_note
from calibrant.grid.paper_tables import make_paper_table
from calibrant.grid.results_page import render_results
from calibrant.grid.tables import compare_table
from made_up_runs import run_of

_UNDER_TUNED = "The paper's Table 1, CIFAR-10, CE (TS), ECE: Temperature scaling seems under-tuned"
_WRONG_CELL = "The paper's Table 5, CIFAR-100, CE-DECE, error: The differences to CE of Table 1 give +0.836; −0.164 is printed."


def test_table_with_the_papers_numbers_says_what_is_known_about_them() -> None:
    table = compare_table([run_of("ce", data="cifar10"), run_of("ce+ts", data="cifar10")], paper=True)
    assert [note for note in table.notes if note.startswith(_UNDER_TUNED)]
    assert "under-tuned" in to_latex(table)
    elsewhere = compare_table([run_of("ce", data="cifar100"), run_of("ce+ts", data="cifar100")], paper=True)
    assert not any("under-tuned" in note for note in elsewhere.notes)
    # Neither of methods, nor of data, nor of tables that are not shown.
    assert not any("FLSD" in note or "CIFAR-100" in note or "Table 5" in note for note in table.notes)


def test_table_of_ones_own_numbers_says_nothing_about_the_papers() -> None:
    assert not any("The paper's" in note for note in compare_table([run_of("ce", data="cifar10")]).notes)
    digits = compare_table([run_of("ce", data="digits"), run_of("ce+ts", data="digits")], paper=True)
    assert not any("The paper's" in note for note in digits.notes)


def test_densenet_rows_have_the_notes_of_their_own_table() -> None:
    runs = [run_of(method, data="cifar10", model="densenet100") for method in ("ce", "ce-sece")]
    found = notes_about(compare_table(runs, paper=True))
    assert {note.table for note in found} == {"table4"}


def test_table5_names_the_cell_that_does_not_follow_from_table1() -> None:
    runs = [run_of(method, data=data) for data in ("cifar10", "cifar100") for method in ("ce", "ce-dece", "focal")]
    assert _WRONG_CELL in make_paper_table("table5", runs, paper=True).notes
    without = [run for run in runs if run.method != "ce-dece"]
    assert _WRONG_CELL not in make_paper_table("table5", without, paper=True).notes
    elsewhere = [run for run in runs if run.data == "cifar10"]
    assert _WRONG_CELL not in make_paper_table("table5", elsewhere, paper=True).notes


def test_page_tells_every_note_once_and_at_its_end() -> None:
    runs = [run_of(method, data="cifar10") for method in ("ce", "ce+ts", "flsd")]
    page = render_results(runs, source="results", link="../results")
    tables, end = page.split("## About the paper's numbers")
    assert "under-tuned" not in tables
    assert end.count("under-tuned") == 1
    assert "- Table 1, CIFAR-10, FLSD, LS-0.1, MCE: Bold" in end
    assert "Tiny-ImageNet" not in end


def test_every_note_can_be_said() -> None:
    said = [say_note(note) for note in load_paper().notes]
    assert all(text.startswith("Table ") and text.endswith(".") for text in said)
    assert any("classwise ECE: " in text for text in said)


def test_paper_notes_of_a_table_are_among_its_notes() -> None:
    table = compare_table([run_of("ce", data="cifar10"), run_of("flsd", data="cifar10")], paper=True)
    assert set(paper_notes(table)) <= set(table.notes)
    assert paper_notes(table)
