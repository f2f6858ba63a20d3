from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from calibrant.grid.results import load_results, save_result
from calibrant.grid.results_page import render_results, write_results_page
from made_up_runs import run_of

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def test_committed_page_is_a_fresh_rendering_of_the_committed_results() -> None:
    figures = [f"figures/{file.name}" for file in sorted((DOCS / "figures").glob("*.png"))]
    fresh = render_results(load_results(ROOT / "results"), source="results", link="../results", figures=figures)
    # After adding a record: calibrant results render results --out docs/results.md --figures docs/figures
    assert (DOCS / "results.md").read_text(encoding="utf-8") == fresh


def test_committed_page_shows_no_broken_link() -> None:
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", page) if not link.startswith("http")]
    assert links
    assert [link for link in links if not (DOCS / link).exists()] == []


def test_page_shows_every_run_with_command_machine_epochs_and_seed() -> None:
    command = "calibrant train --method ce --seed 3 --set train.eval_every_epochs=5"
    facts = {"command": command, "machine": "1x H200", "versions": {"torch": "2.11"}, "seconds": 347.5}
    facts |= {"examples": {"train": 45000}, "note": "looked at every 5 epochs"}
    entry = replace(run_of("ce", seed=3), facts=facts, best_epoch=348)
    page = render_results([entry], source="results", link="../results")
    line = next(line for line in page.splitlines() if line.startswith("- [`cifar10-resnet18-ce-default-seed3.json`]"))
    for text in (
        "350 epochs, seed 3",
        "taken from epoch 349",
        "1x H200, 6 min",
        "torch 2.11",
        "train 45,000",
        "every 5 epochs",
    ):
        assert text in line
    assert f"  `{command}`" in page
    assert "| CE " in page
    assert "4.812 ± 0.122" in page


def test_page_keeps_short_runs_apart_from_full_ones() -> None:
    page = render_results([run_of("ce", 0.05), run_of("focal", 0.01, epochs=20)], source="results", link="x")
    row = next(line for line in page.splitlines() if line.startswith("| Focal"))
    assert "|     20 |" in row
    assert "**" not in row


def test_page_shows_methods_that_the_paper_has_not() -> None:
    page = render_results([run_of("ce"), run_of("brier"), run_of("ce", model="wrn28-10")], source="results", link="x")
    assert "## Other runs" in page
    assert re.search(r"\| brier +\|", page)
    assert "CIFAR-10, wrn28-10" in page


def test_write_results_page_draws_what_records_allow(tmp_path: Path) -> None:
    for entry in load_results(ROOT / "results")[:1]:
        save_result(entry, tmp_path / "kept")
    figures = tmp_path / "docs" / "figures"
    figures.mkdir(parents=True)
    (figures / "old.png").write_bytes(b"")
    files = write_results_page(tmp_path / "kept", out=tmp_path / "docs" / "page.md", figures=figures)
    names = [file.name for file in files]
    assert names[0] == "page.md"
    assert {"robustness-cifar10-resnet18.png", "reliability-cifar10-resnet18-15bins.png"} <= set(names)
    assert not (figures / "old.png").exists()
    page = files[0].read_text(encoding="utf-8")
    assert f"![{'CIFAR-10, resnet18. ECE and MCE against the number of bins.'}](figures/{names[-1]})" in page
    assert "![CIFAR-10, resnet18, 15 bins. Reliability diagrams." in page
    assert "](../kept/" in page
    again = write_results_page(tmp_path / "kept", out=tmp_path / "docs" / "page.md")
    assert again[0].read_text(encoding="utf-8") == page


def test_captions_of_figures_name_data_and_network_as_the_tables_do() -> None:
    entries = [replace(run_of("ce"), data="tiny-imagenet", model="densenet-bc-100"), run_of("ce")]
    paths = ["figures/curves-tiny_imagenet-densenet_bc_100.png", "figures/tradeoff-cifar10-resnet18.png", "figures/mine.png"]
    page = render_results(entries, source="results", link="x", figures=paths)
    assert f"![Tiny-ImageNet, densenet-bc-100. ECE and error over the epochs.]({paths[0]})" in page
    assert f"![CIFAR-10, resnet18. Error against ECE.]({paths[1]})" in page
    assert f"![mine]({paths[2]})" in page
