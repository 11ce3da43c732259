"""Several people coded the same recording: from their labels to one set of (unsure) labels."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.demonstrations.coding import listed, shown
from btil.demonstrations.data import Demonstrations

METHODS = ("agreement", "confusion")
# Counts of each coder before any data: most labels right, all errors possible.
_RIGHT, _WRONG = 2.0, 0.5
_MOST_STEPS = 1000
_ENOUGH = 1e-10


class Confusion(NamedTuple):
    """What is believed of coders and latents.

    Attributes:
        prior: P(latent), (latents,).
        matrices: P(label | latent) of each coder, {coder: (latents, labels)}.
    """

    prior: Float[np.ndarray, " latents"]
    matrices: dict[Any, Float[np.ndarray, "latents labels"]]


def combine_labels(
    codings: Sequence[Demonstrations] | Mapping[Any, Demonstrations], method: str = "agreement"
) -> Demonstrations:
    r"""One recording with the labels of several coders.

    - "agreement": where all who labelled a step agree, that is its label; where they do not, its
      latent is one of those named (weights 1 for these, 0 for all others).
    - "confusion": coders err each in their own way. Of every coder c a matrix
      :math:`P_c(l \mid x)` is learned from all steps that several labelled, and a step gets the
      weights :math:`\prod_c P_c(l_c \mid x)`, the probability of what was said given the latent. A
      step that one coder labelled is then unsure too, as sure as that one is. See
      `label_confusion` for the matrices.

    Args:
        codings: The same recording once for each coder; only labels may differ.
        method: "agreement" or "confusion".

    Returns:
        The recording, with labels and `latent_weights`.

    Raises:
        ValueError: If these are not codings of one recording, or the method is unknown.

    Example:
        >>> one = Demonstrations([0, 1], [0, 1], [0, 1])
        >>> other = one.replace(latents=[1, 1])
        >>> both = combine_labels([one, other])
        >>> both.latents.ravel().tolist(), both.latent_weights["agent_0"].tolist()
        ([-1, 1], [[1.0, 1.0], [1.0, 1.0]])
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {listed(METHODS)}, got {shown(method)}")
    named = _checked(codings)
    first = next(iter(named.values()))
    latents, weights = np.full_like(first.latents, -1), {}
    if method == "confusion":
        for agent, confusion in label_confusion(named).items():
            labels = _labels(named, agent)
            logs = _log_likelihood(labels, list(confusion.matrices.values()))
            weights[agent] = np.exp(logs - logs.max(axis=1, keepdims=True))
        return first.replace(latents=latents, latent_weights=weights)
    for k, agent in enumerate(first.agents):
        labels = _labels(named, agent)
        said = (labels[..., None] == np.arange(first.num_latents[k])).any(axis=0)
        several = said.sum(axis=1)
        latents[:, k] = np.where(several == 1, said.argmax(axis=1), -1)
        if (several > 1).any():
            weights[agent] = np.where((several > 1)[:, None], said.astype(float), 1.0)
    return first.replace(latents=latents, latent_weights=weights)


def label_confusion(
    codings: Sequence[Demonstrations] | Mapping[Any, Demonstrations],
) -> dict[str, Confusion]:
    r"""How each coder takes one latent for another, learned from where they overlap.

    The mode of :math:`\prod_t \sum_x p(x) \prod_c P_c(l_{tc} \mid x)` with a Dirichlet prior on
    every row of P_c (2 on the right label, 0.5 on all others, counted as labels seen before), by
    expectation-maximisation from the majority's labels. Steps are taken as independent: stretches
    of one latent say less than it takes them to say.

    Args:
        codings: As in `combine_labels`.

    Returns:
        Of each agent the matrices of its coders.

    Raises:
        ValueError: If no step of an agent was labelled by two coders.

    References:
        Dawid and Skene (1979), Maximum likelihood estimation of observer error-rates using the EM
        algorithm.
    """
    named = _checked(codings)
    first = next(iter(named.values()))
    found = {}
    for k, agent in enumerate(first.agents):
        labels = _labels(named, agent)
        if not (labels >= 0).any():
            continue
        if not ((labels >= 0).sum(axis=0) > 1).any():
            raise ValueError(
                f"labels of {agent}: no step was labelled by two coders, so nothing shows how "
                "they differ; let them overlap, or use method='agreement'"
            )
        prior, matrices = _by_em(labels[:, (labels >= 0).any(axis=0)], first.num_latents[k])
        found[agent] = Confusion(prior, dict(zip(named, matrices, strict=True)))
    return found


def _by_em(
    labels: Int[np.ndarray, "coders steps"], size: int
) -> tuple[Float[np.ndarray, " latents"], list[Float[np.ndarray, "latents labels"]]]:
    given = labels[..., None] == np.arange(size)
    belief = given.sum(axis=0) + 1e-3
    belief = belief / belief.sum(axis=1, keepdims=True)
    pseudo = np.full((size, size), _WRONG) + (_RIGHT - _WRONG) * np.eye(size)
    for _ in range(_MOST_STEPS):
        prior = (belief.sum(axis=0) + 1) / (len(belief) + size)
        counts = [belief.T @ one + pseudo for one in given.astype(float)]
        matrices = [one / one.sum(axis=1, keepdims=True) for one in counts]
        logs = _log_likelihood(labels, matrices) + np.log(prior)
        updated = np.exp(logs - logs.max(axis=1, keepdims=True))
        updated = updated / updated.sum(axis=1, keepdims=True)
        change, belief = np.abs(updated - belief).max(), updated
        if change < _ENOUGH:
            break
    return prior, matrices


def _log_likelihood(
    labels: Int[np.ndarray, "coders steps"], matrices: Sequence[Float[np.ndarray, "latents labels"]]
) -> Float[np.ndarray, "steps latents"]:
    total = np.zeros((labels.shape[1], len(matrices[0])))
    for own, matrix in zip(labels, matrices, strict=True):
        total += np.where((own >= 0)[:, None], np.log(matrix.T[np.maximum(own, 0)]), 0.0)
    return total


def _labels(named: Mapping[Any, Demonstrations], agent: str) -> Int[np.ndarray, "coders steps"]:
    return np.stack([one.latents[:, one.agents.index(agent)] for one in named.values()])


def _checked(codings: Any) -> dict[Any, Demonstrations]:
    """{coder: coding}, the same recording all of them.

    Raises:
        ValueError: Naming the coder whose coding differs, and in what.
    """
    if not isinstance(codings, Mapping):
        codings = dict(enumerate(codings))
    named = dict(codings)
    if not named:
        raise ValueError("codings: there is none; at least one is needed")
    for coder, one in named.items():
        if not isinstance(one, Demonstrations):
            raise ValueError(f"coder {coder!r}: Demonstrations expected, got {type(one).__name__}")
        if one.latent_weights:
            raise ValueError(f"coder {coder!r}: has latent_weights; labels alone are combined")
    first_coder, first = next(iter(named.items()))
    bare = first.without_labels()
    for coder, one in named.items():
        if one.latent_names != first.latent_names or one.num_latents != first.num_latents:
            raise ValueError(
                f"coder {coder!r}: names or numbers of latents differ from those of coder "
                f"{first_coder!r}: {one.latent_names or one.num_latents} and "
                f"{first.latent_names or first.num_latents}; declare latent_names=... for all"
            )
        if one.without_labels() != bare:
            raise ValueError(
                f"coder {coder!r}: states, actions or episodes differ from those of coder "
                f"{first_coder!r}; only labels may differ"
            )
    return named
