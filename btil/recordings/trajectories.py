"""Trajectories: rows by time stamp and agent, resampled to steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.arguments import check_choice, check_number
from btil.demonstrations import Demonstrations
from btil.demonstrations.coding import items, listed, shown
from btil.recordings.long_table import labels_of
from btil.recordings.sources import Number, Table, TableOrPath, naming, table_of

_RESAMPLE = ("last", "linear")
# Times that differ by less than this share of a step, or by so many steps from one number to the
# next that a computer has, are one: sums of tenths are not exact.
_TOLERANCE = 1e-6
_NUMBERS_APART = 4
_MOST_STEPS = 10_000_000


def from_trajectories(
    table_or_path: TableOrPath,
    step: Number,
    columns: Sequence[str] = ("x", "y"),
    *,
    time: str = "time",
    agent: str = "agent",
    episode: str | None = "episode",
    latent: str | None = "latent",
    resample: str = "last",
    gap: Number | None = None,
    keep_time: bool = False,
    agents: Sequence[str] | None = None,
    latent_names: Sequence[str] | None = None,
    num_latents: int | None = None,
    unknown_labels: Iterable[str | int] | None = None,
) -> Demonstrations:
    r"""Read what agents were seen to do at time stamps of their own, resampled to steps.

    Step *k* of an episode is at :math:`\tau_k = t_0 + k \Delta`, where :math:`t_0` is the first
    time stamp of the episode, whoever's, and :math:`\Delta` is `step`; the last step is at or
    before the last time stamp. Let :math:`t_a \le \tau_k` be the time of the agent's last
    observation of a column at or before the step, :math:`t_b` that of the next one, and *g* the
    `gap`. The value of the step is

    - `resample="last"`: that seen at :math:`t_a`, if :math:`\tau_k - t_a \le g`;
    - `resample="linear"`: that seen at :math:`t_a` if :math:`\tau_k = t_a`, else on the line
      between those seen at :math:`t_a` and :math:`t_b`, if :math:`t_b - t_a \le g`;

    and NaN elsewhere: nobody saw it. Nothing is averaged: of several observations within a step
    "last" takes the last one. Labels are always those of the last observation within the gap.

    An agent without a row in an episode is away in it. Others are there in all its steps, though
    they may not be seen in some. Columns that no argument names are not read.

    Args:
        table_or_path: A data frame, a mapping {column: cells}, or a file: `.csv`, `.tsv`, `.txt`
            (with tabs) or `.parquet`.
        step: Length of a step, in the unit of the time stamps: seconds, where these are dates.
        columns: The measured columns.
        time: Column of the time stamp: numbers, or dates with times such as
            `2024-05-01T12:00:00.25`. The rows may come in any order.
        agent: Column of the agent's name.
        episode: Column of the episode's id. A table without it is one episode.
        latent: Column of the label, where there is one; blank: unknown, `lift|carry`: one of these.
        resample: "last" or "linear", see above.
        gap: *g* above, in the unit of `step`. Default: two steps.
        keep_time: Keep :math:`\tau_k` as one more continuous column, by the name of `time`:
            `label_by_intervals(..., times=demos.continuous["time"])` joins labels by it.
        agents: The agents in their order. Default: in order of appearance.
        latent_names: The text of each latent, of all agents. Default: the texts that occur.
        num_latents: Number of latents of each agent. Default: what the labels say, and 1 where
            nobody is labelled.
        unknown_labels: Texts that mean an unknown latent too.

    Returns:
        Demonstrations without actions and states, with the continuous columns
        `<agent>_<column>`.

    Raises:
        ValueError: A column that is not there, a cell that is no number or time, an agent with two
            rows at one time, a step or gap that is no positive number. The message names file,
            line (or row), column and what is allowed.
        OSError: The file cannot be read.

    Example:
        >>> seen = {"time": [0.0, 0.9, 2.1], "agent": ["ann"] * 3, "x": [0.0, 0.9, 2.1]}
        >>> from_trajectories(seen, 1.0, ["x"]).continuous["ann_x"].tolist()
        [0.0, 0.9, 0.9]
        >>> from_trajectories(seen, 1.0, ["x"], resample="linear").continuous["ann_x"].tolist()
        [0.0, 1.0, 2.0]
    """
    length = check_number("step", step, above=0.0)
    within = 2 * length if gap is None else check_number("gap", gap, above=0.0)
    check_choice("resample", resample, _RESAMPLE)
    measured = [str(column) for column in items("columns", columns)]
    if not measured or len(set(measured)) < len(measured):
        raise ValueError(f"columns: different names expected, got {listed(measured)}")
    with naming(table_or_path):
        table = table_of(table_or_path)
        table.need("time", time)
        table.need("agent", agent)
        for column in measured:
            table.need("columns", column)
        seen = _observations(
            table,
            time,
            agent,
            episode if table.has("episode", episode, "episode") else None,
            agents,
            length,
        )
        grids = _grids(table, time, seen, length)
        rows = [
            _last_rows(seen, grids, who, np.ones(table.num_rows, bool), within)
            for who in range(len(seen.agents))
        ]
        there = np.stack(
            [np.isin(grids.episodes, seen.episodes[seen.who == k]) for k in range(len(rows))],
            axis=1,
        )
        continuous = {}
        for column in measured:
            values = table.numbers(column, blank=True)
            for who, name in enumerate(seen.agents):
                continuous[f"{name}_{column}"] = _resampled(
                    seen, grids, who, values, resample, within
                )
        if keep_time:
            if time in continuous:
                raise ValueError(f"keep_time: there is a column {shown(time)} already")
            continuous[time] = grids.times
        labels = labels_of(
            table,
            seen.agents,
            np.stack(rows, axis=1),
            latent if table.has("latent", latent, "latent") else None,
            num_latents,
            latent_names,
            unknown_labels,
        )
        return Demonstrations(
            states=None,
            agents=seen.agents,
            episodes=seen.ids[grids.episodes],
            present=None if there.all() else there,
            continuous=continuous,
            unknown_labels=unknown_labels,
            **labels,
        )


class _Observations(NamedTuple):
    """The rows of the table.

    Attributes:
        ids: The episodes' ids.
        agents: The agents.
        episodes: Of each row, which episode.
        who: Which agent.
        times: When.
        order: The rows by episode, agent and time.
        tolerance: Times that differ by less are one.
    """

    ids: np.ndarray
    agents: tuple[str, ...]
    episodes: Int[np.ndarray, " rows"]
    who: Int[np.ndarray, " rows"]
    times: Float[np.ndarray, " rows"]
    order: Int[np.ndarray, " rows"]
    tolerance: float


class _Grids(NamedTuple):
    """The steps of all episodes: in which one each is, and when."""

    episodes: Int[np.ndarray, " steps"]
    times: Float[np.ndarray, " steps"]


def _observations(
    table: Table,
    time: str,
    agent: str,
    episode: str | None,
    agents: Sequence[str] | None,
    step: float,
) -> _Observations:
    codes, ids = table.episodes(episode)
    who, team = table.team(agent, agents)
    times = table.seconds(time)
    order = np.lexsort((times, who, codes))
    same = (np.diff(codes[order]) == 0) & (np.diff(who[order]) == 0) & (np.diff(times[order]) == 0)
    if same.any():
        first, second = sorted(order[int(np.argmax(same)) :][:2].tolist())
        table.refuse(
            second,
            time,
            f"{shown(table.columns[time][second])}: {shown(team[who[second]])} has a row at this "
            f"time already, {table.place(first)}; expected one row for each agent and time",
        )
    apart = float(np.spacing(np.abs(times).max()))
    tolerance = max(_TOLERANCE * step, _NUMBERS_APART * apart)
    return _Observations(ids, team, codes, who, times, order, tolerance)


def _grids(table: Table, time: str, seen: _Observations, step: float) -> _Grids:
    """The steps of each episode, from its first time stamp to its last."""
    episodes, times, total = [], [], 0
    for episode in range(len(seen.ids)):
        stamps = seen.times[seen.episodes == episode]
        start, length = stamps.min(), np.ptp(stamps)
        number = (length + seen.tolerance) / step
        total += number
        if total > _MOST_STEPS:
            raise ValueError(
                f"column {shown(time)}: there would be more than {_MOST_STEPS:,} steps of {step:g} "
                f"(episode {shown(seen.ids[episode])} lasts {length:g}); step is in the unit of "
                "this column"
            )
        steps = np.arange(int(number) + 1)
        episodes.append(np.full(len(steps), episode))
        times.append(start + step * steps)
    return _Grids(np.concatenate(episodes), np.concatenate(times))


def _last_rows(
    seen: _Observations,
    grids: _Grids,
    who: int,
    told: Bool[np.ndarray, " rows"],
    gap: float,
) -> Int[np.ndarray, " steps"]:
    """An agent's last row at or before each step, of those that tell something; -1: none near."""
    found = np.full(len(grids.times), -1)
    for episode in range(len(seen.ids)):
        rows = seen.order[(seen.episodes == episode)[seen.order]]
        rows = rows[(seen.who[rows] == who) & told[rows]]
        if not len(rows):
            continue
        steps = np.flatnonzero(grids.episodes == episode)
        at = grids.times[steps] + seen.tolerance
        last = np.searchsorted(seen.times[rows], at, side="right") - 1
        near = (last >= 0) & (at - seen.times[rows[last]] <= gap + 2 * seen.tolerance)
        found[steps] = np.where(near, rows[last], -1)
    return found


