r"""Posterior predictive checks of a team: would the fitted model have made data like these?

For each posterior draw of the tables the latents of the data are drawn given actions and labels
(where every step is labelled they are the labels), and data are replicated. A statistic of the
replicated data is then set beside the same of what was seen, draw by draw: a *realized discrepancy*
where it depends on latents. Two ways to replicate:

- `"steps"`, one step ahead: at every step the action is drawn anew given the state and the latent
  held, and the latent anew given the latent, the state and the action *before* it. The statistics
  are sums over steps, so that a right model is found right whatever the task does with the actions.
- `"episodes"`: latents and actions of whole episodes are drawn from their start, on the recorded
  states (`btil.models.simulate`). It sees what builds up over an episode, but assumes that states
  would have been the same had the team done something else.

References:
    Gelman, Meng, Stern (1996), Posterior predictive assessment of model fitness via realized
    discrepancies, Statistica Sinica 6; Dawid (1984), The prequential approach, JRSS A 147.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, Shaped

from btil.analysis.alignment import agents_pinned
from btil.analysis.latent_draws import draw_latents, drawn_rows
from btil.analysis.monte_carlo import blocks_of_draws, jackknife_error
from btil.arguments import check_count, check_seed
from btil.demonstrations import Demonstrations
from btil.demonstrations.data import refuse_gaps
from btil.demonstrations.stream import DemonstrationsFile
from btil.inference.processes import ALONE, Processes, add_up, gather, present_processes
from btil.messages.layout import lay_out
from btil.models.contexts import match_rows
from btil.models.simulate import draw_values, simulate
from btil.models.team import BoundModel, make_contexts, refuse_without_actions
from btil.numpyro_forms.numpyro_model import NumpyroModel
from btil.posterior.beliefs import Posterior, refuse_excerpt
from btil.posterior.conforming import conform

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure
    from rich.table import Table

REPLICATES = ("steps", "episodes")
# Kinds of statistics, and the unit of each.
GROUPS = {
    "actions": "share of steps",
    "mental states": "share of steps",
    "dwell": "steps per stay",
    "leaving": "share of steps that leave",
    "switches": "per episode",
    "alignment": "share of steps",
}
# A value this far out on one side, in share of the replicates, is called surprising.
SURPRISING = 0.01
_INTERVAL = 0.89
# A latent may be left after 1 step, 2 to 3, 4 to 7, ...
_AGES = (1, 2, 4, 8, 16, 32)


class Statistic(NamedTuple):
    """One number of a recording.

    Attributes:
        group: One of `GROUPS`.
        agent: The agent; "team" where it is about all.
        name: What it is, in words.
        given: Of the steps in one context alone: which.
    """

    group: str
    agent: str
    name: str
    given: str = ""

    @property
    def words(self) -> str:
        """Name and context."""
        return f"{self.name}, given {self.given}" if self.given else self.name


class Play(NamedTuple):
    """What a statistic looks at.

    Attributes:
        before: The latent held one step before, -1 at an episode's first step.
        age: For how many steps it had been held by then.
        latents: The latent held at each step.
        actions: The action at each step.
    """

    before: Int[np.ndarray, "steps agents"]
    age: Int[np.ndarray, "steps agents"]
    latents: Int[np.ndarray, "steps agents"]
    actions: Int[np.ndarray, "steps agents"]


@dataclass(frozen=True, eq=False)
class PredictiveCheck:
    """How a team's recordings look, and how they would look if the model were right.

    Attributes:
        statistics: What was looked at.
        observed: Each statistic of the data under each posterior draw, (draws, statistics); of
            actions it is the same in all draws. NaN where there is nothing to count.
        replicated: The same of replicated data.
        replicate: "steps" or "episodes".
        share_labelled: Share of the steps whose latents are labels.
        blocks: Block of each draw (`btil.analysis.monte_carlo`), for Monte Carlo errors.
    """

    statistics: tuple[Statistic, ...]
    observed: Float[np.ndarray, "draws statistics"]
    replicated: Float[np.ndarray, "draws statistics"]
    replicate: str
    share_labelled: float
    blocks: Int[np.ndarray, " draws"]

    def __repr__(self) -> str:
        number = len(self.surprising())
        return f"PredictiveCheck({len(self.statistics)} statistics, {number} of them surprising)"

    @property
    def place(self) -> Float[np.ndarray, " statistics"]:
        """Share of the draws in which the replicate lies below what was seen; ties count half."""
        below, number = (values.sum(0) for values in self._below())
        return np.where(number > 0, below / np.maximum(number, 1), np.nan)

    @property
    def place_error(self) -> Float[np.ndarray, " statistics"]:
        """Monte Carlo standard error of each place: by how much other draws would move it.

        Of places of 0 or 1, which have no spread, that of two more draws of either kind (Agresti
        and Coull, 1998).
        """
        below, number = (
            np.stack([values[self.blocks == block].sum(0) for block in np.unique(self.blocks)])
            for values in self._below()
        )
        left = number.sum(0) - number
        without = np.where(left > 0, (below.sum(0) - below) / np.maximum(left, 1), np.nan)
        many = number.sum(0)
        middle = (below.sum(0) + 2) / (many + 4)
        at_end = np.sqrt(middle * (1 - middle) / (many + 4))
        inside = (self.place > 0) & (self.place < 1)
        found = np.where(inside, jackknife_error(without), at_end)
        return np.where(many > 0, found, np.nan)

    def _below(
        self,
    ) -> tuple[Float[np.ndarray, "draws statistics"], Int[np.ndarray, "draws statistics"]]:
        """Whether the replicate lies below what was seen, and whether that is known, by draw."""
        known = ~(np.isnan(self.observed) | np.isnan(self.replicated))
        below = (self.replicated < self.observed) + 0.5 * (self.replicated == self.observed)
        return np.where(known, below, 0.0), known.astype(int)

    @property
    def table(self) -> "pd.DataFrame":
        """A row per statistic.

        Columns: `group`, `agent`, `statistic`, `given`; `observed`, the mean over draws, with its
        `sd` over draws (0 where nothing about it is inferred); `predicted`, `low` and `high`, mean
        and central 89% interval of the replicates; `place` of what was seen among the replicates,
        0 (below all) to 1 (above all), with its Monte Carlo error `place_error`; `surprising`,
        whether less than 1% of them lie beyond it.
        """
        import pandas as pd

        table = pd.DataFrame(self.statistics).rename(columns={"name": "statistic"})
        levels = ((1 - _INTERVAL) / 2, (1 + _INTERVAL) / 2)
        place = self.place
        table["observed"], table["sd"] = _mean(self.observed), _mean(self.observed, _sd)
        table["predicted"] = _mean(self.replicated)
        for name, level in zip(("low", "high"), levels, strict=True):
            table[name] = _mean(self.replicated, lambda v, at=level: np.quantile(v, at))
        table["place"], table["place_error"] = place, self.place_error
        table["surprising"] = np.minimum(place, 1 - place) < SURPRISING
        return table

    def surprising(self) -> "pd.DataFrame":
        """The rows of the table that the model does not explain."""
        table = self.table
        return table[table["surprising"]]

    def notes(self) -> list[str]:
        """How to read it."""
        how = {
            "steps": "one step ahead of what was seen",
            "episodes": "from the start of each episode, on the recorded states",
        }[self.replicate]
        latents = (
            "Mental states are the labels."
            if self.share_labelled == 1
            else f"Mental states of {1 - self.share_labelled:.0%} of the steps are drawn from the "
            "posterior: where the model decides about them it is easily agreed with."
        )
        return [
            f"{len(self.observed)} posterior draws; actions and mental states replicated {how}. "
            "Behind ± is the Monte Carlo error of a place.",
            latents,
            "The model has seen these data if it was fitted to them: places are then nearer to 0.5 "
            "than uniform ones, and what is surprising is so all the more.",
        ]

    def summary_table(self) -> "Table":
        """The table for a terminal of 100 columns; what is surprising is marked by an asterisk."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=None, pad_edge=False)
        for heading in ("", "statistic", "observed", "predicted", "89% interval", "place", ""):
            left = heading in ("", "statistic")
            table.add_column(Text(heading), justify="left" if left else "right", overflow="fold")
        for one, (_, row) in zip(self.statistics, self.table.iterrows(), strict=True):
            table.add_row(
                Text(f"{one.agent}, {one.group}"),
                Text(one.words),
                f"{row['observed']:.3f}",
                f"{row['predicted']:.3f}",
                f"{row['low']:.3f} to {row['high']:.3f}",
                f"{row['place']:.3f} ± {row['place_error']:.3f}",
                "*" if row["surprising"] else "",
            )
        return table

    @property
    def units(self) -> Mapping[str, str]:
        """The groups of statistics, and the unit of each."""
        return GROUPS

    def plot(self, axes: Any = None) -> "Figure":
        """What was seen against what the model predicts; see `plot_predictive_check`."""
        from btil.analysis.plots.predictive import plot_predictive_check

        return plot_predictive_check(self, axes)

    def to_datatree(self) -> "xr.DataTree":
        """For ArviZ: `posterior_predictive` and `observed_data`, a variable per group.

        The observed value of a statistic is its mean over draws; the draws of it are in the group
        `realized`.

        Example:
            >>> arviz.plot_ppc_interval(check.to_datatree())  # doctest: +SKIP
        """
        import xarray as xr

        groups: dict[str, dict[str, Any]] = {
            name: {} for name in ("posterior_predictive", "realized", "observed_data")
        }
        for group in dict.fromkeys(one.group for one in self.statistics):
            own = [k for k, one in enumerate(self.statistics) if one.group == group]
            variable = group.replace(" ", "_")
            dim = f"{variable}_statistic"
            names = [f"{self.statistics[k].agent}: {self.statistics[k].words}" for k in own]
            for name, values in (
                ("posterior_predictive", self.replicated),
                ("realized", self.observed),
            ):
                groups[name][variable] = xr.DataArray(
                    values[None, :, own], dims=("chain", "draw", dim), coords={dim: names}
                )
            groups["observed_data"][variable] = xr.DataArray(
                _mean(self.observed[:, own]), dims=(dim,), coords={dim: names}
            )
        return xr.DataTree.from_dict({name: xr.Dataset(of) for name, of in groups.items()})


