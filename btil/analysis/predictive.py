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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from btil.analysis.alignment import agents_pinned
from btil.analysis.latent_draws import draw_latents, drawn_rows
from btil.analysis.monte_carlo import blocks_of_draws, jackknife_error
from btil.arguments import check_count, check_seed
from btil.demonstrations import Demonstrations
from btil.messages.layout import lay_out
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
    demos: Demonstrations | None = None,
    num_draws: int = 400,
    seed: int = 0,
    replicate: str = "steps",
    num_contexts: int = 3,
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
            others are drawn given them. Of actions alone: `demos.without_labels()`.
        num_draws: Posterior draws, each with one replicate; of chains no more than they have.
        seed: Seeds everything.
        replicate: "steps", one step ahead, or "episodes", whole episodes on the recorded states:
            see the module. Use "episodes" where states do not depend on actions.
        num_contexts: For so many contexts of each policy action frequencies are told.

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
    import jax

    if demos is None:
        refuse_excerpt(posterior, "a predictive check without demos=...")
    demos = posterior.demos if demos is None else conform(demos, posterior.demos)
    bound = posterior.bound.on(demos)
    if not (demos.latents[demos.present] >= 0).all():
        posterior.filter(demos, use_labels=True)  # refuses what is impossible
    layout = lay_out(bound, coarse=True)
    counter = _Counter(bound, num_contexts, replicate == "episodes")
    generator = np.random.default_rng([seed, 4])
    recorded = {agent: _columns(demos, channel) for agent, channel in bound.channels.items()}
    observed, replicated = [], []
    blocks = blocks_of_draws(posterior, num_draws, seed)
    drawn = itertools.chain.from_iterable(
        drawn_rows(block.posterior, bound, block.num_draws, block.seed) for block in blocks
    )
    for draw, (tables, rows) in enumerate(drawn):
        key = jax.random.fold_in(jax.random.key(seed), draw)
        seen = _as_play(bound, draw_latents(posterior, bound, layout, rows, key), demos.actions)
        if replicate == "episodes":
            made = simulate(posterior.model, demos, tables, generator)
            again = _as_play(bound, made.latents, made.actions)
            columns = {agent: _columns(made, one) for agent, one in bound.channels.items()}
            measured = Measured(columns, columns, again.latents)
        else:
            again = _one_step_ahead(bound, rows, seen, generator)
            columns = _drawn_columns(bound, tables, seen.latents, generator)
            measured = Measured(columns, recorded, seen.latents)
        observed.append(counter.count(seen, Measured(recorded, recorded, seen.latents)))
        replicated.append(counter.count(again, measured))
    return PredictiveCheck(
        statistics=tuple(counter.statistics),
        observed=np.array(observed),
        replicated=np.array(replicated),
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
    for position, (agent, channel) in _placed(bound):
        coefficients, covariance = tables.channels[agent].rows(channel.contexts)
        steps = channel.observed.rows
        at = channel.row[steps], latents[steps, position]
        means = np.einsum("np,npd->nd", channel.observed.inputs[steps], coefficients[at])
        noise = generator.standard_normal(means.shape)
        own = np.full(channel.observed.values.shape, np.nan)
        own[steps] = means + np.einsum("nij,nj->ni", np.linalg.cholesky(covariance)[at], noise)
        found[agent] = np.where(channel.seen, own, np.nan)
    return found


def _placed(bound: BoundModel) -> list[tuple[int, tuple[str, Channel]]]:
    agents = bound.demos.agents
    return [(agents.index(agent), (agent, one)) for agent, one in bound.channels.items()]


def _one_step_ahead(
    bound: BoundModel, rows: dict[str, Any], seen: Play, generator: np.random.Generator
) -> Play:
    """Every action and every latent drawn anew, given what was before it."""
    latents, actions = np.full_like(seen.latents, -1), np.full_like(seen.actions, -1)
    for i, agent in enumerate(bound.demos.agents):
        policy, transition, initial = (
            rows[bound.table(role, agent).name] for role in ("policy", "transition", "initial")
        )
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


class _Counter:
    """Counts the statistics of plays of one set of recordings."""

    def __init__(self, bound: BoundModel, num_contexts: int, whole_episodes: bool) -> None:
        self.bound = bound
        self.whole_episodes = whole_episodes
        self.contexts = {
            agent: _frequent(bound, agent, num_contexts) for agent in bound.demos.agents
        }
        demos = bound.demos
        names = {demos.value_names(f"latent_{agent}") for agent in demos.agents}
        pinned = all(agents_pinned(bound).values())
        self.comparable = demos.num_agents > 1 and len(names) == 1 and pinned
        self.statistics: list[Statistic] = []
        # Names do not depend on what is counted.
        columns = {agent: _columns(demos, one) for agent, one in bound.channels.items()}
        play = _as_play(bound, np.maximum(demos.latents, 0), demos.actions)
        self._count(play, Measured(columns, columns, play.latents), self.statistics)

    def count(self, play: Play, measured: Measured) -> Float[np.ndarray, " statistics"]:
        """All statistics, in order."""
        return self._count(play, measured, [])

    def _count(
        self, play: Play, measured: Measured, names: list[Statistic]
    ) -> Float[np.ndarray, " statistics"]:
        demos = self.bound.demos
        values: list[float] = []

        def add(group: str, agent: str, name: str, value: float, given: str = "") -> None:
            names.append(Statistic(group, agent, name, given))
            values.append(value)

        for i, agent in enumerate(demos.agents):
            own = Play(*(part[:, i] for part in play))
            acts = demos.num_actions[i] > 0
            actions = demos.value_names(f"action_{agent}") if acts else ()
            latents = demos.value_names(f"latent_{agent}")
            for words, steps in self.contexts[agent]:
                share = np.bincount(own.actions[steps], minlength=len(actions)) / len(steps)
                for action, value in zip(actions, share, strict=True):
                    add("actions", agent, action, value, words)
            if agent in measured.columns:
                channel = self.bound.channels[agent]
                first = ~demos.present[:, i]
                first[demos.stays[i]] = True
                before = np.roll(measured.before[agent], 1, axis=0)
                before[first] = np.nan
                for name, y, earlier in zip(
                    channel.family.columns_of(agent),
                    measured.columns[agent].T,
                    before.T,
                    strict=True,
                ):
                    held = measured.held[:, i]
                    for words, value in _of_column(y, earlier, held, latents):
                        add("columns", agent, words, value, name)
            if len(latents) == 1:
                continue
            there = own.latents[own.latents >= 0]
            share = np.bincount(there, minlength=len(latents)) / len(there)
            for latent, value in zip(latents, share, strict=True):
                add("mental states", agent, latent, value)
            left = (own.before >= 0) & (own.latents != own.before)
            for k, latent in enumerate(latents):
                stay = own.before == k
                # Steps per departure; the last stay of an episode is cut short.
                add("dwell", agent, f"steps in {latent}", _per(stay.sum(), (stay & left).sum()))
            for low, high in _bands(int(demos.episode_lengths.max())):
                at = (own.age >= low) & (own.age < high)
                name = "1 step" if high == 2 else f"{low} to {high - 1} steps"
                add("leaving", agent, f"after {name}", _per((at & left).sum(), at.sum()))
            by_episode = np.add.reduceat(left, demos.episode_starts, dtype=np.int64)
            add("switches", agent, "mean", float(by_episode.mean()))
            if self.whole_episodes:
                add("switches", agent, "standard deviation", float(by_episode.std()))
                # Of stays that ended: their length is the age at which they were left.
                add("dwell", agent, "standard deviation", _sd(own.age[left]))
        if self.comparable:
            same = (play.latents == play.latents[:, :1]).all(1)
            everybody = (play.latents >= 0).all(1)
            agreed = _per((same & everybody).sum(), everybody.sum())
            add("alignment", "team", "all have the same in mind", agreed)
        return np.array(values)


def _of_column(
    values: Float[np.ndarray, " steps"],
    before: Float[np.ndarray, " steps"],
    held: Int[np.ndarray, " steps"],
    latents: Sequence[str],
) -> Iterator[tuple[str, float]]:
    """Statistics of a column: over all steps, from step to step, and by mental state."""
    known = np.isfinite(values)
    y = values[known]
    yield "mean", float(y.mean()) if len(y) else np.nan
    yield "standard deviation", _sd(y)
    for level in (0.05, 0.95):
        yield f"{level:.0%} quantile", float(np.quantile(y, level)) if len(y) else np.nan
    yield (
        "change in a step, standard deviation",
        _sd((values - before)[known & np.isfinite(before)]),
    )
    for latent, name in enumerate(latents) if len(latents) > 1 else ():
        own = y[held[known] == latent]
        yield f"mean in {name}", float(own.mean()) if len(own) else np.nan
        yield f"standard deviation in {name}", _sd(own)


def _frequent(
    bound: BoundModel, agent: str, number: int
) -> list[tuple[str, Int[np.ndarray, " steps"]]]:
    """All steps, and those in the most frequent contexts of an agent's policy, with words."""
    demos = bound.demos
    position = demos.agents.index(agent)
    acted = demos.actions[:, position] >= 0
    found = [("", np.flatnonzero(acted))] if acted.any() else []
    reads = np.where(acted, bound.rows[agent].policy, -1)
    contexts = bound.table("policy", agent).contexts
    counts = np.bincount(reads[acted], minlength=len(contexts.rows))
    if len(contexts.rows) < 2:
        return found
    names = make_contexts(bound.model, "policy", agent, demos).names
    for context in np.argsort(-counts, kind="stable")[: min(number, int((counts > 0).sum()))]:
        values = zip(names, contexts.rows[context], strict=True)
        words = (
            f"{name.removeprefix(f'{agent}_')}={demos.value_text(name, int(value))}"
            for name, value in values
        )
        found.append((", ".join(words), np.flatnonzero(reads == context)))
    return found


def _bands(longest: int) -> list[tuple[int, int]]:
    """Ages from, up to and without, within the longest episode."""
    edges = [age for age in _AGES if age < longest]
    return list(zip(edges, [*edges[1:], longest + 1], strict=True)) if edges else []


def _per(number: Any, of: Any) -> float:
    return float(number) / float(of) if of else np.nan


def _sd(values: Shaped[np.ndarray, " values"]) -> float:
    if len(values) < 2:
        return np.nan
    return float(values.std()) if np.ptp(values) > 0 else 0.0
