"""Models of a grid-world team, from the paper's to the recommended one, a change at a time."""

from btil.domains.gridworld.task import GridTask
from btil.imitation.bayesian import paper_model
from btil.models.cpt import Shared
from btil.models.team import TeamModel

PAPER_MODEL = "paper"
TRANSITION_PARENTS = "transition-parents"
POLICY_PARENTS = "policy-parents"
ALL_PARENTS = "all-parents"
RECOMMENDED = "recommended"

MODELS = {
    PAPER_MODEL: "the whole state (the paper)",
    TRANSITION_PARENTS: "transition reads derived variables",
    POLICY_PARENTS: "policy reads what matters",
    ALL_PARENTS: "both",
    RECOMMENDED: "both, agents share tables",
}


def model_named(name: str, task: GridTask) -> TeamModel:
    """A model by its name in `MODELS`.

    Args:
        name: The name.
        task: The task; all models but the paper's need its derived variables.

    Raises:
        ValueError: If there is no such model.
    """
    paper, recommended = paper_model(task), task.recommended_model()
    assert recommended.policy is not None
    policy, transition, initial = (
        table.cpt if isinstance(table, Shared) else table
        for table in (recommended.policy, recommended.transition, recommended.initial)
    )
    models = {
        PAPER_MODEL: paper,
        TRANSITION_PARENTS: TeamModel(paper.policy, transition, initial),
        POLICY_PARENTS: TeamModel(policy, paper.transition, paper.initial),
        ALL_PARENTS: TeamModel(policy, transition, initial),
        RECOMMENDED: recommended,
    }
    if name not in models:
        raise ValueError(f"unknown model {name!r}; there are {', '.join(models)}")
    return models[name]
