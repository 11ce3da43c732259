"""What there is to tell of a team: counted and averaged, as tables, without a word of prose."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from btil.analysis.alignment import latents_pinned
from btil.analysis.plots.rows import context_words, read_counts
from btil.analysis.teamwork import Stretch, misaligned, misaligned_stretches, runs
from btil.demonstrations import Demonstrations
from btil.inference.posterior import TeamPosterior, conform
from btil.models.contexts import match_rows
from btil.models.cpt import StaticCPT
from btil.models.team import BoundModel, bind, make_contexts

if TYPE_CHECKING:
    import pandas as pd

    from btil.domains.gridworld.task import GridTask

# What is called sure, leaning and unclear, by the probability of the most probable mental state.
SURE, LEANING = 0.9, 0.6
CERTAINTIES = ("sure", "leaning", "unclear")
# Steps in the same situation and mind, when learning, that make it well known.
WELL_KNOWN = 10.0
EXPERIENCES = ("well known", "met a few times", "hardly ever met")
_ACTIONS_TOLD = 3
_SITUATIONS_TOLD = 3
_MINDS_TOLD = 4
# A circumstance goes with a change of mind if it is so much more frequent there than otherwise.
_TELLING = 0.2


@dataclass(frozen=True, eq=False)
class Findings:
    """What was found of a team in some recordings.

    Attributes:
        demos: The recordings.
        beliefs: {agent: (steps, latents)}, the probability of each mental state at each step.
        decoded: (steps, agents), the most probable course of the minds in each episode.
        minds: {agent: names of its mental states}.
        incomparable: Why the agents' minds cannot be compared; None where they can.
        nameless: Agents for whom nothing in the data says which mental state is which.
        stretches: Where minds were misaligned.
        episodes: A line per episode.
        misalignments: A line per stretch.
        habits: What each agent does in each mental state, on average.
        situations: What it does in the situations in which it most often held it.
        dwells: How long each mental state lasts.
        changes: Which follows which, how often, and what goes with it.
        certainty: How sure it is what agents had in mind, and how often that was right.
        experience: How much data stood behind it.
        seen_before: Share of the episodes that were learned from.
    """

    demos: Demonstrations
    beliefs: Mapping[str, Float[np.ndarray, "steps latents"]]
    decoded: Int[np.ndarray, "steps agents"]
    minds: Mapping[str, tuple[str, ...]]
    incomparable: str | None
    nameless: tuple[str, ...]
    stretches: tuple[Stretch, ...]
    episodes: "pd.DataFrame"
    misalignments: "pd.DataFrame"
    habits: "pd.DataFrame"
    situations: "pd.DataFrame"
    dwells: "pd.DataFrame"
    changes: "pd.DataFrame"
    certainty: "pd.DataFrame"
    experience: "pd.DataFrame"
    seen_before: float


def find(
    posterior: TeamPosterior,
    demos: Demonstrations,
    task: "GridTask | None" = None,
    use_labels: bool = True,
) -> Findings:
    """Find out what the members of a team had in mind, and what they make of it.

    Args:
        posterior: What was learned of the team.
        demos: The recordings.
        task: The grid world, where misaligned minds are those that the task calls suboptimal.
        use_labels: Whether labels in the recordings are taken for the truth.

    Raises:
        ValueError: If the recordings are not of this team, or impossible under the posterior.
    """
    seen = demos if use_labels else demos.without_labels()
    beliefs = posterior.smooth(seen)
    decoded = posterior.decode(seen)
    bound = bind(posterior.model, conform(demos, posterior.demos))
    minds = {agent: _mind_names(posterior, demos, agent) for agent in demos.agents}
    pinned = latents_pinned(posterior.model, posterior.demos)
    nameless = tuple(agent for agent in demos.agents if not pinned[agent])
    incomparable = None if task is not None else _incomparable(posterior, demos, minds, nameless)
    apart = None
    stretches: tuple[Stretch, ...] = ()
    if incomparable is None:
        apart = misaligned(demos, decoded, task)
        stretches = misaligned_stretches(demos, decoded, beliefs, task)
    return Findings(
        demos=demos,
        beliefs=beliefs,
        decoded=decoded,
        minds=minds,
        incomparable=incomparable,
        nameless=nameless,
        stretches=stretches,
        episodes=_episodes(demos, beliefs, decoded, apart, stretches),
        misalignments=_misalignments(demos, decoded, minds, stretches),
        habits=_habits(posterior, bound, beliefs, minds),
        situations=_situations(posterior, bound, beliefs, minds),
        dwells=_dwells(demos, decoded, minds),
        changes=_changes(posterior, demos, bound, decoded, minds),
        certainty=_certainty(posterior, demos, beliefs),
        experience=_experience(posterior, bound, beliefs),
        seen_before=_seen_before(posterior.demos, demos),
    )


def certainty_of(probability: Any) -> Any:
    """Index in `CERTAINTIES` of probabilities."""
    return np.where(
        np.asarray(probability) >= SURE, 0, np.where(np.asarray(probability) >= LEANING, 1, 2)
    )


# ---------------------------------------------------------------------- names


def _mind_names(posterior: TeamPosterior, demos: Demonstrations, agent: str) -> tuple[str, ...]:
    for known in (demos, posterior.demos):
        if agent in known.latent_names:
            return known.latent_names[agent]
    size = posterior.demos.num_latents[posterior.demos.agents.index(agent)]
    return tuple(f"mind {k}" for k in range(size))


def _incomparable(
    posterior: TeamPosterior,
    demos: Demonstrations,
    minds: Mapping[str, tuple[str, ...]],
    nameless: tuple[str, ...],
) -> str | None:
    """Why minds cannot be compared, as a sentence."""
    if demos.num_agents < 2:
        return "The team has only one member."
    first = demos.agents[0]
    other = next((agent for agent in demos.agents if minds[agent] != minds[first]), None)
    if other is not None:
        return (
            f"{first} and {other} have different kinds of things in mind "
            f"({', '.join(minds[first])}; {', '.join(minds[other])}), so nothing says which of "
            "them go together."
        )
    if all(len(posterior.bound.table("policy", agent).agents) > 1 for agent in demos.agents):
        return None  # one table for all: the same number is the same mind
    if nameless:
        return (
            f"For {' and '.join(nameless)} nothing in the recordings that were learned from says "
            "which mental state is which (there are no labels that would), so that the same name "
            "need not mean the same for two members."
        )
    return None


def _value_names(posterior: TeamPosterior, demos: Demonstrations, column: str) -> tuple[str, ...]:
    """Names of a state variable's or action's values, numbers where there are none."""
    for known in (demos, posterior.demos):
        declared = dict(known.state_names)
        declared |= {f"action_{agent}": names for agent, names in known.action_names.items()}
        if column in declared:
            return declared[column]
    return demos.value_names(column)


# ---------------------------------------------------------------------- episodes


def _episodes(
    demos: Demonstrations,
    beliefs: Mapping[str, Any],
    decoded: Int[np.ndarray, "steps agents"],
    apart: Any,
    stretches: tuple[Stretch, ...],
) -> "pd.DataFrame":
    import pandas as pd

    columns: dict[str, Any] = {"episode": demos.episode_ids, "steps": demos.episode_lengths}
    starts = demos.episode_starts
    if apart is not None:
        columns["misaligned_steps"] = np.add.reduceat(apart, starts, dtype=np.int64)
        longest = np.zeros(demos.num_episodes, np.int64)
        for one in stretches:
            longest[one.episode] = max(longest[one.episode], one.num_steps)
        columns["longest_stretch"] = longest
    switched = np.zeros(decoded.shape, bool)
    switched[1:] = decoded[1:] != decoded[:-1]
    switched[starts] = False
    for i, agent in enumerate(demos.agents):
        columns[f"changes_of_mind_{agent}"] = np.add.reduceat(
            switched[:, i], starts, dtype=np.int64
        )
        sure = beliefs[agent].max(-1) >= SURE
        share = np.add.reduceat(sure, starts, dtype=np.int64) / demos.episode_lengths
        columns[f"share_sure_{agent}"] = share
    return pd.DataFrame(columns)


def _misalignments(
    demos: Demonstrations,
    decoded: Int[np.ndarray, "steps agents"],
    minds: Mapping[str, tuple[str, ...]],
    stretches: tuple[Stretch, ...],
) -> "pd.DataFrame":
    import pandas as pd

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
            held = [minds[agent][part[first, i]] for first, _ in runs(part[:, i])]
            more = f", … ({len(held) - _MINDS_TOLD} more)" if len(held) > _MINDS_TOLD else ""
            record[agent] = ", then ".join(held[:_MINDS_TOLD]) + more
        record["probability"] = one.probability
        record["certainty"] = CERTAINTIES[int(certainty_of(one.probability))]
        records.append(record)
    columns = ["episode", "from_step", "to_step", "steps", *demos.agents]
    return pd.DataFrame(records, columns=[*columns, "probability", "certainty"])


# ---------------------------------------------------------------------- what members do


def _reads(
    posterior: TeamPosterior, bound: BoundModel, role: str, agent: str
) -> Int[np.ndarray, " steps"]:
    """At each step the context of a table, by its row in the posterior; -1: never learned from."""
    index = getattr(bound.rows[agent], role)
    trained = posterior.bound.table(role, agent).contexts.rows
    found = match_rows(trained, bound.table(role, agent).contexts.rows)
    return np.where(index >= 0, found[np.maximum(index, 0)], -1)


def _mean_rows(posterior: TeamPosterior, role: str, agent: str) -> Float[np.ndarray, "..."]:
    table = posterior.bound.table(role, agent)
    if table.name in posterior.result.rows:
        return posterior.result.rows[table.name].mean()
    return table.prior_mean()


def _weights(
    posterior: TeamPosterior,
    bound: BoundModel,
    agent: str,
    belief: Float[np.ndarray, "steps latents"],
) -> Float[np.ndarray, "contexts latents"]:
    """How many of the recordings' steps were spent in each context with each mental state."""
    reads = _reads(posterior, bound, "policy", agent)
    weights = np.zeros(posterior.bound.table("policy", agent).shape[:2])
    np.add.at(weights, reads[reads >= 0], belief[reads >= 0])
    return weights


