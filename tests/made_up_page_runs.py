"""Runs to make a page of: with everything that a page can show of runs, and one of which little is known."""

from __future__ import annotations

from dataclasses import replace

import torch

from calibrant import Predictions, measure
from calibrant.core.records import Bins, Entry
from calibrant.data.synthetic import synthetic_predictions


def made_runs() -> list[Entry]:
    """Two methods of two seeds, one of them with gammas, a repaired row, and a record without an ECE."""
    entries = []
    for method, shift in (("ce", 0.0), ("flgamma-sece", -0.02)):
        for seed in (0, 1):
            test, _ = synthetic_predictions(200, 5, temperature=2.0, seed=seed)
            gamma = torch.linspace(0.5, 2, 200).numpy()
            if "gamma" in method:
                test = Predictions(logits=test.logits, labels=test.labels, columns={"gamma": gamma})
            history = tuple(
                {
                    "test_ece": 0.2 / epoch**2 + shift / 10,
                    "lr": 0.1 if epoch < 3 else 0.01,
                    "test_error": 0.3,
                    "gamma_mean": 1.0 if "gamma" in method else None,
                    "gamma_std": 0.1,
                }
                for epoch in range(1, 6)
            )
            scores = measure(test, n_resamples=100)
            entries.append(Entry("digits", method, scores, seed=seed, test=test, history=history, best_epoch=4))
    repaired = replace(entries[0], method="ce+ts", temperature=2.0, history=())
    # Only a record of some numbers, without an ECE or bins.
    none = torch.empty(0)
    record = replace(entries[0].scores, metrics={"error": entries[0].scores["error"]}, bins=Bins(none, none, none, none))
    return [*entries, repaired, Entry("digits", "focal", record)]
