"""The report in a real browser: what a reader sees, and what happens when they use it. Skipped where there is no Chromium."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from browser import (
    drawn_accuracies,
    expected_accuracies,
    needs_chromium,
    opened_page,
    parts_without_numbers,
    percent,
    sync_api,
)
from calibrant import Predictions, measure
from calibrant.calibrators import CALIBRATORS, AutoCalibrator, Repaired, TemperatureScaling
from calibrant.calibrators.auto import Ranked
from calibrant.core.binning import summarize
from calibrant.data.synthetic import synthetic_predictions
from calibrant.grid.tables import compare_table
from calibrant.metrics import expected_calibration_error, maximum_calibration_error, reliability_bins
from calibrant.metrics.paired import paired_test
from calibrant.report.page import STOPS, Examined, Repair, render_page
from made_up_page_runs import made_runs

pytestmark = needs_chromium

NAMES = (
    "<img src=x onerror=window.broken=1>",
    "</script><script>window.broken=2</script>",
    "<!--<script>",
    "plain",
    'a "quoted" & long name that does not fit into its column',
)
N_BINS = 15


def before() -> Predictions:
    return synthetic_predictions(900, 5, temperature=2.2, class_names=NAMES)[0]


def repaired_by(name: str) -> Predictions:
    fit_data, _ = synthetic_predictions(900, 5, temperature=2.2, seed=1, split="val")
    return CALIBRATORS[name]().fit(fit_data).apply(before())


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything in it."""
    test, after = before(), repaired_by("temperature")
    examined = Examined(test, measure(test, n_resamples=100, file="test.npz"))
    auto = AutoCalibrator()
    auto.best_ = TemperatureScaling()
    auto.best_.temperature_, auto.advice_ = 2.2, "it is best."
    gain = (0.5, 0.1, 0.0, 0.2)
    auto.ranking_ = (Ranked("temperature", *gain, note="chosen"), Ranked("histogram", *gain), Ranked("none", 0.9))
    paired = paired_test(test, after, n_resamples=100)
    done = Repaired(auto, after, examined.scores, measure(after, n_resamples=100), paired)
    tried = {name: measure(repaired_by(name), n_resamples=100) for name in ("temperature", "histogram")}
    repaired = Repair(done, 900, "val.npz", tried | {"none": examined.scores})
    file = tmp_path_factory.mktemp("page") / "report.html"
    table = compare_table(made_runs(), test=False)
    file.write_text(render_page(examined, repaired=repaired, table=table, n_resamples=100), encoding="utf-8")
    return file


def slide_to(page: Any, n_bins: int) -> None:
    page.locator("#bins").fill(str(STOPS.index(n_bins)))
    sync_api.expect(page.locator("#bins-number")).to_have_text(str(n_bins))


@pytest.mark.parametrize("n_bins", [2, 15, 30, 100])
def test_slider_draws_the_bars_and_numbers_of_as_many_bins(opened: Any, n_bins: int) -> None:
    slide_to(opened, n_bins)
    test = before()
    # Shares are embedded in ten-thousandths.
    assert drawn_accuracies(opened, "reliability-chart") == pytest.approx(expected_accuracies(test, n_bins), abs=1e-4)
    ece = expected_calibration_error(test.probs, test.labels, n_bins=n_bins)
    mce = maximum_calibration_error(test.probs, test.labels, n_bins=n_bins)
    sync_api.expect(opened.locator("#bins-ece")).to_have_text(percent(ece.item()))
    sync_api.expect(opened.locator("#bins-mce")).to_have_text(percent(mce.item()))


def test_slider_moves_by_arrow_keys(opened: Any) -> None:
    opened.locator("#bins").focus()
    opened.keyboard.press("ArrowRight")
    sync_api.expect(opened.locator("#bins-number")).to_have_text("16")
    assert opened.locator("#bins").get_attribute("aria-valuetext") == "16 bins"
    opened.keyboard.press("Home")
    sync_api.expect(opened.locator("#bins-number")).to_have_text("2")
    assert set(drawn_accuracies(opened, "reliability-chart")) == set(expected_accuracies(before(), 2))


