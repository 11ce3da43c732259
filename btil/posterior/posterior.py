"""`TeamPosterior`: what every inference method returns, and what can be asked of it."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from btil.arguments import check_count, check_flag, check_values
from btil.demonstrations import Demonstrations, read_as_seen
from btil.inference.collapsed import (
    collapsed_data,
    constrained,
    given_rows,
    parameters_at_points,
)
from btil.inference.result import (
    ConditionalRows,
    DirichletRows,
    DrawnParameters,
    DrawnRows,
    FitResult,
    FunctionalRows,
    JointNormals,
    MixtureRows,
    MomentRows,
    NormalParameters,
    RowsPosterior,
    at_noise,
    check_all_kept,
    dirichlet_mode,
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
from btil.models.contexts import match_rows, parent_columns
from btil.models.cpt import Contexts
from btil.models.draws import (
    DrawnTables,
    dirichlet_draws,
    posterior_tables,
    prior_parameters,
)
from btil.models.parametric import (
    ParametricSite,
    all_priors,
    expected_concentration,
    expected_rows,
    given_concentration,
    normal_of_unconstrained,
    parametric_site,
    parametric_sites,
)
from btil.models.team import BoundModel, TeamModel, likelihood_name
from btil.numerics.precision import precision

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from btil.posterior.tracker import Tracker

# Rows that no data have reached are averaged over so many draws of the parameters, at most, where
# these are not normal.
_PARAMETER_DRAWS = 2048

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
    return filtered._replace(backward_kernel=jnp.zeros(()))


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
        given = LogTables(
            logs[policy],
            logs[transition],
            logs[initial],
            None if measured is None else padded(policy, measured),
        )
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
    actions = demos.value_names(f"action_{agent}")
    observed = f"action {actions[demos.actions[row, position]]}"
    observed += f" with label {latents[label]}" if label >= 0 else ""
    raise ValueError(
        f"impossible under the model: episode {demos.episode_ids[episode]}, agent {agent}, step "
        f"{row - int(demos.episode_starts[episode])}: {observed} has probability 0 given the "
        "episode before it"
    )


@dataclass(frozen=True, eq=False)
class TeamPosterior:
    """What is believed of a team after seeing demonstrations.

    Beliefs about latents use a point estimate of the rows, `estimate="mean"` unless asked
    otherwise; with `num_draws=k` they are averaged over k posterior draws instead. The two differ
    where rows are uncertain: the average over draws is the Bayesian answer, the point estimate
    is the faster and usually sharper one. Rows of contexts never visited are their prior.

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

    def __repr__(self) -> str:
        rows = ", ".join(
            f"{n} {'x'.join(map(str, t.shape))}" for n, t in self.bound.learned.items()
        )
        state = "converged" if self.converged else "not converged"
        return f"TeamPosterior({self.method}: {rows or 'nothing learned'}; {state}: {self.reason})"

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

    # ------------------------------------------------------------------ rows

    def policy(self, agent: str, states: Any = None, estimate: str = "mean") -> Any:
        """P(action | state, latent), shape (k, latents, actions).

        Args:
            agent: Name of the agent.
            states: k states as in `Demonstrations`: indices of the one state variable (or joint
                indices of several), a mapping {variable: (k,)} with at least the policy's
                parents, or (k, variables). None: every state of a single state variable.
            estimate: "mean", or "map" (mfvi and the Dirichlet guide): the arg max of the
                Dirichlet, the mean where a row has none. Rows that are Dirichlet given parameters
                are taken at the centre of these; rows that are a function of parameters have no
                "map".

        Raises:
            ValueError: If the agent is unknown, a state is missing or out of range, or the
                method has no such estimate.
        """
        return self._rows("policy", agent, states, None, None, estimate)

    def transition(
        self,
        agent: str,
        states: Any = None,
        actions: Any = None,
        next_states: Any = None,
        estimate: str = "mean",
    ) -> Any:
        """P(next latent | latent, parents), shape (k, latents, next_latents).

        Args:
            agent: Name of the agent.
            states: k states, as in `policy`.
            actions: (k, agents) or a mapping {agent: (k,)}; needed where actions are parents.
            next_states: k states one step later; needed where they are parents.
            estimate: As in `policy`.
        """
        return self._rows("transition", agent, states, actions, next_states, estimate)

    def initial(self, agent: str, states: Any = None, estimate: str = "mean") -> Any:
        """P(latent at step 0 | state), shape (k, latents); arguments as in `policy`."""
        return self._rows("initial", agent, states, None, None, estimate)

    def contexts(self, agent: str, which: str) -> "pd.DataFrame":
        """The visited contexts of a table, in row order of its site, values by their names.

        Args:
            agent: Name of the agent.
            which: "policy", "transition" or "initial".

        Raises:
            ValueError: If the agent or the table is unknown.
        """
        import pandas as pd

        self._position(agent)
        if which not in ("policy", "transition", "initial"):
            raise ValueError(f"which must be policy, transition or initial, got {which!r}")
        contexts = self.bound.table(which, agent).contexts
        columns = {}
        for i, name in enumerate(contexts.names):
            values = contexts.rows[:, i]
            column = name.removeprefix("next_") if name not in self.demos.num_states else name
            named = self._declared_names(column)
            columns[name] = np.array(named)[values] if named else values
        return pd.DataFrame(columns, index=pd.RangeIndex(len(contexts.rows), name="context"))

    def _declared_names(self, column: str) -> tuple[str, ...] | None:
        names = dict(self.demos.state_names)
        names |= {f"action_{agent}": n for agent, n in self.demos.action_names.items()}
        return names.get(column)

    def _position(self, agent: str) -> int:
        if agent not in self.demos.agents:
            raise ValueError(
                f"unknown agent {agent!r}; the agents are {', '.join(self.demos.agents)}"
            )
        return self.demos.agents.index(agent)

    def _rows(
        self, role: str, agent: str, states: Any, actions: Any, next_states: Any, estimate: str
    ) -> Float[np.ndarray, "k ..."]:
        self._position(agent)
        table = self.bound.table(role, agent)
        own = table.contexts.names
        if len(table.agents) > 1:
            from btil.models.team import make_contexts

            own = make_contexts(self.model, role, agent, self.demos).names
        given = {
            "state": _query_states(self.demos, states, "states"),
            "next": _query_states(self.demos, next_states, "next_states"),
            "action": _query_actions(self.demos, actions),
        }
        if states is None and next_states is None and len(self.demos.num_states) == 1:
            given["state"] = {name: np.arange(size) for name, size in self.demos.num_states.items()}
        missing = [
            name
            for name in own
            if name not in given["state"]
            and name.removeprefix("next_") not in given["next"]
            and name.removeprefix("action_") not in given["action"]
        ]
        if missing:
            raise ValueError(
                f"{role} of {agent} depends on {', '.join(own)}; no value is given for "
                f"{', '.join(missing)}"
            )
        lengths = {len(v) for part in given.values() for v in part.values()} - {1} or {1}
        if len(lengths) > 1:
            raise ValueError(
                f"{role} of {agent}: states, actions and next_states differ in length: "
                f"{', '.join(map(str, sorted(lengths)))}"
            )
        k = lengths.pop()
        spread = {
            part: {name: np.broadcast_to(v, (k,)) for name, v in values.items()}
            for part, values in given.items()
        }
        rows = parent_columns(own, spread["state"], spread["action"], spread["next"], k)
        return self._estimate(table.name, table.contexts._replace(rows=rows), estimate)

    def _point(self, site: str, estimate: str) -> Float[np.ndarray, "..."]:
        posterior = self.result.rows[site]
        if estimate == "mean":
            return posterior.mean()
        if not isinstance(posterior, DirichletRows | ConditionalRows):
            has = f"{self.method} has estimate 'mean'"
            if isinstance(posterior, FunctionalRows):
                has = f"those of {site} are a function of parameters: use estimate 'mean'"
            raise ValueError(
                "estimate 'map' needs Dirichlet rows (mfvi, or svi with its Dirichlet guide); "
                + has
            )
        return posterior.mode()

    def _estimate(
        self, site: str, contexts: Contexts, estimate: str
    ) -> Float[np.ndarray, "contexts ..."]:
        """Point estimate of the rows of any contexts of a site."""
        if estimate not in ("mean", "map"):
            raise ValueError(f"estimate must be 'mean' or 'map', got {estimate!r}")
        rows = self._unvisited(site, contexts, estimate)
        table = self.bound.tables[site]
        if table.learned:
            found = match_rows(table.contexts.rows, contexts.rows)
            rows[found >= 0] = self._point(site, estimate)[found[found >= 0]]
        return rows

    def _unvisited(
        self, site: str, contexts: Contexts, estimate: str
    ) -> Float[np.ndarray, "contexts ..."]:
        """Point estimate of the rows of contexts that the data did not visit."""
        table = self.bound.tables[site]
        if not table.cpt.learned:
            return table.cpt.probabilities(contexts)
        if table.parametric:
            described = parametric_site(table)
            mean = expected_rows(described, self._parameter_draws, contexts)
            if estimate == "mean" or not described.cpt.dirichlet_rows:
                return mean
            return dirichlet_mode(
                expected_concentration(described, self._central_parameters, contexts), mean
            )
        prior = table.cpt.concentration(contexts)
        return dirichlet_mode(prior) if estimate == "map" else prior / prior.sum(-1, keepdims=True)

    @cached_property
    def _parameter_draws(self) -> dict[str, np.ndarray]:
        """All parameters at points, or draws of them; of tables no data reached, from the prior."""
        result = self.result
        draws = parameters_at_points(self.bound, result.parameters)
        for site, parameter in result.parameters.items():
            if isinstance(parameter, DrawnParameters):
                flat = parameter.draws.reshape(-1, *parameter.draws.shape[2:])
                number = min(len(flat), _PARAMETER_DRAWS)
                draws[site] = flat[np.linspace(0, len(flat) - 1, number).round().astype(int)]
        key = jax.random.key(0)
        for number, (site, prior) in enumerate(all_priors(self._parametric).items()):
            if site not in draws:
                drawn = prior.sample(jax.random.fold_in(key, number), (_PARAMETER_DRAWS,))
                draws[site] = np.asarray(drawn)
        return draws

    @cached_property
    def _central_parameters(self) -> dict[str, np.ndarray]:
        """All parameters at the middle of what is believed of them, as one draw."""
        middle = {
            site: one.location[None]
            for site, one in self.result.parameters.items()
            if not isinstance(one, DrawnParameters)
        }
        draws = self._parameter_draws
        return {site: np.median(values, 0)[None] for site, values in draws.items()} | constrained(
            self._parametric, middle
        )

    @property
    def _parametric(self) -> tuple[ParametricSite, ...]:
        """The parametric tables, whether or not data reached them."""
        return tuple(parametric_site(t) for t in self.bound.tables.values() if t.parametric)

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

        With `use_labels=True` also given the labels before t.
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

        Arguments as in `smooth`; with `use_labels=True` the path goes through the labels. With
        `num_draws` the answer is, step by step, the latent of highest averaged smoothed
        probability (there is no one path over draws).
        """
        demos = self._conformed(demos, "latent")
        if num_draws is not None:
            smoothed = self.smooth(demos, use_labels, estimate, num_draws, seed)
            return np.stack([smoothed[agent].argmax(-1) for agent in self.demos.agents], axis=1)
        check_values({"seed": seed})
        bound = self._bind(demos, use_labels)
        layout = lay_out(bound, coarse=True)
        paths = []
        with precision(self.dtype) as dtype:
            results = per_agent(_best, layout, self._tables(bound, estimate), dtype)
            for agent, (log_normalizer, path) in results.items():
                refuse_impossible(bound.demos, agent, log_normalizer, layout)
                paths.append(gather(np.asarray(path), layout.lanes))
        return np.stack(paths, axis=1).astype(np.int64)

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
            for rows in self._drawn_rows(bound, num_draws, seed)
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
                return program(bound, layout, self._tables(bound, estimate), dtype)
            average: PerAgent = {}
            for rows in self._drawn_rows(bound, num_draws, seed):
                for agent, values in program(bound, layout, rows, dtype).items():
                    share = values / num_draws
                    average[agent] = average[agent] + share if agent in average else share
        return average

    def _tables(self, bound: BoundModel, estimate: str) -> dict[str, Any]:
        return {
            name: self._estimate(name, table.contexts, estimate)
            for name, table in bound.tables.items()
        }

    def drawn_tables(self, num_draws: int, seed: int = 0) -> Iterator[DrawnTables]:
        """Posterior draws of all tables, rows of contexts never visited from the prior.

        Args:
            num_draws: Number of draws.
            seed: Seeds them.

        Yields:
            One draw at a time, of which any context's rows can be asked.
        """
        draws = self.sample(num_draws, seed)
        generator = np.random.default_rng([seed, 1])
        unreached = [n for n, t in self.bound.tables.items() if t.parametric and not t.learned]
        for draw in range(num_draws):
            tables = posterior_tables(self.bound.tables, draws, draw, generator)
            if unreached:
                prior = prior_parameters(self.bound.tables, generator)
                tables.parameters = prior | dict(tables.parameters)
            yield tables

    def _drawn_rows(self, bound: BoundModel, num_draws: int, seed: int) -> Iterator[dict[str, Any]]:
        """Posterior draws of the rows of a bound model, {site: rows}, one draw at a time."""
        for tables in self.drawn_tables(num_draws, seed):
            yield {name: tables.rows(name, table.contexts) for name, table in bound.tables.items()}

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
        from btil.posterior.tracker import Tracker

        check_values({"num_draws": num_draws, "seed": seed}, optional=["num_draws"])
        return Tracker(self, estimate, num_draws, seed)

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
        return self._sample(num_draws, seed, self.result.rows)

    def refined(
        self,
        num_draws: int = 200,
        num_sweeps: int | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> "TeamPosterior":
        """Draws with honest intervals from a mean field, at little cost.

        Every draw is a chain of its own that begins with latent paths from the mean field and is
        followed for a few sweeps of Gibbs sampling (`btil.inference.refinement`). What the mean
        field leaves out, that rows and latents depend on each other, comes back; the mode that it
        has found stays, and its name for each latent.

        Args:
            num_draws: Number of draws.
            num_sweeps: Sweeps of every chain; None: as many as the contraction rate asks for, and
                more while the draws still drift.
            seed: Seeds the draws.
            progress: Whether to show a progress line.

        Returns:
            A posterior of draws of the same model and data, method "refined". It says in
            `converged` and `reason` whether the draws have settled.

        Raises:
            ValueError: If the posterior is none of a mean field (mfvi, svi with its Dirichlet
                guide), or an argument makes no sense.

        Example:
            >>> honest = posterior.refined()  # doctest: +SKIP
        """
        from btil.inference.refinement import is_mean_field, refine

        check_count("num_draws", num_draws, 2)
        check_values({"num_sweeps": num_sweeps, "seed": seed}, optional=["num_sweeps"])
        check_flag("progress", progress)
        if not is_mean_field(self.result):
            raise ValueError(
                "refined: only a mean field of tables can be refined (mfvi, svi with its Dirichlet "
                f"guide); this posterior is of {self.method}, "
                + ("and has draws or is exact" if self.result.rows else "and no table is learned")
            )
        begun = time.perf_counter()
        with precision(self.dtype) as dtype:
            result = refine(
                self.bound,
                self.result,
                seed=seed,
                progress=progress,
                dtype=dtype,
                num_draws=num_draws,
                num_sweeps=num_sweeps,
            )
        return dataclasses.replace(
            self,
            method="refined",
            result=result,
            seed=seed,
            wall_time=self.wall_time + time.perf_counter() - begun,
            options={"num_draws": num_draws, "num_sweeps": num_sweeps},
        )

    def _sample(
        self, num_draws: int, seed: int, rows: Mapping[str, RowsPosterior]
    ) -> dict[str, Float[np.ndarray, "draws ..."]]:
        """Draws of some tables' rows and of all parameters."""
        generator = np.random.default_rng([seed, 0])
        components: dict[str, np.ndarray] = {}
        picked: dict[int, np.ndarray] = {}
        samples = {}
        for name, posterior in rows.items():
            if isinstance(posterior, DirichletRows):
                samples[name] = posterior.sample(num_draws, generator)
            elif isinstance(posterior, MixtureRows):
                if posterior.group not in components:
                    components[posterior.group] = posterior.draw_components(num_draws, generator)
                chosen = posterior.concentration[components[posterior.group]]
                samples[name] = dirichlet_draws(generator, chosen)
            elif isinstance(posterior, DrawnRows):
                flat = posterior.draws.reshape(-1, *posterior.draws.shape[2:])
                samples[name] = flat[_picked(picked, len(flat), num_draws, generator)]
        for name, parameter in self.result.parameters.items():
            if isinstance(parameter, DrawnParameters):
                flat = parameter.draws.reshape(-1, *parameter.draws.shape[2:])
                samples[name] = flat[_picked(picked, len(flat), num_draws, generator)]
        normals = at_noise(
            self.result.parameters, lambda size: generator.standard_normal((num_draws, size))
        )
        if normals:
            samples |= constrained(self._parametric, normals)
        return samples | self._rows_given(samples, rows, generator)

    def _is_function_of_normals(self, table: ParametricSite) -> bool:
        parameters = self.result.parameters
        return not table.cpt.dirichlet_rows and not any(
            isinstance(parameters[site], DrawnParameters) for _, site in table.parameters
        )

    def _rows_given(
        self,
        samples: Mapping[str, Float[np.ndarray, "draws ..."]],
        rows: Mapping[str, RowsPosterior],
        generator: np.random.Generator,
    ) -> dict[str, Float[np.ndarray, "draws ..."]]:
        """Draws of the rows that go with given draws of the parameters."""
        tables = tuple(
            table
            for table in parametric_sites(self.bound)
            if isinstance(rows.get(table.name), ConditionalRows | FunctionalRows)
            # Files of btil's first days have other draws of them.
            or (table.name in rows and self._is_function_of_normals(table))
        )
        if not tables:
            return {}
        sites = [site for table in tables for _, site in table.parameters]
        with precision(np.float64) as dtype:
            _, data = collapsed_data(self.bound, dtype)
            given = {site: jnp.asarray(samples[site], dtype) for site in sites}
            found = {n: np.asarray(v) for n, v in given_rows(tables, data, given).items()}
        for name, u in found.items():
            if isinstance(posterior := rows[name], ConditionalRows):
                found[name] = dirichlet_draws(generator, u + posterior.counts)
        return found

    @cached_property
    def draws_info(self) -> "pd.DataFrame | None":
        """Per site (rows, parameters): R-hat, effective sample sizes, divergences.

        None where the method has no chains. Constant cells (fully labelled rows, K = 1, structural
        zeros) have no R-hat: they are left out and counted. R-hat and ESS are ArviZ's
        rank-normalised ones, of every cell; where the draws of some rows only were kept they are of
        those, and there is a column `max_split_rhat`: the largest plain split R-hat of the others,
        which is all that their moments tell. `rows_above` counts rows of both kinds.
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
        table = pd.DataFrame.from_dict(
            {name: record._asdict() for name, record in records.items()}, orient="index"
        )
        if not any(isinstance(one, MomentRows) for one in drawn.values()):
            table = table.drop(columns="max_split_rhat")
        table["divergences"] = int(np.sum(stats["diverging"])) if "diverging" in stats else None
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
            path: Where; an existing file is replaced once the new one is complete.
        """
        from btil.posterior.storage import save_posterior

        save_posterior(self, path)


