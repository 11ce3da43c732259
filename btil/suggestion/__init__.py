"""From a recording to a good model: which parents, priors and sharing its labels speak for."""

from btil.suggestion.suggest import suggest_model
from btil.suggestion.told import Suggestion

__all__ = ["Suggestion", "suggest_model"]