def test_switch_shows_the_repaired_predictions_and_back(opened: Any) -> None:
    after = repaired_by("temperature")
    opened.locator("#switch label").last.click()
    assert drawn_accuracies(opened, "reliability-chart") == pytest.approx(expected_accuracies(after, N_BINS), abs=1e-4)
    ece = expected_calibration_error(after.probs, after.labels, n_bins=N_BINS)
    sync_api.expect(opened.locator("#bins-ece")).to_have_text(percent(ece.item()))
    opened.keyboard.press("ArrowLeft")
    sync_api.expect(opened.locator("input[name=side][value='0']")).to_be_checked()
    assert drawn_accuracies(opened, "reliability-chart") == pytest.approx(expected_accuracies(before(), N_BINS), abs=1e-4)


def test_class_list_draws_the_class(opened: Any) -> None:
    bins = summarize(before(), n_bins=N_BINS).class_bins
    assert bins is not None
    weight, _, correct = bins
    for k in (3, 1):
        opened.locator(f'[data-klass="{k}"]').click()
        sync_api.expect(opened.locator("#class-name")).to_have_text(NAMES[k])
        expected = {m: float(correct[k, m] / weight[k, m]) for m in range(N_BINS) if float(weight[k, m]) > 0}
        assert drawn_accuracies(opened, "class-chart") == pytest.approx(expected, abs=1e-4)


def test_class_list_is_ranked_filtered_and_picks(opened: Any) -> None:
    ranked = [entry.name for entry in measure(before(), by_class=True, n_resamples=100).classes]
    assert opened.locator("#class-list .name").all_inner_texts() == ranked
    opened.locator("#class-filter").fill("PLAI")
    sync_api.expect(opened.locator("#class-list button")).to_have_count(1)
    opened.locator("#class-filter").press("Tab")
    opened.keyboard.press("Enter")
    sync_api.expect(opened.locator("#class-name")).to_have_text("plain")
    opened.locator("#class-filter").fill("no such class")
    sync_api.expect(opened.locator("#class-none")).to_be_visible()


def test_names_with_markup_are_shown_and_do_not_run(opened: Any) -> None:
    for k in (0, 1, 2):
        opened.locator(f'[data-klass="{k}"]').click()
        sync_api.expect(opened.locator("#class-name")).to_have_text(NAMES[k])
    assert opened.evaluate("window.broken === undefined")
    assert opened.locator("main img").count() == 0


def test_charts_are_read_by_arrow_keys(opened: Any) -> None:
    charts = ("reliability-chart", "by-bins", "regions", "histogram", "risk", "class-chart", "calibrator-chart", "grid")
    for chart in charts:
        opened.locator(f"#{chart} svg").first.focus()
        opened.keyboard.press("ArrowRight")
        sync_api.expect(opened.locator("#tip")).to_be_visible()
        assert opened.locator("#live").inner_text() != "", chart
        opened.keyboard.press("Escape")
        sync_api.expect(opened.locator("#tip")).to_be_hidden()


def test_pointer_over_a_bar_tells_its_bin(opened: Any) -> None:
    bins = reliability_bins(before().probs, before().labels, n_bins=N_BINS)
    opened.locator("#reliability-chart .target").last.hover()
    assert float(bins.count[-1]) > 0
    tip = opened.locator("#tip")
    sync_api.expect(tip).to_contain_text(f"confidence {100 * float(bins.confidence[-1]):.1f}%")
    sync_api.expect(tip).to_contain_text(f"accuracy {100 * float(bins.accuracy[-1]):.1f}%")