def refuse_excerpt(posterior: TeamPosterior, what: str) -> None:
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


def _picked(
    picked: dict[int, np.ndarray], size: int, num_draws: int, generator: np.random.Generator
) -> Int[np.ndarray, " draws"]:
    """Which of `size` draws to take: the same ones at all sites that have so many."""
    if size not in picked:
        picked[size] = generator.choice(size, num_draws, replace=num_draws > size)
    return picked[size]


def conform(demos: Demonstrations, training: Demonstrations) -> Demonstrations:
    """Other episodes of the same team, with the names and sizes the posterior was learned with.

    Values that have names are matched by them; numbers stay as they are. A state may be one that
    was never seen if states are numbers. Latents that had no names may be given some, in order.

    Raises:
        ValueError: If agents or state variables differ, a value has a name that was not learned
            from, numbers stand where names were learned from or the other way round, or an action
            or label is out of the learned range.
    """
    if not isinstance(demos, Demonstrations):
        raise ValueError(
            f"expected Demonstrations, got {type(demos).__name__}; a file that was opened by "
            "open_demonstrations gives them part by part: `for part in file`"
        )
    _check_agents(demos, training)
    missing = set(training.num_states) - set(demos.num_states)
    if missing:
        raise ValueError(f"the demonstrations lack state variables {', '.join(sorted(missing))}")
    sizes = {
        name: max(size, 0 if name in training.state_names else demos.num_states[name])
        for name, size in training.num_states.items()
    }
    # Orders count too: "state" as a parent means the variables as they were first listed.
    if (
        list(demos.num_states.items()) != list(sizes.items())
        or demos.num_actions != training.num_actions
        or demos.state_names != training.state_names
        or demos.action_names != training.action_names
    ):
        ours, states = training.state_names, demos.state_variables
        acted = dict(zip(demos.agents, demos.actions.T, strict=True))
        demos = demos.replace(
            states={v: _by_names("state", v, states[v], demos, ours.get(v)) for v in sizes},
            actions={
                agent: _by_names("action", agent, actions, demos, training.action_names.get(agent))
                for agent, actions in acted.items()
            },
            num_states=sizes,
            num_actions=training.num_actions,
            state_names=ours,
            action_names=training.action_names,
        )
    return conform_latents(demos, training)


