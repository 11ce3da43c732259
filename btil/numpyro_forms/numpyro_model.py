"""A team model of the modeler's own: a NumPyro function that says each step's rows.

Tables cannot say everything: that haste grows with time, that agents have a skill in common, that a
covariate matters smoothly. A `NumpyroModel` is any NumPyro model whose observed sites are the
agents' latent chains (`LatentChain`); what its parameters are is its own business.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from btil.demonstrations import Demonstrations
from btil.demonstrations.data import refuse_gaps
from btil.messages.lanes import one_episode_per_lane, spread
from btil.models.cpt import CPT, ROLES, Contexts, improper_rows
from btil.models.team import (
    AgentRows,
    BoundModel,
    Table,
    TeamModel,
    likelihood_name,
    make_contexts,
    site_name,
)
from btil.numerics.promotion import promotion_allowed
from btil.numpyro_forms.tracing import Trace, reading_anew, trace, traced_anew

# NumPyro takes a quarter of a second to load. Whoever asks whether a model is a `NumpyroModel` does
# without it; what runs one imports it.
if TYPE_CHECKING:
    from btil.numpyro_forms.latent_chain import LatentChain

_AXES = {
    "log_initial": "(episodes, latents)",
    "log_transition": "(episodes, steps - 1, latents, latents)",
    "log_policy": "(episodes, steps, latents, actions)",
    "log_likelihood": "(episodes, steps, latents)",
}


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class EpisodeData:
    """Demonstrations as the function of a `NumpyroModel` is given them, episodes first.

    After an episode's end there is padding, up to the longest episode; what a model says of
    padding counts nothing. The arrays may be traced by JAX; sizes are plain numbers.

    Attributes:
        states: {state variable: (episodes, steps)}.
        actions: {agent: (episodes, steps)}.
        labels: {agent: (episodes, steps)}, -1 where the latent is unknown.
        lengths: Steps of each episode, (episodes,).
        num_states: {state variable: number of values}.
        num_actions: {agent: number of actions}.
        num_latents: {agent: number of latents}.
    """

    states: dict[str, Any]
    actions: dict[str, Any]
    labels: dict[str, Any]
    lengths: Any
    num_states: dict[str, int]
    num_actions: dict[str, int]
    num_latents: dict[str, int]

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents."""
        return tuple(self.num_actions)

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return self.lengths.shape[0]

    @property
    def num_steps(self) -> int:
        """Steps of the longest episode; in other data it is another one, so no measure of time."""
        return next(iter(self.actions.values())).shape[1]

    def observe(
        self,
        agent: str,
        log_initial: Any,
        log_transition: Any,
        log_policy: Any,
        log_likelihood: Any = None,
    ) -> None:
        r"""Observe an agent's actions and labels, its latents summed out (`LatentChain`).

        .. math:: \sum_{x_{0:h}} b(x_0) \prod_t \pi_t(a_t \mid x_t)\, \ell_t(x_t)
                  \prod_t T_t(x_{t+1} \mid x_t)

        Arrays of fewer axes are the same for all steps, or all episodes: the leading axes are
        broadcast.

        The likelihood :math:`\ell_t` is of whatever else a latent explains at a step: the normal
        density of a heart rate, say. Nothing asks that it be normalised. Parameters are learned
        from it, and it is in the log likelihood of an episode; smoothing, filtering, decoding and
        the tracker look at it. `predict_actions` asks what is done at a step before that step is
        seen: it looks at the likelihoods of earlier steps, as it does at earlier actions, and not
        at that of the step itself.

        Args:
            agent: Name of the agent; each is observed once.
            log_initial: log b, (episodes, latents).
            log_transition: log T_t of moving from step t to t + 1, (episodes, steps - 1, latents,
                next latents).
            log_policy: log pi_t, (episodes, steps, latents, actions).
            log_likelihood: log l_t, (episodes, steps, latents); 0 where nothing was measured, -inf
                where a latent is excluded; None: nothing but actions and labels.

        Raises:
            ValueError: If there is no such agent, or an array has another shape.

        Example:
            >>> data.observe("ann", log_initial, log_transition, log_policy)  # doctest: +SKIP
            >>> beats = jnp.array([60.0, 90.0])  # of calm and of hurried people
            >>> log_density = dist.Normal(beats, 5.0).log_prob(
            ...     data.states["heart_rate"][..., None]
            ... )  # doctest: +SKIP
            >>> data.observe(
            ...     "ann", log_initial, log_transition, log_policy, log_density
            ... )  # doctest: +SKIP
        """
        if agent not in self.num_actions:
            raise ValueError(f"observe: no agent {agent!r}; there are {', '.join(self.agents)}")
        episodes, steps = self.num_episodes, self.num_steps
        latents, actions = self.num_latents[agent], self.num_actions[agent]
        given = {
            "log_initial": (log_initial, (episodes, latents)),
            "log_transition": (log_transition, (episodes, steps - 1, latents, latents)),
            "log_policy": (log_policy, (episodes, steps, latents, actions)),
        }
        if log_likelihood is not None:
            given["log_likelihood"] = (log_likelihood, (episodes, steps, latents))
        rows = {}
        for name, (values, expected) in given.items():
            try:
                rows[name] = jnp.broadcast_to(values, expected)
            except ValueError:
                raise ValueError(
                    f"observe: {name} of {agent} has shape {jnp.shape(values)}, which does not "
                    f"broadcast to {expected}, {_AXES[name]}"
                ) from None
        import numpyro

        from btil.numpyro_forms.latent_chain import LatentChain

        measured = rows.get("log_likelihood")
        chain = LatentChain(
            rows["log_initial"],
            rows["log_transition"],
            rows["log_policy"],
            self.labels[agent],
            self.lengths,
            None if measured is None else measured.astype(rows["log_policy"].dtype),
        )
        numpyro.sample(f"action_{agent}", chain, obs=self.actions[agent])

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Arrays, and what is the same for all data of equal shapes."""
        sizes = (self.num_states, self.num_actions, self.num_latents)
        arrays = (self.states, self.actions, self.labels, self.lengths)
        return arrays, tuple(tuple(one.items()) for one in sizes)

    @classmethod
    def tree_unflatten(cls, sizes: tuple[Any, ...], arrays: tuple[Any, ...]) -> "EpisodeData":
        """The inverse."""
        return cls(*arrays, *map(dict, sizes))


@dataclass(frozen=True, eq=False)
class StepwiseCPT(CPT):
    """Stands for the rows of a `NumpyroModel`: its function says them for each step."""

    def probabilities(self, contexts: Contexts) -> Float[np.ndarray, "..."]:
        """Refused: there is no table that could be asked for the row of a context.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"{contexts.role} of {contexts.owner}: a NumpyroModel has no table of rows by context, "
            "its function gives rows step by step; ask the posterior to smooth, filter, decode or "
            "predict episodes, or for draws of its parameters (sample)"
        )

    def exchangeable_latents(self, contexts: Contexts, first: int, second: int) -> bool:
        """False: what a function does with its latents is not known."""
        return False

    def arguments(self) -> dict[str, Any] | None:
        """None: a file cannot hold a function."""
        return None


