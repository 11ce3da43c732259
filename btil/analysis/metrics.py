"""How right the answers are, and how well a team works together.

Decoded latents against labels, learned policies against true ones; how often the members of a team
have the same in mind, and how often their minds are misaligned.

What takes decoded latents or beliefs takes a posterior as well, and asks it without a look at the
labels: `hamming_distance(test, posterior)`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.demonstrations import Demonstrations
from btil.models.cpt import SUM_TOLERANCE, improper_rows

if TYPE_CHECKING:
    from btil.domains.gridworld.task import GridTask


def decoded_latents(
    demos: Demonstrations, decoded: Any
) -> tuple[Demonstrations, Int[np.ndarray, "steps agents"]]:
    """The latents of every step: what was decoded, or what a posterior decodes.

    Args:
        demos: The demonstrations.
        decoded: Whole numbers (steps, agents); or what decodes them, a posterior or a team of
            `btil.imitation`, which is not shown the labels.

    Returns:
        The demonstrations, with the latents that a posterior knows, and what was decoded.

    Raises:
        ValueError: If there is another shape, or values that are no latents; if the demonstrations
            do not fit the posterior.
    """
    _check_order(demos)
    if callable(getattr(decoded, "decode", None)):
        demos = with_learned_latents(demos, decoded)
        decoded = decoded.decode(demos)
    return demos, _checked_path(demos, decoded)


def smoothed_beliefs(
    demos: Demonstrations, beliefs: Any, agents: Sequence[str] | None = None
) -> tuple[Demonstrations, dict[str, Float[np.ndarray, "steps latents"]]]:
    """How probable each latent is at each step: beliefs, or what a posterior believes.

    Args:
        demos: The demonstrations.
        beliefs: {agent: (steps, latents)}; or a posterior, which smooths the demonstrations and
            is not shown the labels.
        agents: Those in question; None: all.

    Returns:
        The demonstrations, with the latents that a posterior knows, and the beliefs.

    Raises:
        ValueError: If an agent is missing, or a shape is another one; if the demonstrations do not
            fit the posterior.
    """
    _check_order(demos)
    if callable(getattr(beliefs, "smooth", None)):
        demos = with_learned_latents(demos, beliefs)
        beliefs = beliefs.smooth(demos)
    if not isinstance(beliefs, Mapping):
        raise ValueError(
            "beliefs: a posterior or {agent: (steps, latents)} expected, got "
            f"{type(beliefs).__name__}"
        )
    checked = {}
    sizes = dict(zip(demos.agents, demos.num_latents, strict=True))
    for agent in demos.agents if agents is None else agents:
        if agent not in beliefs:
            raise ValueError(
                f"beliefs: agent {agent} is missing; there are {', '.join(map(str, beliefs))}"
            )
        checked[agent] = np.asarray(beliefs[agent])
        if checked[agent].shape != (demos.num_steps, sizes[agent]):
            raise ValueError(
                f"beliefs: agent {agent} has shape {checked[agent].shape}, expected (steps, "
                f"latents) = {(demos.num_steps, sizes[agent])}"
            )
    return demos, checked


def _check_order(demos: Any) -> None:
    """Refuse what are no demonstrations, such as the posterior that comes after them."""
    if not isinstance(demos, Demonstrations):
        raise ValueError(
            f"demos must be Demonstrations, got {type(demos).__name__}; the demonstrations come "
            "first, a posterior or what it says of them second"
        )


def with_learned_latents(demos: Demonstrations, posterior: Any) -> Demonstrations:
    """Demonstrations with the latents that a posterior knows, labels matched by their names.

    Few labels may name fewer.

    Raises:
        ValueError: If a label is none of them.
    """
    from btil.posterior.conforming import conform_latents

    # A team of `btil.imitation` has its task's.
    return conform_latents(demos, getattr(posterior, "demos", demos))


def hamming_distance(demos: Demonstrations, decoded: Any) -> Float[np.ndarray, " agents"]:
    r"""Share of labelled steps that are decoded wrongly, averaged over episodes.

    .. math:: \frac{1}{|E_i|} \sum_{m \in E_i} \frac{1}{|L_{im}|}
              \sum_{t \in L_{im}} 1(\hat x_{i,m}^t \ne x_{i,m}^t)

    with :math:`L_{im}` the labelled steps of agent i in episode m, and :math:`E_i` the episodes
    that have some. Every episode counts the same, whatever its length.

    Args:
        demos: Demonstrations with labels, the truth.
        decoded: A posterior, which decodes `demos` without a look at the labels; or whole numbers
            (steps, agents), e.g. `posterior.decode(demos)`. Of a path that was decoded with
            `use_labels=True` the distance is 0, and says nothing.

    Returns:
        One distance in [0, 1] per agent, in the order of `demos.agents`; NaN for an agent with no
        label.

    Raises:
        ValueError: If `decoded` has another shape, or values that are no latents.

    Example:
        >>> demos = Demonstrations([0, 0, 0], [0, 1, 0], latents=[1, 1, -1], num_latents=2)
        >>> hamming_distance(demos, [[0], [1], [0]]).tolist()
        [0.5]

    Source: the normalised Hamming distance of the paper, "Experiments".
    """
    demos, path = decoded_latents(demos, decoded)
    labelled = demos.latents >= 0
    wrong = labelled & (path != demos.latents)
    num_wrong = np.add.reduceat(wrong, demos.episode_starts, axis=0, dtype=np.int64)
    num_labelled = np.add.reduceat(labelled, demos.episode_starts, axis=0, dtype=np.int64)
    shares = num_wrong / np.maximum(num_labelled, 1)
    return _ratio(shares.sum(0), (num_labelled > 0).sum(0))


def decoding_error(
    demos: Demonstrations, decoded: Any | Mapping[str, Any]
) -> Float[np.ndarray, " agents"]:
    """Share of labelled steps that are decoded wrongly, every step counting the same.

    Args:
        demos: Demonstrations with labels, the truth.
        decoded: As in `hamming_distance`; or beliefs {agent: (steps, latents)} as from
            `posterior.smooth` or `posterior.filter`, of which the most probable latent is taken.

    Returns:
        One error in [0, 1] per agent; NaN for an agent with no label.

    Raises:
        ValueError: If `decoded` has another shape, lacks an agent, or has values that are no
            latents.

    Example:
        >>> demos = Demonstrations([0, 0, 0], [0, 1, 0], latents=[1, 1, -1], num_latents=2)
        >>> decoding_error(demos, {"agent_0": np.array([[.2, .8], [.7, .3], [.5, .5]])}).tolist()
        [0.5]
    """
    path = most_probable(demos, decoded) if isinstance(decoded, Mapping) else decoded
    demos, path = decoded_latents(demos, path)
    labelled = demos.latents >= 0
    return _ratio((labelled & (path != demos.latents)).sum(0), labelled.sum(0))


def most_probable(
    demos: Demonstrations, beliefs: Any | Mapping[str, Any]
) -> Int[np.ndarray, "steps agents"]:
    """The latent of highest probability at each step (the first of equals).

    Args:
        demos: The demonstrations that the beliefs are about.
        beliefs: {agent: (steps, latents)}; or a posterior, which smooths them without a look at
            the labels.

    Raises:
        ValueError: If an agent is missing, or a shape is another one.
    """
    demos, checked = smoothed_beliefs(demos, beliefs)
    return np.stack([checked[agent].argmax(-1) for agent in demos.agents], axis=1)


def majority_class_error(
    train: Demonstrations, test: Demonstrations
) -> Float[np.ndarray, " agents"]:
    """`hamming_distance` of always guessing an agent's most frequent label of `train`.

    What a decoder must beat. Of equally frequent labels the first is guessed.

    Args:
        train: Demonstrations whose labels are counted.
        test: Demonstrations with labels, the truth.

    Returns:
        One error per agent; NaN for an agent without labels in `train` or in `test`.

    Raises:
        ValueError: If the agents differ, or the guess is no latent of `test`.
    """
    if train.agents != test.agents:
        raise ValueError(
            f"the agents of train are {', '.join(train.agents)}, those of test "
            f"{', '.join(test.agents)}"
        )
    counts = [
        np.bincount(labels[labels >= 0], minlength=size)
        for labels, size in zip(train.latents.T, train.num_latents, strict=True)
    ]
    guess = [
        _numbered_in(test, agent, train.latent_names.get(agent), int(count.argmax()))
        for agent, count in zip(train.agents, counts, strict=True)
    ]
    error = hamming_distance(test, np.tile(guess, (test.num_steps, 1)))
    return np.where([count.any() for count in counts], error, np.nan)


def _numbered_in(
    demos: Demonstrations, agent: str, names: tuple[str, ...] | None, latent: int
) -> int:
    """The number in some demonstrations of a latent that has a name in others.

    Raises:
        ValueError: If it is none of theirs.
    """
    theirs = demos.latent_names.get(agent)
    if names is None or theirs is None:
        return latent
    if names[latent] not in theirs:
        raise ValueError(
            f"the most frequent label of {agent} in train is {names[latent]}, in test its latents "
            f"are {', '.join(theirs)}"
        )
    return theirs.index(names[latent])


def confusion_matrix(
    demos: Demonstrations, decoded: Any, agent: str
) -> Int[np.ndarray, "latents latents"]:
    """How often a label (row) was decoded as each latent (column), over an agent's labelled steps.

    Args:
        demos: Demonstrations with labels, the truth.
        decoded: As in `hamming_distance`.
        agent: Name of the agent.

    Raises:
        ValueError: If the agent is unknown, or `decoded` has another shape or values that are no
            latents.

    Example:
        >>> demos = Demonstrations([0, 0, 0], [0, 1, 0], latents=[1, 1, -1], num_latents=2)
        >>> confusion_matrix(demos, [[0], [1], [0]], "agent_0").tolist()
        [[0, 0], [1, 1]]
    """
    position = agent_position(demos, agent)
    demos, paths = decoded_latents(demos, decoded)
    path, labels = paths[:, position], demos.latents[:, position]
    size = demos.num_latents[position]
    known = labels >= 0
    codes = labels[known] * size + path[known]
    return np.bincount(codes, minlength=size * size).reshape(size, size)


def weighted_js_divergence(true_policy: Any, policy: Any, weights: Any) -> float:
    r"""Jensen-Shannon divergence between rows, averaged with given weights; natural logarithm.

    .. math:: \sum_c w_c \left[ \tfrac12 \mathrm{KL}(p_c \| m_c) + \tfrac12 \mathrm{KL}(q_c \| m_c)
              \right], \qquad m_c = \tfrac12 (p_c + q_c)

    Between 0 (equal rows) and log 2 (rows without a common action). Zeros in rows are fine.

    Args:
        true_policy: Rows p on the last axis, (..., actions), e.g. (states, latents, actions).
        policy: Rows q, of the same shape.
        weights: Broadcast to the leading axes; non-negative, and the sum over all rows is 1. The
            paper weights by the share of each (state, latent) in the training set. Rows of weight
            0 are ignored, whatever they hold.

    Returns:
        The divergence, in nats.

    Raises:
        ValueError: If shapes differ, weights are negative, not finite or do not sum to 1, or a row
            of positive weight is not a probability vector.

    Example:
        >>> round(weighted_js_divergence([[1, 0], [0, 1]], [[0, 1], [0, 1]], [0.5, 0.5]), 4)
        0.3466

    References:
        J. Lin (1991), Divergence measures based on the Shannon entropy. The measure of policies
        learned in the paper, "Experiments", after Unhelkar and Shah (2019).
    """
    rows = {
        "true_policy": np.asarray(true_policy, np.float64),
        "policy": np.asarray(policy, np.float64),
    }
    shape = rows["true_policy"].shape
    if rows["policy"].shape != shape or len(shape) == 0 or shape[-1] == 0:
        raise ValueError(
            f"true_policy has shape {shape} and policy {rows['policy'].shape}; they must be the "
            "same, (..., actions)"
        )
    weight = np.asarray(weights, np.float64)
    try:
        weight = np.broadcast_to(weight, shape[:-1])
    except ValueError:
        raise ValueError(
            f"weights: shape {weight.shape} does not broadcast to the rows, {shape[:-1]}"
        ) from None
    wrong = ~(np.isfinite(weight) & (weight >= 0))
    if wrong.any():
        where = tuple(np.argwhere(wrong)[0].tolist())
        raise ValueError(f"weights: {weight[where]} at {where}; they must be 0 or more")
    total = float(weight.sum())
    if not abs(total - 1) <= SUM_TOLERANCE:
        raise ValueError(f"weights: the sum over the rows is {total:.6g}; it must be 1")
    used = np.asarray(weight > 0)  # of a single row NumPy makes a scalar
    for name, values in rows.items():
        _check_rows(name, values, used)
    p, q = (values[used] for values in rows.values())
    middle = (p + q) / 2
    divergence = (_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2
    # Rounding can leave a divergence of equal rows a hair below 0.
    return max(0.0, float(weight[used] @ divergence))


def policy_weights(demos: Demonstrations, agent: str) -> Float[np.ndarray, "states latents"]:
    r"""Share of each (state, latent) among the labelled steps of an agent.

    .. math:: w_i(s, x) = \frac{1}{|L_i|} \sum_{t \in L_i} 1(s^t = s, x_i^t = x)

    with :math:`L_i` the labelled steps of agent i in all episodes: the weights of the paper's
    measure of policies.

    Args:
        demos: The training demonstrations, with labels.
        agent: Name of the agent.

    Returns:
        Weights that sum to 1, a row for each value of `demos.states`, e.g. for
        `weighted_js_divergence`.

    Raises:
        ValueError: If the agent is unknown or has no label.

    Example:
        >>> demos = Demonstrations([0, 0, 2], [0, 1, 0], latents=[1, 1, 0], num_latents=2)
        >>> policy_weights(demos, "agent_0").round(2).tolist()
        [[0.0, 0.67], [0.0, 0.0], [0.33, 0.0]]
    """
    visited, counts = _labelled_visits(demos, agent_position(demos, agent))
    if not len(visited.states):
        raise ValueError(f"agent {agent} has no label: there is nothing to weight by")
    num_states = math.prod(demos.num_states.values())
    weights = np.zeros((num_states, demos.num_latents[agent_position(demos, agent)]))
    weights[visited.states, visited.latents] = counts / counts.sum()
    return weights


def policy_divergence(
    demos: Demonstrations, true_policies: Mapping[str, Any], policies: Mapping[str, Any]
) -> Float[np.ndarray, " agents"]:
    r"""Weighted Jensen-Shannon divergence between true and learned policies, per agent.

    .. math:: \sum_{s, x} w_i(s, x) \; \mathrm{JS}\big(\pi_i(\cdot | s, x) \,\big\|\,
              \hat\pi_i(\cdot | s, x)\big)

    `weighted_js_divergence` with the `policy_weights` of the demonstrations, natural logarithm.
    Only the rows of the states and latents that occur are read, whatever the others hold.

    Args:
        demos: The training demonstrations, with labels.
        true_policies: {agent: (states, latents, actions)}, a row for each value of
            `demos.states`, e.g. `task.policies()`.
        policies: The same of the learned team, e.g. `team.policies`.

    Returns:
        One divergence between 0 and log 2 per agent, in the order of `demos.agents`; NaN for an
        agent with no label.

    Raises:
        ValueError: If an agent is missing, a shape is another one, or a row that is read is no
            probability vector.

    Example:
        >>> demos = Demonstrations([0, 1], [0, 1], latents=[0, 0], num_latents=1)
        >>> true, learned = np.array([[[1, 0]], [[0, 1]]]), np.array([[[0, 1]], [[0, 1]]])
        >>> policy_divergence(demos, {"agent_0": true}, {"agent_0": learned}).round(4).tolist()
        [0.3466]

    Source: the paper, "Experiments", after Unhelkar and Shah (2019).
    """
    return np.array(
        [
            _policy_divergence(demos, position, true_policies, policies)
            for position in range(demos.num_agents)
        ]
    )


def _policy_divergence(
    demos: Demonstrations,
    position: int,
    true_policies: Mapping[str, Any],
    policies: Mapping[str, Any],
) -> float:
    agent = demos.agents[position]
    num_states = math.prod(demos.num_states.values())
    expected = (num_states, demos.num_latents[position], demos.num_actions[position])
    tables = {}
    for name, given in (("true_policies", true_policies), ("policies", policies)):
        if agent not in given:
            raise ValueError(f"{name}: none for agent {agent}")
        tables[name] = np.asarray(given[agent])
        if tables[name].shape != expected:
            raise ValueError(
                f"{name}: {agent}'s has shape {tables[name].shape}, expected (states, latents, "
                f"actions) = {expected}"
            )
    visited, counts = _labelled_visits(demos, position)
    if not len(counts):
        return float("nan")
    true_rows, rows = (table[visited.states, visited.latents] for table in tables.values())
    try:
        return weighted_js_divergence(true_rows, rows, counts / counts.sum())
    except ValueError as error:
        raise ValueError(f"agent {agent}, rows that are read: {error}") from None


class _Visited(NamedTuple):
    states: Int[np.ndarray, " visited"]
    latents: Int[np.ndarray, " visited"]


def _labelled_visits(
    demos: Demonstrations, position: int
) -> tuple[_Visited, Int[np.ndarray, " visited"]]:
    """The distinct (state, latent) of an agent's labelled steps, and how often each occurs."""
    labels = demos.latents[:, position]
    known = labels >= 0
    pairs = np.stack([demos.states[known], labels[known]], axis=1)
    distinct, counts = np.unique(pairs, axis=0, return_counts=True)
    return _Visited(distinct[:, 0], distinct[:, 1]), counts


