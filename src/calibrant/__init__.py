"""calibrant: a classifier's confidence you can trust."""

from calibrant.core.records import Predictions, Split

__version__ = "0.1.0"
__all__ = ["Predictions", "Split", "__version__"]
