from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from calibrant import Predictions
from calibrant.metrics import reliability_bins
from calibrant.metrics.measure import CalibrationMonitor
from calibrant.report.figures import FIGURES, draw_all, draw_monitor, page_charts, swatch
from calibrant.report.rows import group_rows
from figure_data import run_of


@pytest.fixture
def empty_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files without drawing into them, which takes most of the time; `save_figure` has tests of its own."""
    monkeypatch.setattr("calibrant.report.save.render_figure", lambda figure, *, kind: b"")


def names(done: list[Path]) -> set[str]:
    return {file.name for file in done if file.suffix == ".png"}


def test_draw_all_writes_every_figure_that_the_runs_allow(tmp_path: Path) -> None:
    curve: list[float | None] = [0.3, 0.2, 0.1]
    entries = [
        run_of("ce", curve=curve),
        run_of("ce+ts", temperature=1.3),
        run_of("flgamma-sece", curve=curve, gamma=[1.0, 1.2, 1.6]),
    ]
    done = draw_all(entries, tmp_path / "new" / "figures", n_bins=(10,))
    assert names(done.files) == {
        "reliability-digits-convnet-10bins.png",
        "curves-digits-convnet.png",
        "gamma-epochs-digits-convnet.png",
        "gamma-confidence-digits-convnet.png",
        "robustness-digits-convnet.png",
        "tradeoff-digits-convnet.png",
    }
    assert len(done.files) == 2 * len(names(done.files))
    assert all(file.stat().st_size > 1000 for file in done.files)
    assert done.skipped == {}


@pytest.mark.usefixtures("empty_files")
def test_monitor_of_two_classes_draws_the_binary_ece() -> None:
    monitor = CalibrationMonitor(window=None)
    monitor.update(Predictions(probs=[[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]] * 20, labels=[0, 0, 1] * 20), [1, 2, 2] * 20)
    watched = monitor.result(n_resamples=100)
    ax = draw_monitor(watched).axes[0]
    assert ax.get_ylabel() == "Binary ECE (%)"
    values = [100 * window.scores["binary_ece"].value for window in watched.windows]
    assert list(ax.lines[0].get_ydata()) == pytest.approx(values)


def test_draw_all_of_somebodys_predictions_says_what_is_missing(tmp_path: Path) -> None:
    mine = run_of("mine", data="my data/v2", model=None, preset=None, epochs=None, seed=None)
    done = draw_all([mine], tmp_path, n_bins=(10,))
    assert names(done.files) == {"reliability-my_data_v2-10bins.png", "robustness-my_data_v2.png"}
    assert done.skipped == {
        "curves-my_data_v2": "needs a history of training",
        "gamma-epochs-my_data_v2": "needs a gamma in its history",
        "gamma-confidence-my_data_v2": "needs test predictions with a column `gamma`",
        "tradeoff-my_data_v2": "needs two rows or more with an error and an ECE",
    }


@pytest.mark.usefixtures("empty_files")
def test_draw_all_of_a_record_draws_the_bins_that_it_keeps(tmp_path: Path) -> None:
    run = run_of()
    assert run.test is not None
    bins = reliability_bins(run.test.probs, run.test.labels, n_bins=15)
    record = replace(run, method="focal", test=None, scores=replace(run.scores, bins=bins))
    done = draw_all([record], tmp_path / "alone", n_bins=(10, 15))
    assert names(done.files) == {"reliability-digits-convnet-15bins.png"}
    assert done.skipped["reliability-digits-convnet-10bins"] == "needs test predictions, or as many bins in its record"
    both = draw_all([run, record], tmp_path / "both", n_bins=(10, 15))
    assert {f"reliability-digits-convnet-{number}bins.png" for number in (10, 15)} <= names(both.files)


def test_a_method_has_one_look_in_all_figures() -> None:
    curve: list[float | None] = [0.3, 0.2, 0.1]
    rows = group_rows([run_of(method, curve=curve) for method in ("ce", "focal", "mine")])[0].rows
    found: dict[str, set[object]] = {}
    for kind in ("curves", "robustness"):
        for line in FIGURES[kind].draw(FIGURES[kind].prepare(rows)).axes[0].get_lines():
            found.setdefault(str(line.get_label()), set()).add((line.get_color(), line.get_marker()))
    (ax,) = FIGURES["tradeoff"].draw(FIGURES["tradeoff"].prepare(rows)).axes
    for points in ax.containers:
        found[points.get_label()].add((points[0].get_color(), points[0].get_marker()))
    assert [len(found[label]) for label in ("CE", "Focal", "mine")] == [1, 1, 1]


def test_draw_all_of_wrong_arguments_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="draw_all: `n_bins` must be a whole number >= 1, got 0"):
        draw_all([run_of()], tmp_path, n_bins=(0,))
    with pytest.raises(ValueError, match="`entries` must hold at least one run, got none"):
        draw_all([], tmp_path)


def test_figures_of_single_runs_show_the_highest_common_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    kind = replace(FIGURES["reliability"], draw=lambda panels, *, title: titles.append(title))
    monkeypatch.setattr("calibrant.report.figures.FIGURES", {"reliability": kind})
    monkeypatch.setattr("calibrant.report.figures.save_figure", lambda figure, path, kinds: (path, path))
    entries = [run_of("ce", seed=0), run_of("ce", seed=1), *(run_of("focal", seed=seed) for seed in (0, 1, 2))]
    draw_all(entries, tmp_path, n_bins=(15,))
    draw_all(entries, tmp_path, n_bins=(15,), seed=0)
    draw_all([run_of("ce", seed=0), run_of("focal", seed=2)], tmp_path, n_bins=(15,))
    draw_all([*entries, run_of("theirs", model=None, epochs=None, seed=None)], tmp_path, n_bins=(15,))
    assert titles.pop() == "digits, convnet, seed 1, 15 bins"
    assert titles == [
        "digits, convnet, seed 1, 15 bins",
        "digits, convnet, seed 0, 15 bins",
        "digits, convnet, 15 bins",
    ]


def test_page_charts_are_the_figures_that_the_runs_have_with_what_they_say() -> None:
    curve: list[float | None] = [0.3, 0.2, 0.1]
    runs = [run_of("ce", curve=curve), run_of("<b>", curve=curve), run_of("flgamma", curve=curve, gamma=[1.0, 1.2, 1.6])]
    elsewhere = replace(run_of("ce", data="cifar10"), test=None)
    charts = {chart["name"]: chart for chart in page_charts(group_rows([*runs, elsewhere]))}
    assert list(charts) == ["tradeoff", "robustness", "curves", "gamma-epochs", "gamma-confidence"]
    assert charts["robustness"]["choices"] == ["ECE", "MCE"]
    # Histories of these runs have no NLL, and the run elsewhere has neither history nor predictions.
    assert charts["curves"]["choices"] == ["test ECE", "test error", "validation ECE", "validation error"]
    pictures = charts["curves"]["pictures"]
    assert isinstance(pictures, list)
    assert {picture["place"] for picture in pictures} == {0}
    svg = pictures[0]["svg"]
    assert 'aria-label="Learning curves: test ECE, digits, convnet."' in svg
    assert "<title>CE: least 10 (at 3), last 10</title>" in svg
    assert svg.count('data-run="CE"') == svg.count('data-run="&lt;b&gt;"') == 1
    assert "<b>" not in svg
    assert "style=" not in svg
    bare = replace(runs[0], test=None, history=())
    assert page_charts(group_rows([bare])) == []


def test_page_charts_share_no_ids() -> None:
    runs = [run_of(name, data=data, curve=[0.2, 0.1]) for data in ("digits", "cifar10") for name in ("ce", "focal")]
    groups = group_rows(runs)
    text = "".join(str(picture["svg"]) for chart in page_charts(groups) for picture in chart["pictures"])  # type: ignore[attr-defined]
    text += "".join(swatch(row, f"key-{place}") for place, group in enumerate(groups) for row in group.rows[:1])
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids)) > 10
    assert {found for found in re.findall(r'(?:url\(|href=")#([^)"]+)', text)} <= set(ids)
