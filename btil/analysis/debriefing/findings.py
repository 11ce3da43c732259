"""What there is to tell of a team: counted and averaged, as tables, without a word of prose."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from btil.analysis.alignment import agents_pinned
from btil.analysis.plots.rows import (
    context_values,
    interval,
    read_counts,
    row_draws,
)
from btil.analysis.teamwork import Stretch, misaligned, misaligned_stretches, runs
from btil.demonstrations import Demonstrations
from btil.demonstrations.coding import counted
from btil.demonstrations.naming import without_owner
from btil.models.contexts import data_column, match_rows
from btil.models.cpt import StaticCPT
from btil.models.team import BoundModel, make_contexts
from btil.posterior.beliefs import Posterior
from btil.posterior.conforming import conform
from btil.posterior.posterior import TeamPosterior

if TYPE_CHECKING:
    from btil.domains.gridworld.task import GridTask

# What is called sure, leaning and unclear, by the probability of the most probable mental state.
SURE, LEANING = 0.9, 0.6
CERTAINTIES = ("sure", "leaning", "unclear")
LABELLED = "labelled"
# Steps in the same situation and mind, when learning, that make it well known.
WELL_KNOWN = 10.0
EXPERIENCES = ("well known", "met a few times", "hardly ever met")
_ACTIONS_TOLD = 3
_LEAST_TOLD = 0.05
_SITUATIONS_TOLD = 3
_MINDS_TOLD = 4
_NUM_DRAWS = 400
# A circumstance goes with a change of mind if it is so much more frequent there than otherwise.
_TELLING = 0.2


@dataclass(frozen=True, eq=False)
class Findings:
    """What was found of a team in some recordings.

    Attributes:
        demos: The recordings, every value under a name that a person knows.
        used_labels: Whether labels in them were taken for the truth.
        beliefs: {agent: (steps, latents)}, the probability of each mental state at each step.
        decoded: (steps, agents), the most probable course of the minds in each episode.
        incomparable: Why the agents' minds cannot be compared; None where they can.
        nameless: Agents for whom nothing in the data says which mental state is which.
        stretches: Where minds were misaligned.
        by_chance: Share of the steps at which minds would differ if every agent held each mental
            state as often in each episode, at times that have nothing to do with the others; None
            where that says nothing.
        episodes: A line per episode.
        misalignments: A line per stretch.
        habits: What each agent does in each mental state, on average.
        situations: What it does in the situations in which it most often held it.
        dwells: How long each mental state lasts.
        changes: Which follows which, how often, and what goes with it.
        certainty: How sure it is what agents had in mind, and how often that was right.
        experience: How much data stood behind it.
    """

    demos: Demonstrations
    used_labels: bool
    beliefs: Mapping[str, Float[np.ndarray, "steps latents"]]
    decoded: Int[np.ndarray, "steps agents"]
    incomparable: str | None
    nameless: tuple[str, ...]
    stretches: tuple[Stretch, ...]
    by_chance: float | None
    episodes: pd.DataFrame
    misalignments: pd.DataFrame
    habits: pd.DataFrame
    situations: pd.DataFrame
    dwells: pd.DataFrame
    changes: pd.DataFrame
    certainty: pd.DataFrame
    experience: pd.DataFrame

    def __repr__(self) -> str:
        return f"Findings({self.told})"

    @property
    def told(self) -> str:
        """Whom it is of, and of how much."""
        demos = self.demos
        episodes, steps = counted(demos.num_episodes, "episode"), counted(demos.num_steps, "step")
        return f"{', '.join(demos.agents)}, {episodes}, {steps}"

    def worth_a_look(self) -> list[int]:
        """Episodes in the order in which they are worth looking at."""
        lengths = self.episodes["steps"].to_numpy()
        if self.incomparable is None:
            apart = self.episodes["misaligned_steps"].to_numpy()
            return np.lexsort((-lengths, -apart)).tolist()
        return np.argsort(-lengths, kind="stable").tolist()


def find(
    posterior: Posterior,
    demos: Demonstrations,
    task: "GridTask | None" = None,
    use_labels: bool = False,
    judge: Posterior | None = None,
) -> Findings:
    """Find out what the members of a team had in mind, and what they make of it.

    Args:
        posterior: What was learned of the team.
        demos: The recordings.
        task: The grid world, where misaligned minds are those that the task calls suboptimal.
        use_labels: Whether labels in the recordings are taken for the truth of their steps.
        judge: A posterior that has learned from fewer labels, so that how sure it is can be
            tested on the others; None: the posterior itself.

    Raises:
        ValueError: If the recordings are not of this team, or impossible under the posterior.
    """
    named = _named(conform(demos, posterior.demos), posterior.demos)
    beliefs = posterior.smooth(named, use_labels)
    decoded = posterior.decode(named, use_labels)
    bound = posterior.bound.on(named)
    pinned = agents_pinned(posterior.bound)
    nameless = tuple(agent for agent in named.agents if not pinned[agent])
    incomparable = _incomparable(posterior, named, nameless, task)
    apart = None
    stretches: tuple[Stretch, ...] = ()
    if incomparable is None:
        apart = misaligned(named, decoded, task)
        stretches = misaligned_stretches(named, decoded, beliefs, task)
    return Findings(
        demos=named,
        used_labels=use_labels and bool((named.latents >= 0).any()),
        beliefs=beliefs,
        decoded=decoded,
        incomparable=incomparable,
        nameless=nameless,
        stretches=stretches,
        by_chance=_by_chance(named, decoded) if incomparable is None and task is None else None,
        episodes=_episodes(named, beliefs, decoded, apart, stretches),
        misalignments=_misalignments(named, decoded, stretches),
        habits=_habits(posterior, bound, beliefs),
        situations=_situations(posterior, bound, beliefs),
        dwells=_dwells(named, decoded),
        changes=_changes(posterior, named, bound, decoded),
        certainty=_certainty(
            named, beliefs, use_labels, posterior if judge is None else judge, nameless
        ),
        experience=_experience(posterior, bound, beliefs),
    )


def certainty_of(probability: Any) -> Any:
    """Index in `CERTAINTIES` of probabilities."""
    return np.where(
        np.asarray(probability) >= SURE, 0, np.where(np.asarray(probability) >= LEANING, 1, 2)
    )


def unseen_labels(
    training: Demonstrations, demos: Demonstrations
) -> Bool[np.ndarray, "steps agents"]:
    """Which labels of some recordings were not learned from.

    Episodes are recognised by their states, actions and columns, whatever they are called.
    """

    def prints(some: Demonstrations) -> list[bytes]:
        columns = [some.state_variables[name] for name in training.num_states]
        measured = [some.continuous[n] for n in training.continuous if n in some.continuous]
        table = np.concatenate([np.stack(columns, 1), some.actions], axis=1)
        if measured:
            table = np.concatenate([table, np.stack(measured, 1)], axis=1)
        return [part.tobytes() for part in np.split(table, some.episode_starts[1:])]

    learned: dict[bytes, Any] = {}
    of_training = np.split(training.latents >= 0, training.episode_starts[1:])
    for one, labelled in zip(prints(training), of_training, strict=True):
        learned[one] = learned.get(one, False) | labelled
    unseen = demos.latents >= 0
    parts = np.split(unseen, demos.episode_starts[1:])
    for one, part in zip(prints(demos), parts, strict=True):
        part &= ~learned.get(one, np.zeros_like(part))
    return unseen


# ---------------------------------------------------------------------- names


def _named(demos: Demonstrations, training: Demonstrations) -> Demonstrations:
    """The recordings with every name that either of the two has; minds that lack one get one."""
    sizes = zip(demos.agents, demos.num_latents, strict=True)
    minds = {agent: tuple(f"mind {k}" for k in range(size)) for agent, size in sizes}
    states = {
        name: names
        for name, names in training.state_names.items()
        if len(names) == demos.num_states[name]
    }
    return demos.replace(
        state_names={**states, **demos.state_names},
        action_names={**training.action_names, **demos.action_names},
        latent_names={**minds, **training.latent_names, **demos.latent_names},
    )


def _minds(demos: Demonstrations, agent: str) -> tuple[str, ...]:
    return demos.value_names(f"latent_{agent}")


def _incomparable(
    posterior: Posterior,
    demos: Demonstrations,
    nameless: tuple[str, ...],
    task: "GridTask | None",
) -> str | None:
    """Why minds cannot be compared, as a sentence."""
    if demos.num_agents < 2:
        return "The team has only one member."
    first = demos.agents[0]
    own = _minds(demos, first)
    other = next((agent for agent in demos.agents if _minds(demos, agent) != own), None)
    if other is not None and task is None:
        return (
            f"{first} and {other} have different kinds of things in mind "
            f"({', '.join(own)}; {', '.join(_minds(demos, other))}), so nothing says which of "
            "them go together."
        )
    shared = all(len(posterior.bound.table("policy", agent).agents) > 1 for agent in demos.agents)
    if nameless and (task is not None or not shared):  # of one table the same number is the same
        return (
            f"For {' and '.join(nameless)} nothing in the recordings that were learned from says "
            "which mental state is which (there are no labels that would), so that the same name "
            "need not mean the same for two members."
        )
    return None


def _by_chance(demos: Demonstrations, decoded: Int[np.ndarray, "steps agents"]) -> float:
    """Episode by episode: roles that members have for one episode are no heed of one another."""
    number, apart = demos.num_latents[0], 0.0
    for paths in np.split(decoded, demos.episode_starts[1:]):
        there = [path[path >= 0] for path in paths.T]
        shares = [np.bincount(path, minlength=number) / max(len(path), 1) for path in there]
        # With one who is away nobody is at odds.
        together = int((paths >= 0).all(axis=1).sum())
        apart += together * float(1 - np.prod(shares, axis=0).sum())
    return apart / demos.num_steps


# ---------------------------------------------------------------------- episodes


def _episodes(
    demos: Demonstrations,
    beliefs: Mapping[str, Any],
    decoded: Int[np.ndarray, "steps agents"],
    apart: Any,
    stretches: tuple[Stretch, ...],
) -> pd.DataFrame:
    columns: dict[str, Any] = {"episode": demos.episode_ids, "steps": demos.episode_lengths}
    starts = demos.episode_starts
    if apart is not None:
        columns["misaligned_steps"] = np.add.reduceat(apart, starts, dtype=np.int64)
        longest = np.zeros(demos.num_episodes, np.int64)
        for one in stretches:
            longest[one.episode] = max(longest[one.episode], one.num_steps)
        columns["longest_stretch"] = longest
    switched = np.zeros(decoded.shape, bool)
    switched[1:] = (decoded[1:] != decoded[:-1]) & (decoded[1:] >= 0) & (decoded[:-1] >= 0)
    switched[starts] = False
    for i, agent in enumerate(demos.agents):
        columns[f"changes_of_mind_{agent}"] = np.add.reduceat(
            switched[:, i], starts, dtype=np.int64
        )
        sure = beliefs[agent].max(-1) >= SURE
        there = np.add.reduceat(demos.present[:, i], starts, dtype=np.int64)
        share = np.add.reduceat(sure, starts, dtype=np.int64) / np.maximum(there, 1)
        columns[f"share_sure_{agent}"] = share
    return pd.DataFrame(columns)


def _misalignments(
    demos: Demonstrations,
    decoded: Int[np.ndarray, "steps agents"],
    stretches: tuple[Stretch, ...],
) -> pd.DataFrame:
    records = []
    for one in stretches:
        begin = int(demos.episode_starts[one.episode])
        part = decoded[begin + one.first : begin + one.last + 1]
        record: dict[str, Any] = {
            "episode": demos.episode_ids[one.episode],
            "from_step": one.first,
            "to_step": one.last,
            "steps": one.num_steps,
        }
        for i, agent in enumerate(demos.agents):
            held = [_minds(demos, agent)[part[first, i]] for first, _ in runs(part[:, i])]
            more = f", … ({len(held) - _MINDS_TOLD} more)" if len(held) > _MINDS_TOLD else ""
            record[f"mind_{agent}"] = ", then ".join(held[:_MINDS_TOLD]) + more
        record["probability"] = one.probability
        record["certainty"] = CERTAINTIES[int(certainty_of(one.probability))]
        records.append(record)
    columns = ["episode", "from_step", "to_step", "steps"]
    columns += [f"mind_{agent}" for agent in demos.agents]
    return pd.DataFrame(records, columns=[*columns, "probability", "certainty"])


# ---------------------------------------------------------------------- what members do


def _reads(
    posterior: Posterior, bound: BoundModel, role: str, agent: str
) -> Int[np.ndarray, " steps"]:
    """At each step the context of a table, by its row in the posterior; -1: never learned from."""
    index = getattr(bound.rows[agent], role)
    trained = posterior.bound.table(role, agent).contexts.rows
    found = match_rows(trained, bound.table(role, agent).contexts.rows)
    return np.where(index >= 0, found[np.maximum(index, 0)], -1)


class _Estimate(NamedTuple):
    """Probabilities of actions and the ends of their 89% intervals."""

    mean: Float[np.ndarray, " actions"]
    low: Float[np.ndarray, " actions"]
    high: Float[np.ndarray, " actions"]


def _average(posterior: Posterior, agent: str, latent: int, weights: Any) -> _Estimate:
    """What an agent does in a mental state, averaged over contexts by their weights."""
    table = posterior.bound.table("policy", agent)
    held = np.flatnonzero(weights)
    if not len(held):
        nothing = np.full(table.shape[-1], np.nan)
        return _Estimate(nothing, nothing, nothing)
    shares = weights[held] / weights[held].sum()
    if table.name not in posterior.result.rows:
        mean = shares @ table.prior_mean()[held, latent]
        return _Estimate(mean, mean, mean)
    mean = shares @ posterior.result.rows[table.name].mean()[held, latent]
    draws = row_draws(posterior, table.name, (held, latent), _NUM_DRAWS)
    low, high = interval(np.einsum("c,dca->da", shares, draws))
    return _Estimate(mean, low, high)


def _weights(
    posterior: Posterior,
    bound: BoundModel,
    agent: str,
    belief: Float[np.ndarray, "steps latents"],
) -> Float[np.ndarray, "contexts latents"]:
    """How many of the recordings' steps were spent in each context with each mental state."""
    reads = _reads(posterior, bound, "policy", agent)
    weights = np.zeros(posterior.bound.table("policy", agent).shape[:2])
    np.add.at(weights, reads[reads >= 0], belief[reads >= 0])
    return weights


