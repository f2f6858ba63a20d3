"""Runs in a real browser: what a reader sees of them, chooses and hides. Skipped where there is no Chromium."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browser import (
    drawn_accuracies,
    expected_accuracies,
    needs_chromium,
    opened_page,
    parts_without_numbers,
    percent,
    sync_api,
)
from calibrant import measure
from calibrant.core.records import Entry
from calibrant.data.synthetic import synthetic_predictions
from calibrant.grid.tables import compare_table
from calibrant.metrics import expected_calibration_error
from calibrant.report.page import STOPS, render_page
from calibrant.report.rows import Column, Mean, Row, Section, Table
from made_up_page_runs import made_runs

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "runs.html"
    file.write_text(render_page(table=compare_table(made_runs(), test=False)), encoding="utf-8")
    return file


def shown_rows(page: Any, chart: str) -> set[str]:
    """Rows that are seen in the picture of a chart."""
    found = page.locator(f"#{chart} .picture:not([hidden]) [data-run]").evaluate_all(
        "all => all.filter((part) => getComputedStyle(part).display !== 'none').map((part) => part.dataset.run)"
    )
    return set(found)


def test_charts_of_runs_are_drawn_hidden_and_chosen(opened: Any) -> None:
    assert parts_without_numbers(opened) == []
    # Of focal only the error is known, and the repaired row has no curve of its own.
    assert shown_rows(opened, "tradeoff") == shown_rows(opened, "robustness") == {"CE", "FLγ-SECE", "CE (TS)"}
    assert shown_rows(opened, "curves") == {"CE", "FLγ-SECE"}
    assert shown_rows(opened, "gamma-epochs") == {"FLγ-SECE"}
    opened.get_by_role("checkbox", name="FLγ-SECE").uncheck()
    assert shown_rows(opened, "curves") == {"CE"}
    assert opened.locator("#grid g.bars").count() == 2
    sync_api.expect(opened.locator("#robustness .picture:not([hidden])")).to_contain_text("test ECE (%)")
    opened.locator("#robustness select").select_option("MCE")
    sync_api.expect(opened.locator("#robustness .picture:not([hidden])")).to_contain_text("test MCE (%)")
    assert shown_rows(opened, "robustness") == {"CE", "CE (TS)"}
    opened.get_by_role("checkbox", name="FLγ-SECE").check()
    assert shown_rows(opened, "robustness") == {"CE", "FLγ-SECE", "CE (TS)"}


def test_charts_of_runs_say_what_they_show(opened: Any) -> None:
    point = opened.locator('#tradeoff .picture:not([hidden]) [data-run="CE"] > title').first.text_content()
    error, ece = (sum(run.scores[key].value for run in made_runs() if run.method == "ce") / 2 for key in ("error", "ece"))
    assert point.startswith(f"CE: error {percent(error)}, ECE {percent(ece)}, mean of 2 seeds")
    assert opened.locator("#tradeoff .picture svg").first.get_attribute("role") == "img"


def test_charts_of_runs_have_the_colours_of_the_theme(opened: Any) -> None:
    colour = "getComputedStyle(document.querySelector('#curves [data-run=CE] path[stroke]')).stroke"
    light = opened.evaluate(colour)
    opened.emulate_media(color_scheme="dark")
    assert opened.evaluate(colour) != light


@pytest.mark.parametrize("n_bins", [10, 15, 100])
def test_grid_slider_draws_the_bars_of_every_method(opened: Any, n_bins: int) -> None:
    opened.locator("#grid-bins").fill(str(STOPS.index(n_bins)))
    sync_api.expect(opened.locator("#grid-bins-number")).to_have_text(str(n_bins))
    assert opened.locator("#grid g.bars").count() == 3
    # Both seeds of `ce` have predictions; the last one that the repaired row has, too, is shown.
    test, _ = synthetic_predictions(200, 5, temperature=2.0, seed=0)
    assert drawn_accuracies(opened, "grid") == pytest.approx(expected_accuracies(test, n_bins), abs=1e-4)
    ece = expected_calibration_error(test.probs, test.labels, n_bins=n_bins)
    error = 1 - float(test.correct.double().mean())
    sync_api.expect(opened.locator("#grid")).to_contain_text(f"error {percent(error)} · ECE {percent(ece.item())}")


def test_grid_draws_records_over_the_bins_that_they_keep(browser: Any, tmp_path: Path) -> None:
    test, _ = synthetic_predictions(200, 5, temperature=2.0, seed=1)
    runs = [Entry("d", name, measure(test, n_resamples=100)) for name in ("ce", "focal")]
    file = tmp_path / "records.html"
    file.write_text(render_page(table=compare_table(runs, test=False)), encoding="utf-8")
    with opened_page(browser, file) as page:
        assert drawn_accuracies(page, "grid") == pytest.approx(expected_accuracies(test, 15), abs=1e-4)
        page.locator("#grid-bins").fill(str(STOPS.index(20)))
        sync_api.expect(page.locator("#grid")).to_contain_text("Without predictions, only 15 bins are known.")


def test_predictions_of_unknown_network_are_drawn_beside_the_runs_of_the_first(browser: Any, tmp_path: Path) -> None:
    run = next(entry for entry in made_runs() if entry.test is not None)
    runs = [replace(run, method=method, model=model, epochs=5) for model in ("convnet", "mlp") for method in ("ce", "focal")]
    file = tmp_path / "theirs.html"
    theirs = replace(run, method="theirs", seed=None, history=())
    file.write_text(render_page(table=compare_table([*runs, theirs], test=False)), encoding="utf-8")
    with opened_page(browser, file) as page:
        sync_api.expect(page.locator("h1")).to_have_text("3 methods compared in 5 runs")
        rows = page.locator("table.runs tbody tr:not(.part)")
        sync_api.expect(rows).to_have_count(5)
        for place, names in (("digits, convnet", ["CE", "Focal", "theirs"]), ("digits, mlp", ["CE", "Focal"])):
            page.locator("#place").select_option(place)
            assert shown_rows(page, "tradeoff") == {*names}
            assert page.locator("fieldset:not([hidden]) .key").all_inner_texts() == names
            assert page.locator("#grid g.bars").count() == len(names)


def test_wide_table_takes_the_width_of_the_window_and_keeps_its_names_in_view(browser: Any, tmp_path: Path) -> None:
    columns = tuple(Column(f"c{k}", f"Long column {k}") for k in range(8))
    row = Row("CE", "ce", {column.key: Mean(0.27425, 0.00198) for column in columns})
    table = Table("wide", "Wide", columns, (Section("digits", (row,)),), info=())
    file = tmp_path / "wide.html"
    file.write_text(render_page(table=compare_table(made_runs(), test=False), above=table), encoding="utf-8")
    with opened_page(browser, file) as page:
        wide = page.locator(".scroll").first
        for width, fits in ((1920, True), (1400, True), (390, False)):
            page.set_viewport_size({"width": width, "height": 900})
            shown, whole = wide.evaluate("box => [box.clientWidth, box.scrollWidth]")
            assert (shown >= whole) is fits, width
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert whole > 1072
        places = [page.locator(".scroll").first.locator(part) for part in ("th[scope=row]", "thead th >> nth=0", "tr.part b")]
        before = [place.bounding_box()["x"] for place in places]
        wide.evaluate("box => { box.scrollLeft = 300; }")
        assert [place.bounding_box()["x"] for place in places] == before
        # Nothing of what is scrolled is seen through the names.
        assert (
            page.evaluate(
                """() => {
                const name = document.querySelector(".scroll th[scope=row]").getBoundingClientRect();
                return document.elementFromPoint(name.left + 40, name.top + 10).textContent;
            }"""
            )
            == "CE"
        )


def test_print_divides_no_diagram_and_leaves_no_heading_alone(opened: Any) -> None:
    opened.emulate_media(media="print")
    for part, rule, value in (
        (".panel", "breakInside", "avoid"),
        (".run-controls", "breakInside", "avoid"),
        ("figure:has(#grid)", "breakInside", "auto"),
        ("figure:has(#grid) h3", "breakAfter", "avoid"),
        ("figure:has(#grid) .control", "breakAfter", "avoid"),
        ("figure:has(#grid) figcaption", "breakBefore", "avoid"),
    ):
        told = opened.locator(part).first.evaluate("(part, rule) => getComputedStyle(part)[rule]", rule)
        assert told == value, (part, rule)
