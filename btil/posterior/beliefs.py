"""`Posterior`: what can be asked of every posterior, of tables and of own NumPyro models."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from btil.arguments import check_flag, check_values
from btil.demonstrations import Demonstrations, read_as_seen
from btil.inference.memory import check_memory
from btil.inference.result import (
    DrawnChannel,
    DrawnParameters,
    DrawnRows,
    FitResult,
    MomentRows,
    check_all_kept,
)
from btil.messages.layout import (
    LaneIndex,
    Layout,
    gather,
    lay_out,
    log_rows,
    pad_rows,
)
from btil.messages.smoother import (
    Potentials,
    best_paths,
    filter_lanes,
    potentials,
    smooth,
)
from btil.models.emission import channel_sites
from btil.models.team import BoundModel, TeamModel, likelihood_name
from btil.numerics.precision import precision
from btil.posterior.conforming import conform, refuse_renumbered

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from btil.posterior.tracker import Tracker

Tables = Mapping[str, Float[np.ndarray, "..."]]
PerAgent = dict[str, Float[np.ndarray, "steps values"]]
# Demonstrations, or the path of a table of them.
Recordings = Demonstrations | str | os.PathLike[str]


class LogTables(NamedTuple):
    """Logs of the tables that an agent reads, and of what else was measured of it, if anything."""

    policy: Array
    transition: Array
    initial: Array
    measured: Array | None = None

    def potentials(self, index: LaneIndex) -> Potentials:
        """The log factors of every step."""
        return potentials(self.policy, self.transition, self.initial, index, self.measured)


@jax.jit
def _forward(tables: LogTables, index: LaneIndex) -> Any:
    """Normalisers, predicted and filtered log beliefs."""
    filtered = filter_lanes(tables.potentials(index))
    return filtered._replace(backward=None)


@jax.jit
def _normalizers(tables: LogTables, index: LaneIndex) -> Float[Array, "length lanes"]:
    return filter_lanes(tables.potentials(index)).log_normalizer


@jax.jit
def _marginals(tables: LogTables, index: LaneIndex) -> tuple[Array, Array]:
    filtered = filter_lanes(tables.potentials(index))
    return filtered.log_normalizer, smooth(filtered, index.start).marginal


@jax.jit
def _best(tables: LogTables, index: LaneIndex) -> tuple[Array, Array]:
    factors = tables.potentials(index)
    return filter_lanes(factors).log_normalizer, best_paths(factors)


def per_agent(
    function: Callable[..., Any], layout: Layout, tables: Tables, dtype: np.dtype
) -> dict[str, Any]:
    """Run a lane program for each agent on tables of probabilities {site: rows}.

    Beside them there may be the log likelihood of what else was measured (`likelihood_name`).
    """

    def padded(site: str, logs: Float[np.ndarray, "rows ..."]) -> Array:
        return jnp.asarray(pad_rows(logs, layout.num_rows[site], 0.0), dtype)

    logs = {site: padded(site, log_rows(tables[site])) for site in layout.num_rows}
    results = {}
    for agent, (policy, transition, initial) in layout.sites.items():
        measured = tables.get(likelihood_name(agent))
        evidence = None
        if measured is not None:
            # Steps in lanes, latents before them.
            inside = np.where(layout.lanes >= 0, np.asarray(measured).T[:, layout.lanes], 0.0)
            evidence = jnp.asarray(np.swapaxes(inside, 0, 1), dtype)
        given = LogTables(logs[policy], logs[transition], logs[initial], evidence)
        results[agent] = function(given, layout.index[agent])
    return results


def filter_agents(layout: Layout, tables: Tables, dtype: np.dtype) -> dict[str, Any]:
    """Forward beliefs of every agent (`Filtered` without its kernels)."""
    return per_agent(_forward, layout, tables, dtype)


def refuse_impossible(
    demos: Demonstrations, agent: str, log_normalizer: Any, layout: Layout
) -> None:
    """Raise if some step has probability zero given what went before.

    Raises:
        ValueError: Naming episode, agent, step and what was observed there.
    """
    by_step = gather(np.asarray(log_normalizer), layout.lanes)
    impossible = np.flatnonzero(~np.isfinite(by_step))
    if not len(impossible):
        return
    row = int(impossible[0])
    episode = int(np.searchsorted(demos.episode_starts, row, side="right") - 1)
    position = demos.agents.index(agent)
    label = int(demos.latents[row, position])
    latents = demos.value_names(f"latent_{agent}")
    action = int(demos.actions[row, position])
    told = []
    if action >= 0:
        told.append(f"action {demos.value_names(f'action_{agent}')[action]}")
    elif demos.num_actions[position]:
        told.append("an action that nobody saw")
    told += [f"label {latents[label]}"] if label >= 0 else []
    observed = " with ".join(told) or "what was seen"
    raise ValueError(
        f"impossible under the model: episode {demos.episode_ids[episode]}, agent {agent}, step "
        f"{row - int(demos.episode_starts[episode])}: {observed} has probability 0 given the "
        "episode before it"
    )


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is believed of a team after seeing demonstrations.

    Beliefs about latents use a point estimate of the rows, `estimate="mean"` unless asked
    otherwise; with `num_draws=k` they are averaged over k posterior draws instead. The two differ
    where rows are uncertain: the average over draws is the Bayesian answer, the point estimate
    is the faster and usually sharper one.

    Labels are for learning. `smooth`, `filter`, `decode` and `predict_actions` say what states and
    actions tell, and do not look at the labels in the demonstrations that they are given, so that
    an answer may be held against them. With `use_labels=True` the labels count as observed: to
    complete a recording of which a part is labelled. `log_likelihood` is of actions and labels.

    Attributes:
        bound: The model on the demonstrations it was fitted to.
        method: The inference method.
        result: What the method returned.
        seed: The seed.
        dtype: Floating-point type of the fit, also used for messages.
        wall_time: Seconds.
        options: The options given to the method.
    """

    bound: BoundModel
    method: str
    result: FitResult
    seed: int
    dtype: np.dtype
    wall_time: float
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> TeamModel:
        """The model."""
        return self.bound.model

    @property
    def demos(self) -> Demonstrations:
        """The demonstrations that were learned from.

        After a fit to a file batch by batch a few of its episodes: the first one, and those in
        which a latent is labelled for the first time.
        """
        return self.bound.demos

    @property
    def elbo(self) -> float | None:
        """mfvi: its bound; svi: a fresh estimate of its bound; exact: the log evidence."""
        return self.result.elbo

    @property
    def elbo_se(self) -> float | None:
        """Monte Carlo standard error of `elbo` where it is an estimate."""
        return self.result.elbo_standard_error

    @property
    def elbo_trace(self) -> Float[np.ndarray, " sweeps"] | None:
        """The bound of each sweep of the run that was kept."""
        return self.result.elbo_trace

    @property
    def contraction_rate(self) -> float | None:
        r"""mfvi: the largest eigenvalue :math:`\rho` of the derivative of a sweep at the end.

        Below 1 the fit ended at an optimum, to which further sweeps come closer by this factor
        each; from 1 on at a saddle. Near 1 the mean field's intervals are far too narrow: along
        the slowest direction the variance is about :math:`1 / (1 - \rho)` times theirs
        (`btil.inference.contraction`). None for other methods.
        """
        return self.result.contraction_rate

    @property
    def converged(self) -> bool:
        """Whether the method's own criterion was met."""
        return self.result.converged

    @property
    def reason(self) -> str:
        """Why the method stopped, as a sentence."""
        return self.result.reason

    # ------------------------------------------------------------------ beliefs about latents

    def smooth(
        self,
        demos: Recordings,
        use_labels: bool = False,
        estimate: str = "mean",
        num_draws: int | None = None,
        seed: int = 0,
    ) -> PerAgent:
        """P(x_t | states and actions of the whole episode) of each agent, (steps, latents).

        NaN where an agent is away. Over an action that nobody saw the answer is averaged.

        Args:
            demos: Episodes of the same team: demonstrations, or the path of a table, which is read
                by the names and sizes that were learned with (see `conformed`).
            use_labels: Whether the labels in `demos` are observed too: a labelled step is then
                certain, and tells of those around it.
            estimate: Point estimate of the rows.
            num_draws: Average over so many posterior draws instead.
            seed: Seeds the draws.

        Raises:
            ValueError: If the demonstrations do not fit, number what is returned in another way
                than the posterior does, or are impossible under the estimate.

        Example:
            >>> belief = posterior.smooth(demos)["ann"]  # doctest: +SKIP
            >>> completed = posterior.smooth(partly_labelled, use_labels=True)  # doctest: +SKIP
        """
        return self._beliefs(demos, use_labels, estimate, num_draws, seed, _smoothed_beliefs)

    def filter(
        self,
        demos: Recordings,
        use_labels: bool = False,
        estimate: str = "mean",
        num_draws: int | None = None,
        seed: int = 0,
    ) -> PerAgent:
        """P(x_t | the episode up to and including step t), (steps, latents); as `smooth`."""
        return self._beliefs(demos, use_labels, estimate, num_draws, seed, _filtered_beliefs)

    def predict_actions(
        self,
        demos: Recordings,
        use_labels: bool = False,
        estimate: str = "mean",
        num_draws: int | None = None,
        seed: int = 0,
    ) -> PerAgent:
        """P(a_t | states up to t, actions before t), (steps, actions); as `smooth`.

        With `use_labels=True` also given the labels before t. Agents without actions are left out.
        """
        return self._beliefs(demos, use_labels, estimate, num_draws, seed, _predicted_actions)

    def decode(
        self,
        demos: Recordings,
        use_labels: bool = False,
        estimate: str = "mean",
        num_draws: int | None = None,
        seed: int = 0,
    ) -> Int[np.ndarray, "steps agents"]:
        """The most probable latents of each episode (Viterbi; the paper, Appendix B).

        -1 where an agent is away.

        Arguments as in `smooth`; with `use_labels=True` the path goes through the labels. With
        `num_draws` the answer is, step by step, the latent of highest averaged smoothed
        probability (there is no one path over draws).
        """
        demos = self._conformed(demos, "latent")
        if num_draws is not None:
            smoothed = self.smooth(demos, use_labels, estimate, num_draws, seed)
            best = np.stack([smoothed[agent].argmax(-1) for agent in self.demos.agents], axis=1)
            return np.where(demos.present, best, -1)
        check_values({"seed": seed})
        bound = self._bind(demos, use_labels)
        layout = lay_out(bound, coarse=True)
        paths = []
        with precision(self.dtype) as dtype:
            results = per_agent(_best, layout, self._tables(bound, estimate), dtype)
            for agent, (log_normalizer, path) in results.items():
                refuse_impossible(bound.demos, agent, log_normalizer, layout)
                paths.append(gather(np.asarray(path), layout.lanes))
        return np.where(demos.present, np.stack(paths, axis=1), -1).astype(np.int64)

    def log_likelihood(
        self,
        demos: Recordings,
        estimate: str = "mean",
        num_draws: int | None = None,
        seed: int = 0,
    ) -> Float[np.ndarray, " episodes"]:
        """log p(actions, labels | states) of each episode, latents summed out, all agents.

        That of actions alone is `log_likelihood(demos.without_labels())`. With `num_draws` the log
        of the average over draws: the log predictive density of an episode. -inf where an episode
        is impossible.
        """
        check_values({"num_draws": num_draws, "seed": seed}, optional=["num_draws"])
        bound = self._bind(self._conformed(demos), use_labels=True)
        layout = lay_out(bound, coarse=True)
        if num_draws is None:
            return self.episode_log_likelihood(bound, layout, self._tables(bound, estimate))
        draws = [
            self.episode_log_likelihood(bound, layout, rows)
            for rows in self.drawn_rows(bound, num_draws, seed)
        ]
        return np.logaddexp.reduce(draws, axis=0) - np.log(num_draws)

    def episode_log_likelihood(
        self, bound: BoundModel, layout: Layout, tables: Tables
    ) -> Float[np.ndarray, " episodes"]:
        """log p(actions, labels | states) of each bound episode under given rows {site: rows}."""
        total = np.zeros(bound.demos.num_steps)
        with precision(self.dtype) as dtype:
            for log_normalizer in per_agent(_normalizers, layout, tables, dtype).values():
                total += gather(np.asarray(log_normalizer), layout.lanes)
        return np.add.reduceat(total, bound.demos.episode_starts)

    def _beliefs(
        self,
        demos: Recordings,
        use_labels: bool,
        estimate: str,
        num_draws: int | None,
        seed: int,
        program: Callable[..., PerAgent],
    ) -> PerAgent:
        check_values({"num_draws": num_draws, "seed": seed}, optional=["num_draws"])
        returned = "action" if program is _predicted_actions else "latent"
        bound = self._bind(self._conformed(demos, returned), use_labels)
        layout = lay_out(bound, coarse=True)
        with precision(self.dtype) as dtype:
            if num_draws is None:
                found = program(bound, layout, self._tables(bound, estimate), dtype)
                return _while_there(found, bound.demos)
            total: PerAgent = {}
            for rows in self.drawn_rows(bound, num_draws, seed):
                for agent, values in program(bound, layout, rows, dtype).items():
                    # In double precision: what is certain in every draw is certain.
                    total[agent] = total.get(agent, 0.0) + values.astype(np.float64)
            average = {agent: (sums / num_draws).astype(dtype) for agent, sums in total.items()}
        return _while_there(average, bound.demos)

    def _tables(self, bound: BoundModel, estimate: str) -> dict[str, Any]:
        """Point estimates of the rows of a bound model, {site: rows}."""
        raise NotImplementedError

    def drawn_rows(self, bound: BoundModel, num_draws: int, seed: int) -> Iterator[dict[str, Any]]:
        """Posterior draws of the rows of a bound model, {site: rows}, one draw at a time.

        Args:
            bound: The model on any episodes.
            num_draws: Number of draws.
            seed: Seeds them.
        """
        raise NotImplementedError

    def conformed(self, demos: Recordings) -> Demonstrations:
        """Demonstrations by the names and sizes of values that the posterior was learned with.

        Values with names are matched by their names, so that some of them may be missing in
        `demos`; what is returned numbers them as the posterior does. `smooth`, `decode` and the
        like do this by themselves, but what they return is then numbered so as well: compare it
        with the conformed demonstrations.

        Args:
            demos: Demonstrations, or the path of a table.

        Raises:
            ValueError: If agents or state variables are missing, a value has a name that was not
                seen, or numbers stand where there were names or the other way round.

        Example:
            >>> test = posterior.conformed("new.csv")  # doctest: +SKIP
            >>> btil.analysis.hamming_distance(test, posterior.decode(test))  # doctest: +SKIP
        """
        if isinstance(demos, str | os.PathLike):
            demos = read_as_seen(demos, self.demos)
        return demos if demos is self.demos else conform(demos, self.demos)

    def _conformed(self, demos: Recordings, returned: str = "") -> Demonstrations:
        """The same, refused where what will be returned would be numbered in another way."""
        conformed = self.conformed(demos)
        if returned and isinstance(demos, Demonstrations) and demos is not conformed:
            refuse_renumbered(demos, conformed, returned)
        return conformed

    def _bind(self, demos: Demonstrations, use_labels: Any) -> BoundModel:
        """The model on episodes, which have no labels unless these are asked for."""
        check_flag("use_labels", use_labels)
        own = demos is self.demos
        bound = self.bound if own else self.bound.on(conform(demos, self.demos))
        return bound if use_labels else bound.unlabelled

    def tracker(
        self, estimate: str = "mean", num_draws: int | None = None, seed: int = 0
    ) -> "Tracker":
        """Filtering as it happens: a `Tracker`, to be given each step of a live team.

        Args:
            estimate: Point estimate of the rows.
            num_draws: Average over so many posterior draws instead.
            seed: Seeds the draws.

        Example:
            >>> tracker = posterior.tracker()  # doctest: +SKIP
            >>> belief = tracker.update(state, actions)  # doctest: +SKIP
            >>> expected = tracker.predict(next_state)  # doctest: +SKIP
        """
        raise NotImplementedError

    # ------------------------------------------------------------------ draws

    def sample(self, num_draws: int, seed: int = 0) -> dict[str, Float[np.ndarray, "draws ..."]]:
        """Posterior draws of every learned site, {site: (draws, contexts, latents, values)}.

        Parameters of parametric families are among the sites, (draws, ...). Chains: draws are
        picked at random, without replacement while there are enough.

        Raises:
            ValueError: If `num_draws` or `seed` is no such number, or the draws of some rows only
                were kept (gibbs with `keep_rows`).
        """
        check_values({"num_draws": num_draws, "seed": seed})
        check_all_kept(self.result.rows, "draws from the posterior")
        check_memory(self.bound, {"num_draws": num_draws}, self.dtype)
        return self._sample(num_draws, seed)

    def _sample(self, num_draws: int, seed: int) -> dict[str, Float[np.ndarray, "draws ..."]]:
        raise NotImplementedError

    @cached_property
    def draws_info(self) -> "pd.DataFrame | None":
        """Per site (rows, parameters): R-hat, effective sample sizes, divergences.

        None where the method has no chains. Constant cells (fully labelled rows, K = 1, structural
        zeros) have no R-hat: they are left out and counted. R-hat and ESS are ArviZ's
        rank-normalised ones, of every cell; where the draws of some rows only were kept they are of
        those, and there is a column `max_split_rhat`: the largest plain split R-hat of the others,
        which is all that their moments tell. `rows_above` counts rows of both kinds. Where gibbs
        moved paths with the rows integrated out, `moves_windows`, `moves_runs`, `moves_swaps` and
        `moves_jumps` count what was moved, `moves_refused` the windows that were refused, of all
        chains.
        """
        stats = self.result.sample_stats
        if not stats:
            return None
        import pandas as pd

        from btil.inference.chains import summarize_chains

        drawn = {**self.result.rows, **self.result.parameters}
        records = {
            name: summarize_chains(one if isinstance(one, MomentRows) else np.atleast_3d(one.draws))
            for name, one in drawn.items()
            if isinstance(one, MomentRows)
            or (isinstance(one, DrawnRows | DrawnParameters) and one.draws.size)
        }
        for channel in self.bound.channels.values():
            if isinstance(own := self.result.channels[channel.name], DrawnChannel):
                for site, draws in zip(channel_sites(channel), own, strict=True):
                    records[site] = summarize_chains(draws)
        table = pd.DataFrame.from_dict(
            {name: record._asdict() for name, record in records.items()}, orient="index"
        )
        if not any(isinstance(one, MomentRows) for one in drawn.values()):
            table = table.drop(columns="max_split_rhat")
        table["divergences"] = int(np.sum(stats["diverging"])) if "diverging" in stats else None
        for name in ("windows", "refused", "runs", "swaps", "jumps"):
            if f"moves_{name}" in stats:
                table[f"moves_{name}"] = int(np.sum(stats[f"moves_{name}"]))
        return table.rename_axis("site")

    def to_datatree(self, num_draws: int = 500, seed: int = 0) -> "xr.DataTree":
        """The posterior for ArviZ: an xarray DataTree with named dimensions and coordinates.

        Groups: posterior, sample_stats (chains), log_likelihood (variable `episodes`: chain,
        draw, episode), observed_data, constant_data. Methods without chains give one chain of
        `num_draws` independent draws. Where the draws of some rows only were kept, `posterior` has
        those, and `moments` has mean (`policy_ann_mean`), standard deviation (`_sd`) of each chain
        and plain split R-hat (`_split_rhat`) of every row. After a fit to a file batch by batch
        there are no data, so the last three groups are left out.

        The attribute `draws`, of the tree and of the groups `posterior` and `log_likelihood`, says
        what the draws are of. Those of a mean field or a guide are not the posterior's, and a
        `warning` beside it says so: `arviz.loo` of such a tree is a number, but estimates nothing.

        Names of variables and axes have "_" for "/", which separates groups in a tree; of names
        that would then be alike, or like another thing's, the later ones get a number at the end
        (the attribute `site` has the name that the posterior knows).
        """
        from btil.posterior.datatree import build_datatree

        check_values({"num_draws": num_draws, "seed": seed})
        return build_datatree(self, num_draws, seed)

    def save(self, path: Any) -> None:
        """Write the posterior to a netCDF file, whole or not at all.

        Args:
            path: Where, ending in .nc; an existing file is replaced once the new one is complete.

        Raises:
            ValueError: If the path has another ending.
            OSError: If the file cannot be written.
        """
        from btil.posterior.storage import save_posterior

        save_posterior(self, path)