class NumpyroModel(TeamModel):
    """A NumPyro model of a team, of the modeler's own.

    The function samples whatever parameters it likes and observes each agent once
    (`EpisodeData.observe`). `btil.fit` infers them (nuts, svi); the posterior smooths, filters,
    decodes and predicts like any other, and goes into `btil.compare` and its report.

    A parameter should have a shape that does not depend on the episodes, or the posterior cannot
    speak of other ones: what episodes have in common (a team, a level) is best a state variable,
    whose number of values is declared.

    Args:
        function: Takes `EpisodeData`. Whatever it looks at in the arrays must be computed with JAX.
        axes: {parameter: names of its axes} for labelled output; "latent_<agent>",
            "action_<agent>" and state variables get the names of their values.

    Raises:
        ValueError: If `function` cannot be called, or an axis is no text.

    Example:
        >>> def patience(data):
        ...     '''The longer an episode, the likelier an agent changes its mind.'''
        ...     rate = numpyro.sample("rate", dist.HalfNormal(0.1))
        ...     skill = numpyro.sample("skill", dist.Beta(2, 2))
        ...     change = -jnp.expm1(-rate * jnp.arange(1, data.num_steps))[:, None, None]
        ...     move = (1 - change) * jnp.eye(2) + change / 2
        ...     act = skill * jnp.eye(2) + (1 - skill) / 2
        ...     for agent in data.agents:
        ...         data.observe(agent, jnp.log(jnp.full(2, 0.5)), jnp.log(move), jnp.log(act))
        >>> posterior = btil.fit(NumpyroModel(patience), demos, "nuts")  # doctest: +SKIP
    """

    function: Callable[[EpisodeData], Any]
    axes: Mapping[str, tuple[str, ...]]

    def __init__(self, function: Any, axes: Any = None) -> None:
        if not callable(function):
            raise ValueError(
                f"NumpyroModel: function must be callable with the data, got {function!r}"
            )
        for site, names in (axes or {}).items():
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise ValueError(
                    f"NumpyroModel: axes of {site} must be a tuple of names, got {names!r}"
                )
        super().__init__(StepwiseCPT(), StepwiseCPT(), StepwiseCPT())
        object.__setattr__(self, "function", function)
        named = {site: tuple(names) for site, names in (axes or {}).items()}
        object.__setattr__(self, "axes", named)

    def __repr__(self) -> str:
        return f"NumpyroModel({self.name})"

    @property
    def name(self) -> str:
        """What the function is called."""
        return getattr(self._written, "__name__", type(self._written).__name__)

    @property
    def description(self) -> str | None:
        """The function's docstring."""
        return inspect.getdoc(self._written)

    @property
    def _written(self) -> Any:
        """The function as it was written, inside NumPyro's handlers and partials."""
        # Not from a module within: ArviZ leaves a NumPyro that is loaded by its own attributes.
        from numpyro import primitives

        function: Any = self.function
        while isinstance(function, primitives.Messenger | partial):
            function = function.func if isinstance(function, partial) else function.fn
        return function


