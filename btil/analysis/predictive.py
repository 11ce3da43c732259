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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, Shaped

from btil.analysis.alignment import agents_pinned
from btil.analysis.latent_draws import draw_latents, drawn_rows
from btil.analysis.monte_carlo import blocks_of_draws, jackknife_error
from btil.analysis.output import text_table
from btil.arguments import check_count, check_seed
from btil.demonstrations import Demonstrations
from btil.demonstrations.stream import DemonstrationsFile
from btil.inference.processes import ALONE, Processes, add_up, gather, present_processes
from btil.messages.layout import lay_out
from btil.models.contexts import data_column, match_rows
from btil.models.draws import DrawnTables
from btil.models.emission import Channel
from btil.models.simulate import draw_values, simulate
from btil.models.team import BoundModel, make_contexts
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
    "columns": "units of the data",
}
# A value this far out on one side, in share of the replicates, is called surprising.
SURPRISING = 0.01
_INTERVAL = 0.89
# A latent may be left after 1 step, 2 to 3, 4 to 7, ...
_AGES = (1, 2, 4, 8, 16, 32)

Columns = Mapping[str, Float[np.ndarray, "steps d"]]


class Statistic(NamedTuple):
    """One number of a recording.

    Attributes:
        group: One of `GROUPS`.
        agent: The agent; "team" where it is about all.
        name: What it is, in words.
        given: Of the steps in one context alone: which. Of a continuous column its name.
    """

    group: str
    agent: str
    name: str
    given: str = ""

    @property
    def words(self) -> str:
        """Name and context."""
        if self.group == "columns":
            return f"{self.given}: {self.name}"
        return f"{self.name}, given {self.given}" if self.given else self.name


class Measured(NamedTuple):
    """Continuous columns that a statistic looks at.

    Attributes:
        columns: Of the agents that have such.
        before: The same, from which those of the step before are taken.
        held: The latents that they were drawn with, or held as they were seen.
    """

    columns: Columns
    before: Columns
    held: Int[np.ndarray, "steps agents"]


