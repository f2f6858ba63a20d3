"""
Decide with calibrated probabilities
====================================

A probability is useful when you act on it. Two common decisions, with a model before and after its repair: when to
raise an alarm, and when to leave the answer to a person.
"""

# %%
# A rare event
# ------------
# One example in twenty is a fraud. The model is trained on a sample with more frauds than that, as is often done, so
# it predicts far too many of them.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier

from calibrant import Predictions
from calibrant.calibrators import VectorScaling
from calibrant.decisions import SelectiveClassifier, cost_threshold
from calibrant.metrics import binary_expected_calibration_error

X, y = make_classification(30_000, n_informative=6, weights=[0.95], class_sep=0.8, flip_y=0.02, random_state=0)
y_test = y[20_000:]
frauds, others = np.flatnonzero(y[:10_000]), np.flatnonzero(y[:10_000] == 0)
sample = np.concatenate([frauds, others[: len(frauds)]])
model = HistGradientBoostingClassifier(random_state=0).fit(X[sample], y[sample])

val = Predictions(probs=model.predict_proba(X[10_000:15_000]), labels=y[10_000:15_000], split="val")
test = Predictions(probs=model.predict_proba(X[20_000:]), labels=y_test, split="test")
calibrator = VectorScaling().fit(val)
models = {"as trained": test, "repaired": calibrator.apply(test)}
print(f"frauds: {y_test.mean():.1%}")
for name, predictions in models.items():
    p = predictions.probs[:, 1]
    gap = float(binary_expected_calibration_error(p, y_test))
    print(f"{name:10}  predicted {p.mean():.1%}, calibration error {gap:.1%}")

# %%
# When to raise an alarm
# ----------------------
# A false alarm costs 1, a missed fraud 20. `cost_threshold` gives the probability of fraud above which an alarm pays, if the
# probabilities are right. The curve shows what every threshold costs; the dot marks this one.

MISS = 20
best = cost_threshold(false_alarm=1, miss=MISS)


def cost(p, threshold):
    """Mean cost of a payment: checks of good ones above the threshold, missed frauds below it."""
    return np.where(p > threshold, 1 - y_test, MISS * y_test).mean()


figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
for (name, predictions), color in zip(models.items(), ("#d55e00", "#0072b2"), strict=True):
    p = predictions.probs[:, 1].numpy()
    thresholds = np.linspace(0.005, 0.95, 190)
    ax.plot(thresholds, [cost(p, threshold) for threshold in thresholds], color=color, label=name)
    ax.plot(best, cost(p, best), "o", color=color)
    print(f"{name:10}  cost at {best:.3f}: {cost(p, best):.3f}")
ax.set(xlabel="threshold", ylabel="cost per payment", xlim=(0, 0.95), ylim=(0, None))
ax.legend(frameon=False)

# %%
# When to leave it to a person
# ----------------------------
# Of the answers with a confidence above 95 %, at least 95 % should be right. As trained, the model breaks that promise, and yet
# it answers less often than the repaired one, which keeps it.

for name, predictions in models.items():
    confidence, top = predictions.probs.max(1)
    right = (top == predictions.labels).double()
    for level in (0.8, 0.9, 0.95):
        sure = confidence >= level
        print(f"{name:10}  above {level:.0%}: answers {sure.double().mean():.0%}, right {right[sure].mean():.1%}")

# %%
# A promise that must hold needs more than calibration. `SelectiveClassifier` learns a threshold from examples that neither the
# model nor the calibrator has seen, so that the error among the answers stays below the limit with a probability of 95 %.

fresh = Predictions(probs=model.predict_proba(X[15_000:20_000]), labels=y[15_000:20_000], split="val")
chooser = SelectiveClassifier(max_error=0.05).fit(calibrator.apply(fresh))
answers = chooser.predict(models["repaired"])
answered = answers >= 0
wrong = (answers != test.labels)[answered]
print(f"answers {answered.double().mean():.0%}, of these wrong {wrong.double().mean():.1%}")
