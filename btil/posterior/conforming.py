"""Other episodes of the same team, by the names and sizes that a posterior was learned with."""

import numpy as np
from jaxtyping import Float, Int

from btil.demonstrations import Demonstrations


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
            "open_demonstrations gives them part by part, `for part in file`, and is decoded whole "
            "by btil.analysis.decode_file"
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
        acting = {a: k for a, k in zip(training.agents, training.num_actions, strict=True) if k}
        acted = dict(zip(demos.agents, demos.actions.T, strict=True))
        demos = demos.replace(
            states={v: _by_names("state", v, states[v], demos, ours.get(v)) for v in sizes} or None,
            actions={
                a: _by_names("action", a, acted[a], demos, training.action_names.get(a))
                for a in acting
            }
            or None,
            num_states=sizes,
            num_actions=acting,
            state_names=ours,
            action_names=training.action_names,
        )
    return conform_latents(demos, training)


def conform_latents(demos: Demonstrations, training: Demonstrations) -> Demonstrations:
    """Demonstrations with the latents that a posterior knows, labels matched by their names.

    Raises:
        ValueError: As `conform`, of agents, labels and their weights.
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
        latent_weights={
            agent: _weights_by_names(weights, demos, agent, sizes[agent], names.get(agent))
            for agent, weights in demos.latent_weights.items()
        },
    )


def _weights_by_names(
    weights: Float[np.ndarray, "steps latents"],
    demos: Demonstrations,
    agent: str,
    size: int,
    ours: tuple[str, ...] | None,
) -> Float[np.ndarray, "steps ours"]:
    """Weights with a column for each latent that was learned; of those not weighed here, 0."""
    theirs = np.arange(weights.shape[1])
    numbers = _by_names("latent", agent, theirs, demos, ours)
    if numbers.max() >= size:
        raise ValueError(
            f"latent_weights: {len(theirs)} latents of {agent} are weighed, the posterior knows "
            f"{size}"
        )
    spread = np.zeros((len(weights), size))
    spread[:, numbers] = weights
    return spread


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
            f"have names, and which number means which name is not declared: {', '.join(ours)}. "
            "Write the names; if the numbers count these names in this order from 0, say so by "
            f"demos.replace({argument}=posterior.demos.{argument})"
        )
    if ours is None:
        raise ValueError(
            f"{argument} of {key}: the values here have names ({', '.join(theirs)}), but those "
            "that were learned from are numbers, and which name means which number is not declared"
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
