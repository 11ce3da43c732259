r"""Behavioural cloning: for each agent and latent a network, trained to give the action shown.

The steps of agent i with latent x are its examples; its network :math:`f_{ix}` gives
:math:`\pi_i(a \mid s, x) = \mathrm{softmax}(f_{ix}(s))_a` and minimises the cross entropy of the
actions shown, by Adam on random batches (the paper, Appendix D).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from btil.demonstrations import Demonstrations
from btil.domains.gridworld.derived import task_states
from btil.domains.gridworld.task import GridTask
from btil.imitation.learning import Learned, require_labels
from btil.imitation.networks import (
    OneHotNetwork,
    StateRows,
    check_layers,
    make_networks,
    outputs,
    probabilities,
    row_indices,
)
from btil.inference.progress import progress_line
from btil.numerics.promotion import promotion_allowed
from btil.numerics.rounding import rounded_up

_ITERATIONS_PER_CALL = 50


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
) -> Learned:
    """Train all networks side by side.

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

    Raises:
        ValueError: If a label is missing or an option has no such value.
    """
    require_labels(demos, known_transition, "behavioral-cloning")
    check_layers(hidden, activation)

    states = task_states(task, demos)
    known = StateRows(task.num_states)
    known.meet(states)
    groups = [
        demos.latents[:, i] == latent
        for i in range(len(task.agents))
        for latent in range(task.num_latents)
    ]
    indices = row_indices((), np.zeros((len(states), 0), np.int64), known.of_state[states])
    examples = stack_examples(
        [indices[group] for group in groups],
        [demos.actions[group, k // task.num_latents] for k, group in enumerate(groups)],
    )
    generator = np.random.default_rng(seed)
    networks = make_networks(
        generator,
        len(groups),
        sizes=(),
        num_state_rows=rounded_up(known.count),
        hidden=tuple(hidden),
        num_outputs=task.num_actions,
        activation=activation,
    )
    networks, losses = clone(
        networks,
        examples,
        generator,
        num_iterations=num_iterations,
        batch_size=batch_size,
        learning_rate=learning_rate,
        description="behavioral-cloning",
        progress=progress,
    )
    return Learned(
        policies=_policy_tables(task, networks, known),
        learning_curve={"loss": losses},
        converged=False,
        reason=f"all {num_iterations} iterations done; there is no other criterion",
    )


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
    *,
    num_iterations: int,
    batch_size: int,
    learning_rate: float,
    description: str,
    progress: bool,
) -> tuple[OneHotNetwork, Float[np.ndarray, " iterations"]]:
    """Train stacked networks to imitate their examples; those without examples stay as they are.

    Args:
        networks: The networks at their starts.
        examples: What they are to imitate.
        generator: Draws the batches.
        num_iterations: Updates.
        batch_size: Examples per network and update.
        learning_rate: Adam's.
        description: Of the progress line.
        progress: Whether to show one.

    Returns:
        The networks, and the cross entropy of each iteration's batches, averaged over the
        networks that have examples.
    """
    optimizer_state = optax.adam(learning_rate).init(networks)
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
            )
            losses[done : done + count] = np.asarray(some)[:count]
            line.update(count)
            line.set_postfix_str(f"loss {losses[done + count - 1]:.3f}")
    return networks, losses


@jax.jit
def _advance(
    networks: OneHotNetwork,
    optimizer_state: optax.OptState,
    examples: Examples,
    chosen: Int[Array, "iterations networks batch"],
    count: int | Array,
    learning_rate: float | Array,
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
            change, optimizer_state = optax.adam(learning_rate).update(gradient, optimizer_state)
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