def _told(estimate: _Estimate, names: tuple[str, ...]) -> str:
    """The most probable actions: "push 80% (72–87%), wait 15% (9–22%)"."""
    mean, low, high = estimate
    order = np.argsort(-mean, kind="stable")[:_ACTIONS_TOLD]
    return ", ".join(
        f"{names[i]} {mean[i]:.0%} ({100 * low[i]:.0f}–{high[i]:.0%})"
        for i in order
        if mean[i] >= _LEAST_TOLD
    )


class _Held(NamedTuple):
    """A mental state of an agent in the recordings.

    Attributes:
        agent: The agent.
        latent: The mental state's index.
        mind: Its name.
        weights: How many steps were spent in each context of the policy with it.
        actions: Names of the agent's actions; empty without any.
    """

    agent: str
    latent: int
    mind: str
    weights: Float[np.ndarray, " contexts"]
    actions: tuple[str, ...]


def _all_held(
    posterior: Posterior, bound: BoundModel, beliefs: Mapping[str, Any]
) -> Iterator[_Held]:
    for agent in bound.demos.agents:
        weights = _weights(posterior, bound, agent, beliefs[agent])
        if posterior.bound.table("policy", agent).cpt.learned:
            # Rows without data are the prior's: no habit of anybody.
            weights = np.where(_behind(posterior, agent) >= 1, weights, 0.0)
        acts = bound.demos.num_actions[bound.demos.agents.index(agent)] > 0
        actions = bound.demos.value_names(f"action_{agent}") if acts else ()
        for latent, name in enumerate(_minds(bound.demos, agent)):
            yield _Held(agent, latent, name, weights[:, latent], actions)


