"""What the command line says about scores, and that it fits the terminal."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from calibrant.cli.page import Measured, short_names, show_comparison, show_scores
from calibrant.cli.tables import bins_table, classes_table, comparison_table, paired_table, parts_table, scores_table
from calibrant.cli.terminal import fit_table, total_width
from calibrant.core.records import Bins, Predictions, Split
from calibrant.core.scores import ClassScore, Estimate, IfCalibrated, Paired, Scores
from calibrant.metrics.table import score_metrics
from calibrant.metrics.verdict import direction, verdict, worst_slice, write_interval, write_p, write_value
from calibrant.report.page_content import Examined
from calibrant.report.verdict import give_verdict

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
    Console(file=stream, width=width, highlight=False).print(renderable)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_tables_of_weighted_examples_show_rows_and_their_share_of_the_weight() -> None:
    scores = made_scores()
    bins = replace(scores.bins, count=torch.tensor([0.0, 0.02, 0.06]), rows=torch.tensor([0.0, 1, 999]))
    shown = lines_of(bins_table(bins, width=120), width=120)
    assert shown[0].split()[:3] == ["Bin", "Examples", "(weight)"]
    assert ["1 (25.0%)" in shown[2], "999 (75.0%)" in shown[3]] == [True, True]
    classes = [replace(entry, weight=0.02) for entry in scores.classes]
    assert "300 (25.0%)" in lines_of(classes_table(classes, width=120, total=0.08), width=120)[2]
    assert (
        "1,000 (25.0%)"
        in lines_of(parts_table("Group", {"a": replace(scores, weight=0.02)}, width=120, total=0.08), width=120)[2]
    )
    assert "(" not in "".join(lines_of(classes_table(scores.classes, width=120), width=120))


def test_write_value_in_per_cent_or_plain() -> None:
    assert write_value(0.12345, "%") == "12.35%"
    assert write_value(-0.02, "%", signed=True) == "−2.00%"
    assert write_value(0.02, "%", signed=True) == "+2.00%"
    # What rounds to nothing has no direction.
    assert [write_value(value, "%", signed=True) for value in (0.0, -0.0, -0.00001, 0.00001)] == ["0.00%"] * 4
    assert write_value(-0.00001, "nats") == "0.0000"
    assert write_value(1.23456, "nats") == "1.2346"
    assert write_value(math.inf, "nats") == "inf"
    assert [write_value(value, "nats", signed=True) for value in (math.inf, -math.inf)] == ["+inf", "−inf"]
    assert write_value(math.nan, "%") == "n/a"


def test_write_interval_drops_the_unit() -> None:
    assert write_interval(Estimate(0.5, 0.4, 0.6), "%") == "40.00 – 60.00"
    assert write_interval(Paired(0.5, -0.4, 0.6, 1.0), "", signed=True) == "−0.4000 – +0.6000"


@pytest.mark.parametrize(
    ("p_value", "text"),
    [(0.0, "p < 0.001"), (0.0123, "p = 0.012"), (0.434, "p = 0.43"), (1.0, "p = 1.00"), (math.nan, "p = n/a")],
)
def test_write_p_is_never_zero(p_value: float, text: str) -> None:
    assert write_p(p_value) == text


@pytest.mark.parametrize(
    ("scores", "word"),
    [
        (made_scores(gap=0.04), "over-confident"),
        (made_scores(gap=-0.04), "under-confident"),
        (made_scores(gap=0.005), "both"),
        (made_scores(gap=0.04, p_value=0.2), "no clear error"),
    ],
)
def test_direction_needs_a_gap_that_chance_does_not_explain(scores: Scores, word: str) -> None:
    assert direction(scores) == word


@pytest.mark.parametrize(("n", "p_value", "few"), [(1, 0.9, True), (199, 0.2, True), (200, 0.2, False), (20, 0.001, False)])
def test_verdict_of_few_examples_is_that_of_the_report(n: int, p_value: float, few: bool) -> None:
    scores = made_scores(n=n, p_value=p_value)
    page = give_verdict(Examined(Predictions(probs=[[0.9, 0.1]], labels=[0]), scores), None)
    headline = "Too few examples to see an error"
    assert [page.headline == headline, verdict(scores).startswith(headline + ": an ECE of 5.00% is what")] == [few, few]
    assert verdict(made_scores(n=1, p_value=0.9)).endswith("shows on 1 example (0.71% on average, rarely over 1.03%).")


def test_verdict_says_how_sure_how_right_and_whether_it_is_real() -> None:
    assert verdict(made_scores()) == (
        "Over-confident: 84.0% sure on average, 80.0% right; the ECE is 5.00% where a calibrated model would show 0.71% "
        "(p < 0.001)."
    )
    assert verdict(made_scores(ece=0.012, gap=-0.011)).startswith(
        "Slightly under-confident: 78.9% sure on average, 80.0% right"
    )
    assert verdict(made_scores(ece=0.2, gap=0.0)).startswith("Strongly over-confident here and under-confident there:")
    assert verdict(made_scores(ece=0.009, p_value=0.2)) == (
        "No sign of miscalibration: an ECE of 0.90% is what a perfectly calibrated model shows on 1,000 examples (0.71% on "
        "average, rarely over 1.03%)."
    )


def test_scores_table_says_why_the_log_likelihood_is_infinite() -> None:
    scores = made_scores()
    endless = replace(scores, metrics={**scores.metrics, "nll": Estimate(math.inf, math.inf, math.inf)})
    for width, said in ((80, "a label has p = 0"), (140, "a true class was given probability 0")):
        lines = lines_of(scores_table(endless, width=width), width=width)
        assert next(line for line in lines if line.startswith("negative log")).endswith(said)
        assert said not in "".join(lines_of(scores_table(scores, width=width), width=width))


def test_worst_slice_is_named_only_if_it_stands_out() -> None:
    fine, bad = made_scores(ece=0.008, p_value=0.4), made_scores(ece=0.09)
    # The group of the highest ECE need not be the one: a small group has more of it by chance.
    said = worst_slice(Scores(**{**vars(fine), "slices": {"day": fine, "night": bad}}))
    assert said == "night stands out most, with an ECE of 9.00%"
    assert worst_slice(Scores(**{**vars(fine), "slices": {"day": fine}})).startswith("none stands out")


def test_fit_table_folds_names_that_would_be_cut_to_the_same() -> None:
    names = ["focal (train.select=error)", "focal (train.select=error+nll)"]
    shown = lines_of(fit_table(("Method", "ECE"), [[name, "1.00%"] for name in names], width=30), width=30)
    assert "…" not in "".join(shown)
    assert "".join(shown).count("(train.select=error") == 2
    assert max(map(len, shown)) <= 30
    # One of them alone is cut.
    assert "…" in "".join(lines_of(fit_table(("Method", "ECE"), [[names[1], "1.00%"]], width=30), width=30))


def test_fit_table_drops_columns_and_cuts_names_but_never_numbers() -> None:
    headers, rows = ("Name", "Number", "Other", ""), [["a rather long name", "123456789", "987654321", "some words"], None]
    wide = lines_of(fit_table(headers, rows, width=80, drop=(3, 2)), width=80)
    assert wide[2] == "a rather long name  123456789  987654321  some words"
    middle = lines_of(fit_table(headers, rows, width=42, drop=(3, 2)), width=42)
    assert middle[2] == "a rather long name  123456789  987654321"
    narrow = lines_of(fit_table(headers, rows, width=24, drop=(3, 2)), width=24)
    assert narrow[2] == "a rather lon…  123456789"


def test_total_width_counts_the_gaps() -> None:
    assert total_width([3, 4, 5]) == 16


@pytest.mark.parametrize("width", [40, 60, 80, 104, 120, 200])
def test_tables_fit_every_terminal_and_keep_their_numbers(width: int) -> None:
    scores = made_scores()
    tables = {
        "5.00%": scores_table(scores, width=width),
        "+10.0%": bins_table(scores.bins, width=width),
        "−1.00%": classes_table(scores.classes, width=width),
        "1,000": parts_table("Group", {"day": scores, "": scores}, width=width),
        "20.00%" if width >= 60 else "20.0%": comparison_table({"first": scores, "second": scores}, width=width),
        "p < 0.001": paired_table({key: Paired(-0.01, -0.02, -0.001, 1e-5) for key in scores}, width=width),
    }
    for shown, table in tables.items():
        lines = lines_of(table, width=width)
        assert max(map(len, lines)) <= width
        assert any(shown in line for line in lines), (shown, lines)
        assert not any("…%" in line or "0.…" in line for line in lines)


def test_scores_table_shows_every_metric_and_explains_where_there_is_room() -> None:
    wide = "\n".join(lines_of(scores_table(made_scores(), width=120), width=120))
    assert all(metric.label in wide for metric in METRICS.values())
    assert "a calibrated model would show 0.71%, rarely over 1.03%" in wide
    assert "surprise at the true class" in wide
    narrow = "\n".join(lines_of(scores_table(made_scores(), width=80), width=80))
    assert "if calibrated 0.71%" in narrow
    assert "over-confident" in narrow


def test_bins_table_leaves_out_empty_bins_and_shows_what_each_adds() -> None:
    lines = lines_of(bins_table(made_scores().bins, width=80), width=80)
    assert len(lines) == 4
    # 400 of 1,000 examples with a gap of -10 points add 4 points, 600 with +10 add 6.
    assert lines[2].split() == ["33", "–", "67%", "400", "50.0%", "60.0%", "−10.0%", "4.00%", "█" * 12]
    assert lines[3].split() == ["67", "–", "100%", "600", "90.0%", "80.0%", "+10.0%", "6.00%", "█" * 18]


def test_classes_table_says_in_which_direction() -> None:
    lines = lines_of(classes_table(made_scores().classes, width=80), width=80)
    assert lines[2].split() == ["a", "300", "n/a", "2.00%", "+1.00%", "predicted", "too", "often"]
    assert lines[3].endswith("predicted too rarely")
    even = [ClassScore(0, "a", 300.0, 0.02, -1e-9, math.nan)]
    assert not any("predicted" in line for line in lines_of(classes_table(even, width=80), width=80))
    for gap, words in ((-0.01, "within chance"), (0.0101, "predicted too often")):
        entry = ClassScore(0, "a", 300.0, 0.02, gap, math.nan, chance=0.01)
        assert lines_of(classes_table([entry], width=80), width=80)[2].endswith(words)


def test_comparison_of_many_files_has_a_line_for_each() -> None:
    scores = made_scores()
    few = lines_of(comparison_table({"a": scores, "b": scores}, width=120), width=120)
    assert any("5.00%      4.00 – 6.00" in line for line in few)
    many = lines_of(comparison_table({f"model_{k}": scores for k in range(9)}, width=80), width=80)
    assert many[0].startswith("File")
    assert sum(line.startswith("model_") for line in many) == 9


def test_paired_table_judges_only_what_is_clear() -> None:
    tests = {
        "ece": Paired(-0.02, -0.03, -0.01, 0.001),
        "nll": Paired(0.02, 0.01, 0.03, 0.01),
        "mce": Paired(0.02, -0.1, 0.1, 0.6),
        "signed_gap": Paired(-0.02, -0.03, -0.01, 0.0),
    }
    lines = [line for line in lines_of(paired_table(tests, width=80), width=80) if line]
    assert [line.split()[-1] for line in lines[2:]] == ["worse", "better", "unclear", "sure"]


def test_paired_table_gives_up_long_names_before_intervals_and_says_what_it_leaves_out() -> None:
    tests = {"ece": Paired(0.667, 0.647, 0.687, 0.005), "nll": Paired(18.4367, 18.1904, 18.683, 0.005)}
    assert "expected calibration error" in "\n".join(lines_of(paired_table(tests, width=82), width=82))
    narrow = "\n".join(lines_of(paired_table(tests, width=72), width=72))
    assert "+18.1904 – +18.6830" in narrow
    assert "ECE    " in narrow
    assert "wider" not in narrow
    least = "\n".join(lines_of(paired_table(tests, width=44), width=44))
    assert "95% interval" not in least
    assert "Intervals need a wider window." in least


def test_comparison_of_two_files_gives_up_long_names_before_intervals() -> None:
    scores = made_scores()
    for width, name in ((80, "expected calibration error "), (68, "ECE "), (60, "expected calibration error ")):
        lines = lines_of(comparison_table({"before": scores, "after": scores}, width=width), width=width)
        assert any(line.startswith(name) for line in lines), width
        assert not any("…" in line for line in lines), width
        assert any("4.00 – 6.00" in line for line in lines) == (width > 60), width


def test_short_names_tell_files_apart() -> None:
    assert short_names([Path("x/a.npz"), Path("y/b.csv")]) == ["a", "b"]
    assert short_names([Path("a.npz"), Path("a.csv")]) == ["a.npz", "a.csv"]
    assert short_names([Path("runs/1/test.npz"), Path("runs/2/test.npz")]) == ["1/test.npz", "2/test.npz"]
    assert short_names([Path("a.npz"), Path("a.npz")]) == ["a.npz (1)", "a.npz (2)"]


def page(*, width: int, **kwargs: object) -> str:
    stream = io.StringIO()
    show_scores(console=Console(file=stream, width=width, highlight=False), **kwargs)
    return stream.getvalue()


def test_page_of_one_file_has_verdict_bins_classes_and_groups() -> None:
    scores = made_scores()
    scores = Scores(**{**vars(scores), "slices": {"day": scores}, "classes": scores.classes * 3, "num_classes": 9})
    text = page(width=80, measured=Measured(scores, Split.TEST), all_classes=False)
    assert text.splitlines()[1] == "test.npz  1,000 examples · 9 classes · test split"
    for said in ("Over-confident: 84.0% sure", "By confidence", "Worst classes", "Groups", "day"):
        assert said in text
    assert text.count("predicted too") == 5
    assert page(width=80, measured=Measured(scores, None), all_classes=True).count("predicted too") == 9


def test_page_of_one_example_counts_it_as_one() -> None:
    text = page(width=80, measured=Measured(made_scores(n=1, p_value=0.5), None), all_classes=False)
    assert "1 example · 3 classes" in text
    assert "shows on 1 example (0.71%" in " ".join(text.split())


def test_page_of_a_binary_problem_leaves_the_two_mirrored_classes_out() -> None:
    scores = Scores(**{**vars(made_scores()), "num_classes": 2})
    assert "classes" not in page(width=80, measured=Measured(scores, None), all_classes=False).split("By confidence")[1]


def test_page_of_several_files_shows_each_verdict_and_test() -> None:
    stream = io.StringIO()
    scores = made_scores()
    other = Scores(**{**vars(scores), "file": "folder/other.npz", "slices": {"day": scores}})
    tests = [{"ece": Paired(-0.02, -0.03, -0.01, 0.001)}]
    console = Console(file=stream, width=100, highlight=False)
    show_comparison([Measured(scores, None), Measured(other, None)], tests, all_classes=True, console=console)
    text = stream.getvalue()
    for said in ("test: Over-confident", "other: Over-confident", "other minus test", "better", "Classes", "Groups"):
        assert said in text


def many_bins(n_bins: int) -> Bins:
    edges = torch.arange(n_bins + 1, dtype=torch.float64) / n_bins
    confidence = (edges[:-1] + edges[1:]) / 2
    gap = torch.linspace(-0.01, 0.01, n_bins, dtype=torch.float64)
    return Bins(
        edges=edges,
        count=torch.full((n_bins,), 10.0, dtype=torch.float64),
        confidence=confidence,
        accuracy=confidence - gap,
    )


def test_bins_table_of_a_thousand_bins_shows_those_that_add_most_and_adds_up_the_others() -> None:
    lines = lines_of(bins_table(many_bins(1000), width=80), width=80)
    assert len(lines) == 2 + 50 + 1
    assert lines[2].startswith("0.0 – 0.1%")
    assert lines[-2].startswith("99.9 – 100.0%")
    assert lines[-1].split()[:3] == ["950", "others", "9,500"]
    # Gaps of up to a point, half a point on average; those left out are the smaller ones.
    assert lines[-1].split()[-1] == "0.45%"


@pytest.mark.parametrize(("n_bins", "label"), [(15, "0 – 7%"), (100, "0 – 1%"), (250, "0.0 – 0.4%"), (2000, "0.00 – 0.05%")])
def test_bins_table_edges_have_the_digits_that_tell_them_apart(n_bins: int, label: str) -> None:
    assert lines_of(bins_table(many_bins(n_bins), width=80), width=80)[2].startswith(label)


def test_paired_table_calls_what_does_not_differ_at_all_the_same() -> None:
    tests = {"ece": Paired(0.0, 0.0, 0.0, 1.0), "nll": Paired(0.0, -0.1, 0.1, 1.0)}
    lines = [line for line in lines_of(paired_table(tests, width=80), width=80) if line]
    assert [line.split()[-1] for line in lines[2:]] == ["unclear", "same"]


def test_bins_table_shows_one_bin_more_instead_of_one_other() -> None:
    assert len(lines_of(bins_table(many_bins(51), width=80), width=80)) == 2 + 51
    assert lines_of(bins_table(many_bins(52), width=80), width=80)[-1].startswith("2 others")