def told(row: Float[np.ndarray, " values"], names: tuple[str, ...]) -> str:
    """The most probable of some values: "push (80%), wait (15%)"."""
    order = np.argsort(-row, kind="stable")[:_ACTIONS_TOLD]
    return ", ".join(f"{names[i]} ({row[i]:.0%})" for i in order if row[i] >= 0.05)


def _habits(
    posterior: TeamPosterior,
    bound: BoundModel,
    beliefs: Mapping[str, Any],
    minds: Mapping[str, tuple[str, ...]],
) -> "pd.DataFrame":
    import pandas as pd

    records = []
    for agent in bound.demos.agents:
        rows = _mean_rows(posterior, "policy", agent)
        weights = _weights(posterior, bound, agent, beliefs[agent])
        actions = _value_names(posterior, bound.demos, f"action_{agent}")
        for latent, name in enumerate(minds[agent]):
            total = weights[:, latent].sum()
            average = weights[:, latent] @ rows[:, latent] / total if total > 0 else None
            record = {
                "agent": agent,
                "mind": name,
                "steps": float(beliefs[agent][:, latent].sum()),
                "share_of_steps": float(beliefs[agent][:, latent].mean()),
                "does": "" if average is None or total < 1 else told(average, actions),
            }
            for action, text in enumerate(actions):
                record[f"probability_{text}"] = np.nan if average is None else average[action]
            records.append(record)
    return pd.DataFrame(records)