def conform_latents(demos: Demonstrations, training: Demonstrations) -> Demonstrations:
    """Demonstrations with the latents that a posterior knows, labels matched by their names.

    Raises:
        ValueError: As `conform`, of agents and labels.
    """
    _check_agents(demos, training)
    sizes = dict(zip(training.agents, training.num_latents, strict=True))
    given = {a: names for a, names in demos.latent_names.items() if len(names) == sizes[a]}
    names = given | training.latent_names
    unlabelled = (demos.latents < 0).all()
    if demos.num_latents == training.num_latents and (
        demos.latent_names == names or (unlabelled and not demos.latent_names)
    ):
        return demos
    return demos.replace(
        latents={
            agent: _by_names("latent", agent, labels, demos, names.get(agent))
            for agent, labels in zip(demos.agents, demos.latents.T, strict=True)
        },
        num_latents=training.num_latents,
        latent_names=names,
    )


def _check_agents(demos: Demonstrations, training: Demonstrations) -> None:
    if demos.agents != training.agents:
        raise ValueError(
            f"the demonstrations' agents are {', '.join(demos.agents)}, the posterior's are "
            f"{', '.join(training.agents)}"
        )


def _by_names(
    kind: str,
    key: str,
    indices: Int[np.ndarray, " steps"],
    demos: Demonstrations,
    ours: tuple[str, ...] | None,
) -> Int[np.ndarray, " steps"]:
    """The indices of a column as they are numbered by the names that were learned from.

    Raises:
        ValueError: If a value has no name there, or names stand where there are none.
    """
    argument = f"{kind}_names"
    theirs = getattr(demos, argument).get(key)
    present = np.unique(indices[indices >= 0])
    if theirs == ours or not len(present):
        return indices
    if theirs is None:
        assert ours is not None
        raise ValueError(
            f"{argument} of {key}: the values here are numbers, but those that were learned from "
            f"have names, and which number stands for which name is not said: {', '.join(ours)}. "
            "Write the names; if the numbers count these names in this order from 0, say so by "
            f"demos.replace({argument}=posterior.demos.{argument})"
        )
    if ours is None:
        raise ValueError(
            f"{argument} of {key}: the values here have names ({', '.join(theirs)}), but those "
            "that were learned from are numbers, and which name stands for which is not said"
        )
    unseen = [theirs[k] for k in present if theirs[k] not in ours]
    if unseen:
        raise ValueError(
            f"{argument} of {key} differ: {', '.join(unseen)} here, {', '.join(ours)} where the "
            "posterior was learned; read further files with like=demos, demos being those learned "
            "from, and learn from data that have all values"
        )
    numbers = np.array([ours.index(name) if name in ours else -1 for name in theirs] + [-1])
    return numbers[indices]


