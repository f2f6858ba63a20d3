"""What `CalibratedModel` does to plain models of scikit-learn on its own data sets; the table of docs/research-archive.md.

    python benchmarks/calibrated_model.py --seeds 5

For each seed, half of the data are for fitting. The negative log-likelihood (NLL) of the other half is that of the model fitted
to the same half without calibration, of `CalibratedClassifierCV` and of `CalibratedModel`, both with their defaults. Of a model
without probabilities it is that of the softmax of its decision function. Exits with 1 if NLL gets worse by more than 0.01 and
two standard errors, over the seeds, anywhere.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from sklearn import datasets
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from calibrant.calibrators import CalibratedModel
from calibrant.calibrators.auto import log_probs_of

MODELS = {
    "random forest": RandomForestClassifier(random_state=0),
    "naive Bayes": GaussianNB(),
    "SVC": make_pipeline(StandardScaler(), SVC()),
    "boosting": HistGradientBoostingClassifier(max_iter=50, random_state=0),
    "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
}


def losses(model: object, X: np.ndarray, y: np.ndarray, seed: int) -> tuple[list[float], str]:
    X_fit, X_test, y_fit, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=seed)
    ours = CalibratedModel(clone(model)).fit(X_fit, y_fit)
    theirs = CalibratedClassifierCV(clone(model)).fit(X_fit, y_fit)
    probs = [np.exp(log_probs_of(ours.estimator_, X_test)), theirs.predict_proba(X_test), ours.predict_proba(X_test)]
    return [log_loss(y_test, found) for found in probs], ours.calibrator_.best_name_


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    worse = 0
    print(
        "| data | model | NLL | `CalibratedClassifierCV` | `CalibratedModel` | change | chosen |\n|---|---|---|---|---|---|---|"
    )
    for data in ("iris", "wine", "breast_cancer", "digits"):
        X, y = getattr(datasets, f"load_{data}")(return_X_y=True)
        for name, model in MODELS.items():
            runs, chosen = zip(*(losses(model, X, y, seed) for seed in range(options.seeds)), strict=True)
            changes = [ours - before for before, _, ours in runs]
            change, error = np.mean(changes), np.std(changes, ddof=1) / np.sqrt(len(changes))
            worse += change > 0.01 + 2 * error
            means = " | ".join(f"{value:.3f}" for value in np.mean(runs, axis=0))
            methods = ", ".join(f"`{method}` {chosen.count(method)}" for method in sorted(set(chosen)))
            print(f"| {data} | {name} | {means} | {change:+.3f} ± {error:.3f} | {methods} |", flush=True)
    return int(worse > 0)


if __name__ == "__main__":
    raise SystemExit(main())
