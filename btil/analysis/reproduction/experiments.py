"""What is run: an experiment is one learner in one setting, repeated in trials."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, override

import numpy as np

from btil.analysis.metrics import hamming_distance, policy_divergence, suboptimal_share
from btil.analysis.reproduction.models import PAPER_MODEL, model_named
from btil.analysis.reproduction.workspace import Workspace
from btil.demonstrations import Demonstrations

if TYPE_CHECKING:
    from btil.imitation.learning import LearnedTeam

HAMMING, JS = "hamming", "js"
_PERFORMANCE = ("steps", "cut", "returns", "suboptimal", "misaligned")
TEAM = "team"
_CURVE_POINTS = 12
# As many as there are trials of a row, in a run of the usual size.
_TEAMS_KEPT = 5


class Score(NamedTuple):
    """One number of a trial.

    Attributes:
        agent: Whose it is: an agent's name, or "team".
        metric: What it measures.
        value: The number.
    """

    agent: str
    metric: str
    value: float


class Outcome(NamedTuple):
    """What came out of a trial.

    Attributes:
        scores: Its numbers.
        converged: Whether the learner says it has converged; None where there is no such thing.
        reason: How it ended, in its words.
        learning_curve: A summary per curve, from `summarise_curve`.
    """

    scores: tuple[Score, ...]
    converged: bool | None = None
    reason: str = ""
    learning_curve: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Experiment(ABC):
    """One learner in one setting. Equal experiments have equal trials, whatever table they are in.

    Attributes:
        domain: The grid world or the kitchen.
    """

    domain: str

    @property
    @abstractmethod
    def name(self) -> str:
        """What its files are called."""

    @property
    @abstractmethod
    def method(self) -> str:
        """The learner."""

    def settings(self, workspace: Workspace) -> dict[str, Any]:
        """All that its trials depend on besides their number, as plain values."""
        named = {"kind": type(self).__name__, **asdict(self)}
        return {**named, **self.circumstances(workspace)}

    @abstractmethod
    def circumstances(self, workspace: Workspace) -> dict[str, Any]:
        """What they depend on besides the experiment itself: amounts, options, data."""

    @abstractmethod
    def run(self, workspace: Workspace, trial: int, seed: int, progress: bool) -> Outcome:
        """Run one trial.

        Args:
            workspace: Tasks and data.
            trial: Its number, from 1.
            seed: Of all that is drawn in it.
            progress: Whether a long-running learner may show its own progress line.
        """


@dataclass(frozen=True)
class _Learning(Experiment):
    """Learn from some simulated episodes, the first `num_labelled` of them with labels.

    Attributes:
        domain: "movers" or "cleanup".
        learner: Of `btil.imitation.METHODS`.
        known_transition: Whether the true T_x is given.
        num_demos: Episodes given, the paper's d.
        num_labelled: Of these, episodes with labels, the paper's l.
        model: What "btil" believes before, one of `MODELS`.
    """

    learner: str
    known_transition: bool
    num_demos: int
    num_labelled: int
    model: str = PAPER_MODEL

    @property
    @override
    def method(self) -> str:
        return self.learner

    @property
    def given(self) -> str:
        """What the learner is given, in the names of files."""
        transition = "known" if self.known_transition else "learned"
        return f"{transition}-transition-{self.num_demos}-episodes-{self.num_labelled}-labelled"

    @override
    def circumstances(self, workspace: Workspace) -> dict[str, Any]:
        protocol = workspace.protocol
        return {
            "map": protocol.map,
            "num_train": protocol.num_train,
            "num_test": protocol.num_test,
            "options": dict(protocol.options.get(self.learner, {})),
        }


@dataclass(frozen=True)
class Imitation(_Learning):
    """Learn the team's policies from simulated episodes, decode others with what was learned.

    The training episodes are shuffled by the trial's seed; the learner is given the first
    `num_demos`, the first `num_labelled` of them with labels.
    """

    @property
    @override
    def name(self) -> str:
        model = "" if self.model == PAPER_MODEL else f"-{self.model}"
        return f"{self.domain}-{self.learner}-{self.given}{model}"

    @override
    def circumstances(self, workspace: Workspace) -> dict[str, Any]:
        data = workspace.split(self.domain).fingerprint
        return {**super().circumstances(workspace), "data": data}

    @override
    def run(self, workspace: Workspace, trial: int, seed: int, progress: bool) -> Outcome:
        task, split = workspace.task(self.domain), workspace.split(self.domain)
        test = split.test
        if self.model != PAPER_MODEL:
            test = task.add_derived_variables(test)
        given = shuffled_and_hidden(split.train, self.num_demos, self.num_labelled, seed)
        team = _learned(self, given, workspace, seed, progress)
        errors = hamming_distance(test, team)
        # Weighted by the visits of all labelled training episodes, whatever the learner was given.
        divergences = policy_divergence(split.train, task.policies(), team.policies)
        scores = []
        for i, agent in enumerate(test.agents):
            scores += [
                Score(agent, HAMMING, float(errors[i])),
                Score(agent, JS, float(divergences[i])),
            ]
        curve = {name: summarise_curve(values) for name, values in team.learning_curve.items()}
        return Outcome(tuple(scores), team.converged, team.reason, curve)


def _learned(
    experiment: "_Learning | DecodedMinds",
    given: Demonstrations,
    workspace: Workspace,
    seed: int,
    progress: bool,
) -> "LearnedTeam":
    """What the learner of an experiment makes of demonstrations of its task."""
    from btil.imitation import learn

    task, learner = workspace.task(experiment.domain), experiment.learner
    options = dict(workspace.protocol.options.get(learner, {}))
    if experiment.model is not None and experiment.model != PAPER_MODEL:
        given = task.add_derived_variables(given)
        options["model"] = model_named(experiment.model, task)
    return learn(
        task,
        given,
        method=learner,
        known_transition=experiment.known_transition,
        seed=seed,
        progress=progress and learner in SLOW_LEARNERS,
        **options,
    )


@dataclass(frozen=True)
class Acting(_Learning):
    """Learn a team from simulated episodes, and let it do the task.

    Every trial has a draw of the data of its own, made with its seed, and shuffled by it. Of the
    learner "demonstrators" the true team itself acts.

    Attributes:
        estimate: By what tables the team acts, as in `btil.domains.play`.
        beside: The member who is not the learned one, but the true team's.
    """

    estimate: str = "mean"
    beside: str | None = None

    @property
    @override
    def name(self) -> str:
        beside = "" if self.beside is None else f"-beside-{self.beside}"
        return (
            f"{self.domain}-{self.learner}-acting-{self.given}-{self.model}-{self.estimate}{beside}"
        )

    @override
    def circumstances(self, workspace: Workspace) -> dict[str, Any]:
        most = workspace.protocol.max_steps
        return {**super().circumstances(workspace), "max_steps": most}

    @override
    def run(self, workspace: Workspace, trial: int, seed: int, progress: bool) -> Outcome:
        from btil.analysis.performance import team_performance
        from btil.domains.playing import play

        protocol, task = workspace.protocol, workspace.task(self.domain)
        played: dict[str, Any] = {"seed": seed + 1, "max_steps": protocol.max_steps}
        learnt = None
        if self.learner == "demonstrators":
            demos = task.simulate(protocol.num_test, **played)
        else:
            learnt = self._team(workspace, seed, progress)
            cast: dict[str, Any] = dict.fromkeys(task.agents, learnt)
            if self.beside is not None:
                cast[self.beside] = task.policies()[self.beside]
            demos = play(task, cast, protocol.num_test, estimate=self.estimate, **played)
        found = team_performance(task, demos)
        scores = tuple(Score(TEAM, name, getattr(found, name).value) for name in _PERFORMANCE)
        if learnt is None:
            return Outcome(scores)
        return Outcome(scores, learnt.converged, learnt.reason)

    def _team(self, workspace: Workspace, seed: int, progress: bool) -> "LearnedTeam":
        """The team; what differs only in how it acts learns no second time."""
        key = dataclasses.replace(self, estimate="mean", beside=None), seed
        if key not in workspace.teams:
            every = workspace.simulate(self.domain, workspace.protocol.num_train, seed)
            given = shuffled_and_hidden(every, self.num_demos, self.num_labelled, seed)
            workspace.teams[key] = _learned(self, given, workspace, seed, progress)
            # The tables of a few teams are large.
            for old in [*workspace.teams][:-_TEAMS_KEPT]:
                del workspace.teams[old]
        return workspace.teams[key]


# Learners that take minutes: they show their own progress, and are run after the others.
SLOW_LEARNERS = ("behavioral-cloning", "magail", "ppo")


@dataclass(frozen=True)
class Simulation(Experiment):
    """Simulate the training episodes and see how often the team's minds are misaligned.

    The first trial is the training data of the other experiments, the others are new draws.
    """

    @property
    @override
    def name(self) -> str:
        return f"{self.domain}-simulation"

    @property
    @override
    def method(self) -> str:
        return "simulation"

    @override
    def circumstances(self, workspace: Workspace) -> dict[str, Any]:
        protocol = workspace.protocol
        return {
            "map": protocol.map,
            "episodes": protocol.num_train,
            "max_steps": protocol.max_steps,
            "data": workspace.split(self.domain).fingerprint,
        }

    @override
    def run(self, workspace: Workspace, trial: int, seed: int, progress: bool) -> Outcome:
        protocol = workspace.protocol
        if trial == 1:
            demos = workspace.split(self.domain).train
        else:
            demos = workspace.simulate(self.domain, protocol.num_train, seed)
        share = suboptimal_share(workspace.task(self.domain), demos)
        values = {
            "suboptimal": share.over_episodes,
            "suboptimal_steps": share.over_steps,
            "steps": demos.episode_lengths.mean(),
            "cut": (demos.episode_lengths == protocol.max_steps).mean(),
        }
        return Outcome(tuple(Score(TEAM, name, float(value)) for name, value in values.items()))


@dataclass(frozen=True)
class DecodedMinds(Experiment):
    """How often minds are misaligned in the test episodes, as their labels or decoded paths say.

    Attributes:
        domain: "movers" or "cleanup".
        model: What "btil" believes before, one of `MODELS`; None: the labels themselves.
        num_demos: Episodes learned from; T_x is learned too.
        num_labelled: Of these, episodes with labels.
    """

    model: str | None
    num_demos: int
    num_labelled: int
    learner: ClassVar[str] = "btil"
    known_transition: ClassVar[bool] = False

    @property
    @override
    def name(self) -> str:
        return (
            f"{self.domain}-minds-{self.model or 'labels'}-{self.num_demos}-episodes-"
            f"{self.num_labelled}-labelled"
        )

    @property
    @override
    def method(self) -> str:
        return "simulation" if self.model is None else self.learner

    @override
    def circumstances(self, workspace: Workspace) -> dict[str, Any]:
        protocol = workspace.protocol
        return {
            "map": protocol.map,
            "options": dict(protocol.options.get(self.method, {})),
            "data": workspace.split(self.domain).fingerprint,
        }

    @override
    def run(self, workspace: Workspace, trial: int, seed: int, progress: bool) -> Outcome:
        task, split = workspace.task(self.domain), workspace.split(self.domain)
        test, team = split.test, None
        if self.model is not None:
            given = shuffled_and_hidden(split.train, self.num_demos, self.num_labelled, seed)
            team = _learned(self, given, workspace, seed, progress)
            if self.model != PAPER_MODEL:
                test = task.add_derived_variables(test)
        share = suboptimal_share(task, test, team)
        scores = (
            Score(TEAM, "suboptimal", share.over_episodes),
            Score(TEAM, "suboptimal_steps", share.over_steps),
        )
        return Outcome(scores) if team is None else Outcome(scores, team.converged, team.reason)


@dataclass(frozen=True)
class HumanDecoding(Experiment):
    """Learn from people's trials in an Overcooked kitchen, decode what others had in mind.

    The training trials are shuffled by the trial's seed, and a share of them keeps its labels.
    The model is the domain's recommended one, fitted by mean-field variational inference.

    Attributes:
        domain: The kitchen.
        share_labelled: Share of the training trials with labels; None: nothing is learned and
            every step is guessed, all intents being equally likely.
    """

    share_labelled: float | None

    @property
    @override
    def name(self) -> str:
        share = "guess" if self.share_labelled is None else f"{self.share_labelled:.0%}-labelled"
        return f"overcooked-{self.domain}-{share.replace('%', '-percent')}"

    @property
    @override
    def method(self) -> str:
        return "random" if self.share_labelled is None else "mfvi"

    @override
    def circumstances(self, workspace: Workspace) -> dict[str, Any]:
        return {
            "options": dict(workspace.protocol.options.get(self.method, {})),
            "data": workspace.kitchen(self.domain).fingerprint,
        }

    @override
    def run(self, workspace: Workspace, trial: int, seed: int, progress: bool) -> Outcome:
        split = workspace.kitchen(self.domain)
        if self.share_labelled is None:
            sizes = split.test.num_latents
            shape = (split.test.num_steps, split.test.num_agents)
            guess = np.random.default_rng(seed).integers(0, sizes, shape)
            return _decoding_outcome(split.test, guess)
        from btil.domains.overcooked import recommended_model
        from btil.posterior.fit import fit

        number = split.train.num_episodes
        labelled = max(1, round(self.share_labelled * number))
        posterior = fit(
            recommended_model(self.domain),
            shuffled_and_hidden(split.train, number, labelled, seed),
            method=self.method,
            seed=seed,
            progress=False,
            **workspace.protocol.options.get(self.method, {}),
        )
        outcome = _decoding_outcome(split.test, posterior)
        return outcome._replace(
            converged=posterior.converged,
            reason=posterior.reason,
            learning_curve={"elbo": summarise_curve(posterior.elbo_trace)},
        )


def _decoding_outcome(test: Demonstrations, decoded: Any) -> Outcome:
    errors = hamming_distance(test, decoded)
    scores = [
        Score(agent, HAMMING, float(error))
        for agent, error in zip(test.agents, errors, strict=True)
    ]
    return Outcome((*scores, Score(TEAM, HAMMING, float(errors.mean()))))


def shuffled_and_hidden(
    demos: Demonstrations, num_demos: int, num_labelled: int, seed: int
) -> Demonstrations:
    """The first so many episodes of a shuffle, all but the first few of them without labels.

    Args:
        demos: Labelled demonstrations.
        num_demos: Episodes that are given, the paper's d.
        num_labelled: Of these, episodes with labels, the paper's l.
        seed: Of the shuffle. It alone decides the order, so that with the same seed more episodes
            contain the fewer, and the labelled ones are the same.

    Raises:
        ValueError: Unless 0 <= num_labelled <= num_demos <= number of episodes, num_demos >= 1.

    Example:
        >>> demos = Demonstrations([0, 1, 2], [0, 0, 1], [1, 1, 0], episodes=[0, 1, 2])
        >>> int((shuffled_and_hidden(demos, 3, 1, seed=0).latents < 0).sum())
        2
    """
    if not 0 <= num_labelled <= num_demos <= demos.num_episodes or num_demos < 1:
        raise ValueError(
            f"{num_labelled} labelled of {num_demos} episodes asked for; there are "
            f"{demos.num_episodes}"
        )
    order = np.random.default_rng(seed).permutation(demos.num_episodes)
    return demos.select(order[:num_demos]).without_labels(np.arange(num_labelled, num_demos))


def summarise_curve(values: Any) -> dict[str, Any]:
    """A learning curve in a few numbers: its length and points at even distances, ends included.

    Values that are not finite become None.

    Example:
        >>> summarise_curve([3.0, 1.0])
        {'length': 2, 'steps': [0, 1], 'values': [3.0, 1.0]}
    """
    curve = np.asarray(values, np.float64)
    number = min(len(curve), _CURVE_POINTS)
    steps = np.unique(np.linspace(0, len(curve) - 1, number).round().astype(np.int64))
    points = [float(value) if np.isfinite(value) else None for value in curve[steps]]
    return {"length": len(curve), "steps": steps.tolist(), "values": points}