def test_every_control_is_reached_by_tab_and_has_a_name(opened: Any) -> None:
    nameless = opened.evaluate(
        """() => [...document.querySelectorAll("input, select, button")].filter((control) =>
            !(control.labels && control.labels.length) && !control.getAttribute("aria-label") && !control.textContent.trim()
        ).map((control) => control.outerHTML)"""
    )
    assert nameless == []
    opened.locator("body").press("Tab")
    assert opened.evaluate("document.activeElement.className") == "skip"
    assert opened.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_theme_follows_the_system(opened: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = opened.evaluate(ground)
    opened.emulate_media(color_scheme="dark")
    dark = opened.evaluate(ground)
    assert light != dark


def test_phone_shows_everything_without_scrolling_sideways_or_cutting_text(opened: Any) -> None:
    opened.set_viewport_size({"width": 360, "height": 740})
    # Charts are drawn anew for the width.
    for chart in ("calibrator-chart", "regions", "reliability-chart", "histogram"):
        sync_api.expect(opened.locator(f"#{chart} svg.chart")).to_have_attribute("width", re.compile(r"^[1-3]\d\d$"))
    outside = opened.evaluate(
        """() => [...document.querySelectorAll("svg.chart text, .picture:not([hidden]) text")].filter((text) => {
            const { left, right } = text.getBoundingClientRect();
            return left < 0 || right > 360;
        }).map((text) => text.textContent)"""
    )
    assert outside == []
    assert opened.evaluate("document.documentElement.scrollWidth") <= 360
    sync_api.expect(opened.locator("#switch")).to_be_visible()


def test_page_of_weighted_examples_tells_weights_from_rows(browser: Any, tmp_path: Path) -> None:
    drawn = before()
    weights = torch.linspace(0.5, 3.5, len(drawn), dtype=torch.float64)
    test = Predictions(logits=drawn.logits, labels=drawn.labels, weights=weights)
    file = tmp_path / "weighted.html"
    file.write_text(render_page(Examined(test, measure(test, n_resamples=100)), n_resamples=100), encoding="utf-8")
    with opened_page(browser, file) as page:
        assert "900 examples, weighted" in page.locator(".source").inner_text()
        assert page.locator("#bins-table").locator("xpath=../thead/tr/th[2]").text_content() == "Weight"
        sync_api.expect(page.locator("#bins-over-share")).to_contain_text("of the weight")
        sync_api.expect(page.locator("#reliability-chart")).to_contain_text("share of the weight, at most")
        page.locator("#reliability-chart .target").last.hover()
        sync_api.expect(page.locator("#tip")).to_contain_text(re.compile(r"weight [\d,.]+ \("))


def test_page_of_three_examples_tells_each_share_once(browser: Any, tmp_path: Path) -> None:
    few = Predictions(probs=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], labels=[0, 1, 0])
    file = tmp_path / "few.html"
    file.write_text(render_page(Examined(few, measure(few, n_resamples=100)), n_resamples=100), encoding="utf-8")
    with opened_page(browser, file) as page:
        assert page.locator("#risk-text th").all_inner_texts() == ["100%", "67%"]
        assert parts_without_numbers(page) == []
        assert "unsure" in page.locator("section.hero").get_attribute("class")


def test_print_hides_controls_keeps_charts_and_colours(opened: Any) -> None:
    opened.emulate_media(media="print", color_scheme="dark")
    # The width of an A4 sheet between its margins.
    opened.set_viewport_size({"width": 688, "height": 1000})
    sync_api.expect(opened.locator("#toolbar")).to_be_hidden()
    sync_api.expect(opened.locator("#risk svg")).to_have_attribute("width", re.compile(r"^[1-6]\d\d$"))
    assert opened.evaluate("document.documentElement.scrollWidth") <= 688
    sync_api.expect(opened.locator("#bins")).to_be_hidden()
    sync_api.expect(opened.locator("#reliability-chart svg")).to_be_visible()
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.evaluate("getComputedStyle(document.querySelector('rect.accuracy')).printColorAdjust") == "exact"
    printed = opened.pdf(format="A4", print_background=True)
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 3


def test_calibrators_are_drawn_by_either_score(opened: Any) -> None:
    assert parts_without_numbers(opened) == []
    sync_api.expect(opened.locator("#calibrator-chart circle.dot")).to_have_count(3)
    sync_api.expect(opened.locator("#calibrator-chart circle.chosen")).to_have_count(1)
    opened.locator("#calibrator-metric").select_option("nll")
    sync_api.expect(opened.locator("#calibrator-chart")).to_contain_text("negative log-likelihood")
    assert opened.locator("#calibrator-chart circle.dot").count() == 3