def _behind(posterior: Posterior, agent: str) -> Float[np.ndarray, "contexts latents"]:
    """Steps learned from behind every row of an agent's policy, of all who share it."""
    table = posterior.bound.table("policy", agent)
    return np.sum([read_counts(posterior, "policy", one) for one in table.agents], axis=0)


class _Expected(NamedTuple):
    """What a continuous column is expected to be, and the ends of an 89% interval."""

    column: str
    mean: float
    low: float
    high: float


def _expected(
    posterior: Posterior, bound: BoundModel, agent: str, latent: int, belief: Any
) -> list[_Expected]:
    """The columns of an agent in a mental state, averaged over the steps at which it had that."""
    channel = bound.channels.get(agent)
    if channel is None or not isinstance(posterior, TeamPosterior):
        return []
    steps = channel.observed.rows
    weights = belief[steps, latent]
    if weights.sum() < 1:
        return []
    inputs = np.zeros((len(channel.contexts), channel.observed.inputs.shape[1]))
    shares = (weights / weights.sum())[:, None] * channel.observed.inputs[steps]
    np.add.at(inputs, channel.row[steps], shares)
    point = posterior.channel_mean(agent, channel.contexts).coefficients[:, latent]
    draws = posterior.drawn_channel(agent, channel.contexts, _NUM_DRAWS, 0).coefficients
    mean = np.einsum("cp,cpd->d", inputs, point)
    low, high = interval(np.einsum("cp,ncpd->nd", inputs, draws[:, :, latent]))
    columns = channel.family.columns_of(agent)
    return [_Expected(*one) for one in zip(columns, *map(list, (mean, low, high)), strict=True)]


