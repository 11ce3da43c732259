"""Bayesian Team Imitation Learner: what the members of a team had in mind.

From recordings of a team (states, joint actions, and labels of a few mental states) btil learns
each member's policy and how its mental state moves, and decodes what it had in mind at every
step. `fit` a `TeamModel` to `Demonstrations`, ask the `TeamPosterior`, `compare` the methods.
"""

from typing import TYPE_CHECKING, Any

from btil.demonstrations import (
    Demonstrations,
    concatenate,
    read_demonstrations,
    write_demonstrations,
)
from btil.demonstrations.binning import bin
from btil.demonstrations.coding import DataWarning
from btil.demonstrations.directions import directions
from btil.demonstrations.stream import DemonstrationsFile, open_demonstrations
from btil.loading import load

if TYPE_CHECKING:
    from btil import analysis, domains, imitation, recordings
    from btil.analysis.compare import compare
    from btil.demonstrations.coders import combine_labels, label_confusion
    from btil.models.cpt import (
        CPT,
        DirichletCPT,
        KnownCPT,
        Shared,
        StaticCPT,
        StickyDirichletCPT,
        UniformCPT,
    )
    from btil.models.emission import LinearNormalEmission, NormalEmission
    from btil.models.hierarchical import HierarchicalDirichletCPT, StickBreakingCPT
    from btil.models.parametric import ParametricCPT
    from btil.models.softmax import GoalConditionedCPT, SoftmaxCPT
    from btil.models.team import TeamModel
    from btil.numpyro_forms.latent_chain import LatentChain
    from btil.numpyro_forms.numpyro_model import NumpyroModel
    from btil.numpyro_forms.team_dbn import team_dbn
    from btil.posterior.fit import fit
    from btil.posterior.loading import load_posterior
    from btil.posterior.posterior import TeamPosterior, mfvi_guide
    from btil.suggestion import Suggestion, suggest_model

__version__ = "0.1.0"

# Loaded on first use, so that `import btil` is quick.
_LAZY = {
    "CPT": "btil.models.cpt",
    "DirichletCPT": "btil.models.cpt",
    "GoalConditionedCPT": "btil.models.softmax",
    "HierarchicalDirichletCPT": "btil.models.hierarchical",
    "KnownCPT": "btil.models.cpt",
    "LatentChain": "btil.numpyro_forms.latent_chain",
    "LinearNormalEmission": "btil.models.emission",
    "NormalEmission": "btil.models.emission",
    "NumpyroModel": "btil.numpyro_forms.numpyro_model",
    "ParametricCPT": "btil.models.parametric",
    "Shared": "btil.models.cpt",
    "SoftmaxCPT": "btil.models.softmax",
    "StaticCPT": "btil.models.cpt",
    "StickBreakingCPT": "btil.models.hierarchical",
    "StickyDirichletCPT": "btil.models.cpt",
    "Suggestion": "btil.suggestion",
    "TeamModel": "btil.models.team",
    "TeamPosterior": "btil.posterior.posterior",
    "UniformCPT": "btil.models.cpt",
    "combine_labels": "btil.demonstrations.coders",
    "compare": "btil.analysis.compare",
    "fit": "btil.posterior.fit",
    "label_confusion": "btil.demonstrations.coders",
    "load_posterior": "btil.posterior.loading",
    "mfvi_guide": "btil.posterior.posterior",
    "suggest_model": "btil.suggestion",
    "team_dbn": "btil.numpyro_forms.team_dbn",
}
_ROOMS = ("analysis", "domains", "imitation", "recordings")

__all__ = [
    "CPT",
    "DataWarning",
    "Demonstrations",
    "DemonstrationsFile",
    "DirichletCPT",
    "GoalConditionedCPT",
    "HierarchicalDirichletCPT",
    "KnownCPT",
    "LatentChain",
    "LinearNormalEmission",
    "NormalEmission",
    "NumpyroModel",
    "ParametricCPT",
    "Shared",
    "SoftmaxCPT",
    "StaticCPT",
    "StickBreakingCPT",
    "StickyDirichletCPT",
    "Suggestion",
    "TeamModel",
    "TeamPosterior",
    "UniformCPT",
    "analysis",
    "bin",
    "combine_labels",
    "compare",
    "concatenate",
    "directions",
    "domains",
    "fit",
    "imitation",
    "label_confusion",
    "load_posterior",
    "mfvi_guide",
    "open_demonstrations",
    "read_demonstrations",
    "recordings",
    "suggest_model",
    "team_dbn",
    "write_demonstrations",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return load(f"btil.{name}")
    if name in _LAZY:
        value = getattr(load(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'btil' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