class Replay(NamedTuple):
    """What a function does when its parameters are given.

    Attributes:
        chains: The agents' chains.
        observed: The actions that each was observed with.
        deterministic: Values of the deterministic sites.
    """

    chains: "dict[str, LatentChain]"
    observed: dict[str, Int[Array, "episodes steps"]]
    deterministic: dict[str, Any]


class PaddedRows(NamedTuple):
    """One agent's probabilities, episodes first.

    Attributes:
        policy: (episodes, steps, latents, actions).
        transition: From each step to the next, (episodes, steps - 1, latents, next latents).
        initial: (episodes, latents).
        log_likelihood: Log, not probability, of what else was measured, (episodes, steps, latents);
            None where nothing is.
    """

    policy: Any
    transition: Any
    initial: Any
    log_likelihood: Any = None


@dataclass(frozen=True, eq=False)
class BoundNumpyroModel(BoundModel):
    """An own model on a set of demonstrations. Its tables have a row for every step.

    Attributes:
        data: The demonstrations as the function sees them.
        parameters: Shape of every parameter, by its site.
    """

    data: EpisodeData
    parameters: dict[str, tuple[int, ...]]

    @property
    def own_model(self) -> NumpyroModel:
        """The model."""
        assert isinstance(self.model, NumpyroModel)
        return self.model

    @property
    def learns(self) -> bool:
        """Whether there is anything to learn."""
        return bool(self.parameters)

    @cached_property
    def tied(self) -> str:
        """Why the function can speak of these episodes alone; empty where it can of others.

        Its parameters must have the same shapes with one more episode and step.
        """
        longer = jax.tree.map(lambda x: jnp.pad(x, [(0, 1)] * x.ndim), self.data)
        try:
            other, _ = _sites(self.own_model, longer)
        except Exception as error:
            return f"with one more episode and step it fails: {error}"
        return "; ".join(
            f"{site} has shape {shape}, with one more episode and step it has {other.get(site)}"
            for site, shape in self.parameters.items()
            if other.get(site) != shape
        )

    def on(self, demos: Demonstrations) -> "BoundNumpyroModel":
        """The model on other demonstrations, for parameters that were learned from these.

        The function is run each time: it may read what has changed.

        Raises:
            ValueError: If the parameters do not fit those: naming site and shapes.
        """
        name = self.own_model.name
        if demos.without_labels() != self.demos.without_labels():
            self.refuse_tied()
        bound = bind_numpyro_model(self.own_model, demos)
        for site, shape in self.parameters.items():
            if bound.parameters.get(site) != shape:
                raise ValueError(
                    f"{name}: {site} was learned with shape {shape}, but on these demonstrations "
                    f"it has shape {bound.parameters.get(site)}"
                )
        return bound

    @cached_property
    def unlabelled(self) -> "BoundNumpyroModel":
        """The same, with no latent known; the function does not see labels either."""
        hidden = self.demos.without_labels()
        return replace(self, demos=hidden, data=episode_data(hidden))

    def refuse_tied(self) -> None:
        """Refuse other episodes where the function can speak of these alone.

        Raises:
            ValueError: Saying why.
        """
        if self.tied:
            raise ValueError(
                f"{self.own_model.name} describes only the episodes it was fitted to: "
                f"{self.tied}. What other episodes are to share must have a shape of its own, e.g. "
                "a value for each value of a state variable"
            )

    def step_rows(self, padded: Mapping[str, PaddedRows]) -> dict[str, Float[np.ndarray, "..."]]:
        """Rows of all tables, {site: rows}, from rows with padding.

        With what else was measured of an agent, as `likelihood_name` calls it, a row a step.
        """
        real = np.arange(self.data.num_steps) < np.asarray(self.data.lengths)[:, None]
        tables = {}
        for agent, rows in padded.items():
            tables[f"policy_{agent}"] = np.asarray(rows.policy)[real]
            tables[f"transition_{agent}"] = np.asarray(rows.transition)[real[:, 1:]]
            tables[f"initial_{agent}"] = np.asarray(rows.initial)
            if rows.log_likelihood is not None:
                tables[likelihood_name(agent)] = np.asarray(rows.log_likelihood)[real]
        return tables