def _habits(posterior: Posterior, bound: BoundModel, beliefs: Mapping[str, Any]) -> pd.DataFrame:
    records = []
    for agent, latent, mind, weights, actions in _all_held(posterior, bound, beliefs):
        there = bound.demos.present[:, bound.demos.agents.index(agent)]
        belief = np.where(there[:, None], beliefs[agent], 0.0)
        expected = _expected(posterior, bound, agent, latent, belief)
        told = [f"{c} {mean:.3g} ({low:.3g} to {high:.3g})" for c, mean, low, high in expected]
        record = {
            "agent": agent,
            "mind": mind,
            "steps": float(belief[:, latent].sum()),
            "share_of_steps": float(belief[there, latent].mean()),
        }
        if actions:
            estimate = _average(posterior, agent, latent, weights)
            if weights.sum() >= 1:
                told.insert(0, _told(estimate, actions))
            for action, text in enumerate(actions):
                for kind, values in zip(("probability", "low", "high"), estimate, strict=True):
                    record[f"{kind}_{text}"] = values[action]
        for column, mean, low, high in expected:
            record |= {f"expected_{column}": mean}
            record |= {f"low_of_{column}": low, f"high_of_{column}": high}
        record["does"] = "; ".join(told)
        records.append(record)
    return pd.DataFrame(records)