class StepShare(NamedTuple):
    """How often something holds at a step.

    Attributes:
        over_episodes: The mean over episodes of the share of each one's steps: every episode
            counts the same, whatever its length.
        over_steps: The share of all steps: every step counts the same.
    """

    over_episodes: float
    over_steps: float


def team_alignment(
    latents: Demonstrations | Any, decoded: Any = None, episodes: Any = None
) -> StepShare:
    r"""How often all members of the team have the same in mind.

    .. math:: \frac{1}{|E|} \sum_{m \in E} \frac{1}{|L_m|} \sum_{t \in L_m}
              1(x_{1,m}^t = \dots = x_{n,m}^t)
              \quad\text{and}\quad
              \frac{1}{\sum_m |L_m|} \sum_m \sum_{t \in L_m} 1(x_{1,m}^t = \dots = x_{n,m}^t)

    with :math:`L_m` the steps of episode m at which the latent of every agent is known, and
    :math:`E` the episodes that have some.

    Args:
        latents: Demonstrations, whose labels are the latents unless there is `decoded`; or whole
            numbers (steps, agents), negative where unknown.
        decoded: With demonstrations, the latents in question, for all steps: a posterior, or whole
            numbers, as in `hamming_distance`.
        episodes: With an array, the episode of each step (steps,), each one contiguous. None: all
            steps are one episode.

    Returns:
        The mean over episodes and the share of all steps, in [0, 1]; NaN if there is no step at
        which every agent's is known.

    Raises:
        ValueError: If the agents have different latents, or an array or `episodes` has another
            shape.

    Example:
        >>> team_alignment([[0, 0], [1, 0], [2, 2]], episodes=[7, 7, 8])
        StepShare(over_episodes=0.75, over_steps=0.6666666666666666)
        >>> team_alignment(demos, posterior).over_steps  # doctest: +SKIP
        0.71
    """
    if isinstance(latents, Demonstrations):
        if episodes is not None:
            raise ValueError("episodes: not needed, demonstrations know theirs")
        labels, starts = latents.latents, latents.episode_starts
        if decoded is not None:
            latents, labels = decoded_latents(latents, decoded)
        check_comparable(latents)
    else:
        if decoded is not None:
            raise ValueError(
                "decoded: goes with demonstrations; of an array alone, name the episodes: "
                "episodes=..."
            )
        labels = np.asarray(latents)
        if labels.ndim != 2 or 0 in labels.shape or labels.dtype.kind not in "iu":
            raise ValueError(
                f"latents: whole numbers (steps, agents) expected, got {labels.dtype} of shape "
                f"{labels.shape}"
            )
        starts = _starts(episodes, len(labels))
    same = (labels == labels[:, :1]).all(axis=1)
    return _step_share(same, (labels >= 0).all(axis=1), starts)