def _mean(
    values: Float[np.ndarray, "draws statistics"], function: Any = np.mean
) -> Float[np.ndarray, " statistics"]:
    """A function of each column over the draws in which it is known; NaN where it never is."""
    known = ~np.isnan(values)
    return np.array(
        [
            function(column[own]) if own.any() else np.nan
            for column, own in zip(values.T, known.T, strict=True)
        ]
    )


def posterior_predictive_check(
    posterior: Posterior,
    demos: Demonstrations | DemonstrationsFile | None = None,
    num_draws: int = 400,
    seed: int = 0,
    replicate: str = "steps",
    num_contexts: int = 3,
    distributed: bool = False,
) -> PredictiveCheck:
    r"""Compare what the team did with what the fitted model says it would have done.

    Per agent: how often it takes each action, over all and in the contexts that its policy sees
    most often; how often it holds each mental state; how many steps it holds one, and how often it
    leaves one after 1 step, 2 to 3, ... (a model without memory of how long leaves at a steady
    rate); how often it switches in an episode. Of the team, if its members' mental states have the
    same names and labels tell them apart: how often they agree. With `replicate="episodes"` also
    how episodes and dwell times scatter.

    Args:
        posterior: The posterior.
        demos: The recordings; None: those it was fitted to. As in `log_likelihood` the data are
            actions and labels: labelled steps count as they are, the mental states of others are
            drawn given them. Of actions alone: `demos.without_labels()`. What `open_demonstrations`
            opened is looked at part by part, twice.
        num_draws: Posterior draws, each with one replicate; of chains no more than they have.
        seed: Seeds everything.
        replicate: "steps", one step ahead, or "episodes", whole episodes on the recorded states:
            see the module. Use "episodes" where states do not depend on actions.
        num_contexts: For so many contexts of each policy action frequencies are told.
        distributed: Of files: whether the processes of `jax.distributed` each take a part.

    Returns:
        The check, with table and figure.

    Raises:
        ValueError: If the demonstrations do not fit or are impossible, a number is out of range, or
            the model is a `NumpyroModel`.

    Example:
        >>> check = posterior_predictive_check(posterior)  # doctest: +SKIP
        >>> check.surprising()  # doctest: +SKIP
    """
    if replicate not in REPLICATES:
        raise ValueError(
            f"replicate must be {' or '.join(map(repr, REPLICATES))}, got {replicate!r}"
        )
    check_count("num_draws", num_draws, 1)
    check_count("num_contexts", num_contexts, 0)
    seed = check_seed(seed, 2**32 - 1)
    if isinstance(posterior.model, NumpyroModel):
        raise ValueError(
            f"{posterior.model.name}: data are replicated from tables, which a NumpyroModel has "
            "not; NumPyro's Predictive draws from its function"
        )
    if isinstance(demos, DemonstrationsFile):
        if replicate == "episodes":
            raise ValueError(
                'replicate="episodes" takes demonstrations in memory; files are replicated by '
                '"steps"'
            )
        return _check_file(posterior, demos, num_draws, seed, num_contexts, distributed)
    if distributed:
        raise ValueError("distributed: processes share files that open_demonstrations opened")
    if demos is None:
        refuse_excerpt(posterior, "a predictive check without demos=...")
    bound = _ready(posterior, posterior.demos if demos is None else demos)
    setting = _setting(posterior, [bound], num_contexts, ALONE)
    generator = np.random.default_rng([seed, 4])
    counter = _Counter(bound, setting, replicate == "episodes")
    blocks = blocks_of_draws(posterior, num_draws, seed)
    counts = list(_counts(posterior, counter, blocks, jax.random.key(seed), generator))
    return _made(counter.statistics, np.array(counts), replicate, bound.demos, blocks)