def _while_there(by_agent: PerAgent, demos: Demonstrations) -> PerAgent:
    """The same, NaN where an agent is away: it has no latent and no action there."""
    if not demos.away:
        return by_agent
    return {
        agent: np.where(demos.present[:, [demos.agents.index(agent)]], values, np.nan)
        for agent, values in by_agent.items()
    }


def _smoothed_beliefs(
    bound: BoundModel, layout: Layout, tables: Tables, dtype: np.dtype
) -> PerAgent:
    beliefs = {}
    for agent, (log_normalizer, marginal) in per_agent(_marginals, layout, tables, dtype).items():
        refuse_impossible(bound.demos, agent, log_normalizer, layout)
        beliefs[agent] = gather(np.asarray(marginal), layout.lanes)
    return beliefs


def _filtered_beliefs(
    bound: BoundModel, layout: Layout, tables: Tables, dtype: np.dtype
) -> PerAgent:
    beliefs = {}
    for agent, filtered in filter_agents(layout, tables, dtype).items():
        refuse_impossible(bound.demos, agent, filtered.log_normalizer, layout)
        beliefs[agent] = np.exp(gather(np.asarray(filtered.log_filtered), layout.lanes))
    return beliefs


def _predicted_actions(
    bound: BoundModel, layout: Layout, tables: Tables, dtype: np.dtype
) -> PerAgent:
    predictions = {}
    acting = dict(zip(bound.demos.agents, bound.demos.num_actions, strict=True))
    for agent, filtered in filter_agents(layout, tables, dtype).items():
        refuse_impossible(bound.demos, agent, filtered.log_normalizer, layout)
        if not acting[agent]:
            continue
        latent = np.exp(gather(np.asarray(filtered.log_predicted), layout.lanes))
        policy = tables[layout.sites[agent][0]].astype(latent.dtype)
        row = bound.rows[agent].policy
        there = row >= 0
        predictions[agent] = np.full((len(row), acting[agent]), np.nan, latent.dtype)
        predictions[agent][there] = np.einsum(
            "nk,nka->na", latent[there], policy[row[there]], optimize=True
        )
    return predictions


def refuse_excerpt(posterior: Posterior, what: str) -> None:
    """Raise where the data learned from are needed, but were too many for memory.

    Raises:
        ValueError: Naming what needs them.
    """
    if posterior.bound.excerpt:
        raise ValueError(
            f"{what} needs the demonstrations that were learned from, but this posterior was "
            f"learned from a file batch by batch and keeps only {posterior.demos.num_episodes} of "
            "its episodes"
        )
