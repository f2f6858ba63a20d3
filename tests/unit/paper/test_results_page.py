from __future__ import annotations

import re
from dataclasses import replace
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


def test_page_shows_every_run_with_command_machine_epochs_and_seed() -> None:
    command = "calibrant train --method ce --seed 3 --set train.eval_every_epochs=5"
    facts = {"command": command, "machine": "1x H200", "versions": {"torch": "2.11"}, "seconds": 347.5}
    facts |= {"examples": {"train": 45000}, "note": "looked at every 5 epochs"}
    entry = replace(run_of("ce", seed=3), facts=facts, best_epoch=348)
    page = render_results([entry], link="../results", command="x")
    line = next(line for line in page.splitlines() if line.startswith("- [`cifar10-resnet18-ce-default-seed3.json`]"))
    for text in ("350 epochs", "seed 3", "taken from epoch 349", "1x H200", "6 min", "torch 2.11", "every 5 epochs"):
        assert text in line
    assert f"  `{command}`" in page
    assert "| CE " in page
    assert "4.812 ± 0.122" in page


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


def test_page_begins_with_the_note_the_tradeoff_and_a_ranking_of_rows_that_had_the_same_chances() -> None:
    trained = {"ce": 45000, "focal": 45000, "flgamma-sece": 40000, "flgamma-dece": 40000}
    made = (("ce", 0.06), ("focal", 0.05), ("flgamma-sece", 0.04), ("flgamma-dece", 0.07))
    runs = [replace(run_of(method, error), facts={"examples": {"train": trained[method]}}) for method, error in made]
    runs.append(replace(run_of("ce-dece", 0.02), facts={"examples": {"train": 44000}}))
    figures = ["figures/curves-cifar10-resnet18.png", "figures/tradeoff-cifar10-resnet18.png"]
    page = render_results(runs, link="x", command="x", figures=figures, note="Read this.\n")
    places = [page.index(text) for text in ("Read this.", f"]({figures[1]})", "1. FLγ-SECE", "## Table 1", f"]({figures[0]})")]
    assert places == sorted(places)
    rows = rows_of(page, "CIFAR-10, resnet18")
    assert [(row[0], row[3]) for row in rows] == [
        ("CE-DECE", "44,000"),
        ("1. FLγ-SECE", "40,000"),
        ("2. FLγ-DECE", "40,000"),
        ("1. Focal", "45,000"),
        ("2. CE", "45,000"),
    ]


def test_page_says_once_what_all_runs_or_tables_have_in_common() -> None:
    facts = {"machine": "1x H200", "versions": {"torch": "2.11"}, "note": "looked at every 5 epochs; killed"}
    runs = [replace(run_of("ce"), facts=facts), replace(run_of("focal"), facts=facts | {"note": "looked at every 5 epochs"})]
    page = render_results([*runs, run_of("brier")][:2], link="x", command="x")
    assert "All runs: 350 epochs; seed 0; 1x H200; torch 2.11; looked at every 5 epochs." in page
    assert page.count("1x H200") == page.count("Bold: ") == 1
    assert "ce-default-seed0.json): killed." in page


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


def test_every_row_of_every_table_has_its_epochs_preset_and_seeds() -> None:
    entries = [run_of(method, model="convnet", epochs=30) for method in ("ce", "flgamma-sece")] + [run_of("ce")]
    page = render_results(entries, link="x", command="x")
    for heading in ("Other runs", "Table 1"):
        assert re.search(rf"## {heading}.*?\| Method +\| +(Weights, epoch \| +)?Preset \| Epochs \| Seeds", page, re.DOTALL)
    assert [row[2:5] for row in rows_of(page, "Other runs")] == [["–", "30", "1"], ["default", "30", "1"]]


def test_page_below_a_file_is_refused_before_anything_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[object] = []
    monkeypatch.setattr("calibrant.paper.reproduce._draw", lambda *given: drawn.append(given) or [])
    save_results([run_of("ce")], tmp_path / "kept")
    (tmp_path / "taken").write_text("")
    with pytest.raises(OSError, match="taken"):
        write_results_page(tmp_path / "kept", out=tmp_path / "taken" / "x.md", figures=tmp_path / "figures")
    assert drawn == []