def _check_file(
    posterior: Posterior,
    file: DemonstrationsFile,
    num_draws: int,
    seed: int,
    num_contexts: int,
    distributed: bool,
) -> PredictiveCheck:
    """The check of files, one step ahead: counts add up over their parts."""
    processes = present_processes() if distributed else ALONE
    own = file.shard(*processes) if processes.number > 1 else file

    def parts() -> Iterator[BoundModel]:
        return (_ready(posterior, part) for part in own)

    setting = _setting(posterior, parts(), num_contexts, processes)
    blocks = blocks_of_draws(posterior, num_draws, seed)
    first = _Counter(_ready(posterior, file.first), setting, False)
    size = (sum(block.num_draws for block in blocks), 2, len(first.statistics), 2)

    def counts_of_own() -> dict[str, np.ndarray]:
        total, labelled, steps = np.zeros(size), 0, 0
        for number, bound in enumerate(parts()):
            place = [processes.own, number]
            key = jax.random.key(seed)
            for one in place:
                key = jax.random.fold_in(key, one)
            generator = np.random.default_rng([seed, 4, *place])
            counter = _Counter(bound, setting, False)
            total += list(_counts(posterior, counter, blocks, key, generator))
            labelled += int((bound.demos.latents >= 0).sum())
            steps += bound.demos.latents.size
        return {"counts": total, "labelled": np.array([labelled, steps], float)}

    sums = add_up(processes, counts_of_own)
    made = _made(first.statistics, sums["counts"], "steps", file.first, blocks)
    labelled, steps = sums["labelled"]
    return replace(made, share_labelled=float(labelled / steps))


