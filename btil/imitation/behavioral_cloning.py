r"""Behavioural cloning: for each agent and latent a network, trained to give the action shown.

The steps of agent i with latent x are its examples; its network :math:`f_{ix}` gives
:math:`\pi_i(a \mid s, x) = \mathrm{softmax}(f_{ix}(s))_a` and minimises the cross entropy of the
actions shown, by Adam on random batches (the paper, Appendix D). The paper's networks read the task
state, one-hot; with `inputs="variables"` there is one network per agent, which reads the one-hot
codes of all state variables and of the latent, so that states that were never met are read too.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from btil.demonstrations import Demonstrations
from btil.domains.gridworld.derived import task_states
from btil.domains.gridworld.task import GridTask
from btil.imitation.learning import Learned, require_labels
from btil.imitation.networks import (
    NO_ROW,
    OneHotNetwork,
    StateRows,
    check_layers,
    make_networks,
    outputs,
    probabilities,
    row_indices,
)
from btil.numerics.promotion import promotion_allowed
from btil.numerics.rounding import rounded_up
from btil.progress import progress_line

_ITERATIONS_PER_CALL = 50
# Task states whose rows are computed at a time.
_STATES_AT_ONCE = 4096


class Examples(NamedTuple):
    """What each of several networks is to imitate, padded to a common number.

    Attributes:
        indices: Rows of the inputs.
        actions: The actions shown.
        sizes: Number of examples of each network; the rest is padding.
    """

    indices: Int[Array, "networks examples inputs"]
    actions: Int[Array, "networks examples"]
    sizes: Int[Array, " networks"]


def learn(
    task: GridTask,
    demos: Demonstrations,
    *,
    known_transition: bool,
    seed: int,
    progress: bool,
    num_iterations: int = 500,
    batch_size: int = 128,
    learning_rate: float = 7e-4,
    hidden: tuple[int, ...] = (64, 128, 128),
    activation: str = "tanh",
    inputs: str = "state",
    initialization: str = "uniform",
    weight_decay: float = 0.0,
    held_out: float = 0.0,
    patience: int = 5,
) -> Learned:
    """Train all networks side by side.

    The defaults are the paper's. As a baseline at its best take `inputs="variables"` and
    `initialization="orthogonal"`. Those who want to foretell actions best add `held_out=0.2` and
    many iterations: it stops by itself. Those who let the team act train on, 2,000 iterations say.

    Args:
        task: The task.
        demos: Demonstrations, every step labelled.
        known_transition: Must be true.
        seed: Seeds the networks' starts and the batches.
        progress: Whether to show a progress line.
        num_iterations: Updates of each network.
        batch_size: Examples per update, drawn with replacement.
        learning_rate: Adam's.
        hidden: Width of each hidden layer.
        activation: "tanh", "relu" or "gelu".
        inputs: "state": a network per agent and latent reads the task state. "variables": one per
            agent reads every state variable, and the latent.
        initialization: Of the weights. "uniform": in plus or minus one over the square root of the
            fan-in. "orthogonal": orthogonal, and outputs all but equal at first (Saxe, McClelland,
            Ganguli, 2014).
        weight_decay: By how much weights shrink per update, as a multiple of the learning rate
            (Loshchilov, Hutter, 2019).
        held_out: Share of the episodes, at least one unless 0, that is not trained on: where the
            cross entropy of their actions no longer falls, training ends, and the networks that
            did best on them are kept.
        patience: How many times 50 updates may bring nothing before it ends.

    Raises:
        ValueError: If a label is missing, an option has no such value, or no episode would be left
            to train on.
    """
    require_labels(demos, known_transition, "behavioral-cloning")
    check_layers(hidden, activation)
    generator = np.random.default_rng(seed)
    kept = _kept_for_training(demos, held_out, generator)
    training: dict[str, Any] = {
        "num_iterations": num_iterations,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "patience": patience,
        "description": "behavioral-cloning",
        "progress": progress,
    }
    shape: dict[str, Any] = {
        "hidden": tuple(hidden),
        "activation": activation,
        "initialization": initialization,
    }
    if inputs == "variables":
        return _learn_by_variables(task, demos, kept, generator, shape, training)

    states = task_states(task, demos)
    known = StateRows(task.num_states)
    known.meet(states)
    groups = [
        demos.latents[:, i] == latent
        for i in range(len(task.agents))
        for latent in range(task.num_latents)
    ]
    indices = row_indices((), np.zeros((len(states), 0), np.int64), known.of_state[states])

    def examples(steps: Bool[np.ndarray, " steps"]) -> Examples:
        return stack_examples(
            [indices[group & steps] for group in groups],
            [demos.actions[group & steps, k // task.num_latents] for k, group in enumerate(groups)],
        )

    networks = make_networks(
        generator,
        len(groups),
        sizes=(),
        num_state_rows=rounded_up(known.count),
        num_outputs=task.num_actions,
        **shape,
    )
    cloned = clone(networks, examples(kept), generator, examples(~kept), **training)
    return _told(_policy_tables(task, cloned.networks, known), cloned)


def _kept_for_training(
    demos: Demonstrations, held_out: float, generator: np.random.Generator
) -> Bool[np.ndarray, " steps"]:
    """The steps of the episodes that are trained on; the others are held out."""
    number = demos.num_episodes
    out = max(1, round(held_out * number)) if held_out else 0
    if out >= number:
        raise ValueError(
            f"held_out is {held_out:g}: of {number} episodes none would be left to train on"
        )
    chosen = generator.permutation(number)[:out] if out else np.zeros(0, np.int64)
    return ~np.isin(np.repeat(np.arange(number), demos.episode_lengths), chosen)


def _told(
    policies: dict[str, Float[np.ndarray, "states latents actions"]], cloned: "Cloned"
) -> Learned:
    """What was learned, and how that ended."""
    number = len(cloned.losses)
    curve = {"loss": cloned.losses}
    if len(cloned.held_out_losses):
        curve["held_out_loss"] = cloned.held_out_losses
    reason = f"all {number} iterations done; there is no other criterion"
    if cloned.stopped:
        reason = f"held-out actions were no better foretold after {number} iterations"
    elif len(cloned.held_out_losses):
        reason = f"all {number} iterations done; held-out actions might be foretold better yet"
    return Learned(policies, curve, converged=cloned.stopped, reason=reason)


def _learn_by_variables(
    task: GridTask,
    demos: Demonstrations,
    kept: Bool[np.ndarray, " steps"],
    generator: np.random.Generator,
    shape: dict[str, Any],
    training: dict[str, Any],
) -> Learned:
    """One network per agent, of all state variables and the latent."""
    states = task_states(task, demos)

    def examples(steps: Bool[np.ndarray, " steps"]) -> Examples:
        latents = demos.latents[steps].T
        shown = [variable_rows(task, states[steps], own[:, None]) for own in latents]
        return stack_examples(shown, [*demos.actions[steps].T])

    networks = make_networks(
        generator,
        len(task.agents),
        sizes=(*task.state_sizes.values(), task.num_latents),
        num_state_rows=0,
        num_outputs=task.num_actions,
        **shape,
    )
    cloned = clone(networks, examples(kept), generator, examples(~kept), **training)
    return _told(tables_by_variables(task, cloned.networks), cloned)


def variable_rows(
    task: GridTask, states: Int[np.ndarray, " k"], others: Int[np.ndarray, "k others"], *sizes: int
) -> Int[np.ndarray, "k inputs"]:
    """Row indices of a network's inputs: all state variables, then others; no row for the state.

    Args:
        task: The task.
        states: Task states.
        others: Values of the others.
        sizes: Numbers of their values; none: a single latent.
    """
    sizes = (*task.state_sizes.values(), *(sizes or (task.num_latents,)))
    small = np.concatenate([task.decode_states(states), others], axis=1)
    return row_indices(sizes, small, np.full(len(small), NO_ROW, np.int32))


def tables_by_variables(
    task: GridTask, networks: OneHotNetwork
) -> dict[str, Float[np.ndarray, "states latents actions"]]:
    """A row for every task state and latent, of a network per agent that reads `variable_rows`."""
    number = len(task.agents)
    policies = np.empty((number, task.num_states, task.num_latents, task.num_actions))
    for start in range(0, task.num_states, _STATES_AT_ONCE):
        # The last ones are asked again, so that all parts have one shape.
        first = max(0, min(start, task.num_states - _STATES_AT_ONCE))
        states = np.arange(first, min(first + _STATES_AT_ONCE, task.num_states))
        latents = np.tile(np.arange(task.num_latents), len(states))[:, None]
        indices = variable_rows(task, np.repeat(states, task.num_latents), latents)
        probs = probabilities(networks, np.stack([indices] * number))
        policies[:, states] = probs.reshape(number, len(states), *policies.shape[2:])
    return dict(zip(task.agents, policies, strict=True))


class Cloned(NamedTuple):
    """Trained networks.

    Attributes:
        networks: The networks; those that did best on what was held out, if anything was.
        losses: Cross entropy of each iteration's batches, averaged over the networks that have
            examples.
        held_out_losses: Cross entropy of what was held out after every 50 iterations.
        stopped: Whether it no longer fell.
    """

    networks: OneHotNetwork
    losses: Float[np.ndarray, " iterations"]
    held_out_losses: Float[np.ndarray, " looks"]
    stopped: bool


def stack_examples(
    indices: list[Int[np.ndarray, "_ inputs"]], actions: list[Int[np.ndarray, " _"]]
) -> Examples:
    """Put the examples of several networks into one array, padded."""
    sizes = [len(shown) for shown in actions]
    length = rounded_up(max(sizes))
    padded = [np.pad(rows, ((0, length - len(rows)), (0, 0))) for rows in indices]
    return Examples(
        indices=jnp.asarray(np.stack(padded)),
        actions=jnp.asarray([np.pad(a, (0, length - len(a))) for a in actions], jnp.int32),
        sizes=jnp.asarray(sizes, jnp.int32),
    )


def clone(
    networks: OneHotNetwork,
    examples: Examples,
    generator: np.random.Generator,
    held_out: Examples | None = None,
    *,
    num_iterations: int,
    batch_size: int,
    learning_rate: float,
    description: str,
    progress: bool,
    weight_decay: float = 0.0,
    patience: int = 1,
) -> Cloned:
    """Train stacked networks to imitate their examples; those without examples stay as they are.

    Args:
        networks: The networks at their starts.
        examples: What they are to imitate.
        generator: Draws the batches.
        held_out: Examples that are not trained on, by which training ends. None, or none: there
            are no such.
        num_iterations: Updates, at most.
        batch_size: Examples per network and update.
        learning_rate: Adam's.
        description: Of the progress line.
        progress: Whether to show one.
        weight_decay: As of `learn`; so is `patience`.
        patience: See `weight_decay`.
    """
    optimizer_state = optax.adamw(learning_rate, weight_decay=weight_decay).init(networks)
    watched = held_out if held_out is not None and np.asarray(held_out.sizes).any() else None
    best, looks = networks, list[float]()
    sizes = np.maximum(np.asarray(examples.sizes), 1)[:, None]
    losses = np.zeros(num_iterations)
    with progress_line(num_iterations, description, progress) as line:
        for done in range(0, num_iterations, _ITERATIONS_PER_CALL):
            count = min(_ITERATIONS_PER_CALL, num_iterations - done)
            chosen = generator.integers(0, sizes, (_ITERATIONS_PER_CALL, len(sizes), batch_size))
            networks, optimizer_state, some = _advance(
                networks,
                optimizer_state,
                examples,
                chosen.astype(np.int32),
                count,
                learning_rate,
                weight_decay,
            )
            losses[done : done + count] = np.asarray(some)[:count]
            line.update(count)
            line.set_postfix_str(f"loss {losses[done + count - 1]:.3f}")
            if watched is None:
                best = networks
                continue
            looks.append(float(_loss(networks, watched)))
            if looks[-1] <= min(looks):
                best = networks
            if len(looks) - 1 - int(np.argmin(looks)) >= patience:
                return Cloned(best, losses[: done + count], np.array(looks), True)
    return Cloned(best, losses, np.array(looks), False)


@jax.jit
def _loss(networks: OneHotNetwork, examples: Examples) -> Float[Array, ""]:
    """Cross entropy of all examples."""
    losses = optax.softmax_cross_entropy_with_integer_labels(
        outputs(networks, examples.indices), examples.actions
    )
    real = jnp.arange(losses.shape[1])[None] < examples.sizes[:, None]
    return jnp.where(real, losses, 0.0).sum() / examples.sizes.sum().astype(losses.dtype)


@jax.jit
def _advance(
    networks: OneHotNetwork,
    optimizer_state: optax.OptState,
    examples: Examples,
    chosen: Int[Array, "iterations networks batch"],
    count: int | Array,
    learning_rate: float | Array,
    weight_decay: float | Array,
) -> tuple[OneHotNetwork, optax.OptState, Float[Array, " iterations"]]:
    """Make `count` updates, each on the examples chosen; losses past them are meaningless."""
    has_examples = examples.sizes > 0

    def total_loss(networks: OneHotNetwork, chosen: Int[Array, "networks batch"]) -> Array:
        indices = jnp.take_along_axis(examples.indices, chosen[..., None], axis=1)
        actions = jnp.take_along_axis(examples.actions, chosen, axis=1)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            outputs(networks, indices), actions
        ).mean(1)
        # The sum, so that no network's gradient depends on how many others there are.
        return jnp.where(has_examples, losses, 0.0).sum()

    def update(i: Array, carry: tuple) -> tuple:
        networks, optimizer_state, losses = carry
        loss, gradient = jax.value_and_grad(total_loss)(networks, chosen[i])
        with promotion_allowed():
            change, optimizer_state = optax.adamw(learning_rate, weight_decay=weight_decay).update(
                gradient, optimizer_state, networks
            )
            networks = optax.apply_updates(networks, change)
        mean = loss / has_examples.sum().astype(loss.dtype)
        return networks, optimizer_state, losses.at[i].set(mean)

    start = (networks, optimizer_state, jnp.zeros(len(chosen)))
    return jax.lax.fori_loop(0, count, update, start)


def _policy_tables(
    task: GridTask, networks: OneHotNetwork, known: StateRows
) -> dict[str, Float[np.ndarray, "states latents actions"]]:
    """A row for every task state; the states never met share one."""
    indices = known.every_row(networks.rows.shape[1]).astype(np.int32)[:, None]
    num_networks = len(task.agents) * task.num_latents
    probs = probabilities(networks, np.broadcast_to(indices, (num_networks, *indices.shape)))
    by_agent = probs.reshape(len(task.agents), task.num_latents, *probs.shape[1:])
    return {agent: known.spread(by_agent[i]) for i, agent in enumerate(task.agents)}
