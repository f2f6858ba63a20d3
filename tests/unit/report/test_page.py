"""The page as text: self-contained, escaped, complete, and saying what ``calibrant measure`` says."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from calibrant import Predictions, measure
from calibrant.calibrators import AutoCalibrator, Calibrator, Identity, Repaired, TemperatureScaling, name_of
from calibrant.calibrators.auto import Ranked
from calibrant.data.synthetic import synthetic_predictions
from calibrant.grid.tables import compare_table
from calibrant.metrics import METRICS
from calibrant.metrics.paired import paired_test
from calibrant.metrics.verdict import PALETTE, write_interval, write_value
from calibrant.report import page as page_module
from calibrant.report.page import Examined, Repair, render_page, script_hash
from made_up_page_runs import made_runs

NAMES = ("<b>bold</b>", "</script><script>alert(1)</script>", "<!-- \u2028 \U0001f600 note", 'quote " & co')


@cache
def examined() -> Examined:
    test, _ = synthetic_predictions(400, 4, temperature=2.4, class_names=NAMES)
    return Examined(test, measure(test, n_resamples=100, file="folder/test & co.npz"))


def chosen(given: Examined, best: Calibrator, after: Examined, *ranking: Ranked) -> Repaired:
    """A repair by the calibrator that was best."""
    auto = AutoCalibrator()
    auto.best_, auto.best_name_, auto.advice_, auto.ranking_ = best, name_of(best), "it is best.", ranking
    paired = paired_test(given.predictions, after.predictions, n_resamples=100)
    return Repaired(auto, after.predictions, given.scores, after.scores, paired)


@cache
def repaired() -> Repair:
    fit_data, _ = synthetic_predictions(400, 4, temperature=2.4, seed=1, split="val")
    scaler = TemperatureScaling().fit(fit_data)
    after = scaler.apply(examined().predictions)
    ranking = Ranked("temperature", 0.5, 0.1, 0.0, 0.2, note="chosen"), Ranked("none", 0.9)
    done = chosen(examined(), scaler, Examined(after, measure(after, n_resamples=100)), *ranking)
    return Repair(done, 400, "val.npz", {"temperature": done.after, "none": done.before})


@cache
def page(*, with_repair: bool = True) -> str:
    return render_page(examined(), repaired=repaired() if with_repair else None, n_resamples=100)


def data_of(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert isinstance(data, dict)
    return data


def test_page_asks_for_nothing_outside_itself() -> None:
    text = page()
    whole = text + render_page(table=compare_table(made_runs(), test=False))
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg|www\.w3\.org/1999/xlink)", whole) == []
    assert re.findall(r'<(?:link|img|script|iframe)[^>]+(?:src|href)="(?!data:)', text) == []
    assert "@import" not in text
    assert "default-src 'none'" in text
    assert len(text) < 400_000


def test_page_lets_only_its_own_scripts_and_styles_run() -> None:
    text = page()
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, flags=re.DOTALL)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert len(scripts) == 1
    for part in (*scripts, style):
        assert f"'{script_hash(part)}'" in policy
    assert "unsafe" not in policy


def test_page_escapes_names_in_markup_and_in_data() -> None:
    text = page()
    for name in NAMES:
        if html.escape(name) != name and "<" in name:
            assert name not in text
    assert "<title>test &amp; co.npz</title>" in text
    data = data_of(text)["predictions"]
    assert isinstance(data, dict)
    assert data["names"] == list(NAMES)


def test_page_shows_every_metric_as_measure_writes_it() -> None:
    text = page()
    for scores, column in ((examined().scores, "before"), (repaired().done.after, "after")):
        for key in scores:
            row = re.search(rf'<tr[^>]*data-metric="{key}">(.*?)</tr>', text, flags=re.DOTALL)
            assert row is not None, key
            unit, signed = METRICS[key].unit, key == "signed_gap"
            value, interval = (
                write_value(scores[key].value, unit, signed=signed),
                write_interval(scores[key], unit, signed=signed),
            )
            assert f'<span class="{column}">{value}</span><small>{interval}</small>' in row[1], key


def test_page_holds_both_sides_of_the_switch_or_one() -> None:
    whole = data_of(page())
    both, one = whole["predictions"], data_of(page(with_repair=False))["predictions"]
    assert isinstance(whole["stops"], list)
    assert isinstance(both, dict)
    assert isinstance(one, dict)
    assert (len(both["sides"]), len(one["sides"])) == (2, 1)
    at = whole["stops"].index(15)
    assert whole["stop"] == at
    assert both["sides"][0]["bins"][at]["ece"] == examined().scores["ece"].value
    assert both["sides"][1]["bins"][at]["ece"] == repaired().done.after["ece"].value
    assert 'id="switch"' in page()
    assert 'id="switch"' not in page(with_repair=False)
    assert 'id="calibrators"' not in page(with_repair=False)


def test_page_shows_the_groups_that_were_measured_before_and_after() -> None:
    given, done = examined(), repaired()
    sliced = {}
    for side, predictions in (("before", given.predictions), ("after", done.done.predictions)):
        columns = {"light": ["day", "<night>"] * 200}
        grouped = Predictions(logits=predictions.logits, labels=predictions.labels, columns=columns)
        sliced[side] = Examined(predictions, measure(grouped, slice_by="light", n_resamples=100))
    text = render_page(
        sliced["before"], repaired=replace(done, done=replace(done.done, after=sliced["after"].scores)), n_resamples=100
    )
    assert '<a href="#groups">' in text
    rows = dict(re.findall(r'<tr data-group="([^"]*)">(.*?)</tr>', text, flags=re.DOTALL))
    assert [html.unescape(name) for name in rows] == list(sliced["before"].scores.slices)
    for (name, part), row in zip(sliced["before"].scores.slices.items(), rows.values(), strict=True):
        shown = [part["error"], part["ece"], sliced["after"].scores.slices[name]["ece"]]
        assert all(f"<td>{write_value(found.value, '%')}<small>" in row for found in shown)
        assert "<td>200</td>" in row
    assert 'id="groups"' not in page()


def test_page_of_two_classes_speaks_of_the_positive_one() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(400, generator=generator).double()
    labels = (torch.rand(400, generator=generator) < p**2).long()
    columns = {"site": ["x", "y"] * 200}
    given = Predictions.from_binary(probs=p.numpy(), labels=labels.numpy(), columns=columns)
    scores = measure(given, slice_by="site", n_resamples=100)
    ranking = Ranked("none", 0.5, note="chosen"), Ranked("bbq", failure="too few <examples>")
    same = Examined(given, scores)
    idle = Repair(chosen(same, Identity(), same, *ranking), 400, tried={"none": scores})
    text = render_page(same, repaired=idle, n_resamples=100)
    data = data_of(text)["predictions"]
    assert isinstance(data, dict)
    assert data["sides"][0]["sureRight"] == pytest.approx(float(p[labels == 1].mean()), abs=1e-6)
    assert data["sides"][0]["sureWrong"] == pytest.approx(float(p[labels == 0].mean()), abs=1e-6)
    assert data["calibrators"][0]["ece"] == list(scores["binary_ece"])
    assert data["sides"][0]["regions"][1] == int((p <= 0.01).sum())
    shown = text[: text.index('<script type="application/json"')]
    assert "<h3>P(positive) when it is positive and when it is not</h3>" in shown
    assert "Where does it predict the positive class too often?" in shown
    assert [word for word in ("right predictions", "too sure", 'href="#classes"', 'id="classes"') if word in shown] == []
    group = re.search(r'<tr data-group="x">(.*?)</tr>', text, flags=re.DOTALL)
    assert group is not None
    for key in ("binary_ece", "binary_gap"):
        assert write_value(scores.slices["x"][key].value, "%", signed=key == "binary_gap") in group[1]
    assert re.findall(r'data-main data-metric="(.*?)"', text) == ["binary_ece"]
    assert "not used: too few &lt;examples&gt;" in text


def test_page_where_doing_nothing_is_best_has_no_switch_but_the_calibrators() -> None:
    ranking = Ranked("none", 0.5, note="chosen"), Ranked("temperature", 0.6)
    idle = Repair(chosen(examined(), Identity(), examined(), *ranking), 400, "val.npz")
    text = render_page(examined(), repaired=idle, n_resamples=100)
    assert 'id="switch"' not in text
    assert 'data-calibrator="temperature"' in text
    assert "none was clearly better than doing nothing" in text


def test_page_of_one_example_two_classes_and_no_mistake_is_made() -> None:
    single = Predictions(probs=[[0.9, 0.1]], labels=[0])
    text = render_page(Examined(single, measure(single, n_resamples=100)), n_resamples=100)
    assert "Too few examples" in text
    assert 'id="mistakes"' not in text


def test_page_of_infinite_surprise_stays_valid() -> None:
    sure = Predictions(probs=[[1.0, 0.0], [0.0, 1.0], [0.6, 0.4]] * 5, labels=[0, 0, 1] * 5)
    text = render_page(Examined(sure, measure(sure, n_resamples=100)), n_resamples=100)
    assert data_of(text)["predictions"] is not None
    assert '<span class="before">inf</span>' in text


def test_page_of_nothing_is_refused() -> None:
    for given in (None, repaired()):
        with pytest.raises(ValueError, match="`examined` or `table` must be given"):
            render_page(repaired=given)


def test_page_of_runs_shows_their_charts_in_the_colours_of_its_theme() -> None:
    text = render_page(table=compare_table(made_runs(), test=False))
    style = re.findall(r"<style>(.*?)</style>", text, flags=re.DOTALL)[0]
    shown = text[text.index('<section id="runs"') :]
    colours = set(re.findall(r' ((?:stroke|fill)="#[0-9a-f]{6}")', shown))
    assert colours
    assert all(f"[{colour}]" in style for colour in colours), colours
    assert "style=" not in shown
    assert re.findall(r'<label class="key">.*?<span>([^<]*)</span>', shown, flags=re.DOTALL) == [
        "CE",
        "FLγ-SECE",
        "CE (TS)",
        "Focal",
    ]
    # Of several seeds the diagrams show the last that all rows have; a repaired row has the first alone.
    assert "where possible the last that all methods have" in shown


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_colours_of_text_stand_out_from_the_paper(theme: int) -> None:
    style = (Path(page_module.__file__).parent / "templates" / "style.css").read_text()
    found = re.findall(r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", style)
    colours = {name: pair[theme] for name, *pair in found}
    # 4.5 to 1 is what WCAG 2 asks of text.
    for name in ("ink", "soft", "faint", "accent", "over", "under", "good", "both", "strong"):
        for ground in ("paper", "raised"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    # 3 to 1 is what it asks of lines and marks.
    for name in PALETTE:
        assert contrast(colours[f"hue-{name}"], colours["paper"]) >= 3, name