def suboptimal_share(task: "GridTask", demos: Demonstrations, decoded: Any = None) -> StepShare:
    r"""How often the minds of a grid-world team are misaligned, as `task.suboptimal` defines it.

    .. math:: \frac{1}{|E|} \sum_{m \in E} \frac{1}{|L_m|} \sum_{t \in L_m}
              1(\text{suboptimal}(s_m^t, x_m^t))
              \quad\text{and the same pooled over steps,}

    with :math:`L_m` the steps of episode m at which the latent of every agent is known, and
    :math:`E` the episodes that have some. The paper's 49% (Movers) and 7% (Cleanup) fit the mean
    over episodes.

    Args:
        task: The task.
        demos: Demonstrations of this task, whose labels are the latents unless there is `decoded`.
        decoded: The latents in question, for all steps: a posterior or a team that was learned,
            or whole numbers, as in `hamming_distance`.

    Returns:
        The mean over episodes and the share of all steps, in [0, 1]; NaN if there is no step at
        which every agent's is known.

    Raises:
        ValueError: If the states or the latents are not those of the task.

    Example:
        >>> task = btil.domains.movers()  # doctest: +SKIP
        >>> suboptimal_share(task, task.simulate(200)).over_episodes  # doctest: +SKIP
        0.48

    Source: the paper, Appendix C.
    """
    return _step_share(*suboptimal_steps(task, demos, decoded), demos.episode_starts)