def _situations(
    posterior: TeamPosterior,
    bound: BoundModel,
    beliefs: Mapping[str, Any],
    minds: Mapping[str, tuple[str, ...]],
) -> "pd.DataFrame":
    import pandas as pd

    records = []
    for agent in bound.demos.agents:
        rows = _mean_rows(posterior, "policy", agent)
        weights = _weights(posterior, bound, agent, beliefs[agent])
        actions = _value_names(posterior, bound.demos, f"action_{agent}")
        for latent, name in enumerate(minds[agent]):
            most = np.argsort(-weights[:, latent], kind="stable")[:_SITUATIONS_TOLD]
            for context in most:
                words = context_words(posterior, "policy", agent, int(context))
                if weights[context, latent] >= 1 and words:
                    records.append(
                        {
                            "agent": agent,
                            "mind": name,
                            "situation": ", ".join(words),
                            "steps": weights[context, latent],
                            "does": told(rows[context, latent], actions),
                        }
                    )
    return pd.DataFrame(records, columns=["agent", "mind", "situation", "steps", "does"])


# ---------------------------------------------------------------------- how minds change


def _dwells(
    demos: Demonstrations,
    decoded: Int[np.ndarray, "steps agents"],
    minds: Mapping[str, tuple[str, ...]],
) -> "pd.DataFrame":
    import pandas as pd

    records = []
    for i, agent in enumerate(demos.agents):
        lengths: list[list[int]] = [[] for _ in minds[agent]]
        cut = [0] * len(minds[agent])
        for start, length in zip(demos.episode_starts, demos.episode_lengths, strict=True):
            path = decoded[start : start + length, i]
            for first, last in runs(path):
                if last == length - 1:
                    cut[path[first]] += 1
                else:
                    lengths[path[first]].append(last - first + 1)
        for name, own, ended in zip(minds[agent], lengths, cut, strict=True):
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
    posterior: TeamPosterior,
    demos: Demonstrations,
    bound: BoundModel,
    decoded: Int[np.ndarray, "steps agents"],
    minds: Mapping[str, tuple[str, ...]],
) -> "pd.DataFrame":
    import pandas as pd

    records = []
    for i, agent in enumerate(demos.agents):
        reads = bound.rows[agent].transition
        after = np.flatnonzero(reads >= 0)
        before_mind, after_mind = decoded[after - 1, i], decoded[after, i]
        names = make_contexts(posterior.model, "transition", agent, bound.demos).names
        values = bound.table("transition", agent).contexts.rows[reads[after]]
        for origin in range(len(minds[agent])):
            holding = before_mind == origin
            left = holding & (after_mind != origin)
            for target in np.unique(after_mind[left]):
                switch = left & (after_mind == target)
                records.append(
                    {
                        "agent": agent,
                        "from_mind": minds[agent][origin],
                        "to_mind": minds[agent][target],
                        "times": int(switch.sum()),
                        "share_of_changes": float(switch.sum() / left.sum()),
                        "goes_with": _goes_with(
                            posterior, demos, agent, names, values, switch, holding & ~switch
                        ),
                    }
                )
    columns = ["agent", "from_mind", "to_mind", "times", "share_of_changes", "goes_with"]
    table = pd.DataFrame(records, columns=columns)
    order = {agent: i for i, agent in enumerate(demos.agents)}
    keys = table["agent"].map(order)
    return table.iloc[np.lexsort((-table["times"].to_numpy(), keys.to_numpy()))].reset_index(
        drop=True
    )


