"""`btil.imitation.learn`: one verb for every learner that knows the task."""

import importlib
import inspect
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.arguments import check_options, check_seed, check_values
from btil.demonstrations import Demonstrations
from btil.domains.gridworld.derived import has_task_variables
from btil.domains.gridworld.task import GridTask
from btil.models.cpt import CPT, KnownCPT, UniformCPT
from btil.models.team import TeamModel
from btil.posterior.fit import fit
from btil.posterior.posterior import TeamPosterior

if TYPE_CHECKING:
    from btil.posterior.acting import Actor

# A new method is one file with a function `learn`, and one line here.
METHODS = {
    "random": "btil.imitation.random_policy",
    "behavioral-cloning": "btil.imitation.behavioral_cloning",
    "tabular-cloning": "btil.imitation.tabular_cloning",
    "ppo": "btil.imitation.reinforcement",
    "magail": "btil.imitation.magail",
    "btil": "btil.imitation.bayesian",
}
_OWN_ARGUMENTS = ("task", "demos", "known_transition", "seed", "progress")

Policies = dict[str, Float[np.ndarray, "states latents actions"]]
Curves = dict[str, Float[np.ndarray, " iterations"]]


class Learned(NamedTuple):
    """What a method gives back.

    Attributes:
        policies: Policy of each agent, a row for every task state and latent.
        learning_curve: Values over iterations, by name.
        converged: Whether the method's own criterion was met; a method without one never did.
        reason: Why it stopped, as a sentence.
        posterior: What was inferred, from a method that infers; None from one that only has
            policies.
    """

    policies: Policies
    learning_curve: Curves
    converged: bool
    reason: str
    posterior: TeamPosterior | None = None


@dataclass(frozen=True, eq=False)
class LearnedTeam:
    """A team as it was learned, the same for every method.

    Attributes:
        task: The task.
        method: Name of the method.
        policies: {agent: P(action | task state, latent)}, a row for every task state.
        learning_curve: {name: values over iterations}, e.g. "elbo", "loss", "mean_reward".
        converged: Whether the method's own criterion was met.
        reason: Why it stopped, as a sentence.
        posterior: The team as a `TeamPosterior`, for whatever else is to be asked of it (beliefs,
            predictions, likelihoods). It takes demonstrations with the task's state variables.
        wall_time: Seconds of learning.
        seed: The seed.
        known_transition: Whether the true T_x was given.
        options: The options given to the method.
    """

    task: GridTask
    method: str
    policies: Policies
    learning_curve: Curves
    converged: bool
    reason: str
    posterior: TeamPosterior
    wall_time: float
    seed: int
    known_transition: bool
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"LearnedTeam({self.method} on {self.task!r}: {self.reason})"

    def decode(
        self, demos: Demonstrations, use_labels: bool = False
    ) -> Int[np.ndarray, "steps agents"]:
        """The most probable latents of each episode, by the policies and T_x.

        Viterbi; the paper, Appendix B. Rows that were inferred stand at their posterior means, not
        at the modes in `policies`.

        Args:
            demos: Episodes of the same team.
            use_labels: Whether the path goes through the labels in `demos`; else they are not
                looked at.

        Raises:
            ValueError: If the demonstrations are not of this task, or are impossible under the
                policies.
        """
        return self.posterior.decode(task_demonstrations(self.task, demos), use_labels)

    def actors(
        self, estimate: str = "mean", num_draws: int | None = None, seed: int = 0
    ) -> "dict[str, Actor]":
        """The members as they act, for `btil.domains.play`; as `TeamPosterior.actors`.

        By "mean" an inferred team acts by posterior means, not by the modes in `policies`, which
        are its "map". The policies of the other methods are what they are, by any estimate.
        """
        kind = estimate if self.posterior.result.rows else "mean"
        return self.posterior.actors(kind, num_draws, seed)