def refuse_renumbered(demos: Demonstrations, conformed: Demonstrations, returned: str) -> None:
    """Raise where an answer would number actions or latents in another way than `demos` do.

    Compared with the demonstrations, such an answer would look plain wrong, or, worse, right.

    Raises:
        ValueError: Naming the agent, and how to have both in one numbering.
    """
    argument = f"{returned}_names"
    for agent, theirs in getattr(demos, argument).items():
        ours = getattr(conformed, argument).get(agent, theirs)
        if theirs != ours[: len(theirs)]:
            raise ValueError(
                f"{argument} of {agent} differ: {', '.join(theirs)} here, {', '.join(ours)} where "
                f"the posterior was learned, so that the {returned}s returned would be numbered "
                "in another way than in these demonstrations; read the file with like=demos, "
                "demos being those learned from, give its path instead of demonstrations, or use "
                "posterior.conformed(demos) from here on"
            )


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
    for agent, filtered in filter_agents(layout, tables, dtype).items():
        refuse_impossible(bound.demos, agent, filtered.log_normalizer, layout)
        latent = np.exp(gather(np.asarray(filtered.log_predicted), layout.lanes))
        policy = tables[layout.sites[agent][0]].astype(latent.dtype)
        predictions[agent] = np.einsum(
            "nk,nka->na", latent, policy[bound.rows[agent].policy], optimize=True
        )
    return predictions