def episode_data(demos: Demonstrations) -> EpisodeData:
    """Demonstrations padded to their longest episode."""
    lanes = one_episode_per_lane(demos.episode_lengths)

    def padded(values: Int[np.ndarray, " steps"], fill: int = 0) -> Int[Array, "_ _"]:
        return jnp.asarray(spread(values, lanes, fill).T, jnp.int32)

    return EpisodeData(
        states={name: padded(values) for name, values in demos.state_variables.items()},
        actions={a: padded(demos.actions[:, i]) for i, a in enumerate(demos.agents)},
        labels={a: padded(demos.latents[:, i], -1) for i, a in enumerate(demos.agents)},
        lengths=jnp.asarray(demos.episode_lengths, jnp.int32),
        num_states=dict(demos.num_states),
        num_actions=dict(zip(demos.agents, demos.num_actions, strict=True)),
        num_latents=dict(zip(demos.agents, demos.num_latents, strict=True)),
    )


def bind_numpyro_model(model: NumpyroModel, demos: Demonstrations) -> BoundNumpyroModel:
    """An own model on demonstrations. The function is traced, nothing is computed.

    Raises:
        ValueError: If an agent is not observed exactly once, by a `LatentChain` of its sizes, or a
            parameter is discrete or has no prior.
    """
    refuse_gaps(
        demos,
        f"{model.name}",
        "a function of one's own is given every step as it was; fit a TeamModel, which sums over "
        "what nobody saw, or drop these episodes",
    )
    data = episode_data(demos)
    num_moves = demos.num_steps - demos.num_episodes
    num_rows = {"policy": demos.num_steps, "transition": num_moves, "initial": demos.num_episodes}
    tables = {}
    for role in ROLES:
        for agent in demos.agents:
            every = np.zeros((num_rows[role], 0), np.int64)
            contexts = make_contexts(model, role, agent, demos, every)
            name = site_name(model, role, agent)
            tables[name] = Table(name, StepwiseCPT(), (agent,), contexts)
    arrived = np.full(demos.num_steps, -1)
    arrived[_arrivals(demos)] = np.arange(num_moves)
    parameters, measured = _sites(model, data)
    rows = AgentRows(np.arange(demos.num_steps), arrived, np.arange(demos.num_episodes))
    return BoundNumpyroModel(
        model=model,
        demos=demos,
        tables=tables,
        rows=dict.fromkeys(demos.agents, rows),
        data=data,
        parameters=parameters,
        measured=measured,
    )


def _arrivals(demos: Demonstrations) -> Int[np.ndarray, " moves"]:
    """The steps at which a latent came about by a transition."""
    return np.delete(np.arange(demos.num_steps), demos.episode_starts)


