"""
Measure and repair a classifier
===============================

Boosted trees that are 81 % sure on average and right 69 % of the time: how to see that, and how to mend it in two lines.
"""

# %%
# A model that is too sure
# ------------------------
# Boosted trees learn from 2,000 examples with noisy labels. The other examples serve two purposes: a validation part to
# learn the repair from, and a test part to judge it.

from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier

X, y = make_classification(10_000, n_informative=10, n_classes=5, flip_y=0.1, random_state=0)
X_train, X_val, X_test = X[:2000], X[2000:5000], X[5000:]
y_train, y_val, y_test = y[:2000], y[2000:5000], y[5000:]
model = HistGradientBoostingClassifier(max_iter=100, random_state=0).fit(X_train, y_train)
print(f"right on the test part: {model.score(X_test, y_test):.1%}")

# %%
# Measure
# -------
# A `Predictions` holds probabilities and labels, checked once. Every number comes with a 95 % interval. "If calibrated" is the
# ECE that a perfectly calibrated model with the same confidences would show by chance.

from calibrant import Predictions, measure, repair

val = Predictions(probs=model.predict_proba(X_val), labels=y_val, split="val")
test = Predictions(probs=model.predict_proba(X_test), labels=y_test, split="test")
before = measure(test)
before

# %%
# The diagram by itself. Bars are accuracies; the hatched part is the gap to the confidence.

from calibrant import plot

plot.reliability(test)

# %%
# Repair
# ------
# `repair` compares calibrators by cross-validation on the validation part and applies the best one to the test part. The test
# labels play no role in the choice; they only judge it.

done = repair(val, test)
print(done)

# %%
plot.before_after(done.before, done.after)

# %%
# Keep the calibrator
# -------------------
# It is saved as JSON, and repairs new predictions without labels.

import tempfile
from pathlib import Path

from calibrant.calibrators import Calibrator

file = Path(tempfile.mkdtemp()) / "calibrator.json"
done.calibrator.save(file)
again = Calibrator.load(file)
print(type(again).__name__, again.predict_proba(test.logits[:2]).round(decimals=3))