class Play(NamedTuple):
    """What a statistic looks at.

    Attributes:
        before: The latent held one step before, -1 at the first step of a stay and while away.
        age: For how many steps it had been held by then.
        latents: The latent held at each step, -1 while away.
        actions: The action at each step, -1 where nobody saw it.
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
            f"{len(self.observed)} posterior draws; what was seen is replicated {how}. "
            "Behind ± is the Monte Carlo error of a place.",
            latents,
            "The model has seen these data if it was fitted to them: places are then nearer to 0.5 "
            "than uniform ones, and what is surprising is so all the more.",
        ]

    def summary_table(self) -> "Table":
        """The table for a terminal of 100 columns; what is surprising is marked by an asterisk."""
        headings = ("", "statistic", "observed", "predicted", "89% interval", "place", "")
        rows = [
            (
                f"{one.agent}, {one.group}",
                one.words,
                f"{row['observed']:.3f}",
                f"{row['predicted']:.3f}",
                f"{row['low']:.3f} to {row['high']:.3f}",
                f"{row['place']:.3f} ± {row['place_error']:.3f}",
                "*" if row["surprising"] else "",
            )
            for one, (_, row) in zip(self.statistics, self.table.iterrows(), strict=True)
        ]
        return text_table(headings, rows, left=2)

    @property
    def units(self) -> Mapping[str, str]:
        """The groups of statistics, and the unit of each."""
        return GROUPS

    def plot(self, axes: Any = None) -> "Figure":
        """What was seen against what the model predicts; see `plot_predictive_check`."""
        from btil.analysis.plots.checks import plot_predictive_check

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
    same names and labels tell them apart: how often they agree. Of continuous columns that the
    model explains: mean, spread and quantiles, how much they change in a step, and mean and spread
    in each mental state. With `replicate="episodes"` also
    how episodes and dwell times scatter.

    Args:
        posterior: The posterior.
        demos: The recordings; None: those it was fitted to. As in `log_likelihood` the data are
            actions, columns and labels: labelled steps count as they are, the mental states of
            others are drawn given them. Of actions alone: `demos.without_labels()`. What
            `open_demonstrations` opened is looked at part by part, twice; quantiles of columns,
            which do not add up, are left out.
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
    setting = _setting(posterior, [bound], num_contexts, ALONE)._replace(quantiles=True)
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
    """The check of files, one step ahead: sums add up over their parts."""
    processes = present_processes() if distributed else ALONE
    own = file.shard(*processes) if processes.number > 1 else file

    def parts() -> Iterator[BoundModel]:
        return (_ready(posterior, part) for part in own)

    setting = _setting(posterior, parts(), num_contexts, processes)
    blocks = blocks_of_draws(posterior, num_draws, seed)
    first = _Counter(_ready(posterior, file.first), setting, False)
    size = (sum(block.num_draws for block in blocks), 2, len(first.statistics), 3)

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
            labelled += int((bound.demos.latents[bound.demos.present] >= 0).sum())
            steps += int(bound.demos.present.sum())
        return {"counts": total, "labelled": np.array([labelled, steps], float)}

    sums = add_up(processes, counts_of_own)
    made = _made(first.statistics, sums["counts"], "steps", file.first, blocks)
    labelled, steps = sums["labelled"]
    return replace(made, share_labelled=float(labelled / steps))


def _ready(posterior: Posterior, demos: Demonstrations) -> BoundModel:
    """The model on demonstrations that can be replicated.

    Raises:
        ValueError: If they do not fit or are impossible.
    """
    demos = demos if demos is posterior.demos else conform(demos, posterior.demos)
    if not (demos.latents[demos.present] >= 0).all():
        posterior.filter(demos, use_labels=True)  # refuses what is impossible
    return posterior.bound.on(demos)


def _counts(
    posterior: Posterior,
    counter: "_Counter",
    blocks: list[Any],
    key: Any,
    generator: np.random.Generator,
) -> Iterator[Float[np.ndarray, "2 statistics 3"]]:
    """Of every draw, what is counted in the data, and in data that are replicated."""
    bound = counter.bound
    layout = lay_out(bound, coarse=True)
    recorded = {agent: _columns(bound.demos, one) for agent, one in bound.channels.items()}
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
            columns = {agent: _columns(made, one) for agent, one in bound.channels.items()}
            measured = Measured(columns, columns, again.latents)
        else:
            again = _one_step_ahead(bound, rows, seen, generator)
            columns = _drawn_columns(bound, tables, seen.latents, generator)
            measured = Measured(columns, recorded, seen.latents)
        as_seen = Measured(recorded, recorded, seen.latents)
        yield np.stack([counter.count(seen, as_seen), counter.count(again, measured)])


def _made(
    statistics: list[Statistic],
    counts: Float[np.ndarray, "draws 2 statistics 3"],
    replicate: str,
    demos: Demonstrations,
    blocks: list[Any],
) -> PredictiveCheck:
    """The check of what `_Counter` has counted."""
    number, of, squares = np.moveaxis(counts, -1, 0)
    values = np.where(of > 0, number / np.where(of > 0, of, 1.0), np.nan)
    spread = np.sqrt(np.maximum(squares / np.maximum(of, 1.0) - values**2, 0.0))
    values = np.where(np.isnan(squares), values, np.where(of > 1, spread, np.nan))
    return PredictiveCheck(
        statistics=tuple(statistics),
        observed=values[:, 0],
        replicated=values[:, 1],
        replicate=replicate,
        share_labelled=float((demos.latents[demos.present] >= 0).mean()),
        blocks=np.repeat(np.arange(len(blocks)), [block.num_draws for block in blocks]),
    )


def _as_play(
    bound: BoundModel,
    latents: Int[np.ndarray, "steps agents"],
    actions: Int[np.ndarray, "steps agents"],
) -> Play:
    there = bound.demos.present
    latents = np.where(there, latents, -1)
    first = ~there
    for position, stays in enumerate(bound.demos.stays):
        first[stays, position] = True
    before = np.concatenate([np.full_like(latents[:1], -1), latents[:-1]])
    before[first] = -1
    # Steps since the last change, up to and including the step before.
    place = np.arange(len(latents))[:, None]
    since = np.maximum.accumulate(np.where(latents != before, place, 0), axis=0)
    held = np.concatenate([np.zeros_like(latents[:1]), (place - since + 1)[:-1]])
    seen = np.where(bound.demos.actions >= 0, actions, -1)
    return Play(before, np.where(before >= 0, held, 0), latents, seen)


def _columns(demos: Demonstrations, channel: Channel) -> Float[np.ndarray, "steps d"]:
    """A channel's columns, NaN where its steps say nothing."""
    values = [demos.continuous[name] for name in channel.family.columns_of(channel.agent)]
    return np.where(channel.seen, np.stack(values, axis=1), np.nan)