def learn(
    task: GridTask,
    demos: Demonstrations,
    method: str = "btil",
    *,
    known_transition: bool = True,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> LearnedTeam:
    """Learn a team's policies from demonstrations of a task.

    Args:
        task: The task, of `btil.domains`.
        demos: Demonstrations with the task's state variables, or the task state as the only one.
            "btil" makes use of whatever labels there are (BTIL-Sup: pass only labelled episodes;
            BTIL-Semi: pass also unlabelled ones); the cloners, "magail" and "ppo" need all.
        method: "random" (uniform policies), "behavioral-cloning" (a network per agent and latent),
            "tabular-cloning" (counts), "magail", "btil", or "ppo" (which learns from the task's
            rewards, after some cloning: the check of the learner in "magail").
        known_transition: Whether latents move by the task's true T_x and start from its true
            initial distribution, in learning as in decoding. Otherwise both are learned ("btil")
            or uniform ("random"); the other methods cannot do without.
        seed: A non-negative integer; the same seed gives the same bits.
        progress: Whether to show a progress line on standard error.
        **options: Options of the method, see its module in `METHODS`.

    Returns:
        The team learned.

    Raises:
        ValueError: If the method or an option's value is unknown, the demonstrations are not of
            this task, or a label is missing where all are needed (naming the first such step).
        TypeError: If the method has no such option; the message lists those it has.

    Example:
        >>> task = btil.domains.movers("tiny")  # doctest: +SKIP
        >>> demos = task.simulate(20)  # doctest: +SKIP
        >>> team = btil.imitation.learn(task, demos, "tabular-cloning")  # doctest: +SKIP

    Source: the paper, "Baselines and Metrics" and Appendix D.
    """
    check_options(method, options, method_options(method))
    check_values(options, [n for n, default in method_options(method).items() if default is None])
    seed = check_seed(seed, 2**32 - 1)
    check_values({"progress": progress})
    checked = task_demonstrations(task, demos)
    begun = time.perf_counter()
    learned: Learned = _method_function(method)(
        task,
        checked,
        known_transition=known_transition,
        seed=seed,
        progress=progress,
        **options,
    )
    wall_time = time.perf_counter() - begun
    posterior = learned.posterior
    if posterior is None:
        model = team_model(task, learned.policies, known_transition)
        posterior = fit(model, checked.without_labels(), progress=False, dtype=np.float64)
    return LearnedTeam(
        task=task,
        method=method,
        policies=learned.policies,
        learning_curve=learned.learning_curve,
        converged=learned.converged,
        reason=learned.reason,
        posterior=posterior,
        wall_time=wall_time,
        seed=seed,
        known_transition=known_transition,
        options=options,
    )


def _method_function(method: str) -> Any:
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; there are {', '.join(METHODS)}")
    return importlib.import_module(METHODS[method]).learn


def method_options(method: str) -> dict[str, Any]:
    """Options of a method with their defaults.

    Raises:
        ValueError: If there is no such method.

    Example:
        >>> method_options("tabular-cloning")
        {'smoothing': 0.01}
    """
    parameters = inspect.signature(_method_function(method)).parameters
    return {
        name: parameter.default
        for name, parameter in parameters.items()
        if name not in _OWN_ARGUMENTS
    }


def team_model(task: GridTask, policies: Policies, known_transition: bool) -> TeamModel:
    """Given policies as a model: with the true T_x and start, or with uniform ones."""

    def rows(policy: Float[np.ndarray, "states latents actions"]) -> KnownCPT:
        return KnownCPT(
            lambda contexts: policy[
                task.encode(np.stack([contexts[name] for name in task.state_sizes], axis=1))
            ],
            parents=tuple(task.state_sizes),
        )

    policy: dict[str, CPT] = {agent: rows(policies[agent]) for agent in task.agents}
    if known_transition:
        return task.with_true_latents(policy)
    return TeamModel(policy=policy, transition=UniformCPT(), initial=UniformCPT())


def task_demonstrations(task: GridTask, demos: Demonstrations) -> Demonstrations:
    """The demonstrations with the task's state variables (and further ones), sizes and names.

    Raises:
        ValueError: If agents, state variables or names of values are not the task's, or a value
            is out of its range (naming column, episode and step).
    """
    if not isinstance(task, GridTask):
        raise ValueError(f"task must be a task of btil.domains, got {type(task).__name__}")
    if not isinstance(demos, Demonstrations):
        raise ValueError(f"demos must be Demonstrations, got {type(demos).__name__}")
    variables, names = demos.state_variables, demos.state_names
    if not has_task_variables(task, demos):
        values = task.decode_states(demos.states)
        variables, names = dict(zip(task.state_sizes, values.T, strict=True)), {}
    expected: dict[str, dict[str, tuple[str, ...]]] = {
        "state_names": task.state_names,
        "action_names": dict.fromkeys(task.agents, task.action_names),
        "latent_names": dict.fromkeys(task.agents, task.latent_names),
    }
    given = [names, demos.action_names, demos.latent_names]
    for (kind, texts), found in zip(expected.items(), given, strict=True):
        for key in texts.keys() & found.keys():
            if tuple(found[key]) != tuple(texts[key]):
                raise ValueError(
                    f"{kind} of {key} are {', '.join(found[key])}; those of {task.name} are "
                    f"{', '.join(texts[key])}"
                )
    further = {name: size for name, size in demos.num_states.items() if name in variables}
    sizes = task.state_sizes | {n: k for n, k in further.items() if n not in task.state_sizes}
    return demos.replace(
        states={name: variables[name] for name in sizes},
        num_states=sizes,
        num_actions=task.num_actions,
        num_latents=task.num_latents,
        state_names={n: t for n, t in (names | task.state_names).items() if n in sizes},
        action_names=task.action_names,
        latent_names=task.latent_names,
    )


def require_labels(demos: Demonstrations, known_transition: bool, method: str) -> None:
    """Refuse what a method that imitates labelled steps cannot use.

    Raises:
        ValueError: If T_x is not known, or a label or an action is missing (naming the first such
            step).
    """
    if not known_transition:
        raise ValueError(
            f"{method} does not learn how latents move: known_transition must be True; without it "
            "there are 'btil' and 'random'"
        )
    for what, values in (("label", demos.latents), ("action", demos.actions)):
        missing = np.argwhere(values < 0)
        if len(missing):
            row, agent = missing[0]
            episode = int(np.searchsorted(demos.episode_starts, row, side="right") - 1)
            raise ValueError(
                f"{method} needs the {what} of every step: episode {demos.episode_ids[episode]}, "
                f"step {demos.step_in_episode[row]} has none for {demos.agents[agent]}; select "
                f"episodes in which every {what} is known, or use 'btil'"
            )
