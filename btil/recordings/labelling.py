"""Labels from annotated intervals: joined to the steps of demonstrations by time."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.arguments import check_number
from btil.demonstrations import Demonstrations
from btil.demonstrations.coding import DataWarning, check_text, counted, items, listed, shown
from btil.recordings.sources import Number

_PACKAGE = str(Path(__file__).parents[1])
# Times that differ by less are one: so many seconds, or steps from one number to the next that a
# computer has.
_TOLERANCE = 1e-9
_NUMBERS_APART = 4


def label_by_intervals(
    demos: Demonstrations,
    intervals: Iterable[Any],
    times: Any = None,
    *,
    step: Number | None = None,
    start: Number | Mapping[Any, Number] = 0.0,
    tiers: Mapping[str, str] | None = None,
    episodes: Any = None,
    latent_names: Sequence[str] | None = None,
) -> Demonstrations:
    r"""Label the steps of demonstrations by annotated intervals.

    A step at time :math:`\tau` has the label of the intervals of its agent with
    begin :math:`\le \tau <` end. Where several overlap there with different labels, it is one of
    these: `latent_weights` are 1 for them and 0 for all others. Where there is none it is
    unlabelled, and so it is while its agent is away. An interval that no step's time lies in labels
    nothing, and neither does a point event; a warning counts them.

    Labels and weights of the agents that the intervals may speak of are replaced, those of others
    are kept.

    Args:
        demos: The demonstrations.
        intervals: As `read_intervals` gives them (`Interval`), or any objects with begin, end,
            label and member.
        times: The time of every step (steps,), in seconds on the annotations' clock.
        step: In place of `times`: the length of a step in seconds.
        start: With `step`, when step 0 of an episode is; or {episode id: when}.
        tiers: {tier or member: agent}: only these are used. Default: every interval's member must
            be an agent of its name.
        episodes: Which episode each interval is in: {observation id: episode id}, or one episode
            id for all intervals. Default: intervals that name their observation are in the episode
            with that id; others in all episodes by their times, which with `step` needs a single
            episode.
        latent_names: The text of each latent, of all agents. Default: the names in `demos`, and
            where they have none the labels of all intervals that are used, sorted.

    Returns:
        The demonstrations with labels.

    Raises:
        ValueError: A member that is no agent, an episode that is not there, a label that is none of
            the names, times of another length. The message names what was found and what is
            allowed.

    Warns:
        DataWarning: Some intervals label no step.

    Example:
        >>> from btil.recordings import Interval
        >>> demos = Demonstrations([0, 1, 1, 0], {"ann": [0, 1, 1, 1]}, num_latents=2)
        >>> coded = [Interval(0.0, 1.2, "lift", "ann"), Interval(0.9, 1.5, "carry", "ann")]
        >>> labelled = label_by_intervals(demos, coded, step=0.5)
        >>> labelled.latent_names["ann"], labelled.latents[:, 0].tolist()
        (('carry', 'lift'), [1, 1, -1, -1])
        >>> labelled.latent_weights["ann"][2].tolist()
        [1.0, 1.0]
    """
    coded = [_as_interval(k, one) for k, one in enumerate(intervals)]
    if not coded:
        raise ValueError("intervals: there are none; at least one is needed")
    used = _of_agents(demos, coded, tiers)
    if not used:
        found = sorted({one.tier or one.member for one in coded})
        raise ValueError(
            f"tiers: none of these occurs in the intervals, which have {listed(found)}"
        )
    moments = _times(demos, times, step, start)
    rows_of = _rows_of_episodes(demos, [one for one, _ in used], times is not None, episodes)
    spoken_of = _agents_spoken_of(demos, used, tiers)
    names = _names(demos, used, spoken_of, latent_names)
    marks = {agent: np.zeros((demos.num_steps, len(names[agent])), bool) for agent in spoken_of}
    # A sum of tenths may lie just before the interval that begins there.
    apart = np.spacing(np.abs(moments).max())
    later = moments + max(_TOLERANCE, _NUMBERS_APART * float(apart))
    lost = []
    for one, agent in used:
        if one.label not in names[agent]:
            raise ValueError(
                f"intervals: {_told(one)}: {shown(one.label)} is not allowed; expected one of "
                f"{listed(names[agent])}; latent_names=... says which there are"
            )
        there = demos.present[:, demos.agents.index(agent)]
        inside = rows_of[one.episode] & there & (one.begin <= later) & (later < one.end)
        marks[agent][inside, names[agent].index(one.label)] = True
        if not inside.any():
            lost.append(one)
    if lost:
        warnings.warn(
            f"{counted(len(lost), 'interval')} of {len(used)} label no step, as no step's time "
            "lies in them, or whom they are about is away then; the first is "
            f"{_told(lost[0])}",
            DataWarning,
            skip_file_prefixes=(_PACKAGE,),
        )
    return _labelled(demos, marks, names)


class _Coded(NamedTuple):
    """An interval with the fields that are looked at."""

    begin: float
    end: float
    label: str
    member: str
    tier: str
    episode: Any


def _as_interval(number: int, one: Any) -> _Coded:
    try:
        coded = _Coded(
            float(one.begin),
            float(one.end),
            str(one.label),
            str(one.member),
            str(getattr(one, "tier", "")),
            getattr(one, "episode", None),
        )
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            f"intervals: number {number} (counted from 0): expected begin, end, label and member, "
            f"got {shown(one)}"
        ) from None
    check_text(f"intervals: number {number}: label", coded.label)
    if not (np.isfinite(coded.begin) and coded.begin <= coded.end):
        raise ValueError(f"intervals: number {number}: {_told(coded)} ends before it begins")
    return coded


def _told(one: _Coded) -> str:
    return f"{shown(one.label)} of {shown(one.member)} from {one.begin:g} to {one.end:g}"


def _of_agents(
    demos: Demonstrations, coded: Sequence[_Coded], tiers: Mapping[str, str] | None
) -> list[tuple[_Coded, str]]:
    """The intervals that are used, each with its agent."""
    for tier, name in (tiers or {}).items():
        if name not in demos.agents:
            raise ValueError(
                f"tiers: {shown(tier)}: there is no agent {shown(name)}; the agents are "
                f"{listed(demos.agents)}"
            )
    used = []
    for one in coded:
        agent: str | None
        if tiers is not None:
            agent = tiers.get(one.tier) or tiers.get(one.member)
        elif one.member in demos.agents:
            agent = one.member
        else:
            raise ValueError(
                f"intervals: {_told(one)}: there is no such agent; the agents are "
                f"{listed(demos.agents)}; tiers={{{shown(one.tier or one.member)}: ...}} says whom "
                "a tier describes, and leaves out all others"
            )
        if agent is not None:
            used.append((one, agent))
    return used


def _agents_spoken_of(
    demos: Demonstrations, used: Sequence[tuple[_Coded, str]], tiers: Mapping[str, str] | None
) -> list[str]:
    agents = {agent for _, agent in used} | set((tiers or {}).values())
    return [agent for agent in demos.agents if agent in agents]


def _times(
    demos: Demonstrations, times: Any, step: Number | None, start: Number | Mapping[Any, Number]
) -> Float[np.ndarray, " steps"]:
    """The time of each step."""
    if (times is None) == (step is None):
        raise ValueError("times, step: expected one of the two")
    if times is not None:
        moments = np.asarray(times)
        if moments.shape != (demos.num_steps,) or moments.dtype.kind not in "iuf":
            raise ValueError(
                f"times: numbers ({demos.num_steps},) expected, one for each step, got "
                f"{moments.dtype} of shape {moments.shape}"
            )
        if not np.isfinite(moments).all():
            row = int(np.argmin(np.isfinite(moments)))
            raise ValueError(f"times: step {row} of all: {moments[row]} is not allowed")
        return moments.astype(np.float64)
    length = check_number("step", step, above=0.0)
    starts = []
    for one in demos.episode_ids.tolist():
        if isinstance(start, Mapping) and one not in start:
            raise ValueError(f"start: episode {shown(one)} is left out; found {listed(start)}")
        given = start[one] if isinstance(start, Mapping) else start
        starts.append(check_number("start", given))
    within = np.concatenate([np.arange(steps) for steps in demos.episode_lengths])
    return np.repeat(starts, demos.episode_lengths) + length * within


def _rows_of_episodes(
    demos: Demonstrations, used: Sequence[_Coded], timed: bool, episodes: Any
) -> dict[Any, Bool[np.ndarray, " steps"]]:
    """Which rows the intervals of each observation may label."""
    ids = demos.episode_ids.tolist()

    def rows(number: int) -> Bool[np.ndarray, " steps"]:
        return np.repeat(np.arange(len(ids)) == number, demos.episode_lengths)

    def number_of(episode: Any) -> int:
        if episode not in ids:
            raise ValueError(
                f"episodes: there is no episode {shown(episode)}; those of the demonstrations are "
                f"{listed(ids)}"
            )
        return ids.index(episode)

    found: dict[Any, Bool[np.ndarray, " steps"]] = {}
    texts = [str(one) for one in ids]
    for observation in {one.episode for one in used}:
        if isinstance(episodes, Mapping):
            if observation not in episodes:
                raise ValueError(
                    f"episodes: observation {shown(observation)} is left out; found "
                    f"{listed(episodes)}"
                )
            found[observation] = rows(number_of(episodes[observation]))
        elif episodes is not None:
            found[observation] = rows(number_of(episodes))
        elif observation is None and (timed or len(ids) == 1):
            found[observation] = np.ones(demos.num_steps, bool)
        elif observation is None:
            raise ValueError(
                f"episodes: the intervals do not say which of {counted(len(ids), 'episode')} they "
                "are in; episodes=<id> names one, times=... joins by time in all"
            )
        elif str(observation) in texts:
            found[observation] = rows(texts.index(str(observation)))
        elif len(ids) == 1 and len({one.episode for one in used}) == 1:
            found[observation] = np.ones(demos.num_steps, bool)
        else:
            raise ValueError(
                f"intervals: there is no episode {shown(observation)}; those of the "
                f"demonstrations are {listed(ids)}; episodes={{{shown(observation)}: ...}} says "
                "which it is"
            )
    return found


def _names(
    demos: Demonstrations,
    used: Sequence[tuple[_Coded, str]],
    agents: Sequence[str],
    given: Sequence[str] | None,
) -> dict[str, tuple[str, ...]]:
    """The text of each latent, of each agent that is labelled."""
    if given is not None:
        names = tuple(str(name) for name in items("latent_names", given))
        return dict.fromkeys(agents, names)
    labels = tuple(sorted({one.label for one, _ in used}))
    for agent, size in zip(demos.agents, demos.num_latents, strict=True):
        if agent in agents and agent not in demos.latent_names and size > len(labels):
            raise ValueError(
                f"latent_names: {shown(agent)} has {size} latents without names, and the labels "
                f"are {listed(labels)}; latent_names=... says which there are"
            )
    return {agent: demos.latent_names.get(agent, labels) for agent in agents}


def _labelled(
    demos: Demonstrations,
    marks: Mapping[str, Bool[np.ndarray, "steps latents"]],
    names: Mapping[str, tuple[str, ...]],
) -> Demonstrations:
    labels: Int[np.ndarray, "steps agents"] = np.array(demos.latents)
    weights: dict[str, Any] = demos.latent_weights
    sizes: dict[str, int] = dict(zip(demos.agents, demos.num_latents, strict=True))
    for agent, marked in marks.items():
        number = marked.sum(axis=1)
        labels[:, demos.agents.index(agent)] = np.where(number == 1, marked.argmax(axis=1), -1)
        weights.pop(agent, None)
        if (number > 1).any():
            weights[agent] = np.where((number > 1)[:, None], marked, True).astype(np.float64)
        sizes[agent] = len(names[agent])
    return demos.replace(
        latents=labels,
        latent_weights=weights,
        num_latents=sizes,
        latent_names={**demos.latent_names, **names},
    )