def suboptimal_steps(
    task: "GridTask", demos: Demonstrations, decoded: Any = None
) -> tuple[Bool[np.ndarray, " steps"], Bool[np.ndarray, " steps"]]:
    """At which steps minds are misaligned, and of which steps that is known.

    Args:
        task: The task.
        demos: Demonstrations of it.
        decoded: As in `suboptimal_share`.

    Raises:
        ValueError: As `suboptimal_share`.
    """
    from btil.domains.gridworld.derived import task_states

    states = task_states(task, demos)
    latents = demos.latents if decoded is None else decoded_latents(demos, decoded)[1]
    known = (latents >= 0).all(axis=1)
    suboptimal = np.zeros(demos.num_steps, bool)
    suboptimal[known] = task.suboptimal(states[known], latents[known])
    return suboptimal, known


def _step_share(
    holds: Bool[np.ndarray, " steps"],
    counted: Bool[np.ndarray, " steps"],
    starts: Int[np.ndarray, " episodes"],
) -> StepShare:
    true = np.add.reduceat(holds & counted, starts, dtype=np.int64)
    all_counted = np.add.reduceat(counted, starts, dtype=np.int64)
    used = all_counted > 0
    if not used.any():
        return StepShare(float("nan"), float("nan"))
    return StepShare(
        over_episodes=float(np.mean(true[used] / all_counted[used])),
        over_steps=float(true.sum() / all_counted.sum()),
    )


