"""What a comparison leaves: a page that says the same as the table, and no figure of an older one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from calibrant.core.records import Entry
from calibrant.grid.export import write_outputs
from calibrant.paper.reproduce import plan_reproduction, write_experiment
from calibrant.report.figures import Drawing
from calibrant.report.rows import group_rows
from figure_data import run_of
from made_up_runs import no_files


@pytest.fixture
def quick_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write files that say who made them, and no charts in the page: drawing takes most of the time."""
    monkeypatch.setattr("calibrant.report.save.render_figure", no_files)
    monkeypatch.setattr("calibrant.report.page.page_charts", lambda groups: [])


def with_settings(entry: Entry, *settings: str) -> Entry:
    return replace(entry, recipe=dict(text.split("=", 1) for text in settings))


def made_entries() -> list[Entry]:
    theirs = run_of("theirs", model=None, preset=None, epochs=None, seed=None, error=0.13, ece=0.055)
    return [
        run_of("ce", seed=0, error=0.12, ece=0.06),
        run_of("ce", seed=1, error=0.14, ece=0.08),
        run_of("focal", error=0.15, ece=0.02),
        with_settings(run_of("ce", error=0.05, ece=0.01), "optim.lr=0.4"),
        run_of("ce", epochs=50, error=0.01, ece=0.01),
        theirs,
    ]


def bold_in_table(text: str) -> list[list[bool]]:
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    places = [place for place, name in enumerate(lines[0]) if name.strip() in ("Error (%)", "ECE (%)")]
    return [["**" in line[place] for place in places] for line in lines[2:]]


def bold_on_page(text: str) -> list[list[bool]]:
    table = text[text.rindex('<table class="runs">') :]
    head, *rows = re.findall(r"<tr>(.*?)</tr>", table[: table.index("</table>")], re.DOTALL)
    names = re.findall(r'<th scope="col">(.*?)</th>', head)[1:]
    places = [place for place, name in enumerate(names) if name in ("Error (%)", "ECE (%)")]
    cells = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in rows]
    return [["<b>" in row[place] for place in places] for row in cells]


@pytest.mark.usefixtures("quick_figures")
def test_page_and_table_mark_the_same_values(tmp_path: Path) -> None:
    table, _ = write_outputs(made_entries(), tmp_path, bins=())
    page = (tmp_path / "report.html").read_text()
    found = bold_in_table((tmp_path / "table.md").read_text())
    # Among three epochs without other settings; what stands alone is the best of nothing.
    assert found == [[True, False], [False, True], [False, False], [False, False], [False, False]]
    assert bold_on_page(page) == found
    assert "5 methods compared in 6 runs" in page
    assert "<title>digits, convnet</title>" in page


@pytest.mark.usefixtures("quick_figures")
@pytest.mark.parametrize("paper", [True, False])
def test_outputs_begin_with_what_is_missing(tmp_path: Path, paper: bool) -> None:
    table, _ = write_outputs(made_entries(), tmp_path, ["Missing: mmce."], bins=(), paper=paper)
    assert table.notes[0] == "Missing: mmce."
    assert (tmp_path / "report.html").read_text().count("Missing: mmce.") == 1
    plan = plan_reproduction("table1", data=["digits"], quick=True)
    table, _ = write_experiment(plan, made_entries(), tmp_path / "paper", ["Missing: mmce."])
    assert table.notes[0] == "Missing: mmce."
    assert (tmp_path / "paper" / "report.html").read_text().count("Missing: mmce.") == 1


@pytest.mark.usefixtures("quick_figures")
def test_figures_of_an_older_comparison_are_removed(tmp_path: Path) -> None:
    gammas = run_of("flgamma-sece", curve=[0.3, 0.2, 0.1], gamma=[1.0, 1.1, 1.2])
    older = write_outputs([run_of("ce"), gammas, run_of("ce", data="mixture")], tmp_path)[1]
    names = {file.name for file in older if file.suffix == ".png"}
    assert {"gamma-epochs-digits-convnet.png", "robustness-mixture-convnet.png"} <= names
    (tmp_path / "figures" / "tradeoff-mine.png").write_bytes(b"mine")
    for figures in (True, False):
        files = write_outputs([run_of("ce")], tmp_path, bins=(15,) if figures else ())[1]
        drawn = {file.name for file in files if file.parent.name == "figures"}
        assert bool(drawn) is figures
        assert {file.name for file in (tmp_path / "figures").iterdir()} == {"tradeoff-mine.png", *drawn}
        assert not any("gamma" in name or "mixture" in name for name in drawn)


@pytest.mark.usefixtures("quick_figures")
def test_page_and_figures_name_rows_as_the_table_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Entry] = []
    monkeypatch.setattr("calibrant.grid.export.draw_all", lambda rows, _, n_bins: shown.extend(rows) or Drawing([], {}))
    focal = with_settings(run_of("focal"), "method.options.gamma=3", "data.val=30")
    runs = [with_settings(run_of("ce"), "optim.lr=0.05", "data.val=30"), focal, with_settings(run_of("flsd"), "data.val=30")]
    table, _ = write_outputs(runs, tmp_path)
    labels = ["CE (lr=0.05)", "Focal (gamma=3)", "FLSD"]
    assert [row.label for row in table.rows] == labels
    assert [row.label for row in group_rows(shown)[0].rows] == labels
    assert re.findall(r'<th scope="row">([^<]*)</th>', (tmp_path / "report.html").read_text()) == labels