def _ready(posterior: Posterior, demos: Demonstrations) -> BoundModel:
    """The model on demonstrations that can be replicated.

    Raises:
        ValueError: If they cannot, do not fit or are impossible.
    """
    demos = demos if demos is posterior.demos else conform(demos, posterior.demos)
    refuse_gaps(
        demos, "predictive check", "give episodes without such steps: demos=demos.select(...)"
    )
    refuse_without_actions(demos, "posterior_predictive_check")
    if not (demos.latents >= 0).all():
        posterior.filter(demos, use_labels=True)  # refuses what is impossible
    return posterior.bound.on(demos)


def _counts(
    posterior: Posterior,
    counter: "_Counter",
    blocks: list[Any],
    key: Any,
    generator: np.random.Generator,
) -> Iterator[Float[np.ndarray, "2 statistics 2"]]:
    """Of every draw, what is counted in the data, and in data that are replicated."""
    bound = counter.bound
    layout = lay_out(bound, coarse=True)
    drawn = itertools.chain.from_iterable(
        drawn_rows(block.posterior, bound, block.num_draws, block.seed) for block in blocks
    )
    for draw, (tables, rows) in enumerate(drawn):
        own_key = jax.random.fold_in(key, draw)
        latents = draw_latents(posterior, bound, layout, rows, own_key)
        seen = _as_play(bound, latents, bound.demos.actions)
        if counter.whole_episodes:
            made = simulate(posterior.model, bound.demos, tables, generator)
            again = _as_play(bound, made.latents, made.actions)
        else:
            again = _one_step_ahead(bound, rows, seen, generator)
        yield np.stack([counter.count(seen), counter.count(again)])


