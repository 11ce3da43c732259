"""What a comparison says of held-out episodes: one metric of each member per line.

To add one, write a function `metric(test, posterior)` that gives a number per agent, and name it in
`METRICS`. It has a column per agent then, in the table, on the page and in the shell. The posterior
has not seen the episodes; their labels are for the metric alone. Of files that are read part by
part (`by_parts.py`) it is averaged over parts by how many of their episodes have labels of the
agent: a metric that is a mean over these episodes is then that of the whole.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from btil.analysis.metrics import hamming_distance, most_probable
from btil.demonstrations import Demonstrations
from btil.posterior.beliefs import Posterior


class Metric(NamedTuple):
    """A number that says how well a member of the team was read.

    Attributes:
        title: A short text for a person; the agent's name comes behind it.
        explanation: What the number means, in plain words.
        function: (held-out episodes, posterior) -> a number per agent.
        digits: How many are written behind the point.
    """

    title: str
    explanation: str
    function: Callable[[Demonstrations, Posterior], Float[np.ndarray, " agents"]]
    digits: int = 3


def viterbi_error(test: Demonstrations, posterior: Posterior) -> Float[np.ndarray, " agents"]:
    """Share of labelled steps that the most probable path has wrong, mean over episodes."""
    return hamming_distance(test, posterior)


def filtering_error(test: Demonstrations, posterior: Posterior) -> Float[np.ndarray, " agents"]:
    """The same of the most probable latent at each step, knowing the episode so far."""
    return hamming_distance(test, most_probable(test, posterior.filter(test)))


# By the column, to which the agent's name is added.
METRICS: dict[str, Metric] = {
    "viterbi_error": Metric(
        "Viterbi error",
        "Share of held-out steps whose mental state is decoded wrongly, knowing the whole episode "
        "but no labels (mean over episodes). Smaller is better.",
        viterbi_error,
    ),
    "filtering_error": Metric(
        "filtering error",
        "The same, knowing at each step only the episode so far: what a live assistant could do. "
        "Smaller is better.",
        filtering_error,
    ),
}


def held_out(test: Demonstrations, posterior: Posterior) -> dict[str, float]:
    """Every metric of every agent, by the columns of the table."""
    return {
        f"{name}_{agent}": float(value)
        for name, metric in METRICS.items()
        for agent, value in zip(test.agents, metric.function(test, posterior), strict=True)
    }