def _situations(
    posterior: Posterior, bound: BoundModel, beliefs: Mapping[str, Any]
) -> pd.DataFrame:
    records = []
    for agent, latent, mind, weights, actions in _all_held(posterior, bound, beliefs):
        for context in np.argsort(-weights, kind="stable")[:_SITUATIONS_TOLD]:
            given = context_values(posterior, "policy", agent, int(context))
            if weights[context] < 1 or not given or not actions:
                continue
            there = np.arange(len(weights)) == context
            records.append(
                {
                    "agent": agent,
                    "mind": mind,
                    "situation": ", ".join(f"{n.replace('_', ' ')}: {v}" for n, v in given),
                    "steps": weights[context],
                    "does": _told(_average(posterior, agent, latent, there), actions),
                }
            )
    return pd.DataFrame(records, columns=["agent", "mind", "situation", "steps", "does"])


# ---------------------------------------------------------------------- how minds change


def _dwells(
    demos: Demonstrations,
    decoded: Int[np.ndarray, "steps agents"],
) -> pd.DataFrame:
    records = []
    for i, agent in enumerate(demos.agents):
        minds = _minds(demos, agent)
        lengths: list[list[int]] = [[] for _ in minds]
        cut = [0] * len(minds)
        for start, length in zip(demos.episode_starts, demos.episode_lengths, strict=True):
            path = decoded[start : start + length, i]
            for first, last in runs(path):
                if path[first] < 0:  # away
                    continue
                if last == length - 1 or path[last + 1] < 0:
                    cut[path[first]] += 1
                else:
                    lengths[path[first]].append(last - first + 1)
        for name, own, ended in zip(minds, lengths, cut, strict=True):
            records.append(
                {
                    "agent": agent,
                    "mind": name,
                    "times": len(own) + ended,
                    "given_up": len(own),
                    "mean_steps": float(np.mean(own)) if own else np.nan,
                    "longest": max(own) if own else 0,
                }
            )
    return pd.DataFrame(records)


