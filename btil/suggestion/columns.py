"""The columns of a recording as each agent sees them, and those that no model should read.

A column whose name has an agent's name in it as a word, `ann_cell` or `cell-ann`, is that agent's
own, and another's for the rest. Seen from an agent, its name gets the same form for everyone:
`{own}_cell`, `{other}_cell`. So one table can be shared by agents who each read their own cell.
"""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.analysis.words import listed
from btil.demonstrations import Demonstrations
from btil.demonstrations.naming import agents_in, form_of

# No column has such a beginning of its name by chance: with "action_" and "next_" some would.
ACTION_OF, NEXT = "action of ", "next "
COMMON = "common"
IGNORE = "ignore"

# A column with more values than this share of the steps hardly ever repeats one.
_LARGEST_SHARE = 1 / 3
_FEWEST_STEPS = 10
# Regroupings of episodes that a column is judged by; all of them where they are fewer.
_MOST_GROUPINGS = 2000
# By so many of their standard deviations the true grouping stands out, and by so much in all.
_DEVIATIONS = 5.0
_EXCESS = 0.1
_EXCESS_OF_FEW = 0.25
_FEW_GROUPINGS = 20
# A value that marks unlabelled steps: on nearly all of these, on nearly none of the labelled.
_NEARLY_ALL = 0.95
# A column of which so little of the action's entropy is left tells the action.
_REST_OF_ACTION = 0.02


class Views(NamedTuple):
    """The usable columns, seen from each agent.

    Attributes:
        states: {agent: {form: column}}, sorted.
        actions: {agent: {form: column}}, own action and the others'.
    """

    states: dict[str, dict[str, str]]
    actions: dict[str, dict[str, str]]


def check_roles(roles: Any, demos: Demonstrations) -> dict[str, str]:
    """The roles as given, or none.

    Raises:
        ValueError: If a column is unknown, a role is no text, or two columns get one name.
    """
    if roles is None:
        return {}
    if not isinstance(roles, Mapping):
        raise ValueError(f"roles must be a mapping {{column: role}}, got {roles!r}")
    variables = list(demos.state_variables)
    for column, role in roles.items():
        if column not in variables:
            raise ValueError(
                f"roles: there is no state variable {column!r}; they are {', '.join(variables)}"
            )
        known = isinstance(role, str) and (
            role in (COMMON, IGNORE) or bool(agents_in(role, demos.agents))
        )
        if not known:
            raise ValueError(
                f"roles: {column} is {role!r}; allowed are {COMMON!r}, {IGNORE!r}, an agent "
                f"({', '.join(demos.agents)}), or a name with an agent in it, such as "
                f"{demos.agents[0] + '_' + column!r}"
            )
    named = [_name(column, dict(roles), demos) for column in variables]
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise ValueError(f"roles: more than one column would be called {listed(twice)}")
    return dict(roles)


def _name(column: str, roles: Mapping[str, str], demos: Demonstrations) -> str:
    """The name by which a column is understood."""
    role = roles.get(column, column)
    if role in (COMMON, IGNORE):
        return column
    return f"{role}_{column}" if role in demos.agents else role


def acting_agents(demos: Demonstrations) -> tuple[str, ...]:
    """The agents that have actions."""
    sizes = zip(demos.agents, demos.num_actions, strict=True)
    return tuple(agent for agent, size in sizes if size)


def views(demos: Demonstrations, columns: list[str], roles: Mapping[str, str]) -> Views:
    """The given columns, and the actions, as each agent sees them."""
    states, actions = {}, {}
    for agent in demos.agents:
        seen = {}
        for column in columns:
            name = _name(column, roles, demos)
            common = roles.get(column) == COMMON
            seen[name if common else form_of(name, agent, demos.agents)] = column
        states[agent] = dict(sorted(seen.items()))
        actions[agent] = {
            f"{ACTION_OF}{form_of(one, agent, demos.agents)}": f"action_{one}"
            for one in sorted(acting_agents(demos))
        }
    return Views(states, actions)


def refused(demos: Demonstrations, roles: Mapping[str, str]) -> dict[str, str]:
    """The columns that no model should read, and why: {column: reason}.

    A column that `roles` has a role for is taken as it is, unless that is "ignore".
    """
    found = {}
    labelled = (demos.latents >= 0).any(axis=1)
    for column, values in demos.state_variables.items():
        role = roles.get(column)
        if role == IGNORE:
            found[column] = "it is to be ignored"
        elif role is None:
            reason = _reason(np.unique(values, return_inverse=True)[1], labelled, demos)
            if reason is not None:
                found[column] = reason
    return found


