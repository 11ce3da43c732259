"""BTIL, the paper's learner, on a task: BTIL-Sup and BTIL-Semi, with T_x or without."""

from typing import Any

import numpy as np

from btil.demonstrations import Demonstrations
from btil.domains.gridworld.task import GridTask
from btil.imitation.learning import Learned
from btil.models.cpt import DirichletCPT
from btil.models.team import TeamModel
from btil.posterior.fit import fit


def learn(
    task: GridTask,
    demos: Demonstrations,
    *,
    known_transition: bool,
    seed: int,
    progress: bool,
    model: TeamModel | None = None,
    num_restarts: int = 1,
    tolerance: float | None = None,
    max_iterations: int = 1000,
) -> Learned:
    """Mean-field coordinate ascent, and the mode of each row of the policies.

    Args:
        task: The task.
        demos: Demonstrations, labelled where labels are known.
        known_transition: Whether transitions and initial distributions are the task's true ones.
        seed: Seeds the restarts.
        progress: Whether to show a progress line.
        model: What is believed before. None: the paper's model (`paper_model`). Of a model given,
            transition and initial are used only if the true ones are not known. Its parents may
            be derived variables that the demonstrations have
            (`task.add_derived_variables(demos)`).
        num_restarts: As in `btil.fit` with "mfvi"; so are the others.
        tolerance: See `num_restarts`.
        max_iterations: See `num_restarts`.

    Raises:
        ValueError: If the labels are impossible under the true T_x, or there are state variables
            that the task does not derive.
    """
    every_state = _every_state(task, demos)
    posterior = fit(
        believed(task, model, known_transition),
        demos,
        method="mfvi",
        seed=seed,
        progress=progress,
        num_restarts=num_restarts,
        tolerance=tolerance,
        max_iterations=max_iterations,
    )
    trace = posterior.elbo_trace
    return Learned(
        policies={
            agent: np.asarray(posterior.policy(agent, every_state, estimate="map"), np.float64)
            for agent in task.agents
        },
        learning_curve={} if trace is None else {"elbo": trace},
        converged=posterior.converged,
        reason=posterior.reason,
        posterior=posterior,
    )


def believed(task: GridTask, model: TeamModel | None, known_transition: bool) -> TeamModel:
    """What is believed before: the model given, or the paper's; with the true T_x if known.

    Raises:
        ValueError: If the model is no TeamModel.
    """
    prior = paper_model(task) if model is None else model
    if not isinstance(prior, TeamModel):
        raise ValueError(f"model must be a TeamModel, got {type(prior).__name__}")
    if not known_transition:
        return prior
    return task.with_true_latents(prior.policy)


def paper_model(task: GridTask) -> TeamModel:
    """The model of the paper's experiments (Appendix D), with a learned initial distribution.

    Policies have the task state as parent, transitions the task state and both actions; the
    concentrations are the task's own.

    Example:
        >>> paper_model(btil.domains.cleanup()).policy.parents  # doctest: +SKIP
        ('state',)
    """
    # By name, and not "state", which would take in derived variables too.
    state = tuple(task.state_sizes)
    return TeamModel(
        policy=DirichletCPT(task.policy_concentration, parents=state),
        transition=DirichletCPT(task.transition_concentration, parents=(*state, "actions")),
        initial=DirichletCPT(task.transition_concentration),
    )


def _every_state(task: GridTask, demos: Demonstrations) -> dict[str, Any]:
    """All state variables of the demonstrations, derived ones too, for every task state."""
    values = task.decode_states(np.arange(task.num_states))
    every: dict[str, Any] = dict(zip(task.state_sizes, values.T, strict=True))
    if set(demos.num_states) <= set(every):
        return every
    derived = task.add_derived_variables(
        Demonstrations(
            states=every,
            actions=np.zeros((task.num_states, len(task.agents)), np.int64),
            episodes=np.arange(task.num_states),
            agents=task.agents,
            num_states=task.state_sizes,
            num_actions=task.num_actions,
            num_latents=task.num_latents,
        )
    ).state_variables
    strange = set(demos.num_states) - set(derived)
    if strange:
        raise ValueError(
            f"the demonstrations have state variables that {task.name} does not derive: "
            f"{', '.join(sorted(strange))}"
        )
    return {name: derived[name] for name in demos.num_states}