def _changes(
    posterior: Posterior,
    demos: Demonstrations,
    bound: BoundModel,
    decoded: Int[np.ndarray, "steps agents"],
) -> pd.DataFrame:
    records = []
    for i, agent in enumerate(demos.agents):
        minds = _minds(demos, agent)
        rows = bound.rows[agent]
        moved = rows.transition >= 0
        if rows.unseen is not None:
            moved[rows.unseen.step] = True
        after = np.flatnonzero(moved)
        # Of moves whose action nobody saw no circumstances are known.
        seen = rows.transition[after] >= 0
        before_mind, after_mind = decoded[after - 1, i], decoded[after, i]
        names = make_contexts(posterior.model, "transition", agent, bound.demos).names
        values = bound.table("transition", agent).contexts.rows[rows.transition[after[seen]]]
        own = []
        for origin in range(len(minds)):
            holding = before_mind == origin
            left = holding & (after_mind != origin)
            for target in np.unique(after_mind[left]):
                switch = left & (after_mind == target)
                circumstances = _goes_with(
                    demos, agent, names, values, switch[seen], (holding & ~switch)[seen]
                )
                own.append(
                    {
                        "agent": agent,
                        "from_mind": minds[origin],
                        "to_mind": minds[target],
                        "times": int(switch.sum()),
                        "share_of_changes": float(switch.sum() / left.sum()),
                        "goes_with": circumstances,
                    }
                )
        records += sorted(own, key=lambda one: -int(one["times"]))
    columns = ["agent", "from_mind", "to_mind", "times", "share_of_changes", "goes_with"]
    return pd.DataFrame(records, columns=columns)


def _goes_with(
    demos: Demonstrations,
    agent: str,
    names: tuple[str, ...],
    values: Int[np.ndarray, "pairs parents"],
    switch: np.ndarray,
    otherwise: np.ndarray,
) -> str:
    """The circumstances most telling of a change: frequent when it occurs, rare otherwise."""
    found = []
    if not (switch.any() and otherwise.any()):
        return ""
    for column, name in enumerate(names):
        common, counts = np.unique(values[switch, column], return_counts=True)
        value = common[counts.argmax()]
        share = counts.max() / switch.sum()
        usual = float(np.mean(values[otherwise, column] == value))
        if share - usual >= _TELLING and share >= 0.5:
            circumstance = _circumstance(demos, agent, name, int(value))
            found.append((share - usual, f"{circumstance} ({share:.0%}; else {usual:.0%})"))
    found.sort(key=lambda pair: -pair[0])
    return ", ".join(text for _, text in found[:2])