def _drawn_columns(
    bound: BoundModel,
    tables: DrawnTables,
    latents: Int[np.ndarray, "steps agents"],
    generator: np.random.Generator,
) -> dict[str, Float[np.ndarray, "steps d"]]:
    """Columns drawn anew given latents and the covariates recorded, blank where they were."""
    found = {}
    for agent, channel in bound.channels.items():
        coefficients, covariance = tables.channels[agent].rows(channel.contexts)
        steps = channel.observed.rows
        at = channel.row[steps], latents[steps, bound.demos.agents.index(agent)]
        means = np.einsum("np,npd->nd", channel.observed.inputs[steps], coefficients[at])
        noise = generator.standard_normal(means.shape)
        own = np.full(channel.observed.values.shape, np.nan)
        own[steps] = means + np.einsum("nij,nj->ni", np.linalg.cholesky(covariance)[at], noise)
        found[agent] = np.where(channel.seen, own, np.nan)
    return found


def _one_step_ahead(
    bound: BoundModel, rows: dict[str, Any], seen: Play, generator: np.random.Generator
) -> Play:
    """Every action and every latent drawn anew, given what was before it."""
    latents, actions = np.full_like(seen.latents, -1), np.full_like(seen.actions, -1)
    for i, agent in enumerate(bound.demos.agents):
        policy, transition, initial = (rows[name] for name in bound.sites(agent))
        reads = bound.rows[agent]
        acting = np.flatnonzero(seen.actions[:, i] >= 0)
        of_acting = policy[reads.policy[acting], seen.latents[acting, i]]
        actions[acting, i] = draw_values(of_acting, generator)
        moved = np.flatnonzero(reads.transition >= 0)
        came = transition[reads.transition[moved], seen.before[moved, i]]
        latents[moved, i] = draw_values(came, generator)
        if reads.unseen is not None:
            # The action that nobody saw is drawn too, and forgotten.
            steps = reads.unseen.step
            before = seen.before[steps, i]
            taken = draw_values(policy[reads.unseen.policy, before], generator)
            row = reads.unseen.transition[np.arange(len(steps)), taken]
            latents[steps, i] = draw_values(transition[row, before], generator)
        latents[bound.demos.stays[i], i] = draw_values(initial[reads.initial], generator)
    return Play(seen.before, seen.age, latents, actions)


class _Setting(NamedTuple):
    """What is counted, of all recordings.

    Attributes:
        contexts: Per agent the contexts of its policy in which actions are counted, in words; the
            first, None, is any. None for agents that nobody saw act.
        longest: Steps of the longest episode.
        comparable: Whether the agents' latents are the same.
        centres: Means of each agent's continuous columns.
        quantiles: Whether quantiles are told: of recordings that are looked at all at once.
    """

    contexts: dict[str, list[tuple[str, tuple[int, ...] | None]]]
    longest: int
    comparable: bool
    centres: dict[str, Float[np.ndarray, " d"]]
    quantiles: bool = False


def _setting(
    posterior: Posterior, parts: Iterable[BoundModel], number: int, processes: Processes
) -> _Setting:
    """What is counted in some recordings: the most frequent contexts are those of all of them."""
    agents = posterior.demos.agents
    counts: dict[str, Counter[tuple[int, ...]]] = {agent: Counter() for agent in agents}
    longest, pinned = 0, dict.fromkeys(agents, False)
    sums = {agent: np.zeros((2, one.shape[3])) for agent, one in posterior.bound.channels.items()}

    def look() -> np.ndarray:
        nonlocal longest
        for bound in parts:
            longest = max(longest, int(bound.demos.episode_lengths.max()))
            for agent, told in agents_pinned(bound).items():
                pinned[agent] |= told
            for agent, channel in bound.channels.items():
                columns = _columns(bound.demos, channel)
                sums[agent] += [np.nansum(columns, axis=0), np.isfinite(columns).sum(0)]
            for agent in agents:
                rows = bound.table("policy", agent).contexts.rows
                acted = _steps_in(bound, agent, None)
                times = np.bincount(bound.rows[agent].policy[acted], minlength=len(rows))
                visited = np.flatnonzero(times)
                for row, of_row in zip(
                    rows[visited].tolist(), times[visited].tolist(), strict=True
                ):
                    counts[agent][tuple(row)] += of_row
        return np.array([[longest, *(pinned[agent] for agent in agents)]])

    found = np.concatenate(gather(processes, look))
    centres = {
        agent: total / np.maximum(number_seen, 1)
        for agent, (total, number_seen) in add_up(processes, lambda: sums).items()
    }
    contexts: dict[str, list[tuple[str, tuple[int, ...] | None]]] = {}
    demos = posterior.demos
    for agent in agents:
        width = posterior.bound.table("policy", agent).contexts.rows.shape[1]
        table = np.array([[*row, of] for row, of in counts[agent].items()], np.int64)
        total: Counter[tuple[int, ...]] = Counter()
        for part in gather(processes, partial(np.reshape, table, (-1, width + 1))):
            for *row, of in part.tolist():
                total[tuple(row)] += of
        contexts[agent] = [("", None)] if total else []
        if len(total) < 2:
            continue
        names = make_contexts(posterior.bound.model, "policy", agent, demos).names
        for row in sorted(total, key=lambda row: (-total[row], row))[:number]:
            words = (
                f"{name.removeprefix(f'{agent}_')}="
                f"{demos.value_text(data_column(name, demos.num_states), value)}"
                for name, value in zip(names, row, strict=True)
            )
            contexts[agent].append((", ".join(words), row))
    alike = len({demos.value_names(f"latent_{agent}") for agent in agents}) == 1
    comparable = len(agents) > 1 and alike and bool(found[:, 1:].any(axis=0).all())
    return _Setting(contexts, int(found[:, 0].max()), comparable, centres)