def _resampled(
    seen: _Observations,
    grids: _Grids,
    who: int,
    values: Float[np.ndarray, " rows"],
    resample: str,
    gap: float,
) -> Float[np.ndarray, " steps"]:
    """A column of an agent at each step, NaN where it was not seen."""
    told = ~np.isnan(values)
    if resample == "last":
        rows = _last_rows(seen, grids, who, told, gap)
        return np.append(values, np.nan)[rows]
    rows = _last_rows(seen, grids, who, told, np.inf)
    following = np.full(len(values) + 1, -1)
    mine = seen.order[told[seen.order] & (seen.who[seen.order] == who)]
    adjacent = np.diff(seen.episodes[mine]) == 0
    following[mine[:-1][adjacent]] = mine[1:][adjacent]
    after = following[rows]
    padded_times = np.append(seen.times, np.nan)
    padded = np.append(values, np.nan)
    since = grids.times - padded_times[rows]
    between = padded_times[after] - padded_times[rows]
    with np.errstate(invalid="ignore"):
        share = since / between
        on_line = padded[rows] + share * (padded[after] - padded[rows])
        near = between <= gap + seen.tolerance
    exact = np.abs(since) <= seen.tolerance
    return np.where(exact, padded[rows], np.where(near, on_line, np.nan))