def _starts(episodes: Any, num_steps: int) -> Int[np.ndarray, " episodes"]:
    if episodes is None:
        return np.zeros(1, np.int64)
    ids = np.asarray(episodes)
    if ids.shape != (num_steps,):
        raise ValueError(f"episodes: shape {ids.shape}, expected (steps,) = {(num_steps,)}")
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
    if len(np.unique(ids)) < len(starts):
        raise ValueError("episodes: the steps of an episode must be contiguous")
    return starts


def check_comparable(demos: Demonstrations) -> None:
    """Refuse to compare the latents of agents whose latents have different names.

    Raises:
        ValueError: Naming two agents that differ, and their latents.
    """
    names = [demos.value_names(f"latent_{agent}") for agent in demos.agents]
    for agent, own in zip(demos.agents, names, strict=True):
        if own != names[0]:
            raise ValueError(
                f"the latents of {demos.agents[0]} are {', '.join(names[0])}, those of {agent} "
                f"{', '.join(own)}: they cannot be compared"
            )


def agent_position(demos: Demonstrations, agent: str) -> int:
    """Column of an agent.

    Raises:
        ValueError: If there is no such agent.
    """
    if agent not in demos.agents:
        raise ValueError(f"unknown agent {agent!r}; the agents are {', '.join(demos.agents)}")
    return demos.agents.index(agent)