def _goes_with(
    posterior: TeamPosterior,
    demos: Demonstrations,
    agent: str,
    names: tuple[str, ...],
    values: Int[np.ndarray, "pairs parents"],
    switch: np.ndarray,
    otherwise: np.ndarray,
) -> str:
    """The circumstances most telling of a change: frequent when it occurs, rare otherwise."""
    found = []
    if not otherwise.any():
        return ""
    for column, name in enumerate(names):
        common, counts = np.unique(values[switch, column], return_counts=True)
        value = common[counts.argmax()]
        share = counts.max() / switch.sum()
        usual = float(np.mean(values[otherwise, column] == value))
        if share - usual >= _TELLING and share >= 0.5:
            later = name not in demos.num_states and name.startswith("next_")
            column_name = name.removeprefix("next_") if later else name
            text = _value_names(posterior, demos, column_name)[value]
            own = column_name.replace(f"{agent}_", "", 1).replace("_", " ")
            verb = "becomes" if later else "is"
            found.append((share - usual, f"{own} {verb} {text} ({share:.0%}; else {usual:.0%})"))
    found.sort(key=lambda pair: -pair[0])
    return ", ".join(text for _, text in found[:2])


def moves_by(posterior: TeamPosterior, agent: str) -> str:
    """What the model lets changes of mind depend on: "nothing", "never" or "circumstances"."""
    table = posterior.bound.table("transition", agent)
    if isinstance(table.cpt, StaticCPT):
        return "never"
    return "circumstances" if table.contexts.names else "nothing"


