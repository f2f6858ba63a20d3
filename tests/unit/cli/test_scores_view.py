"""What the command line says about scores, and that it fits the terminal."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
import torch

from calibrant import measure
from calibrant.cli.measure import (
    Measured,
    bins_table,
    classes_table,
    comparison_table,
    paired_table,
    parts_table,
    scores_table,
    show_comparison,
    show_scores,
)
from calibrant.cli.terminal import Terminal
from calibrant.core.records import Bins, ClassScore, Estimate, IfCalibrated, Paired, Scores, Split
from calibrant.metrics.table import score_metrics

METRICS = score_metrics()


def made_scores(*, ece: float = 0.05, gap: float = 0.04, width: float = 0.01, p_value: float = 0.0001, n: int = 1000) -> Scores:
    values = dict.fromkeys(METRICS, 0.03) | {"error": 0.2, "nll": 0.71, "brier": 0.3, "ece": ece, "signed_gap": gap}
    edges = torch.arange(4) / 3
    return Scores(
        n=n,
        num_classes=3,
        n_bins=3,
        metrics={key: Estimate(value, value - width, value + width) for key, value in values.items()},
        ece_if_calibrated=IfCalibrated(0.0071, 0.0103, p_value),
        bins=Bins(edges, torch.tensor([0.0, 400, 600]), torch.tensor([0.0, 0.5, 0.9]), torch.tensor([0.0, 0.6, 0.8])),
        classes=tuple(ClassScore(k, name, 300.0, 0.02, 0.01 - 0.02 * (k % 2), math.nan) for k, name in enumerate("abc")),
        file="folder/test.npz",
    )


def lines_of(renderable: object, *, width: int) -> list[str]:
    stream = io.StringIO()
    Terminal(file=stream, width=width).print(renderable)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("width", [40, 60, 80, 104, 120, 200])
def test_tables_fit_every_terminal_and_keep_their_numbers(width: int) -> None:
    scores = made_scores()
    tables = {
        "5.00%": scores_table(scores, width=width),
        "+10.00%": bins_table(scores.bins, width=width),
        "−1.00%": classes_table(scores.classes, width=width),
        "1,000": parts_table("Group", {"day": scores, "": scores}, width=width),
        "20.00%": comparison_table({"first": scores, "second": scores}, width=width),
        "p < 0.001": paired_table({key: Paired(-0.01, -0.02, -0.001, 1e-5) for key in scores}, width=width),
    }
    for shown, table in tables.items():
        lines = lines_of(table, width=width)
        assert max(map(len, lines)) <= width
        assert any(shown in line for line in lines), (shown, lines)
        assert not any("…%" in line or "0.…" in line for line in lines)


def test_bins_table_leaves_out_empty_bins_and_shows_what_each_adds() -> None:
    lines = lines_of(bins_table(made_scores().bins, width=80), width=80)
    assert lines[4:] == ["not shown for want of room: 95% interval"]
    # 400 of 1,000 examples with a gap of -10 points add 4 points, 600 with +10 add 6.
    assert lines[2].split() == ["33", "–", "67%", "400", "50.00%", "60.00%", "−10.00%", "4.00%", "█" * 11]
    assert lines[3].split() == ["67", "–", "100%", "600", "90.00%", "80.00%", "+10.00%", "6.00%", "█" * 16]


@pytest.mark.parametrize(("n_bins", "label"), [(15, "0 – 7%"), (100, "0 – 1%"), (250, "0.0 – 0.4%"), (2000, "0.00 – 0.05%")])
def test_bins_table_edges_have_the_digits_that_tell_them_apart(n_bins: int, label: str) -> None:
    edges = torch.arange(n_bins + 1, dtype=torch.float64) / n_bins
    middle = (edges[:-1] + edges[1:]) / 2
    bins = Bins(edges=edges, count=torch.ones_like(middle), confidence=middle, accuracy=1 - edges[1:])
    assert lines_of(bins_table(bins, width=80), width=80)[2].startswith(label)


def test_scores_off_both_ways_say_so_of_two_classes() -> None:
    scores = measure([0.1] * 1000 + [0.9] * 1000, [1, 0] * 1000, n_resamples=100)
    assert lines_of(scores_table(scores, width=80), width=80)[2].endswith("too often and too rarely")


def test_classes_table_says_in_which_direction() -> None:
    lines = lines_of(classes_table(made_scores().classes, width=80), width=80)
    assert lines[2].split() == ["a", "300", "n/a", "2.00%", "+1.00%", "predicted", "too", "often"]
    assert lines[3].endswith("predicted too rarely")
    for gap, words in ((-0.01, "within chance"), (0.0101, "predicted too often")):
        entry = ClassScore(0, "a", 300.0, 0.02, gap, math.nan, chance=0.01)
        assert lines_of(classes_table([entry], width=80), width=80)[2].endswith(words)


def test_comparison_gives_up_intervals_first_and_has_a_line_for_each_of_many_files() -> None:
    scores = made_scores()
    few = lines_of(comparison_table({"a": scores, "b": scores}, width=120), width=120)
    assert any(line.count("4.00 – 6.00") == 2 for line in few)
    without = lines_of(comparison_table({"a": scores, "b": scores}, width=70), width=70)
    assert not any("4.00 – 6.00" in line for line in without)
    assert sum("5.00%" in line for line in without) == 1
    many = lines_of(comparison_table({f"model_{k}": scores for k in range(9)}, width=80), width=80)
    assert many[0].startswith("File")
    assert sum(line.startswith("model_") for line in many) == 9


def test_paired_table_judges_only_what_is_clear_and_leaves_out_intervals_first() -> None:
    tests = {
        "ece": Paired(-0.02, -0.03, -0.01, 0.001),
        "nll": Paired(0.02, 0.01, 0.03, 0.01),
        "brier": Paired(0.0, 0.0, 0.0, 1.0),
        "mce": Paired(0.02, -0.1, 0.1, 0.6),
        "signed_gap": Paired(-0.02, -0.03, -0.01, 0.0),
    }
    lines = [line for line in lines_of(paired_table(tests, width=80), width=80) if line]
    assert "95% interval" in lines[0]
    assert [line.split()[-1] for line in lines[2:]] == ["worse", "same", "better", "unclear", "lower"]
    narrow = [line for line in lines_of(paired_table(tests, width=60), width=60) if line]
    assert "95% interval" not in narrow[0]
    assert narrow.pop() == "not shown for want of room: 95% interval"
    assert [line.split()[-1] for line in narrow[2:]] == ["worse", "same", "better", "unclear", "lower"]


def test_pages_have_verdicts_bins_classes_groups_and_tests() -> None:
    stream = io.StringIO()
    console = Terminal(file=stream, width=100)
    scores = made_scores()
    scores = replace(scores, slices={"day": scores}, classes=scores.classes * 3, num_classes=9)
    show_scores(Measured(scores, Split.TEST), all_classes=False, console=console)
    one = stream.getvalue()
    assert one.splitlines()[1] == "test.npz  1,000 examples · 9 classes · test split"
    for said in ("Over-confident: 84.0% sure", "By confidence", "Worst classes", "Groups", "day"):
        assert said in one
    assert one.count("predicted too") == 5
    other, test = replace(scores, file="folder/other.npz"), {"ece": Paired(-0.02, -0.03, -0.01, 0.001)}
    tests = {other.file: test}
    show_comparison([Measured(scores, None), Measured(other, None)], tests, all_classes=True, console=console)
    for said in ("test: Over-confident", "other: Over-confident", "other minus test", "better", "Classes", "Groups"):
        assert said in stream.getvalue()