def _relative_entropy(
    p: Float[np.ndarray, "rows values"], q: Float[np.ndarray, "rows values"]
) -> Float[np.ndarray, " rows"]:
    from scipy.special import rel_entr

    return rel_entr(p, q).sum(-1)


def _check_rows(name: str, rows: Float[np.ndarray, "..."], used: np.ndarray) -> None:
    wrong = used & improper_rows(rows)
    if wrong.any():
        where = tuple(np.argwhere(wrong)[0].tolist())
        raise ValueError(
            f"{name}: the row at {where} has a positive weight but is not a probability vector: "
            f"{rows[where].tolist()}"
        )


def _checked_path(demos: Demonstrations, decoded: Any) -> Int[np.ndarray, "steps agents"]:
    path = np.asarray(decoded)
    expected = (demos.num_steps, demos.num_agents)
    if path.shape != expected:
        raise ValueError(f"decoded: shape {path.shape}, expected (steps, agents) = {expected}")
    if path.dtype.kind not in "iu":
        raise ValueError(f"decoded: whole numbers expected, got an array of {path.dtype}")
    outside = ((path < 0) & demos.present) | (path >= np.array(demos.num_latents))
    if outside.any():
        step, position = np.argwhere(outside)[0]
        raise ValueError(
            f"decoded: {path[step, position]} for agent {demos.agents[position]} in row {step}; "
            f"allowed are 0..{demos.num_latents[position] - 1}"
        )
    return path.astype(np.int64)


def _ratio(
    numerator: np.ndarray, denominator: Int[np.ndarray, " agents"]
) -> Float[np.ndarray, " agents"]:
    return np.where(denominator > 0, numerator / np.maximum(denominator, 1), np.nan)
