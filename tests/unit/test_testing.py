"""Limits of scores, for test suites and the command line."""

from __future__ import annotations

import pytest
import torch

from calibrant import Predictions, measure
from calibrant.testing import Limit, assert_calibrated

# 80 % right and 90 % sure: an ECE of 10 %.
GIVEN = Predictions(probs=[[0.9, 0.1]] * 100, labels=[0, 0, 0, 0, 1] * 20)


def test_assert_calibrated_compares_the_value_or_an_end_of_its_interval() -> None:
    ece = measure(GIVEN)["ece"]
    assert ece.low < ece.value < ece.high
    assert_calibrated(GIVEN, ece=0.11, error=0.2)
    assert_calibrated(torch.tensor([[0.9, 0.1]] * 100), GIVEN.labels, ece=ece.value, bound="low")
    with pytest.raises(AssertionError, match=r"of 100 examples ece is 0.1 \(ece.value>0.05\), error is 0.2"):
        assert_calibrated(GIVEN, ece=0.05, error=0.1, brier=2)
    with pytest.raises(AssertionError, match=r"ece.high is"):
        assert_calibrated(GIVEN, ece=0.11, bound="high")


def test_limits_are_read_and_a_score_that_is_no_number_breaks_them() -> None:
    scores = measure(GIVEN, n_resamples=100)
    for text, broken in {
        "ece>0.05": True,
        " ece.high <= 0.01": False,
        "signed_gap >= 1e-3": True,
        "nll<0": False,
        "nll>nan": True,
    }.items():
        assert bool(Limit.parse(text).broken_by(scores)) == broken, text
    nothing = {"value": None, "low": None, "high": None}
    assert Limit.parse("ece>1").broken_by(scores.from_dict({**scores.to_dict(), "metrics": {"ece": nothing}}))
    for wrong in ("ece", "ece>", "ece>x", "ece.mean>1", "ece=1", ""):
        with pytest.raises(ValueError, match="a limit must read `ece>0.05`"):
            Limit.parse(wrong)
    with pytest.raises(ValueError, match="Did you mean 'ece'"):
        Limit.parse("ecee>1")
    with pytest.raises(ValueError, match="a limit must be given"):
        assert_calibrated(GIVEN)