def _made(
    statistics: list[Statistic],
    counts: Float[np.ndarray, "draws 2 statistics 2"],
    replicate: str,
    demos: Demonstrations,
    blocks: list[Any],
) -> PredictiveCheck:
    number, of = counts[..., 0], counts[..., 1]
    values = np.where(of > 0, number / np.where(of > 0, of, 1.0), np.nan)
    return PredictiveCheck(
        statistics=tuple(statistics),
        observed=values[:, 0],
        replicated=values[:, 1],
        replicate=replicate,
        share_labelled=float((demos.latents >= 0).mean()),
        blocks=np.repeat(np.arange(len(blocks)), [block.num_draws for block in blocks]),
    )


def _as_play(
    bound: BoundModel,
    latents: Int[np.ndarray, "steps agents"],
    actions: Int[np.ndarray, "steps agents"],
) -> Play:
    first = np.zeros(len(latents), bool)
    first[bound.demos.episode_starts] = True
    before = np.concatenate([np.full_like(latents[:1], -1), latents[:-1]])
    before[first] = -1
    # Steps since the last change, up to and including the step before.
    place = np.arange(len(latents))[:, None]
    since = np.maximum.accumulate(np.where(latents != before, place, 0), axis=0)
    held = np.concatenate([np.zeros_like(latents[:1]), (place - since + 1)[:-1]])
    return Play(before, np.where(before >= 0, held, 0), latents, actions)


def _one_step_ahead(
    bound: BoundModel, rows: dict[str, Any], seen: Play, generator: np.random.Generator
) -> Play:
    """Every action and every latent drawn anew, given what was before it."""
    latents, actions = np.empty_like(seen.latents), np.empty_like(seen.actions)
    starts = np.asarray(bound.demos.episode_starts)
    for i, agent in enumerate(bound.demos.agents):
        policy, transition, initial = (
            rows[bound.table(role, agent).name] for role in ("policy", "transition", "initial")
        )
        reads = bound.rows[agent]
        actions[:, i] = draw_values(policy[reads.policy, seen.latents[:, i]], generator)
        moved = np.flatnonzero(reads.transition >= 0)
        came = transition[reads.transition[moved], seen.before[moved, i]]
        latents[moved, i] = draw_values(came, generator)
        latents[starts, i] = draw_values(initial[reads.initial], generator)
    return Play(seen.before, seen.age, latents, actions)


class _Setting(NamedTuple):
    """What is counted, of all recordings.

    Attributes:
        contexts: Per agent the contexts of its policy in which actions are counted, in words; the
            first, None, is any.
        longest: Steps of the longest episode.
        comparable: Whether the agents' latents are the same.
    """

    contexts: dict[str, list[tuple[str, tuple[int, ...] | None]]]
    longest: int
    comparable: bool


def _setting(
    posterior: Posterior, parts: Iterable[BoundModel], number: int, processes: Processes
) -> _Setting:
    """What is counted in some recordings: the most frequent contexts are those of all of them."""
    agents = posterior.demos.agents
    counts: dict[str, Counter[tuple[int, ...]]] = {agent: Counter() for agent in agents}
    longest, pinned = 0, dict.fromkeys(agents, False)

    def look() -> np.ndarray:
        nonlocal longest
        for bound in parts:
            longest = max(longest, int(bound.demos.episode_lengths.max()))
            for agent, told in agents_pinned(bound).items():
                pinned[agent] |= told
            for agent in agents:
                rows = bound.table("policy", agent).contexts.rows
                times = np.bincount(bound.rows[agent].policy, minlength=len(rows))
                visited = np.flatnonzero(times)
                for row, of_row in zip(
                    rows[visited].tolist(), times[visited].tolist(), strict=True
                ):
                    counts[agent][tuple(row)] += of_row
        return np.array([[longest, *(pinned[agent] for agent in agents)]])

    found = np.concatenate(gather(processes, look))
    contexts: dict[str, list[tuple[str, tuple[int, ...] | None]]] = {}
    demos = posterior.demos
    for agent in agents:
        width = posterior.bound.table("policy", agent).contexts.rows.shape[1]
        table = np.array([[*row, of] for row, of in counts[agent].items()], np.int64)
        total: Counter[tuple[int, ...]] = Counter()
        for part in gather(processes, partial(np.reshape, table, (-1, width + 1))):
            for *row, of in part.tolist():
                total[tuple(row)] += of
        contexts[agent] = [("", None)]
        names = make_contexts(posterior.model, "policy", agent, demos).names
        often = sorted(total, key=lambda row: (-total[row], row)) if len(total) > 1 else []
        for row in often[:number]:
            words = (
                f"{name.removeprefix(f'{agent}_')}={demos.value_text(name, value)}"
                for name, value in zip(names, row, strict=True)
            )
            contexts[agent].append((", ".join(words), row))
    alike = len({demos.value_names(f"latent_{agent}") for agent in agents}) == 1
    comparable = len(agents) > 1 and alike and bool(found[:, 1:].any(axis=0).all())
    return _Setting(contexts, int(found[:, 0].max()), comparable)


