"""Small fits take one thread, and leave as many as there were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from calibrant.calibrators import MatrixScaling, TemperatureScaling
from calibrant.calibrators.fit_data import FitData, check_fit_input
from calibrant.calibrators.threads import one_thread

LOGITS = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(300) % 3


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("most", "expected"), [(900, 1), (899, 2)])
def test_fit_takes_one_thread_up_to_so_many_logits(monkeypatch: pytest.MonkeyPatch, most: int, expected: int) -> None:
    seen: list[int] = []

    def look(self: TemperatureScaling, data: FitData) -> dict[str, float]:
        seen.append(torch.get_num_threads())
        return {"temperature": 1.0}

    monkeypatch.setattr(TemperatureScaling, "_fit", look)
    monkeypatch.setattr(TemperatureScaling, "most_for_one_thread", most)
    TemperatureScaling().fit(LOGITS, LABELS)
    assert seen == [expected]
    assert torch.get_num_threads() == 2


def test_choice_of_a_spread_takes_one_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def look(self: MatrixScaling, inputs: FitData, *, where: str) -> float:
        seen.append(torch.get_num_threads())
        return 1.0

    monkeypatch.setattr(MatrixScaling, "_choose_spread", look)
    MatrixScaling().settle(check_fit_input(LOGITS, LABELS, None, ignore_index=None, where="test"))
    assert seen == [1]


def test_threads_come_back_after_a_failure() -> None:
    with pytest.raises(KeyError), one_thread(when=True):
        raise KeyError
    assert torch.get_num_threads() == 2
