"""``calibrant demo`` from nothing to the comparison, shortened."""

import pytest
import torch

from calibrant.cli.demo_train import DemoScores, comparison, demo_recipe, score
from calibrant.cli.main import run as run_command
from calibrant.core.records import Predictions


def test_demo_trains_four_ways_and_compares_them(capsys):
    with pytest.raises(SystemExit) as end:
        run_command(["demo", "--seeds", "1", "--epochs", "2"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    for name in ("cross-entropy", "cross-entropy + temperature", "focal loss", "gamma-Net + SECE"):
        assert name in out
    assert "calibrant measure" in out


def test_demo_recipe_trains_all_methods_on_the_same_examples():
    assert demo_recipe("ce", seed=1, epochs=3).data.same_data
    assert demo_recipe("flgamma-sece", seed=1, epochs=3).method.preset == "default"


def test_demo_score_compares_confidence_with_the_truth():
    predictions = Predictions(probs=[[0.9, 0.1], [0.3, 0.7]], labels=[0, 0])
    posterior = torch.tensor([[0.6, 0.4], [0.5, 0.5]], dtype=torch.float64)
    found = score(predictions, posterior)
    assert found.error == 0.5
    assert found.gap == pytest.approx((0.3 + 0.2) / 2)


def test_demo_comparison_marks_the_best_of_each_column():
    rows = {"first": [DemoScores(0.1, 1.0, 0.2, 0.3)], "second": [DemoScores(0.2, 0.5, 0.1, 0.2)]}
    table = comparison(rows, width=100)
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    assert cells[1] == ["10.0 ± 0.0%", "20.0 ± 0.0%"]
    bold = [[cell.style == "bold" for cell in column.cells] for column in table.columns[1:]]
    assert bold == [[True, False], [False, True], [False, True], [False, True]]