def _query_states(demos: Demonstrations, states: Any, argument: str) -> dict[str, Any]:
    """States of a question, as {variable: indices}; checked against their sizes."""
    if states is None:
        return {}
    sizes = dict(demos.num_states)
    if isinstance(states, Mapping):
        unknown = set(states) - set(sizes)
        if unknown:
            raise ValueError(
                f"{argument}: unknown state variable {', '.join(map(str, sorted(unknown)))}; there "
                f"are {', '.join(sizes)}"
            )
        given = {name: np.atleast_1d(values) for name, values in states.items()}
    else:
        array = np.atleast_1d(states)
        if array.ndim == 2 and array.shape[1] == len(sizes):
            given = dict(zip(sizes, array.T, strict=True))
        elif array.ndim == 1 and len(sizes) == 1:
            given = {next(iter(sizes)): array}
        elif array.ndim == 1:
            total = int(np.prod(list(sizes.values()), dtype=object))
            _check_range(array, total, argument, "joint state")
            given = dict(zip(sizes, np.unravel_index(array, tuple(sizes.values())), strict=True))
        else:
            raise ValueError(
                f"{argument}: shape {array.shape}; expected (k,), (k, {len(sizes)}) or a mapping "
                "{variable: (k,)}"
            )
    checked = {}
    for name, values in given.items():
        names = demos.state_names.get(name)
        if values.dtype.kind in "UO" and names:
            lookup = {text: i for i, text in enumerate(names)}
            values = np.array([lookup.get(v, v) for v in values.tolist()])
        _check_range(values, sizes[name], argument, name)
        checked[name] = values.astype(np.int64)
    return checked


