"""From calibrated probabilities to action: when to answer, which classes to keep, what costs least."""

from calibrant.core.scores import Promise
from calibrant.decisions.selective import SelectiveClassifier, cheapest_action, cost_threshold, promise_table
from calibrant.decisions.sets import PredictionSets

__all__ = ["PredictionSets", "Promise", "SelectiveClassifier", "cheapest_action", "cost_threshold", "promise_table"]