class _Counted(NamedTuple):
    """A statistic, and of what it is made.

    Attributes:
        statistic: Which it is.
        number: Its numerator; of a standard deviation the sum of the values.
        of: Its denominator; of a standard deviation their number.
        squares: Of a standard deviation the sum of their squares.
    """

    statistic: Statistic
    number: Any
    of: Any
    squares: Any = np.nan


class _Counter:
    """Counts the statistics of plays of one set of recordings: sums that add up over several.

    Of each the numbers of `_Counted`; NaN in place of squares tells what is no standard deviation.
    """

    def __init__(self, bound: BoundModel, setting: _Setting, whole_episodes: bool) -> None:
        self.bound, self.setting = bound, setting
        self.whole_episodes = whole_episodes
        self.contexts = {
            agent: [(words, _steps_in(bound, agent, row)) for words, row in chosen]
            for agent, chosen in setting.contexts.items()
        }
        # Names do not depend on what is counted.
        demos = bound.demos
        columns = {agent: _columns(demos, one) for agent, one in bound.channels.items()}
        play = _as_play(bound, np.maximum(demos.latents, 0), demos.actions)
        measured = Measured(columns, columns, play.latents)
        self.statistics = [one.statistic for one in self._counted(play, measured)]

    def count(self, play: Play, measured: Measured) -> Float[np.ndarray, "statistics 3"]:
        """All statistics, in order."""
        return np.array([list(map(float, one[1:])) for one in self._counted(play, measured)])

    def _counted(self, play: Play, measured: Measured) -> Iterator[_Counted]:
        demos = self.bound.demos
        for i, agent in enumerate(demos.agents):
            own = Play(*(part[:, i] for part in play))
            yield from self._of_actions(agent, own)
            if agent in measured.columns:
                yield from self._of_columns(agent, measured)
            if demos.num_latents[i] > 1:
                yield from self._of_latents(agent, own)
        if self.setting.comparable:
            same = (play.latents == play.latents[:, :1]).all(1)
            everybody = (play.latents >= 0).all(1)
            statistic = Statistic("alignment", "team", "all have the same in mind")
            yield _Counted(statistic, (same & everybody).sum(), everybody.sum())

    def _of_actions(self, agent: str, own: Play) -> Iterator[_Counted]:
        """How often each action is taken, in each of the contexts that are told of."""
        demos = self.bound.demos
        acts = demos.num_actions[demos.agents.index(agent)] > 0
        actions = demos.value_names(f"action_{agent}") if acts else ()
        for words, steps in self.contexts[agent]:
            taken = np.bincount(own.actions[steps], minlength=len(actions))
            for action, number in zip(actions, taken, strict=True):
                yield _Counted(Statistic("actions", agent, action, words), number, len(steps))

    def _of_columns(self, agent: str, measured: Measured) -> Iterator[_Counted]:
        """Continuous columns, see `_of_column`."""
        demos, position = self.bound.demos, self.bound.demos.agents.index(agent)
        first = ~demos.present[:, position]
        first[demos.stays[position]] = True
        before = np.roll(measured.before[agent], 1, axis=0)
        before[first] = np.nan
        latents = demos.value_names(f"latent_{agent}")
        for name, y, earlier, centre in zip(
            self.bound.channels[agent].family.columns_of(agent),
            measured.columns[agent].T,
            before.T,
            self.setting.centres[agent],
            strict=True,
        ):
            held, quantiles = measured.held[:, position], self.setting.quantiles
            for words, sums in _of_column(y, earlier, held, latents, centre, quantiles):
                yield _Counted(Statistic("columns", agent, words, name), *sums)

    def _of_latents(self, agent: str, own: Play) -> Iterator[_Counted]:
        """How often each latent is held, for how long, and how often it is left."""
        demos = self.bound.demos
        latents = demos.value_names(f"latent_{agent}")
        there = own.latents[own.latents >= 0]
        held = np.bincount(there, minlength=len(latents))
        for latent, number in zip(latents, held, strict=True):
            yield _Counted(Statistic("mental states", agent, latent), number, len(there))
        left = (own.before >= 0) & (own.latents != own.before)
        for k, latent in enumerate(latents):
            stay = own.before == k
            # Steps per departure; the last stay of an episode is cut short.
            statistic = Statistic("dwell", agent, f"steps in {latent}")
            yield _Counted(statistic, stay.sum(), (stay & left).sum())
        for low, high in _bands(self.setting.longest):
            at = (own.age >= low) & (own.age < high)
            name = "1 step" if high == 2 else f"{low} to {high - 1} steps"
            yield _Counted(
                Statistic("leaving", agent, f"after {name}"), (at & left).sum(), at.sum()
            )
        by_episode = np.add.reduceat(left, demos.episode_starts, dtype=np.int64)
        yield _Counted(Statistic("switches", agent, "mean"), by_episode.sum(), len(by_episode))
        if self.whole_episodes:
            yield _Counted(Statistic("switches", agent, "standard deviation"), by_episode.std(), 1)
            # Of stays that ended: their length is the age at which they were left.
            yield _Counted(Statistic("dwell", agent, "standard deviation"), _sd(own.age[left]), 1)