def _query_actions(demos: Demonstrations, actions: Any) -> dict[str, Any]:
    if actions is None:
        return {}
    sizes = dict(zip(demos.agents, demos.num_actions, strict=True))
    if isinstance(actions, Mapping):
        unknown = set(actions) - set(sizes)
        if unknown:
            raise ValueError(f"actions: unknown agent {', '.join(map(str, sorted(unknown)))}")
        given = {agent: np.atleast_1d(values) for agent, values in actions.items()}
    else:
        array = np.asarray(actions)
        if array.ndim < 2:
            array = array.reshape(-1, 1) if len(sizes) == 1 else array.reshape(1, -1)
        if array.ndim != 2 or array.shape[1] != len(sizes):
            raise ValueError(
                f"actions: shape {np.shape(actions)}; expected (k, {len(sizes)}) or a mapping"
            )
        given = dict(zip(sizes, array.T, strict=True))
    for agent, values in given.items():
        _check_range(values, sizes[agent], "actions", agent)
    return {agent: values.astype(np.int64) for agent, values in given.items()}


def _check_range(values: np.ndarray, size: int, argument: str, name: str) -> None:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(f"{argument}: {name} must be integers (k,), got {values!r}")
    wrong = (values < 0) | (values >= size)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"{argument}: {name} at position {at} is {values[at]}; allowed are 0..{size - 1}"
        )


