"""The charts of runs in a real browser: they show what the figures show. Skipped where there is no Chromium."""

from __future__ import annotations

import math
import re
from dataclasses import replace
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
from calibrant.core.entry import Entry
from calibrant.data.synthetic import synthetic_predictions
from calibrant.metrics import expected_calibration_error
from calibrant.metrics.diagram import PALETTE
from calibrant.report.gamma import prepare_gamma_confidence
from calibrant.report.page import render_page
from calibrant.report.page_charts import GRID_STOPS
from calibrant.report.page_content import FinishedTable, TableRow
from calibrant.report.robustness import prepare_robustness
from calibrant.report.rows import group_rows
from calibrant.report.tradeoff import prepare_tradeoff
from figure_data import run_of
from made_up_page_runs import made_runs

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "runs.html"
    file.write_text(render_page(entries=made_runs()), encoding="utf-8")
    return file


def test_no_chart_of_runs_is_drawn_with_what_is_no_number(opened: Any) -> None:
    assert opened.locator("svg.chart").count() == 6
    assert parts_without_numbers(opened) == []


def test_runs_are_drawn_hidden_and_changed(opened: Any) -> None:
    # The repaired row has no curve of its own.
    sync_api.expect(opened.locator("#curves path.line")).to_have_count(2)
    # Only one of the methods has a gamma.
    sync_api.expect(opened.locator("#gamma path.line")).to_have_count(1)
    # Of focal only the error is known.
    sync_api.expect(opened.locator("#trade-off path.mark:not(.faint)")).to_have_count(3)
    sync_api.expect(opened.locator("#trade-off path.mark.faint")).to_have_count(4)
    sync_api.expect(opened.locator("#sweep path.line")).to_have_count(3)
    opened.get_by_label("FLγ-SECE").uncheck()
    sync_api.expect(opened.locator("#curves path.line")).to_have_count(1)
    sync_api.expect(opened.locator("#gamma")).to_contain_text("No run shown here has this")
    sync_api.expect(opened.locator("#gamma-confidence")).to_contain_text("No run shown here has this")
    opened.locator("#sweep-key").select_option("mce")
    sync_api.expect(opened.locator("#sweep")).to_contain_text("MCE")
    for name in ("CE", "CE (TS)"):
        opened.get_by_label(name, exact=True).uncheck()
    sync_api.expect(opened.locator("#trade-off")).to_contain_text("No run shown here has both")
    sync_api.expect(opened.locator("#grid")).to_contain_text("No run shown here has its predictions")
    assert opened.locator("#run-legend input:checked").count() == 1


