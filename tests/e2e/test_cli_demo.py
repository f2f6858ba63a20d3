"""``calibrant demo`` from nothing to the comparison, shortened."""

import pytest
import torch

from calibrant.cli.demo import _SHORT, comparison, conclusion, demo_recipe, right_by_confidence, score
from calibrant.cli.main import run as run_command
from calibrant.core.records import Predictions


def test_demo_trains_four_ways_and_compares_them(capsys):
    with pytest.raises(SystemExit) as end:
        run_command(["demo", "--seeds", "1", "--epochs", "2"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    for name in ("cross-entropy", "cross-entropy + temperature", "focal loss", "gamma-Net + SECE"):
        assert name in out
    assert "90 – 100% sure" in out
    assert "Trained with cross-entropy the network misjudges its own certainty by" in out
    assert "calibrant measure" in out


def test_demo_recipe_trains_all_methods_on_the_same_examples():
    assert demo_recipe("ce", seed=1, epochs=3).data.same_data
    assert demo_recipe("flgamma-sece", seed=1, epochs=3).method.preset == "default"


def test_demo_score_compares_confidence_with_the_truth():
    predictions = Predictions(probs=[[0.9, 0.1], [0.3, 0.7]], labels=[0, 0])
    posterior = torch.tensor([[0.6, 0.4], [0.5, 0.5]], dtype=torch.float64)
    found = score(predictions, posterior)
    assert found["error"] == 0.5
    assert found["gap"] == pytest.approx((0.3 + 0.2) / 2)


def test_demo_comparison_marks_the_best_of_each_column():
    rows = {
        "first": [{"error": 0.1, "nll": 1.0, "ece": 0.2, "gap": 0.3}],
        "second": [{"error": 0.2, "nll": 0.5, "ece": 0.1, "gap": 0.2}],
    }
    table = comparison(rows, width=100)
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    assert cells[1] == ["10.0 ± 0.0%", "20.0 ± 0.0%"]
    bold = [[cell.style == "bold" for cell in column.cells] for column in table.columns[1:]]
    assert bold == [[True, False], [False, True], [False, True], [False, True]]


def test_demo_shows_how_often_each_method_is_right_by_its_confidence():
    sure = Predictions(probs=[[0.95, 0.05], [0.95, 0.05], [0.55, 0.45]], labels=[0, 1, 0])
    # The second seed counts with the first: three of four that are 90 - 100 % sure are right.
    right = Predictions(probs=[[0.95, 0.05], [0.05, 0.95], [0.35, 0.65]], labels=[0, 1, 0])
    table = right_by_confidence({"cross-entropy": [sure, right], "gamma-Net + SECE": [sure]}, width=100)
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    assert cells[0] == ["50 – 60% sure", "60 – 70% sure", "70 – 80% sure", "80 – 90% sure", "90 – 100% sure"]
    assert cells[1:] == [["100%", "0%", "–", "–", "75%"], ["100%", "–", "–", "–", "50%"]]


def test_demo_conclusion_names_the_repair_beside_the_method_that_learns():
    found = {name: [{"ece": ece}] for name, ece in zip(_SHORT, (0.14, 0.02, 0.06, 0.03), strict=True)}
    said = conclusion(found)
    assert [part in said for part in ("by 14.0%;", "by 2.0%;", "by 3.0% without any repair")] == [True, True, True]
