"""`TeamPosterior`: what every inference method returns, and what can be asked of it."""

import dataclasses
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from btil.arguments import check_count, check_flag, check_values
from btil.demonstrations import Demonstrations
from btil.demonstrations.coding import whole_numbers
from btil.demonstrations.data import UNSEEN, is_table, table_columns
from btil.inference.collapsed import (
    collapsed_data,
    constrained,
    given_rows,
    parameters_at_points,
)
from btil.inference.memory import check_memory
from btil.inference.result import (
    Chance,
    ChannelPoint,
    ConditionalRows,
    DirichletRows,
    DrawnParameters,
    FunctionalRows,
    JointNormals,
    MatrixNormalChannel,
    NormalParameters,
    RowsPosterior,
    Sampled,
    at_noise,
    dirichlet_mode,
    matrix_normal_draws,
)
from btil.messages.layout import gather, lay_out
from btil.models.contexts import data_column, match_rows, parent_columns, unique_rows
from btil.models.cpt import ROLES, Contexts
from btil.models.draws import (
    DrawnTables,
    dirichlet_draws,
    posterior_tables,
    prior_parameters,
)
from btil.models.emission import (
    DrawnChannelRows,
    NormalEmission,
    channel_sites,
    matched,
    step_inputs,
    step_log_density,
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
from btil.models.team import BoundModel, likelihood_name, make_contexts
from btil.numerics.precision import precision
from btil.posterior.beliefs import (
    PerAgent,
    Posterior,
    Recordings,
    filter_agents,
    refuse_impossible,
)

if TYPE_CHECKING:
    import pandas as pd

    from btil.posterior.acting import Actor
    from btil.posterior.tracker import Tracker

# Rows that no data have reached are averaged over so many draws of the parameters, at most, where
# these are not normal.
_PARAMETER_DRAWS = 2048


class TeamPosterior(Posterior):
    """What is believed of a team's tables after seeing demonstrations; see `Posterior`.

    Rows of contexts never visited are their prior.
    """

    def __repr__(self) -> str:
        shapes = {n: t.shape for n, t in self.bound.learned.items()}
        shapes |= {one.name: one.shape for one in self.bound.channels.values()}
        rows = ", ".join(f"{n} {'x'.join(map(str, shape))}" for n, shape in shapes.items())
        state = "converged" if self.converged else "not converged"
        return f"TeamPosterior({self.method}: {rows or 'nothing learned'}; {state}: {self.reason})"

    def policy(self, agent: str, states: Any = None, estimate: str = "mean") -> Any:
        """P(action | state, latent), shape (k, latents, actions).

        Args:
            agent: Name of the agent.
            states: k states as in `Demonstrations`: indices or names of the one state variable (or
                joint indices of several), a mapping (or DataFrame) {variable: (k,)} with at least
                the policy's parents ("previous_<column>" among them, where it reads one), or
                (k, variables). None: every state of a single state variable.
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
            actions: (k, agents) or a mapping (or DataFrame) {agent: (k,)}, indices or names; needed
                where actions are parents.
            next_states: k states one step later; needed where they are parents.
            estimate: As in `policy`.
        """
        return self._rows("transition", agent, states, actions, next_states, estimate)

    def initial(self, agent: str, states: Any = None, estimate: str = "mean") -> Any:
        """P(latent at step 0 | state), shape (k, latents); arguments as in `policy`."""
        return self._rows("initial", agent, states, None, None, estimate)

    def visited_rows(
        self, role: str, agent: str, estimate: str = "mean"
    ) -> Float[np.ndarray, "contexts ..."]:
        """Rows of the visited contexts of a table, in the order of `contexts`.

        Args:
            role: "policy", "transition" or "initial".
            agent: Name of the agent.
            estimate: As in `policy`.
        """
        table = self.bound.table(role, agent)
        return self._estimate(table.name, table.contexts, estimate)

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
        if which not in ROLES:
            raise ValueError(f"which must be policy, transition or initial, got {which!r}")
        contexts = self.bound.table(which, agent).contexts
        columns = {}
        for i, name in enumerate(contexts.names):
            values = contexts.rows[:, i]
            column = data_column(name, self.demos.num_states)
            if self._declared_names(column) or (values < 0).any():
                named = [self.demos.value_text(column, int(value)) for value in values]
                columns[name] = np.array(named, object if not named else None)
            else:
                columns[name] = values
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
        position = self._position(agent)
        if role == "policy" and not self.demos.num_actions[position]:
            raise ValueError(f"{agent} has no actions, and so no policy")
        table = self.bound.table(role, agent)
        own = make_contexts(self.model, role, agent, self.demos).names
        given = {
            "state": _query_states(self.demos, states, "states"),
            "next": _query_states(self.demos, next_states, "next_states"),
            "action": _query_actions(self.demos, actions),
        }
        if states is None and next_states is None:
            given["state"] = _every_state(self.demos)
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

    def emission(self, agent: str, states: Any = None, estimate: str = "mean") -> ChannelPoint:
        """Coefficients and covariances of an agent's continuous columns, in their units.

        Args:
            agent: Name of the agent.
            states: k states, as in `policy`; not needed where the channel has no parents.
            estimate: "mean", or "map" (mfvi).

        Returns:
            Coefficients (k, latents, inputs, columns), whose first input is the intercept if there
            is one (in a `NormalEmission` they are the means), and covariances (k, latents,
            columns, columns).

        Raises:
            ValueError: If the agent is unknown or has no emission, a state is missing or out of
                range, or the method has no such estimate.
        """
        self._position(agent)
        if agent not in self.bound.channels:
            raise ValueError(
                f"{agent} has no emission; those who have are {', '.join(self.bound.channels)}"
                if self.bound.channels
                else "the model has no emissions"
            )
        channel = self.bound.channels[agent]
        given = _every_state(self.demos)
        if states is not None:
            given = _query_states(self.demos, states, "states")
        missing = [name for name in channel.names if name not in given]
        if missing:
            raise ValueError(
                f"emission of {agent} depends on {', '.join(channel.names)}; no value is given "
                f"for {', '.join(missing)}"
            )
        lengths = {len(given[name]) for name in channel.names} - {1} or {1}
        if len(lengths) > 1:
            raise ValueError(f"emission of {agent}: states differ in length")
        k = lengths.pop()
        spread = {name: np.broadcast_to(given[name], (k,)) for name in channel.names}
        return self._channel_point(
            agent, parent_columns(channel.names, spread, {}, {}, k), estimate
        )

    def predict_columns(
        self,
        demos: Recordings,
        use_labels: bool = False,
        estimate: str = "mean",
        num_draws: int | None = None,
        seed: int = 0,
    ) -> PerAgent:
        r"""E[columns of step t | covariates of t, all before t], (steps, columns), as `smooth`.

        .. math:: \sum_k P(x_t = k \mid \text{before } t)\, B_k^T u_t

        Args:
            demos: As in `smooth`.
            use_labels: Whether labels before t are observed too.
            estimate: Point estimate.
            num_draws: Average over so many posterior draws instead.
            seed: Seeds the draws.

        Returns:
            {agent: (steps, columns)} of the agents with an emission; NaN where a covariate is not
            known, or the agent is away.

        Raises:
            ValueError: As `smooth`.
        """
        check_values({"num_draws": num_draws, "seed": seed}, optional=["num_draws"])
        bound = self._bind(self._conformed(demos), use_labels)
        layout = lay_out(bound, coarse=True)
        inputs, contexts, coefficients = {}, {}, {}
        for agent, channel in bound.channels.items():
            inputs[agent], rows = step_inputs(channel, bound.demos)
            asked, contexts[agent] = unique_rows(rows)
            coefficients[agent] = (
                self._channel_point(agent, asked, estimate).coefficients[None]
                if num_draws is None
                else self.drawn_channel(agent, asked, num_draws, seed).coefficients
            )
        draws = (
            iter([self._tables(bound, estimate)])
            if num_draws is None
            else self.drawn_rows(bound, num_draws, seed)
        )
        found: PerAgent = {}
        with precision(self.dtype) as dtype:
            for draw, tables in enumerate(draws):
                for agent, filtered in filter_agents(layout, tables, dtype).items():
                    refuse_impossible(bound.demos, agent, filtered.log_normalizer, layout)
                    if agent not in inputs:
                        continue
                    latent = np.exp(gather(np.asarray(filtered.log_predicted), layout.lanes))
                    means = coefficients[agent][draw][contexts[agent]]
                    one = np.einsum("nk,np,nkpd->nd", latent, inputs[agent], means, optimize=True)
                    found[agent] = found.get(agent, 0.0) + one / (num_draws or 1)
        return found

    def channel_mean(self, agent: str, contexts: Int[np.ndarray, "k parents"]) -> ChannelPoint:
        """Posterior means of a channel in any contexts, those not visited as a priori.

        Args:
            agent: The agent.
            contexts: Values of the channel's parents.
        """
        return self._channel_point(agent, contexts, "mean")

    def _channel_point(
        self, agent: str, contexts: Int[np.ndarray, "k parents"], estimate: str
    ) -> ChannelPoint:
        """Point estimate of a channel in any contexts."""
        if estimate not in ("mean", "map"):
            raise ValueError(f"estimate must be 'mean' or 'map', got {estimate!r}")
        channel = self.bound.channels[agent]
        posterior = self.result.channels[channel.name]
        if estimate == "map" and not isinstance(posterior, MatrixNormalChannel):
            raise ValueError(f"estimate 'map' needs mfvi; {self.method} has estimate 'mean'")
        prior = MatrixNormalChannel(*(part[:1] for part in channel.prior()))
        of_prior, own = (
            one.mode()  # type: ignore[union-attr]  # looked at above
            if estimate == "map"
            else one.mean()
            for one in (prior, posterior)
        )
        found = matched(channel, contexts)
        return ChannelPoint(
            *(
                np.where((found >= 0)[:, None, None, None], values[found], unvisited)
                for values, unvisited in zip(own, of_prior, strict=True)
            )
        )

    def _tables(self, bound: BoundModel, estimate: str) -> dict[str, Any]:
        tables = {
            name: self._estimate(name, table.contexts, estimate)
            for name, table in bound.tables.items()
        }
        for agent, channel in bound.channels.items():
            point = self._channel_point(agent, channel.contexts, estimate)
            tables[likelihood_name(agent)] = step_log_density(channel, *point)
        return tables

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
            for agent, channel in self.bound.channels.items():
                sites = channel_sites(channel)
                visited = len(channel.visited)
                tables.channels[agent] = DrawnChannelRows(
                    channel,
                    generator,
                    channel.contexts[:visited],
                    draws[sites[0]][draw].reshape(channel.shape)[:visited].astype(np.float64),
                    draws[sites[1]][draw][:visited].astype(np.float64),
                )
            yield tables

    def drawn_rows(self, bound: BoundModel, num_draws: int, seed: int) -> Iterator[dict[str, Any]]:
        """Posterior draws of rows; see `Posterior.drawn_rows`."""
        # They go with the draws of the tables of the same seed.
        channels = {
            agent: self.drawn_channel(agent, channel.contexts, num_draws, seed)
            for agent, channel in bound.channels.items()
        }
        for draw, tables in enumerate(self.drawn_tables(num_draws, seed)):
            rows = {name: tables.rows(name, table.contexts) for name, table in bound.tables.items()}
            for agent, (coefficients, covariance) in channels.items():
                rows[likelihood_name(agent)] = step_log_density(
                    bound.channels[agent], coefficients[draw], covariance[draw]
                )
            yield rows

    def drawn_channel(
        self, agent: str, contexts: Int[np.ndarray, "k parents"], num_draws: int, seed: int
    ) -> ChannelPoint:
        """Draws of an agent's channel in any contexts, those not visited from the prior.

        Args:
            agent: The agent.
            contexts: Values of the channel's parents.
            num_draws: Number of draws.
            seed: Seeds them; they go with the draws of the tables of the same seed.

        Returns:
            Coefficients (draws, k, latents, inputs, columns) and covariances.
        """
        own = self.bound.channels[agent]
        draws = self.sample(num_draws, seed)
        index = matched(own, contexts)
        values = [draws[site] for site in channel_sites(own)]
        values[0] = values[0].reshape(num_draws, *own.shape)
        # Seeded by the contexts, in whatever company they are asked for; values of none are
        # negative, which no seed may be.
        one = [part[0] for part in own.prior()]
        unvisited = [
            matrix_normal_draws(
                np.random.default_rng([seed, 3, zlib.crc32(agent.encode()), *context]),
                *(np.broadcast_to(part, (num_draws, *part.shape)) for part in one),
            )
            for context, at in zip((contexts % 2**32).tolist(), index.tolist(), strict=True)
            if at < 0
        ]
        found = []
        for which, part in enumerate(values):
            rows = part[:, index].astype(np.float64)
            if unvisited:
                rows[:, index < 0] = np.stack([drawn[which] for drawn in unvisited], axis=1)
            found.append(rows)
        return ChannelPoint(*found)

    def tracker(
        self, estimate: str = "mean", num_draws: int | None = None, seed: int = 0
    ) -> "Tracker":
        """Filtering as it happens; see `Posterior.tracker`."""
        from btil.posterior.tracker import Tracker

        check_values({"num_draws": num_draws, "seed": seed}, optional=["num_draws"])
        return Tracker(self, estimate, num_draws, seed)

    def actors(
        self, estimate: str = "mean", num_draws: int | None = None, seed: int = 0
    ) -> "dict[str, Actor]":
        """The members as they act by what was learned, for `btil.domains.play`.

        Args:
            estimate: Point estimate of the rows, as in `policy`.
            num_draws: So many posterior draws of all tables instead; whoever asks says which.
            seed: Seeds the draws.

        Returns:
            {agent: its initial, policy and transition rows, in any state}.

        Raises:
            ValueError: If the method has no such estimate.
        """
        from btil.posterior.acting import actors_of

        check_values({"num_draws": num_draws, "seed": seed}, optional=["num_draws"])
        return actors_of(self, estimate, num_draws, seed)

    def sd(self, corrected: bool = False) -> dict[str, Float[np.ndarray, "..."]]:
        r"""Posterior standard deviation of every cell of the learned tables.

        Args:
            corrected: Of a mean field only: add what it leaves out, that rows and latents depend on
                each other, by its linear response (Giordano, Broderick, Jordan, 2018;
                `btil.inference.linear_response`). It takes the mean field's means to be right.

        Returns:
            {site: (contexts, latents, values)}, as `sample` has them without the draws.

        Raises:
            ValueError: With `corrected`, if the posterior is none of mfvi on tables without
                parameters, if its contraction rate is not known or above 0.9, or if more than 5,000
                cells are in use.

        Example:
            >>> posterior.sd(corrected=True)["policy_ann"].shape  # doctest: +SKIP
            (3, 2, 4)
        """
        check_flag("corrected", corrected)
        rows = self.result.rows
        if not corrected:
            return {site: one.sd() for site, one in rows.items()}
        from btil.inference.linear_response import LARGEST_RATE, corrected_sds

        plain = {site: one for site, one in rows.items() if isinstance(one, DirichletRows)}
        if self.method != "mfvi" or len(plain) < len(rows) or self.bound.channels:
            raise ValueError(
                "sd: corrected=True is of method mfvi on tables without parameters or emissions; "
                f"this posterior is of {self.method}. Where it is a mean field, "
                "posterior.refined() has honest deviations"
            )
        rate = self.result.contraction_rate
        if rate is None or not rate <= LARGEST_RATE:
            known = "not known" if rate is None else f"{rate:.3f}"
            raise ValueError(
                f"sd: corrected=True needs a contraction rate of at most {LARGEST_RATE}; here it "
                f"is {known}. Take the sd of posterior.refined()"
            )
        return corrected_sds(self.bound, plain)

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
        given = {"num_sweeps": num_sweeps, "seed": seed, "progress": progress}
        check_values(given, optional=["num_sweeps"])
        if not is_mean_field(self.result):
            raise ValueError(
                "refined: only a mean field can be refined (mfvi, svi with its Dirichlet guide); "
                f"this posterior is of {self.method}, "
                + ("and has draws or is exact" if self.bound.learns else "and no table is learned")
            )
        begun = time.perf_counter()
        check_memory(self.bound, {"num_draws": num_draws}, self.dtype)
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

    def _sample(self, num_draws: int, seed: int) -> dict[str, Float[np.ndarray, "draws ..."]]:
        rows = self.result.rows
        chance = Chance(np.random.default_rng([seed, 0]))
        samples = {
            name: one.draw(num_draws, chance)
            for name, one in (*rows.items(), *self.result.parameters.items())
            if isinstance(one, Sampled)
        }
        normals = at_noise(
            self.result.parameters, lambda size: chance.generator.standard_normal((num_draws, size))
        )
        if normals:
            samples |= constrained(self._parametric, normals)
        for channel in self.bound.channels.values():
            drawn = self.result.channels[channel.name].draw(num_draws, chance)
            of_coefficients, of_covariance = channel_sites(channel)
            values = drawn.coefficients
            if isinstance(channel.family, NormalEmission):
                values = values[..., 0, :]
            samples |= {of_coefficients: values, of_covariance: drawn.covariance}
        return samples | self._rows_given(samples, rows, chance.generator)

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


def _query_states(demos: Demonstrations, states: Any, argument: str) -> dict[str, Any]:
    """States of a question, as {variable: indices}; checked against their sizes."""
    if states is None:
        return {}
    sizes = dict(demos.num_states)
    texts: dict[str, tuple[str, ...]] = dict(demos.state_names)
    if is_table(states):
        earlier, earlier_texts = _earlier(demos)
        given = table_columns(argument, states)
        unknown = set(given) - set(sizes | earlier)
        if unknown:
            raise ValueError(
                f"{argument}: unknown state variable {', '.join(map(str, sorted(unknown)))}; there "
                f"are {', '.join(sizes)}"
            )
        sizes, texts = earlier | sizes, earlier_texts | texts
    else:
        array = np.atleast_1d(states)
        if array.ndim == 2 and array.shape[1] == len(sizes):
            given = dict(zip(sizes, array.T, strict=True))
        elif array.ndim == 1 and len(sizes) == 1:
            given = {next(iter(sizes)): array}
        elif array.ndim == 1 and sizes:
            total = int(np.prod(list(sizes.values()), dtype=object))
            joint = _indices(array, total, (), argument, "joint state")
            given = dict(zip(sizes, np.unravel_index(joint, tuple(sizes.values())), strict=True))
        elif not sizes:
            raise ValueError(f"{argument}: there are no state variables")
        else:
            raise ValueError(
                f"{argument}: shape {array.shape}; expected (k,), (k, {len(sizes)}) or a mapping "
                "{variable: (k,)}"
            )
    return {
        name: _indices(values, sizes[name], texts.get(name, ()), argument, name)
        for name, values in given.items()
    }


def _every_state(demos: Demonstrations) -> dict[str, Any]:
    """Every state of a single state variable: what is asked for where no state is named."""
    if len(demos.num_states) != 1:
        return {}
    return {name: np.arange(size) for name, size in demos.num_states.items()}


def _earlier(demos: Demonstrations) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """Sizes and texts of what a parent may read of the step before: "previous_" and a column."""
    actions = dict(zip(demos.agents, demos.num_actions, strict=True))
    sizes = dict(demos.num_states) | {f"action_{agent}": size for agent, size in actions.items()}
    texts = dict(demos.state_names)
    texts |= {f"action_{agent}": names for agent, names in demos.action_names.items()}
    return (
        {f"previous_{column}": size for column, size in sizes.items()},
        {f"previous_{column}": names for column, names in texts.items()},
    )


def _query_actions(demos: Demonstrations, actions: Any) -> dict[str, Any]:
    if actions is None:
        return {}
    sizes = dict(zip(demos.agents, demos.num_actions, strict=True))
    if is_table(actions):
        given = table_columns("actions", actions)
        unknown = set(given) - set(sizes)
        if unknown:
            raise ValueError(f"actions: unknown agent {', '.join(map(str, sorted(unknown)))}")
    else:
        array = np.asarray(actions)
        if array.ndim < 2:
            array = array.reshape(-1, 1) if len(sizes) == 1 else array.reshape(1, -1)
        if array.ndim != 2 or array.shape[1] != len(sizes):
            raise ValueError(
                f"actions: shape {np.shape(actions)}; expected (k, {len(sizes)}) or a mapping"
            )
        # In recordings those who have no actions have -1.
        given = {
            agent: column
            for (agent, size), column in zip(sizes.items(), array.T, strict=True)
            if size or (column != UNSEEN).any()
        }
    return {
        agent: _indices(values, sizes[agent], demos.action_names.get(agent, ()), "actions", agent)
        for agent, values in given.items()
    }


def _indices(
    values: Any, size: int, names: tuple[str, ...], argument: str, name: str
) -> Int[np.ndarray, " k"]:
    """Values of a question as indices: whole numbers as they are, names by their place."""
    array = np.atleast_1d(values)
    if array.dtype.kind in "UO" and array.ndim == 1:
        lookup = {text: index for index, text in enumerate(names)}
        array = np.array([lookup.get(value, value) for value in array.tolist()])
    numbers = array.ndim == 1 and array.dtype.kind in "biuf"
    indices, bad = whole_numbers(array) if numbers else (array, np.ones(1, bool))
    if bad.any():
        also = f", or names among {', '.join(names)}" if names else ""
        raise ValueError(f"{argument}: {name} must be integers (k,){also}; got {values!r}")
    wrong = (indices < 0) | (indices >= size)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"{argument}: {name} at position {at} is {indices[at]}; allowed are 0..{size - 1}"
        )
    return indices