# ---------------------------------------------------------------------- how sure


def _certainty(
    posterior: TeamPosterior, demos: Demonstrations, beliefs: Mapping[str, Any]
) -> "pd.DataFrame":
    import pandas as pd

    labelled = (demos.latents >= 0).any()
    blind = posterior.smooth(demos.without_labels()) if labelled else beliefs
    records = []
    for i, agent in enumerate(demos.agents):
        kinds = certainty_of(beliefs[agent].max(-1))
        known = demos.latents[:, i] >= 0
        hidden = certainty_of(blind[agent].max(-1))
        right = blind[agent].argmax(-1) == demos.latents[:, i]
        for number, name in enumerate(CERTAINTIES):
            tested = known & (hidden == number)
            records.append(
                {
                    "agent": agent,
                    "certainty": name,
                    "steps": int((kinds == number).sum()),
                    "share_of_steps": float((kinds == number).mean()),
                    "labelled_steps": int(tested.sum()),
                    "share_right": float(right[tested].mean()) if tested.any() else np.nan,
                    "mean_probability": float(blind[agent].max(-1)[tested].mean())
                    if tested.any()
                    else np.nan,
                }
            )
    return pd.DataFrame(records)


def _experience(
    posterior: TeamPosterior, bound: BoundModel, beliefs: Mapping[str, Any]
) -> "pd.DataFrame":
    import pandas as pd

    records = []
    for agent in bound.demos.agents:
        table = posterior.bound.table("policy", agent)
        if not table.cpt.learned:
            continue
        # All agents that share a table stand behind its rows.
        visits = np.sum([read_counts(posterior, "policy", one) for one in table.agents], axis=0)
        reads = _reads(posterior, bound, "policy", agent)
        behind = np.where((reads >= 0)[:, None], visits[np.maximum(reads, 0)], 0.0)
        kinds = np.where(behind >= WELL_KNOWN, 0, np.where(behind >= 1, 1, 2))
        for number, name in enumerate(EXPERIENCES):
            share = float((beliefs[agent] * (kinds == number)).sum(-1).mean())
            records.append({"agent": agent, "experience": name, "share_of_steps": share})
    return pd.DataFrame(records, columns=["agent", "experience", "share_of_steps"])


def _seen_before(training: Demonstrations, demos: Demonstrations) -> float:
    """Share of the episodes that were learned from, told by states and actions."""

    def prints(some: Demonstrations) -> list[bytes]:
        columns = [some.state_variables[n] for n in training.num_states]
        table = np.concatenate([np.stack(columns, 1), some.actions], axis=1)
        return [part.tobytes() for part in np.split(table, some.episode_starts[1:])]

    known = set(prints(training))
    return float(np.mean([one in known for one in prints(demos)]))