def test_sweep_shows_what_a_calibrated_model_with_the_confidences_of_the_best_row_shown_would(opened: Any) -> None:
    places = {}
    for hidden, label in ((None, "CE (TS)"), ("CE (TS)", "CE")):
        if hidden:
            opened.get_by_label(hidden, exact=True).uncheck()
        for key in ("ece", "mce"):
            opened.locator("#sweep-key").select_option(key)
            sync_api.expect(opened.locator("#sweep path.chance")).to_have_count(1)
            sync_api.expect(opened.locator("#sweep-chance .key")).to_have_text(f"{label} if calibrated")
            places[label, key] = opened.locator("#sweep path.chance").get_attribute("d")
    found = prepare_robustness([row for row in group_rows(made_runs())[0].rows if row.runs[0].method == "ce"])
    assert found is not None
    assert found.chance is not None
    points = [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", places["CE", "mce"])]
    # As on its axis, which is even: equal steps of the value are equal steps of the place.
    heights, values = [y for _, y in points], found.chance.mce.mean
    scale = (heights[-1] - heights[0]) / (values[-1] - values[0])
    assert [heights[0] + scale * (value - values[0]) for value in values] == pytest.approx(heights, abs=0.2)
    for name in ("CE", "FLγ-SECE"):
        opened.get_by_label(name, exact=True).uncheck()
    sync_api.expect(opened.locator("#sweep-chance")).to_be_hidden()


def middle_of(page: Any, selector: str) -> tuple[float, float]:
    place = re.fullmatch(r"translate\(([\d.]+) ([\d.]+)\)", page.locator(selector).get_attribute("transform"))
    assert place is not None
    return float(place[1]), float(place[2])


def test_trade_off_has_the_pareto_front_and_the_looks_of_the_figures(opened: Any) -> None:
    points = prepare_tradeoff(group_rows(made_runs())[0].rows)
    front = sorted((point.error, point.ece, point.style.marker) for point in points if point.best)
    corners = re.findall(r"([\d.]+) ([\d.]+)", opened.locator("#trade-off path.front").get_attribute("d"))
    # It starts above the first, has a corner between two, and ends beside the last.
    assert len(corners) == 2 * len(front) + 1
    hues = {style: name for name, style in PALETTE.items()}
    for point in points:
        look = f"{hues[point.style.color]}{'' if point.style.filled else '.open'}"
        x, y = middle_of(opened, f"#trade-off path.mark.{look}:not(.faint){'' if not point.style.filled else ':not(.open)'}")
        on_front = any(abs(float(a) - x) + abs(float(b) - y) < 0.3 for a, b in corners)
        assert on_front == point.best, point.label
    sync_api.expect(opened.locator("#trade-off text.label")).to_have_count(3)
    # A repaired row has its method's colour, other dashes and an empty mark.
    keys = opened.locator("#run-legend .key")
    sync_api.expect(keys.filter(has_text=re.compile("^CE$")).locator("line.black")).to_have_attribute("stroke-dasharray", "")
    sync_api.expect(keys.filter(has_text=re.compile(r"^CE \(TS\)$")).locator("path.mark.black.open")).to_have_count(1)
    sync_api.expect(keys.filter(has_text="FLγ-SECE").locator("path.mark.vermillion")).to_have_count(1)


def test_learning_curves_are_logarithmic_unless_switched(opened: Any) -> None:
    line = opened.locator("#curves path.line").first

    def heights() -> list[float]:
        return [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", line.get_attribute("d"))]

    values = [0.2 / epoch**2 for epoch in range(1, 6)]
    places = heights()
    scale = (places[4] - places[0]) / (math.log(values[0]) - math.log(values[4]))
    drawn = [(place - places[0]) / scale for place in places]
    assert drawn == pytest.approx([math.log(values[0] / value) for value in values], abs=0.01)
    sync_api.expect(opened.locator("#curves line.drop")).to_have_count(1)
    opened.locator("#curve-log").uncheck()
    places = heights()
    shares = [(place - places[0]) / (places[4] - places[0]) for place in places]
    assert shares == pytest.approx([(values[0] - value) / (values[0] - values[4]) for value in values], abs=0.01)


@pytest.mark.parametrize("n_bins", [10, 15, 100])
def test_grid_slider_draws_the_bars_of_every_method(opened: Any, n_bins: int) -> None:
    opened.locator("#grid-bins").fill(str(GRID_STOPS.index(n_bins)))
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
    runs = [Entry("d", name, measure(test, n_resamples=10)) for name in ("ce", "focal")]
    file = tmp_path / "records.html"
    file.write_text(render_page(entries=runs), encoding="utf-8")
    with opened_page(browser, file) as page:
        assert drawn_accuracies(page, "grid") == pytest.approx(expected_accuracies(test, 15), abs=1e-4)
        page.locator("#grid-bins").fill(str(GRID_STOPS.index(20)))
        sync_api.expect(page.locator("#grid")).to_contain_text("Without predictions these runs are known over 15 bins only.")


def test_gamma_against_confidence_tells_right_from_wrong(opened: Any) -> None:
    (panel,) = prepare_gamma_confidence(group_rows(made_runs())[0].rows, seed=0)
    dots = {
        name: opened.locator(f"#gamma-confidence path.dots.{name}").get_attribute("d").count("M") for name in ("right", "wrong")
    }
    assert dots == {"right": int(panel.correct.sum()), "wrong": int((~panel.correct).sum())}
    for right, name in ((True, "right"), (False, "wrong")):
        sync_api.expect(opened.locator(f"#gamma-confidence circle.mean-dot.{name}")).to_have_count(len(panel.means[right][0]))


def test_predictions_of_unknown_network_are_drawn_beside_the_runs_of_every_network(browser: Any, tmp_path: Path) -> None:
    run = next(entry for entry in made_runs() if entry.test is not None)
    runs = [replace(run, method=method, model=model, epochs=5) for model in ("convnet", "mlp") for method in ("ce", "focal")]
    file = tmp_path / "theirs.html"
    theirs = replace(run, method="theirs", seed=None, history=())
    file.write_text(render_page(entries=[*runs, theirs], best=[*[()] * 4, {"ece"}]), encoding="utf-8")
    with opened_page(browser, file) as page:
        sync_api.expect(page.locator("h1")).to_have_text("3 methods on digits with 2 networks, 5 runs")
        # Once in the table, where what is told is bold, and in the charts of both networks.
        rows = page.locator("table.runs tbody tr:not(.part)")
        sync_api.expect(rows).to_have_count(5)
        sync_api.expect(page.locator("table.runs td b")).to_have_count(1)
        sync_api.expect(rows.filter(has_text="theirs").locator("b")).to_have_count(1)
        sync_api.expect(rows.filter(has_text="theirs").locator(".note")).to_have_text("Network unknown.")
        for place in ("digits · convnet", "digits · mlp"):
            page.locator("#place").select_option(place)
            sync_api.expect(page.locator("#trade-off path.mark:not(.faint)")).to_have_count(3)
            assert page.locator("#run-legend .key").all_inner_texts() == ["CE", "Focal", "theirs"]


def test_charts_round_as_the_table_does(browser: Any, tmp_path: Path) -> None:
    # 29.125 and 29.375 lie in the middle, and each has an even neighbour.
    labels = torch.zeros(800, dtype=torch.long)
    probs = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
    tests = [Predictions(probs=probs[(torch.arange(800) < wrong).long()], labels=labels) for wrong in (233, 235)]
    runs = [Entry("d", f"m{k}", measure(test, n_resamples=10), test=test) for k, test in enumerate(tests)]
    file = tmp_path / "middle.html"
    file.write_text(render_page(entries=runs), encoding="utf-8")
    with opened_page(browser, file) as page:
        for row, written in enumerate(("29.12%", "29.38%")):
            sync_api.expect(page.locator("table.runs tbody tr").nth(row)).to_contain_text(written)
            assert f"error {written}" in page.locator("#grid text.note").nth(row).text_content()


def test_wide_table_takes_the_width_of_the_window_and_keeps_its_names_in_view(browser: Any, tmp_path: Path) -> None:
    row = TableRow("CE", tuple(("27.425 ± 0.198", False) for _ in range(8)))
    table = FinishedTable("Wide", ("Method", *(f"Column {k}" for k in range(8))), (("digits", (row,)),))
    file = tmp_path / "wide.html"
    file.write_text(render_page(entries=made_runs(), tables=[table]), encoding="utf-8")
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


def test_name_longer_than_the_window_widens_neither_the_page_nor_the_column_of_names(browser: Any, tmp_path: Path) -> None:
    name = 20 * "verylong"
    row = TableRow(name, tuple(("27.425 ± 0.198", False) for _ in range(8)))
    table = FinishedTable("Wide", ("Method", *(f"Column {k}" for k in range(8))), (("digits", (row,)),))
    file = tmp_path / "long.html"
    entries = [*made_runs(), replace(made_runs()[0], method=name)]
    file.write_text(render_page(entries=entries, tables=[table]), encoding="utf-8")
    with opened_page(browser, file) as page:
        for width in (1300, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
            names = page.locator(".scroll th[scope=row]", has_text=name)
            assert names.count() == 2
            assert all(place.bounding_box()["width"] < width / 2 for place in names.all()), width


def test_many_settings_of_one_method_have_looks_of_their_own(browser: Any, tmp_path: Path) -> None:
    run = next(entry for entry in made_runs() if entry.method == "ce")
    settings = [None, "train.average=ema", "train.select=last", "train.average=phase", "optim.lr=0.2", "data.val=300"]
    file = tmp_path / "settings.html"
    file.write_text(render_page(entries=[replace(run, preset=preset) for preset in settings]), encoding="utf-8")
    with opened_page(browser, file) as page:
        keys = page.locator("#run-legend .key")
        sync_api.expect(keys).to_have_count(len(settings))
        parts = (("line", "stroke-dasharray"), ("path.mark", "d"))
        looks = {
            tuple(keys.nth(k).locator(part).first.get_attribute(name) for part, name in parts) for k in range(len(settings))
        }
        assert len(looks) == len(settings)
        assert parts_without_numbers(page) == []


def test_print_divides_no_row_of_diagrams_and_leaves_no_heading_alone(opened: Any, browser: Any, tmp_path: Path) -> None:
    # A single row is one picture, on paper too.
    assert opened.locator(".slice").count() == 0
    known, file = next(run for run in made_runs() if run.method == "ce"), tmp_path / "many.html"
    file.write_text(render_page(entries=[replace(known, method=f"m{k:02d}") for k in range(30)]), encoding="utf-8")
    with opened_page(browser, file) as page:
        rows, slices = page.locator("#grid g.row").count(), page.locator("#grid .slice")
        assert slices.count() == rows > 4
        assert not slices.first.is_visible()
        page.emulate_media(media="print")
        assert slices.last.is_visible()
        assert not page.locator("#grid > svg.chart").is_visible()
        frames_its_row = """slice => {
            const { y, height } = slice.querySelector("use").getBBox(), frame = slice.viewBox.baseVal;
            return height > 0 && y >= frame.y && y + height <= frame.y + frame.height;
        }"""
        assert slices.nth(2).evaluate(frames_its_row)
        for part, rule, value in (
            (".slice", "breakInside", "avoid"),
            (".run-controls", "breakInside", "avoid"),
            ("figure:has(#grid)", "breakInside", "auto"),
            ("#grid", "breakInside", "auto"),
            ("figure:has(#grid) h3", "breakAfter", "avoid"),
            ("figure:has(#grid) .control", "breakAfter", "avoid"),
            ("figure:has(#grid) figcaption", "breakBefore", "avoid"),
        ):
            told = page.locator(part).first.evaluate("(part, rule) => getComputedStyle(part)[rule]", rule)
            assert told == value, (part, rule)


def test_a_method_that_failed_leaves_the_others_room(tmp_path: Path, browser: Any) -> None:
    curve: list[float | None] = [0.3, 0.2, 0.1]
    fine = run_of("flgamma-sece", error=0.05, ece=0.01, curve=curve, gamma=[0.5, 0.4, 3.0])
    failed = run_of("flgamma", error=0.2, ece=0.12, curve=curve, gamma=[0.5, 20.0, 900.0])
    file = tmp_path / "failed.html"
    file.write_text(render_page(entries=[fine, run_of("ce", error=0.1, ece=0.04), failed]), encoding="utf-8")
    with opened_page(browser, file) as page:
        # On a logarithmic axis 10 % is in the middle of 5 and 20 %.
        marks = [middle_of(page, f"#trade-off path.mark >> nth={k}") for k in range(3)]
        left, middle, right = sorted(x for x, _ in marks)
        assert middle == pytest.approx((left + right) / 2, abs=0.2)
        ends = [
            float(re.findall(r"[\d.]+ ([\d.]+)", page.locator(f"#gamma path.line >> nth={k}").get_attribute("d"))[-1])
            for k in (0, 1)
        ]
        foot = max(
            float(y) for y in page.locator("#gamma .grid line").evaluate_all("all => all.map((l) => l.getAttribute('y1'))")
        )
        # Of gammas of 3 and of 900 the first is well above the foot, too.
        assert 0.2 < (foot - max(ends)) / (foot - min(ends)) < 0.6
