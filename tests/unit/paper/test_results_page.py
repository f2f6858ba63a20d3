from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

import pytest
from matplotlib.figure import Figure

from calibrant.grid.collect import load_results, save_results
from calibrant.paper.reproduce import render_results, write_results_page
from calibrant.report.save import save_figure
from made_up_runs import run_of

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def test_committed_page_is_a_fresh_rendering_of_the_committed_results() -> None:
    figures = [f"figures/{file.name}" for file in sorted((DOCS / "figures").glob("*.png"))]
    command = "calibrant results render results --out docs/results.md --figures docs/figures"
    note = (ROOT / "results" / "note.md").read_text(encoding="utf-8")
    fresh = render_results(load_results(ROOT / "results"), link="../results", command=command, figures=figures, note=note)
    assert (DOCS / "results.md").read_text(encoding="utf-8") == fresh


def test_committed_page_shows_no_broken_link() -> None:
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", page) if not link.startswith("http")]
    assert links
    assert [link for link in links if not (DOCS / link).exists()] == []


def test_readme_says_what_a_calibrated_model_would_show() -> None:
    runs = [run for run in load_results(ROOT / "results") if (run.data, run.method) == ("cifar100", "flgamma-sece")]
    chance = fmean(run.scores.ece_if_calibrated.mean for run in runs)
    assert f"an ECE of {100 * chance:.2f}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_write_results_page_draws_what_records_allow(tmp_path: Path) -> None:
    for entry in load_results(ROOT / "results")[:1]:
        save_results([entry], tmp_path / "kept")
    figures = tmp_path / "docs" / "figures"
    figures.mkdir(parents=True)
    (figures / "mine.png").write_bytes(b"")
    old = save_figure(Figure(), figures / "curves-cifar10-mlp")
    files = write_results_page(tmp_path / "kept", out=tmp_path / "docs" / "page.md", figures=figures)
    names = [file.name for file in files]
    assert names[0] == "page.md"
    assert {"robustness-cifar10-resnet18.png", "reliability-cifar10-resnet18-15bins.png"} <= set(names)
    # What calibrant drew before is replaced, what others did stays.
    assert not any(file.exists() for file in old)
    (figures / "mine.png").unlink()
    page = files[0].read_text(encoding="utf-8")
    assert f"![{names[-1][11:-4]}](figures/{names[-1]})" in page
    assert "## Reliability diagrams\n" in page
    assert "](../kept/" in page
    again = write_results_page(tmp_path / "kept", out=tmp_path / "docs" / "page.md")
    assert again[0].read_text(encoding="utf-8") == page


def test_page_names_the_command_that_made_it_without_a_place_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("calibrant.paper.reproduce._draw", lambda entries, folder: [folder / "x.png"])
    save_results([run_of("ce")], "my runs")
    for start in (tmp_path, Path()):
        write_results_page(start / "my runs", out=start / "page" / "all.md", figures=start / "page" / "figs")
        page = (tmp_path / "page" / "all.md").read_text(encoding="utf-8")
        assert "```\ncalibrant results render 'my runs' --out page/all.md --figures page/figs\n```" in page
        assert str(tmp_path) not in page


SPECIAL = "train.average=phase"


def rows_of(page: str, heading: str) -> list[list[str]]:
    """Cells of the lines of a table, marks taken off."""
    part = page.partition(f"## {heading}")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ") and not line.startswith("| Method")]
    return [[cell.strip().replace("*", "") for cell in line.strip("|").split("|")] for line in lines]


def test_other_runs_are_in_the_order_of_the_catalogue_plain_ones_first() -> None:
    made = {"data": "digits", "model": "convnet", "epochs": 30}
    entries = [run_of("brier", **made), run_of("ce+ts", told=SPECIAL, **made), run_of("ce+ts", **made)]  # type: ignore[arg-type]
    entries += [run_of("focal", **made), run_of("ce", told=SPECIAL, **made), run_of("ce", **made)]  # type: ignore[arg-type]
    rows = rows_of(render_results(entries, link="x", command="x"), "Other runs")
    found = [(row[0].replace(" (average=phase)", ""), "phase" in row[1]) for row in rows]
    assert found[:4] == [("CE", False), ("CE (TS)", False), ("CE", True), ("CE (TS)", True)]
    assert found[4:] == [("Focal", False), ("Brier", False)]
    assert render_results(entries[::-1], link="x", command="x") == render_results(entries, link="x", command="x")


def test_page_below_a_file_is_refused_before_anything_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[object] = []
    monkeypatch.setattr("calibrant.paper.reproduce._draw", lambda *given: drawn.append(given) or [])
    save_results([run_of("ce")], tmp_path / "kept")
    (tmp_path / "taken").write_text("")
    with pytest.raises(OSError, match="taken"):
        write_results_page(tmp_path / "kept", out=tmp_path / "taken" / "x.md", figures=tmp_path / "figures")
    assert drawn == []