def mfvi_guide(posterior: TeamPosterior) -> Callable[..., None]:
    """The fitted mean field as a NumPyro guide: for SVI, `Predictive` and `Trace_ELBO`.

    It samples every learned site from its Dirichlet rows, parameters of families from their
    normals, rows that are Dirichlet given parameters given those, and has no parameters of its own.
    Parameters that are normal together are functions of one auxiliary site of standard normal
    values, `<parameter>_noise`. Rows that are a function of parameters are no site of it.

    Raises:
        ValueError: If the posterior does not consist of Dirichlet rows and normal parameters.

    Example:
        >>> numpyro.infer.Predictive(btil.mfvi_guide(posterior), num_samples=10)  # doctest: +SKIP
    """
    result = posterior.result
    described = parametric_sites(posterior.bound)
    concentrations, counts = {}, {}
    for name, rows in result.rows.items():
        if isinstance(rows, DirichletRows):
            concentrations[name] = rows.concentration
        elif isinstance(rows, ConditionalRows):
            counts[name] = rows.counts
        elif posterior.bound.tables[name].cpt.dirichlet_rows:
            raise ValueError(
                f"{name}: {posterior.method} did not give Dirichlet rows; the guide needs mfvi, "
                "or svi with its Dirichlet guide"
            )
    normals: dict[str, NormalParameters | JointNormals] = {}
    for name, parameter in result.parameters.items():
        if isinstance(parameter, DrawnParameters):
            raise ValueError(
                f"{name}: {posterior.method} did not give a normal; the guide needs mfvi, or svi "
                "with its Dirichlet guide"
            )
        normals[name] = parameter
    priors = all_priors(described)
    inputs = {
        table.name: dict(table.cpt.inputs(posterior.bound.tables[table.name].contexts))
        for table in described
        if table.name in counts
    }

    def guide(*args: Any, **kwargs: Any) -> None:
        import numpyro
        from numpyro import distributions as dist

        parameters = _sample_normals(normals, priors)
        for table in described:
            if table.name in counts:
                given = jax.tree.map(jnp.asarray, inputs[table.name])
                u = given_concentration(table, parameters, given)
                rows = dist.Dirichlet(u + jnp.asarray(counts[table.name]))
                numpyro.sample(table.name, rows.to_event(len(table.shape) - 1))
        for name, concentration in concentrations.items():
            rows = dist.Dirichlet(jnp.asarray(concentration))
            numpyro.sample(name, rows.to_event(concentration.ndim - 1))

    return guide