@promotion_allowed()
def _sites(
    model: NumpyroModel, data: EpisodeData
) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Shapes of the parameters that a function samples when it sees data; who is measured."""
    from numpyro import handlers

    shapes: dict[str, tuple[int, ...]] = {}
    measured: list[str] = []

    def run(data: EpisodeData) -> None:
        seeded = handlers.seed(model.function, jax.random.key(0))
        try:
            trace = handlers.trace(seeded).get_trace(data)
        except AssertionError as error:  # so NumPyro refuses a name that is used twice
            raise ValueError(f"{model.name}: {error}") from error
        shapes.update(_checked_sites(model, data, trace))
        chains = ((agent, trace[f"action_{agent}"]["fn"]) for agent in data.agents)
        measured.extend(agent for agent, chain in chains if chain.log_likelihood is not None)

    with reading_anew(model.function):
        jax.eval_shape(run, data)
    return shapes, tuple(measured)


def _checked_sites(
    model: NumpyroModel, data: EpisodeData, trace: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    from btil.numpyro_forms.latent_chain import LatentChain

    name = model.name
    for agent in data.agents:
        site = trace.get(f"action_{agent}")
        if site is None:
            raise ValueError(
                f"{name}: {agent} is not observed; call data.observe({agent!r}, ...), once for "
                f"each of {', '.join(data.agents)}"
            )
        chain = site.get("fn")
        if not isinstance(chain, LatentChain) or not site["is_observed"]:
            raise ValueError(
                f"{name}: action_{agent} must be observed by a LatentChain, without mask or "
                f"further batch axes, got {type(chain).__name__}; data.observe does so"
            )
        sizes = (data.num_latents[agent], data.num_actions[agent])
        expected = (data.num_episodes, data.num_steps, *sizes)
        if chain.log_policy.shape != expected:
            raise ValueError(
                f"{name}: log_policy of {agent} has shape {chain.log_policy.shape}, expected "
                f"{expected}, {_AXES['log_policy']}"
            )
    for site, names in model.axes.items():
        if site not in trace or len(names) != jnp.ndim(trace[site]["value"]):
            shape = f"shape {jnp.shape(trace[site]['value'])}" if site in trace else "no such site"
            raise ValueError(f"{name}: axes of {site} are {', '.join(names)}, but there is {shape}")
    shapes = {}
    for site in trace.values():
        if site["type"] == "param":
            raise ValueError(f"{name}: {site['name']} has no prior; use numpyro.sample")
        if site["type"] == "sample" and not site["is_observed"]:
            if site["fn"].support.is_discrete:
                raise ValueError(
                    f"{name}: {site['name']} is discrete, which neither nuts nor svi can infer; "
                    "sum it out"
                )
            shapes[site["name"]] = tuple(jnp.shape(site["value"]))
    return shapes


@promotion_allowed()
def replay(
    function: Callable[[EpisodeData], Any],
    data: EpisodeData,
    parameters: Mapping[str, Any] | None = None,
) -> Replay:
    """Run a function with given parameters; None: at some point of their space.

    That point is none drawn from the prior: compiling a gamma sampler takes seconds.
    """
    from numpyro import handlers
    from numpyro.infer import init_to_uniform

    seeded = handlers.seed(function, jax.random.key(0))
    if parameters is None:
        given = handlers.substitute(seeded, substitute_fn=init_to_uniform(radius=1))
    else:
        given = handlers.substitute(seeded, data=dict(parameters))
    trace = handlers.trace(given).get_trace(data)
    sites = {agent: trace[f"action_{agent}"] for agent in data.agents}
    return Replay(
        chains={agent: site["fn"] for agent, site in sites.items()},
        observed={agent: site["value"] for agent, site in sites.items()},
        deterministic={n: s["value"] for n, s in trace.items() if s["type"] == "deterministic"},
    )


def computes(bound: BoundNumpyroModel) -> Trace:
    """What the function does with the demonstrations: every site and its density, traced anew."""
    from numpyro import handlers

    function = bound.own_model.function

    def sites(data: EpisodeData) -> dict[str, Any]:
        seeded = handlers.seed(function, jax.random.key(0))
        found = handlers.trace(seeded).get_trace(data)
        made = {n: s["value"] for n, s in found.items() if s["type"] == "deterministic"}
        for name, site in found.items():
            if site["type"] == "sample":
                log_density = site["fn"].log_prob(site["value"])
                made[name] = (site["value"], log_density, site["fn"], site["scale"])
        return made

    return trace(sites, bound.data, written=function)


def padded_rows(chain: "LatentChain") -> PaddedRows:
    """A chain's rows as probabilities; none is zero but where its logarithm says so."""

    def probabilities(logs: Float[Array, "..."]) -> Float[Array, "..."]:
        positive = jnp.maximum(jnp.exp(logs), jnp.finfo(logs.dtype).tiny)
        return jnp.where(logs == -jnp.inf, 0.0, positive)

    return PaddedRows(
        policy=probabilities(chain.log_policy),
        transition=probabilities(chain.log_transition),
        initial=probabilities(chain.log_initial),
        log_likelihood=chain.log_likelihood,
    )