class _Counter:
    """Counts the statistics of plays of one set of recordings: numerators and denominators."""

    def __init__(self, bound: BoundModel, setting: _Setting, whole_episodes: bool) -> None:
        self.bound, self.setting = bound, setting
        self.whole_episodes = whole_episodes
        self.contexts = {
            agent: [(words, _steps_in(bound, agent, row)) for words, row in chosen]
            for agent, chosen in setting.contexts.items()
        }
        self.statistics: list[Statistic] = []
        # Names do not depend on what is counted.
        demos = bound.demos
        self._count(_as_play(bound, np.maximum(demos.latents, 0), demos.actions), self.statistics)

    def count(self, play: Play) -> Float[np.ndarray, "statistics 2"]:
        """All statistics, in order."""
        return self._count(play, [])

    def _count(self, play: Play, names: list[Statistic]) -> Float[np.ndarray, "statistics 2"]:
        demos = self.bound.demos
        values: list[tuple[float, float]] = []

        def add(group: str, agent: str, name: str, number: Any, of: Any, given: str = "") -> None:
            names.append(Statistic(group, agent, name, given))
            values.append((float(number), float(of)))

        for i, agent in enumerate(demos.agents):
            own = Play(*(part[:, i] for part in play))
            actions = demos.value_names(f"action_{agent}")
            latents = demos.value_names(f"latent_{agent}")
            for words, steps in self.contexts[agent]:
                taken = np.bincount(own.actions[steps], minlength=len(actions))
                for action, number in zip(actions, taken, strict=True):
                    add("actions", agent, action, number, len(steps), words)
            if len(latents) == 1:
                continue
            for latent, number in zip(
                latents, np.bincount(own.latents, minlength=len(latents)), strict=True
            ):
                add("mental states", agent, latent, number, demos.num_steps)
            left = (own.before >= 0) & (own.latents != own.before)
            for k, latent in enumerate(latents):
                held = own.before == k
                # Steps per departure; the last stay of an episode is cut short.
                add("dwell", agent, f"steps in {latent}", held.sum(), (held & left).sum())
            for low, high in _bands(self.setting.longest):
                at = (own.age >= low) & (own.age < high)
                name = "1 step" if high == 2 else f"{low} to {high - 1} steps"
                add("leaving", agent, f"after {name}", (at & left).sum(), at.sum())
            by_episode = np.add.reduceat(left, demos.episode_starts, dtype=np.int64)
            add("switches", agent, "mean", by_episode.sum(), len(by_episode))
            if self.whole_episodes:
                add("switches", agent, "standard deviation", by_episode.std(), 1)
                # Of stays that ended: their length is the age at which they were left.
                add("dwell", agent, "standard deviation", _sd(own.age[left]), 1)
        if self.setting.comparable:
            same = (play.latents == play.latents[:, :1]).all(1)
            add("alignment", "team", "all have the same in mind", same.sum(), len(same))
        return np.array(values)


def _steps_in(
    bound: BoundModel, agent: str, context: tuple[int, ...] | None
) -> Int[np.ndarray, " steps"]:
    """The steps in a context of an agent's policy."""
    if context is None:
        return np.arange(bound.demos.num_steps)
    rows = bound.table("policy", agent).contexts.rows
    number = match_rows(rows, np.array([context], rows.dtype))[0]
    return np.flatnonzero(bound.rows[agent].policy == number)


def _bands(longest: int) -> list[tuple[int, int]]:
    """Ages from, up to and without, within the longest episode."""
    edges = [age for age in _AGES if age < longest]
    return list(zip(edges, [*edges[1:], longest + 1], strict=True)) if edges else []


def _sd(values: Shaped[np.ndarray, " values"]) -> float:
    if len(values) < 2:
        return np.nan
    return float(values.std()) if np.ptp(values) > 0 else 0.0
