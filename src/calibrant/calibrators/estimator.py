"""What makes a calibrator a classifier to scikit-learn, whose own base classes would be loaded with every calibrator."""

from __future__ import annotations

import inspect
from typing import ClassVar, Self

import numpy as np

from calibrant.core.registry import lookup


class Estimator:
    """Hyper-parameters and tags of a classifier in scikit-learn's manner, so that its pipelines and searches take it."""

    # What scikit-learn before 1.6 reads instead of tags.
    _estimator_type: ClassVar[str] = "classifier"

    num_classes_: int

    @property
    def is_fitted(self) -> bool:
        """Whether there is something to apply."""
        return hasattr(self, "num_classes_")

    @property
    def classes_(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """What labels may be: 0 to C - 1, whichever of them the fit data had."""
        return np.arange(self.num_classes_)

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """Return the hyper-parameters, name → value (``deep`` is scikit-learn's and changes nothing)."""
        given = inspect.signature(type(self).__init__).parameters.values()
        return {entry.name: getattr(self, entry.name) for entry in given if entry.kind is entry.KEYWORD_ONLY}

    def set_params(self, **params: object) -> Self:
        """Change hyper-parameters, by the names and rules of the constructor; what was learned stays until the next fit."""
        given = self.get_params()
        for name in params:
            lookup(given, name, kind=f"parameter of {type(self).__name__}")
        checked = type(self)(**{**given, **params})
        for name in params:
            setattr(self, name, getattr(checked, name))
        return self

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({given})"

    def __sklearn_is_fitted__(self) -> bool:
        return self.is_fitted

    def __sklearn_tags__(self) -> object:
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        return Tags(estimator_type="classifier", target_tags=TargetTags(required=True), classifier_tags=ClassifierTags())