def _circumstance(demos: Demonstrations, agent: str, name: str, value: int) -> str:
    """A parent's value as words: "held becomes “onion”", "bob does “push”"."""
    actor = name.removeprefix("action_")
    if name not in demos.num_states and actor in demos.agents:
        return f"{actor} does “{demos.value_text(name, int(value))}”"
    column = data_column(name, demos.num_states)
    words = without_owner(column, agent).replace("_", " ")
    tense = "is" if name == column else "becomes" if name.startswith("next_") else "was"
    return f"{words} {tense} “{demos.value_text(column, int(value))}”"


def moves_by(posterior: Posterior, agent: str) -> str:
    """What the model lets changes of mind depend on: "nothing", "never" or "circumstances"."""
    table = posterior.bound.table("transition", agent)
    if isinstance(table.cpt, StaticCPT):
        return "never"
    return "circumstances" if table.contexts.names else "nothing"


# ---------------------------------------------------------------------- how sure


def _certainty(
    demos: Demonstrations,
    beliefs: Mapping[str, Any],
    use_labels: bool,
    judge: Posterior,
    nameless: tuple[str, ...],
) -> pd.DataFrame:
    unseen = unseen_labels(judge.demos, demos)
    # Whether a mental state that nothing names is the right one cannot be asked.
    testable = unseen & ~np.isin(demos.agents, nameless)
    # Where labels count, the judge sees those that it has learned from, and no others.
    blind = demos.replace(latents=np.where(unseen, -1, demos.latents))
    judged = judge.smooth(blind, use_labels) if unseen.any() else beliefs
    records = []
    for i, agent in enumerate(demos.agents):
        known = use_labels & (demos.latents[:, i] >= 0)
        kinds = np.where(known, -1, certainty_of(beliefs[agent].max(-1)))
        there = demos.present[:, i]
        sureness = judged[agent].max(-1)
        right = judged[agent].argmax(-1) == demos.latents[:, i]
        for number, name in enumerate((LABELLED, *CERTAINTIES), -1):
            tested = testable[:, i] & (certainty_of(sureness) == number)
            records.append(
                {
                    "agent": agent,
                    "certainty": name,
                    "steps": int((kinds[there] == number).sum()),
                    "share_of_steps": float((kinds[there] == number).mean()),
                    "tested_steps": int(tested.sum()),
                    "mean_probability": float(sureness[tested].mean()) if tested.any() else np.nan,
                    "share_right": float(right[tested].mean()) if tested.any() else np.nan,
                }
            )
    return pd.DataFrame(records)


def _experience(
    posterior: Posterior, bound: BoundModel, beliefs: Mapping[str, Any]
) -> pd.DataFrame:
    records = []
    for agent in bound.demos.agents:
        table = posterior.bound.table("policy", agent)
        if not table.cpt.learned:
            continue
        visits = _behind(posterior, agent)
        reads = _reads(posterior, bound, "policy", agent)
        behind = np.where((reads >= 0)[:, None], visits[np.maximum(reads, 0)], 0.0)
        kinds = np.where(behind >= WELL_KNOWN, 0, np.where(behind >= 1, 1, 2))
        for number, name in enumerate(EXPERIENCES):
            there = bound.demos.present[:, bound.demos.agents.index(agent)]
            share = float((beliefs[agent] * (kinds == number))[there].sum(-1).mean())
            records.append({"agent": agent, "experience": name, "share_of_steps": share})
    return pd.DataFrame(records, columns=["agent", "experience", "share_of_steps"])
