from __future__ import annotations

import io
import math

from rich.console import Console

from calibrant.calibrators import Ranked
from calibrant.cli.repair import ranking_table


def shown(ranking: list[Ranked]) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=100)
    console.print(ranking_table(ranking, "temperature", score="nll", width=100))
    assert isinstance(console.file, io.StringIO)
    return [line.split() for line in console.file.getvalue().splitlines()[2:]]


def test_ranking_shows_how_each_method_changes_the_score_of_doing_nothing() -> None:
    first = Ranked("temperature", 0.5, 0.4, 0.6, 0.1, -0.05, 0.15)
    lines = shown([first, Ranked("none", 0.6, 0.5, 0.7, 0.0, 0.0, 0.0)])
    assert lines[0] == ["temperature", "0.5000", "−0.1000", "−0.1500", "–", "+0.0500", "chosen"]
    assert lines[1] == ["doing", "nothing", "0.6000"]


def test_ranking_leaves_out_changes_of_an_infinite_score() -> None:
    first = Ranked("temperature", 0.5, 0.4, 0.6, math.inf, math.nan, math.nan)
    lines = shown([first, Ranked("none", math.inf, math.nan, math.nan, math.nan, math.nan, math.nan)])
    assert lines[0] == ["temperature", "0.5000", "chosen"]
    assert lines[1] == ["doing", "nothing", "inf"]