def mfvi_guide(posterior: TeamPosterior) -> Callable[..., None]:
    """The fitted mean field as a NumPyro guide: for SVI, `Predictive` and `Trace_ELBO`.

    It samples every learned site from its Dirichlet rows, parameters of families from their
    normals, rows that are Dirichlet given parameters given those, and has no parameters of its own.
    Parameters that are normal together are functions of one auxiliary site of standard normal
    values, `<parameter>_noise`. Rows that are a function of parameters are no site of it.
    Continuous channels are sampled where the model samples them, in the units of a fit.

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
    for agent, channel in posterior.bound.channels.items():
        if not isinstance(result.channels[channel.name], MatrixNormalChannel):
            raise ValueError(
                f"emission of {agent}: {posterior.method} did not give a matrix-normal inverse-"
                "Wishart density; the guide needs mfvi"
            )
    priors = all_priors(described)
    inputs = {
        table.name: dict(table.cpt.inputs(posterior.bound.tables[table.name].contexts))
        for table in described
        if table.name in counts
    }

    def guide(*args: Any, **kwargs: Any) -> None:
        import numpyro
        from numpyro import distributions as dist

        from btil.numpyro_forms.team_dbn import sample_channel_posteriors

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
        sample_channel_posteriors(posterior.bound, result.channels)

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
