from __future__ import annotations

from typing import Any

import pytest

from calibrant.integrations.trackers import Recorder, add_batch, with_ends
from calibrant.metrics import binary_expected_calibration_error
from helpers import mixed_gaps


def recorder(**options: object) -> Recorder:
    settings: dict[str, object] = {"num_classes": 10, "n_bins": 15, "metrics": ("ece", "nll"), "n_resamples": 100, **options}
    return Recorder(**settings)  # type: ignore[arg-type]


def test_show_draws_the_last_scores_and_leaves_no_figure_behind() -> None:
    import matplotlib.pyplot as plt

    probs, labels = mixed_gaps(100)
    figures: list[Any] = []
    made = recorder(log_figure=lambda figure, step: figures.append((figure, step)))
    add_batch(made.suite, probs.log(), labels)
    before = plt.get_fignums()
    made.show(made.measure(made.suite), "val", 3, 12, [])
    assert plt.get_fignums() == before
    ((figure, step),) = figures
    assert step == 12
    assert figure.axes[0].get_title().startswith("val, epoch 3\nECE 0.")


def test_recorder_of_wrong_settings_raises() -> None:
    with pytest.raises(ValueError, match="unknown metric 'ecee'. Did you mean 'ece'"):
        recorder(metrics=("ecee",))
    with pytest.raises(ValueError, match="`n_bins` must be one of"):
        recorder(n_bins=7)
    with pytest.raises(ValueError, match="`n_resamples` must be a whole number from 100"):
        recorder(n_resamples=10)


def test_recorder_of_two_classes_logs_the_error_of_the_positive_one() -> None:
    probs, labels = mixed_gaps(100, 2)
    made = recorder(num_classes=2, metrics=("binary_ece",))
    add_batch(made.suite, probs.log(), labels)
    found = with_ends(made.measure(made.suite), made.metrics)["binary_ece"]
    assert found == pytest.approx(float(binary_expected_calibration_error(probs, labels)), abs=1e-9)
