"""Networks that read discrete inputs: a one-hot input is a look-up of rows.

A dense layer on the concatenated one-hot codes of its inputs adds up one row of its weight matrix
per input. So the first layer is kept as rows and looked up, at a cost that does not depend on the
number of states.

A state has a row only once it has been met. Rows of states start at zero, which is what the usual
start, uniform in plus or minus one over the square root of the length of the code, amounts to for
tens of thousands of states; and a state that no gradient has reached stays where it started. So a
row of zeros stands for all states not met, and nothing that is computed changes.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

# Where a state without a row points: past the end of every table, where rows read as zeros.
NO_ROW = np.iinfo(np.int32).max

ACTIVATIONS = {"tanh": jax.nn.tanh, "relu": jax.nn.relu, "gelu": jax.nn.gelu}


class OneHotNetwork(eqx.Module):
    r"""A perceptron on the one-hot codes of several discrete inputs.

    .. math:: h_1 = \sum_k W_{r_k} + b, \qquad h_{l+1} = A_l\,\sigma(h_l) + b_l

    with :math:`r_k` the row of the k-th input's value. A row index past the end reads as zeros.

    Attributes:
        rows: First layer's weights: one row per value of each small input, then one per state.
        bias: Its bias.
        layers: The other layers.
        activation: Name of the activation.
    """

    rows: Float[Array, "rows width"]
    bias: Float[Array, " width"]
    layers: tuple[eqx.nn.Linear, ...]
    activation: str = eqx.field(static=True)

    def __call__(self, indices: Int[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Outputs for one row index per input."""
        looked_up = self.rows.at[indices].get(mode="fill", fill_value=0.0)
        hidden = looked_up.sum(0) + self.bias
        for layer in self.layers:
            hidden = layer(ACTIVATIONS[self.activation](hidden))
        return hidden


def make_network(
    key: Key[Array, ""],
    sizes: tuple[int, ...],
    num_state_rows: int,
    hidden: tuple[int, ...],
    num_outputs: int,
    activation: str,
) -> OneHotNetwork:
    """A network at its start.

    Args:
        key: A random key.
        sizes: Number of values of each small input. The task state comes on top, as last input.
        num_state_rows: Rows for states.
        hidden: Width of each hidden layer.
        num_outputs: Number of outputs.
        activation: A name in `ACTIVATIONS`.
    """
    first, *others = jax.random.split(key, len(hidden) + 1)
    widths = (*hidden, num_outputs)
    # Weights and biases are uniform in +-1/sqrt(fan-in); of a one-hot code only one entry per
    # input is on, and those are counted.
    limit = 1 / np.sqrt(len(sizes) + 1)
    small = jax.random.uniform(first, (sum(sizes) + 1, hidden[0]), minval=-limit, maxval=limit)
    return OneHotNetwork(
        rows=jnp.zeros((sum(sizes) + num_state_rows, hidden[0])).at[: sum(sizes)].set(small[1:]),
        bias=small[0],
        layers=tuple(
            eqx.nn.Linear(widths[i], widths[i + 1], key=one) for i, one in enumerate(others)
        ),
        activation=activation,
    )


def make_networks(key: Key[Array, ""], number: int, *arguments: Any) -> OneHotNetwork:
    """Several networks at their starts, stacked along a leading axis of every array."""
    return jax.vmap(lambda one: make_network(one, *arguments))(jax.random.split(key, number))