def tells_action(demos: Demonstrations, column: str, agent: str) -> bool:
    """Whether a column of the state is the agent's action by another name."""
    actions = demos.actions[:, demos.agents.index(agent)]
    seen = actions >= 0
    values = np.unique(demos.state_variables[column], return_inverse=True)[1][seen]
    joint = np.zeros((values.max(initial=0) + 1, actions.max() + 1))
    np.add.at(joint, (values, actions[seen]), 1)
    # Values seen once tell everything, and nothing that lasts.
    repeated = joint[joint.sum(1) > 1]
    whole = _entropy(repeated.sum(0))
    if len(repeated) < 2 or whole < 0.1 or repeated.sum() < len(values) / 2:
        return False
    rest = sum(row.sum() * _entropy(row) for row in repeated) / repeated.sum()
    return bool(rest < _REST_OF_ACTION * whole)


def _entropy(counts: Float[np.ndarray, " values"]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _reason(
    values: Int[np.ndarray, " steps"], labelled: Bool[np.ndarray, " steps"], demos: Demonstrations
) -> str | None:
    """Why a column should not be read; None if nothing speaks against it."""
    number = values.max() + 1
    if number == 1:
        return "it has one value throughout"
    if len(values) >= _FEWEST_STEPS and number > _LARGEST_SHARE * len(values):
        return f"it has {number:,} values in {len(values):,} steps and hardly repeats one"
    if not labelled.any() or labelled.all():
        return None
    counts = np.zeros((2, number))
    np.add.at(counts, (labelled.astype(int), values), 1)
    without, with_labels = counts / counts.sum(1, keepdims=True)
    nearly = (without >= _NEARLY_ALL) & (with_labels <= 1 - _NEARLY_ALL)
    if nearly.any() and counts.sum(1).min() >= _FEWEST_STEPS:
        return (
            "it shows which steps are labelled: it has one value where there is no "
            "label, others where there is one"
        )
    episode = np.repeat(np.arange(demos.num_episodes), demos.episode_lengths)
    has_labels = np.bincount(episode, labelled, demos.num_episodes) > 0
    if has_labels.all():
        return None
    by_episode = np.zeros((demos.num_episodes, number))
    np.add.at(by_episode, (episode, values), 1)
    apart = _apart(by_episode, has_labels)
    if apart is not None:
        return (
            f"it is distributed otherwise in labelled episodes (by {apart:.0%} of the steps), as a "
            "coder's notes are"
        )
    return None


def _apart(
    counts: Float[np.ndarray, "episodes values"], labelled: Bool[np.ndarray, " episodes"]
) -> float | None:
    """By how much labelled and unlabelled episodes differ, if more than regrouped ones do.

    The total variation distance of the two pooled distributions is held against that of other
    groupings of the episodes into as many and as many: all of them, or a fixed random sample. The
    episodes are put in an order of their own first, so that theirs in the data plays no part.
    """
    order = np.lexsort((labelled, *counts.T))
    counts, labelled = counts[order], labelled[order]
    number, chosen = len(labelled), int(labelled.sum())
    groupings = _groupings(number, chosen)
    groupings = groupings[(groupings != labelled).any(axis=1)]
    if len(groupings) < 3:
        return None

    def distances(groups: Bool[np.ndarray, "k episodes"]) -> Float[np.ndarray, " k"]:
        inside = groups.astype(float) @ counts
        outside = counts.sum(0) - inside
        return 0.5 * np.abs(
            inside / inside.sum(1, keepdims=True) - outside / outside.sum(1, keepdims=True)
        ).sum(1)

    own = float(distances(labelled[None])[0])
    others = distances(groupings)
    excess = own - float(others.mean())
    least = _EXCESS if len(groupings) >= _FEW_GROUPINGS else _EXCESS_OF_FEW
    stands_out = own > others.max() and excess > _DEVIATIONS * float(others.std())
    return own if stands_out and excess > least else None


def _groupings(number: int, chosen: int) -> Bool[np.ndarray, "k episodes"]:
    """Ways to choose some of the episodes; a fixed sample of them where there are many."""
    several = list(itertools.islice(itertools.combinations(range(number), chosen), 2001))
    if len(several) <= _MOST_GROUPINGS:
        index = np.array(several)
    else:
        random = np.random.default_rng(0).random((_MOST_GROUPINGS, number))
        index = np.argsort(random, axis=1)[:, :chosen]
    groupings = np.zeros((len(index), number), bool)
    np.put_along_axis(groupings, index, True, axis=1)
    return groupings