def _sample_normals(
    normals: Mapping[str, NormalParameters | JointNormals], priors: Mapping[str, Any]
) -> dict[str, Array]:
    """NumPyro sites of normal parameters, and their values."""
    import numpyro
    from numpyro import distributions as dist
    from numpyro.distributions.transforms import biject_to

    parameters: dict[str, Array] = {}
    noise: dict[str, Array] = {}
    for name, one in normals.items():
        location = jnp.asarray(one.location)
        if isinstance(one, NormalParameters):
            own = normal_of_unconstrained(priors[name], location, jnp.asarray(one.scale))
            parameters[name] = numpyro.sample(name, own)
            continue
        stretched = 0.0
        if one.group not in noise:
            # The density of a group is that of its noise over how much the factors stretch space.
            factors = [
                other.factor.reshape(-1, other.factor.shape[-1])
                for other in normals.values()
                if isinstance(other, JointNormals) and other.group == one.group
            ]
            stretched = float(np.linalg.slogdet(np.concatenate(factors).astype(np.float64))[1])
            standard = dist.Normal(jnp.zeros(one.factor.shape[-1], location.dtype), 1.0)
            noise[one.group] = numpyro.sample(
                f"{one.group}_noise", standard.to_event(1), infer={"is_auxiliary": True}
            )
        unconstrained = location + jnp.asarray(one.factor) @ noise[one.group]
        transform = biject_to(priors[name].support)
        value = transform(unconstrained)
        jacobian = jnp.sum(transform.log_abs_det_jacobian(unconstrained, value))
        point = dist.Delta(value, log_density=-jacobian - stretched, event_dim=value.ndim)
        parameters[name] = numpyro.sample(name, point)
    return parameters