def _of_column(
    values: Float[np.ndarray, " steps"],
    before: Float[np.ndarray, " steps"],
    held: Int[np.ndarray, " steps"],
    latents: Sequence[str],
    centre: float,
    quantiles: bool,
) -> Iterator[tuple[str, tuple[Any, Any, Any]]]:
    """Statistics of a column: over all steps, from step to step, and by mental state.

    Standard deviations are counted around `centre`, so that little is lost by rounding.
    """
    known = np.isfinite(values)
    y = values[known]
    yield "mean", (y.sum(), len(y), np.nan)
    yield "standard deviation", _moments(y - centre)
    for level in (0.05, 0.95) if quantiles else ():
        found = np.quantile(y, level) if len(y) else np.nan
        yield f"{level:.0%} quantile", (found, 1, np.nan)
    changes = (values - before)[known & np.isfinite(before)]
    yield "change in a step, standard deviation", _moments(changes)
    for latent, name in enumerate(latents) if len(latents) > 1 else ():
        own = y[held[known] == latent]
        yield f"mean in {name}", (own.sum(), len(own), np.nan)
        yield f"standard deviation in {name}", _moments(own - centre)


def _moments(values: Float[np.ndarray, " values"]) -> tuple[Any, Any, Any]:
    """Of which a standard deviation is made."""
    return values.sum(), len(values), (values**2).sum()


def _steps_in(
    bound: BoundModel, agent: str, context: tuple[int, ...] | None
) -> Int[np.ndarray, " steps"]:
    """The steps at which an agent's action was seen, in a context of its policy or in any."""
    acted = bound.demos.actions[:, bound.demos.agents.index(agent)] >= 0
    if context is None:
        return np.flatnonzero(acted)
    rows = bound.table("policy", agent).contexts.rows
    number = match_rows(rows, np.array([context], rows.dtype))[0]
    return np.flatnonzero(acted & (bound.rows[agent].policy == number))


def _bands(longest: int) -> list[tuple[int, int]]:
    """Ages from, up to and without, within the longest episode."""
    edges = [age for age in _AGES if age < longest]
    return list(zip(edges, [*edges[1:], longest + 1], strict=True)) if edges else []


def _sd(values: Shaped[np.ndarray, " values"]) -> float:
    if len(values) < 2:
        return np.nan
    return float(values.std()) if np.ptp(values) > 0 else 0.0
