"""Networks that read discrete inputs: a one-hot input is a look-up of rows.

A dense layer on the concatenated one-hot codes of its inputs adds up one row of its weight matrix
per input. So the first layer is kept as rows and looked up, at a cost that does not depend on the
number of states.

A state has a row only once it has been met. Rows of states start at zero, which is what the usual
start, uniform in plus or minus one over the square root of the length of the code, amounts to for
tens of thousands of states; and a state that no gradient has reached stays where it started, under
Adam too. So zeros stand for all states not met, and nothing that is computed changes.
"""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# The row of a state that has none: past the end of every first layer, where zeros are read.
NO_ROW = 2**30

ACTIVATIONS = {"tanh": jax.nn.tanh, "relu": jax.nn.relu, "gelu": jax.nn.gelu}


class Layer(NamedTuple):
    """A dense layer."""

    weight: Float[Array, "*networks outputs inputs"]
    bias: Float[Array, "*networks outputs"]


class OneHotNetwork(eqx.Module):
    r"""A perceptron on the one-hot codes of several discrete inputs, or a stack of such.

    .. math:: h_1 = \sum_k W_{r_k} + b, \qquad h_{l+1} = A_l\,\sigma(h_l) + b_l

    with :math:`r_k` the row of the k-th input's value. A row index past the end reads as zeros.

    Attributes:
        rows: First layer's weights: one row per value of each small input, then one per state.
        bias: Its bias.
        layers: The other layers.
        activation: Name of the activation.
    """

    rows: Float[Array, "*networks rows width"]
    bias: Float[Array, "*networks width"]
    layers: tuple[Layer, ...]
    activation: str = eqx.field(static=True)

    def __call__(self, indices: Int[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Outputs of a single network for one row index per input."""
        looked_up = self.rows.at[indices].get(mode="fill", fill_value=0.0)
        hidden = looked_up.sum(0) + self.bias
        for weight, bias in self.layers:
            hidden = weight @ ACTIVATIONS[self.activation](hidden) + bias
        return hidden


def check_layers(hidden: tuple[int, ...], activation: str) -> None:
    """Refuse hidden layers or an activation that cannot be.

    Raises:
        ValueError: Naming what is wrong and what is allowed.
    """
    widths = tuple(hidden) if isinstance(hidden, Iterable) else ()
    if not widths or not all(isinstance(w, int | np.integer) and w > 0 for w in widths):
        raise ValueError(
            f"hidden layers need widths of at least 1, such as (64, 128, 128); got {hidden!r}"
        )
    if activation not in ACTIVATIONS:
        raise ValueError(f"unknown activation {activation!r}; there are {', '.join(ACTIVATIONS)}")


def make_networks(
    generator: np.random.Generator,
    number: int,
    *,
    sizes: tuple[int, ...],
    num_state_rows: int,
    hidden: tuple[int, ...],
    num_outputs: int,
    activation: str,
    initialization: str = "uniform",
) -> OneHotNetwork:
    """Networks at their starts, stacked along a leading axis of every array.

    "uniform": weights and biases are uniform in plus or minus one over the square root of the
    fan-in. Of a one-hot code only one entry per input is on, and those are what is counted.
    "orthogonal": weights of a layer are orthogonal, times the square root of 2, of the last one
    times 0.01, so that outputs are all but equal at first; biases are 0 (Saxe, McClelland, Ganguli,
    2014). Rows of states are 0 in both.

    Args:
        generator: Draws the weights.
        number: Number of networks.
        sizes: Number of values of each small input. The task state comes on top, as last input.
        num_state_rows: Rows for states.
        hidden: Width of each hidden layer.
        num_outputs: Number of outputs.
        activation: A name in `ACTIVATIONS`.
        initialization: "uniform" or "orthogonal".
    """
    if initialization == "orthogonal":
        return _orthogonal_networks(
            generator, number, sizes, num_state_rows, (*hidden, num_outputs), activation
        )

    def uniform(fan_in: int, *shape: int) -> Float[Array, "..."]:
        limit = 1 / np.sqrt(fan_in)
        return jnp.asarray(generator.uniform(-limit, limit, (number, *shape)), jnp.float32)

    num_inputs = len(sizes) + 1
    small = uniform(num_inputs, sum(sizes), hidden[0])
    return OneHotNetwork(
        rows=jnp.pad(small, ((0, 0), (0, num_state_rows), (0, 0))),
        bias=uniform(num_inputs, hidden[0]),
        layers=tuple(
            Layer(uniform(before, after, before), uniform(before, after))
            for before, after in itertools.pairwise((*hidden, num_outputs))
        ),
        activation=activation,
    )


def _orthogonal_networks(
    generator: np.random.Generator,
    number: int,
    sizes: tuple[int, ...],
    num_state_rows: int,
    widths: tuple[int, ...],
    activation: str,
) -> OneHotNetwork:
    def orthogonal(outputs: int, inputs: int, gain: float) -> Float[Array, "..."]:
        tall = generator.normal(size=(number, max(outputs, inputs), min(outputs, inputs)))
        q, r = np.linalg.qr(tall)
        # Signs by which every orthogonal matrix is equally likely.
        q *= np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None]
        weights = q if outputs >= inputs else np.swapaxes(q, 1, 2)
        return jnp.asarray(gain * weights, jnp.float32)

    small = np.swapaxes(orthogonal(widths[0], sum(sizes), np.sqrt(2)), 1, 2)
    last = len(widths) - 2
    return OneHotNetwork(
        rows=jnp.pad(small, ((0, 0), (0, num_state_rows), (0, 0))),
        bias=jnp.zeros((number, widths[0]), jnp.float32),
        layers=tuple(
            Layer(
                orthogonal(after, before, 0.01 if i == last else np.sqrt(2)),
                jnp.zeros((number, after), jnp.float32),
            )
            for i, (before, after) in enumerate(itertools.pairwise(widths))
        ),
        activation=activation,
    )


def with_state_rows(tree: Any, extra: int) -> Any:
    """Give all stacked networks in a tree, optimizer states too, further rows for states."""

    def extend(part: Any) -> Any:
        if not isinstance(part, OneHotNetwork):
            return part
        rows = jnp.pad(part.rows, ((0, 0), (0, extra), (0, 0)))
        return eqx.tree_at(lambda network: network.rows, part, rows)

    return jax.tree.map(extend, tree, is_leaf=lambda part: isinstance(part, OneHotNetwork))


class StateRows:
    """Which row belongs to which state: states get theirs as they are met.

    Args:
        num_states: Number of task states.

    Attributes:
        of_state: Row of each state, counted from 0, or `NO_ROW`.
        count: Number of states that have one.
    """

    of_state: Int[np.ndarray, " states"]
    count: int

    def __init__(self, num_states: int) -> None:
        self.of_state = np.full(num_states, NO_ROW, np.int32)
        self.count = 0

    def meet(self, states: Int[np.ndarray, "..."]) -> None:
        """Give rows to those of the states that have none."""
        new = np.unique(states[self.of_state[states] == NO_ROW])
        self.of_state[new] = np.arange(self.count, self.count + len(new))
        self.count += len(new)

    def every_row(self, capacity: int) -> Int[np.ndarray, " rows"]:
        """The rows of a network that has `capacity` rows for states, then `NO_ROW`."""
        return np.append(np.arange(capacity), NO_ROW)

    def spread(
        self, values: Float[np.ndarray, "latents rows actions"]
    ) -> Float[np.ndarray, "states latents actions"]:
        """What `every_row` was given, for every state; those never met share the last one."""
        rows = np.minimum(self.of_state, values.shape[1] - 1)
        return np.ascontiguousarray(np.swapaxes(values, 0, 1)[rows])


def row_indices(
    sizes: tuple[int, ...],
    values: Int[np.ndarray, "*batch small"],
    state_rows: Int[np.ndarray, "*batch"],
) -> Int[np.ndarray, "*batch inputs"]:
    """Row indices of a network's inputs: small ones, then the state.

    Args:
        sizes: Number of values of each small input.
        values: Values of the small inputs.
        state_rows: Row of the state, counted from 0, or `NO_ROW`.
    """
    offsets = np.cumsum([0, *sizes])
    columns = [values[..., k] + offsets[k] for k in range(len(sizes))]
    return np.stack([*columns, state_rows + offsets[-1]], axis=-1).astype(np.int32)


@jax.jit
def outputs(
    networks: OneHotNetwork, indices: Int[Array, "networks batch inputs"]
) -> Float[Array, "networks batch outputs"]:
    """Outputs of each of several stacked networks on a batch of its own."""
    return jax.vmap(jax.vmap(OneHotNetwork.__call__, (None, 0)))(networks, indices)


def probabilities(
    networks: OneHotNetwork, indices: Int[np.ndarray, "networks batch inputs"]
) -> Float[np.ndarray, "networks batch outputs"]:
    """Softmax of the outputs, in double precision."""
    logits = np.asarray(outputs(networks, indices), np.float64)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