def rows_given(
    function: Callable[[EpisodeData], Any], parameters: Mapping[str, Any], data: EpisodeData
) -> dict[str, PaddedRows]:
    """Every agent's rows under given parameters."""
    chains = replay(function, data, parameters).chains
    return {agent: padded_rows(chain) for agent, chain in chains.items()}


class Evaluated(NamedTuple):
    """What follows from parameters and data.

    Attributes:
        log_likelihood: Of each episode, summed over agents.
        deterministic: Values of the deterministic sites.
    """

    log_likelihood: Float[Array, " episodes"]
    deterministic: dict[str, Any]


def evaluate(
    function: Callable[[EpisodeData], Any], data: EpisodeData, parameters: Mapping[str, Any]
) -> Evaluated:
    """Run a function with given parameters, and the agents' chains on what they did."""
    found = replay(function, data, parameters)
    parts = [chain.log_prob(found.observed[agent]) for agent, chain in found.chains.items()]
    return Evaluated(jnp.sum(jnp.stack(parts), axis=0), found.deterministic)


def _first_look(
    function: Callable[[EpisodeData], Any], data: EpisodeData
) -> tuple[dict[str, PaddedRows], dict[str, Any]]:
    found = replay(function, data)
    rows = {agent: padded_rows(chain) for agent, chain in found.chains.items()}
    seen = {
        agent: {
            "actions": found.observed[agent],
            "labels": chain.labels,
            "lengths": chain.lengths,
        }
        for agent, chain in found.chains.items()
    }
    return rows, seen


def rows_somewhere(bound: BoundNumpyroModel) -> dict[str, Float[np.ndarray, "..."]]:
    """Rows of all tables at some point of the parameters' space.

    Raises:
        ValueError: If a chain's actions, labels or lengths are not those of the demonstrations,
            a row is not a probability vector, or a log likelihood is NaN or +inf.
    """
    demos, data, name = bound.demos, bound.data, bound.own_model.name
    function = bound.own_model.function
    padded, seen = traced_anew(partial(_first_look, function), function)(data)
    real = np.arange(data.num_steps) < np.asarray(data.lengths)[:, None]
    for agent, given in seen.items():
        ours = {"actions": data.actions[agent], "labels": data.labels[agent]}
        wrong = [
            what
            for what, values in ours.items()
            if not np.array_equal(np.asarray(given[what])[real], np.asarray(values)[real])
        ]
        if not np.array_equal(given["lengths"], data.lengths):
            wrong.append("lengths")
        if wrong:
            raise ValueError(
                f"{name}: {' and '.join(wrong)} of action_{agent} are not those of the data; "
                "data.observe gives them to the LatentChain"
            )
    tables = bound.step_rows(padded)
    read_at = {
        "policy": np.arange(demos.num_steps),
        "transition": _arrivals(demos),
        "initial": np.asarray(demos.episode_starts),
    }

    def place(step: np.integer) -> str:
        return f"episode {demos.episodes[step]}, step {demos.step_in_episode[step]}"

    for agent in bound.measured:
        logs = tables[likelihood_name(agent)]
        wrong_cells = np.argwhere(np.isnan(logs) | (logs == np.inf))
        if len(wrong_cells):
            step, latent = wrong_cells[0]
            raise ValueError(
                f"{name}: log_likelihood of {agent} is {logs[step, latent]} at {place(step)}, "
                f"latent {latent}, at a point of the parameters' space; allowed are finite "
                "numbers and -inf (0 where nothing was measured)"
            )
    for site in bound.tables:
        rows = tables[site]
        improper = improper_rows(rows)
        if improper.any():
            row, *latent = np.argwhere(improper)[0]
            role = bound.tables[site].contexts.role
            step = read_at[role][row]
            of_latent = "".join(f", latent {k}" for k in latent)
            raise ValueError(
                f"{name}: log_{role} of {bound.tables[site].agents[0]} is not the log of a "
                f"probability vector at {place(step)}{of_latent}: probabilities "
                f"{rows[(row, *latent)].tolist()} at a point of the parameters' space"
            )
    return tables
