"""Players that PPO trains in a grid world: what they read, how they act, and how they learn.

One policy per agent, and one value network for all, which sees the state and every agent's latent.
Latents move by the true T_x. Where the rewards come from is the caller's affair: the task's own
(`btil.imitation.reinforcement`), or a discriminator's verdicts (`btil.imitation.magail`).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from btil.demonstrations import Demonstrations
from btil.domains.gridworld.derived import task_states
from btil.domains.gridworld.simulate import advance, draw, first_latents
from btil.domains.gridworld.task import GridTask
from btil.imitation.behavioral_cloning import (
    clone,
    stack_examples,
    tables_by_variables,
    variable_rows,
)
from btil.imitation.learning import Curves, Learned
from btil.imitation.networks import (
    OneHotNetwork,
    StateRows,
    make_networks,
    outputs,
    probabilities,
    row_indices,
    with_state_rows,
)
from btil.imitation.ppo import clipped_surrogate, entropy, generalized_advantages, taken_log_probs
from btil.numerics.promotion import promotion_allowed
from btil.numerics.rounding import rounded_up

# Rows for states at the start of a run on a large map: more rows make every update slower, and
# running out of them costs a compilation.
_FEWEST_ROWS = 4096


class Scene(NamedTuple):
    """Where episodes that run side by side stand.

    Attributes:
        states: Task state of each.
        latents: Latent of each agent.
        steps: Steps done in the episode.
    """

    states: Int[np.ndarray, " runs"]
    latents: Int[np.ndarray, "runs agents"]
    steps: Int[np.ndarray, " runs"]


class Experience(NamedTuple):
    """Some steps of episodes that run side by side: all runs' first, then all their second, ...

    Attributes:
        states: Task states.
        latents: Latents.
        actions: Actions taken.
        next_states: Task states they led to, before a new episode takes the place of one ended.
        next_latents: Latents after the step.
        final: Whether the task was done then.
        ended: Whether the episode was over, done or cut.
    """

    states: Int[np.ndarray, " batch"]
    latents: Int[np.ndarray, "batch agents"]
    actions: Int[np.ndarray, "batch agents"]
    next_states: Int[np.ndarray, " batch"]
    next_latents: Int[np.ndarray, "batch agents"]
    final: Bool[np.ndarray, " batch"]
    ended: Bool[np.ndarray, " batch"]


class Players(NamedTuple):
    """What PPO trains.

    Attributes:
        policies: One network per agent, which reads the own latent and the state.
        value: One network for all, which reads every latent and the state.
    """

    policies: OneHotNetwork
    value: OneHotNetwork


class Trainee(NamedTuple):
    """Networks and the state of their optimizer."""

    networks: Any
    optimizer_state: optax.OptState


class Shown(NamedTuple):
    """Demonstrated steps that policies are to go on imitating while they learn from rewards.

    Attributes:
        indices: Rows of the policies' inputs.
        actions: The actions shown.
    """

    indices: Int[Array, "agents examples policy_inputs"]
    actions: Int[Array, "agents examples"]


class Lesson(NamedTuple):
    """A batch of steps as PPO takes it.

    Attributes:
        policy_indices: Rows of the policies' inputs.
        value_indices: Rows of the value network's inputs.
        actions: Actions taken.
        advantages: Of the joint actions.
        targets: For the values.
        shown: Steps to go on imitating; None: none.
    """

    policy_indices: Int[Array, "agents batch policy_inputs"]
    value_indices: Int[Array, "1 batch value_inputs"]
    actions: Int[Array, "agents batch"]
    advantages: Float[Array, " batch"]
    targets: Float[Array, " batch"]
    shown: Shown | None = None


class Settings(NamedTuple):
    """The options of PPO.

    Attributes:
        num_steps: Steps of each run per iteration.
        max_steps: Steps after which an episode is cut.
        learning_rate: Adam's.
        num_epochs: Updates per iteration, each on the whole batch.
        clip: Of the ratio of probabilities.
        discount: Of rewards, gamma.
        trace_decay: Lambda of the advantages.
        entropy_weight: Of the policies' entropy.
        cloning_weight: Of the cross entropy of steps shown.
    """

    num_steps: int
    max_steps: int
    learning_rate: float
    num_epochs: int
    clip: float
    discount: float
    trace_decay: float
    entropy_weight: float
    cloning_weight: float = 0.0


class Improved(NamedTuple):
    """Players after an iteration.

    Attributes:
        players: The networks and their optimizer.
        value_loss: Half the squared error of the values, before their last update.
        entropy: Of the policies, in nats, before their last update.
    """

    players: Trainee
    value_loss: float
    entropy: float


class Reader:
    """Turns states, latents and actions into the inputs of each network.

    Attributes:
        rows: The states met so far; none where networks read variables.
        policy_sizes: Sizes of a policy's small inputs; likewise the others.
    """

    def __init__(self, task: GridTask, inputs: str = "state") -> None:
        latents = (task.num_latents,) * len(task.agents)
        self._task = task
        self.by_variables = inputs == "variables"
        self.rows = StateRows(task.num_states)
        variables = tuple(task.state_sizes.values()) if self.by_variables else ()
        self._others = (latents[:1], latents, latents + (task.num_actions,) * len(task.agents))
        self.policy_sizes, self.value_sizes, self.discriminator_sizes = (
            variables + others for others in self._others
        )

    def meet(self, states: Int[np.ndarray, " batch"]) -> None:
        """Give rows to states that have none."""
        if not self.by_variables:
            self.rows.meet(states)

    def _inputs(
        self,
        states: Int[np.ndarray, " batch"],
        others: Int[np.ndarray, "batch others"],
        sizes: tuple[int, ...],
    ) -> Int[np.ndarray, "batch inputs"]:
        if self.by_variables:
            return variable_rows(self._task, states, others, *sizes)
        return row_indices(sizes, others, self.rows.of_state[states])

    def policies(
        self, states: Int[np.ndarray, " batch"], latents: Int[np.ndarray, "batch agents"]
    ) -> Int[np.ndarray, "agents batch inputs"]:
        """Inputs of each agent's policy: the own latent and the state."""
        sizes = self._others[0]
        return np.stack([self._inputs(states, own[:, None], sizes) for own in latents.T])

    def value(
        self, states: Int[np.ndarray, " batch"], latents: Int[np.ndarray, "batch agents"]
    ) -> Int[np.ndarray, "1 batch inputs"]:
        """Inputs of the value network: all latents and the state."""
        return self._inputs(states, latents, self._others[1])[None]

    def discriminator(
        self,
        states: Int[np.ndarray, " batch"],
        latents: Int[np.ndarray, "batch agents"],
        actions: Int[np.ndarray, "batch agents"],
    ) -> Int[np.ndarray, "1 batch inputs"]:
        """Inputs of the discriminator: all latents, all actions and the state."""
        values = np.concatenate([latents, actions], axis=1)
        return self._inputs(states, values, self._others[2])[None]


class Start(NamedTuple):
    """Players before they act for the first time.

    Attributes:
        players: Policies that were cloned, values that know nothing, and their optimizer.
        cloning_losses: Cross entropy of each update of cloning.
        capacity: Rows that networks have for states.
    """

    players: Trainee
    cloning_losses: Float[np.ndarray, " updates"]
    capacity: int


def cloned_players(
    task: GridTask,
    reader: Reader,
    demos: Demonstrations,
    generator: np.random.Generator,
    *,
    hidden: tuple[int, ...],
    activation: str,
    learning_rate: float,
    num_iterations: int,
    batch_size: int,
    description: str,
    progress: bool,
) -> Start:
    """Make networks, and let the policies imitate demonstrated steps for some updates.

    Args:
        task: The task.
        reader: Of their inputs; the states shown get rows.
        demos: Demonstrations, every step labelled.
        generator: Draws weights and batches.
        hidden: Width of each hidden layer.
        activation: A name in `btil.imitation.networks.ACTIVATIONS`.
        learning_rate: Adam's.
        num_iterations: Updates by cloning.
        batch_size: Examples per update.
        description: Of the progress line.
        progress: Whether to show one.
    """
    states = task_states(task, demos)
    reader.meet(states)
    capacity = 0
    if not reader.by_variables:
        capacity = rounded_up(min(task.num_states, max(_FEWEST_ROWS, 2 * reader.rows.count)))
    make = partial(
        make_networks,
        generator,
        num_state_rows=capacity,
        hidden=tuple(hidden),
        activation=activation,
    )
    cloned = clone(
        make(len(task.agents), sizes=reader.policy_sizes, num_outputs=task.num_actions),
        stack_examples([*reader.policies(states, demos.latents)], [*demos.actions.T]),
        generator,
        num_iterations=num_iterations,
        batch_size=batch_size,
        learning_rate=learning_rate,
        description=description,
        progress=progress,
    )
    value = make(1, sizes=reader.value_sizes, num_outputs=1)
    players = with_optimizer(Players(cloned.networks, value), learning_rate)
    return Start(players, cloned.losses, capacity)


def with_room(tree: Any, reader: Reader, capacity: int) -> tuple[Any, int]:
    """Networks with rows for all states met, and how many rows these are."""
    while reader.rows.count > capacity:
        tree = with_state_rows(tree, capacity)
        capacity *= 2
    return tree, capacity


def with_optimizer(networks: Any, learning_rate: float) -> Trainee:
    """Networks with the state of an optimizer that has done nothing yet."""
    return Trainee(networks, optax.adamw(learning_rate).init(networks))


def check_runs(batch_size: int, num_runs: int) -> None:
    """Refuse a batch that is not so many steps of each run.

    Raises:
        ValueError: If it is not.
    """
    if batch_size % num_runs:
        raise ValueError(f"num_runs must divide batch_size, {batch_size}; got {num_runs}")


def opening_scene(task: GridTask, num_runs: int, generator: np.random.Generator) -> Scene:
    """The first step of every run."""
    states = np.full(num_runs, task.start_state)
    latents = first_latents(task, states, generator.random((num_runs, len(task.agents))))
    return Scene(states, latents, np.zeros(num_runs, np.int64))


def roll_out(
    task: GridTask,
    reader: Reader,
    policies: OneHotNetwork,
    scene: Scene,
    settings: Settings,
    generator: np.random.Generator,
) -> tuple[Experience, Scene]:
    """Let the policies act for some steps from where the runs stand.

    A run whose episode is over, done or after the greatest number of steps, starts another one.
    """
    num_runs, num_agents = scene.latents.shape
    record = []
    for _ in range(settings.num_steps):
        u = generator.random((num_runs, 2 * num_agents + 1))
        probs = probabilities(policies, reader.policies(scene.states, scene.latents))
        actions = np.stack([draw(probs[i], u[:, i]) for i in range(num_agents)], axis=1)
        states, latents = advance(task, scene.states, scene.latents, actions, u[:, num_agents:])
        final = task.is_final(states)
        ended = final | (scene.steps + 1 == settings.max_steps)
        record.append(
            Experience(scene.states, scene.latents, actions, states, latents, final, ended)
        )
        scene = Scene(states, latents, scene.steps + 1)
        if ended.any():
            anew = opening_scene(task, num_runs, generator)
            scene = Scene(
                np.where(ended, anew.states, states),
                np.where(ended[:, None], anew.latents, latents),
                np.where(ended, 0, scene.steps),
            )
    experience = Experience(*(np.concatenate(part) for part in zip(*record, strict=True)))
    reader.meet(experience.states)
    reader.meet(experience.next_states)
    return experience, scene


def improve(
    reader: Reader,
    players: Trainee,
    experience: Experience,
    rewards: Float[np.ndarray, " batch"],
    settings: Settings,
    values_only: bool = False,
    shown: Shown | None = None,
) -> Improved:
    """Train the players by the rewards of what they have just done.

    Args:
        reader: Of the networks' inputs.
        players: The players.
        experience: What they did.
        rewards: Of each step, the same for all.
        settings: The options of PPO.
        values_only: Whether policies stay as they are.
        shown: Steps to go on imitating; None: none.
    """
    value_indices = reader.value(experience.states, experience.latents)
    next_indices = reader.value(experience.next_states, experience.next_latents)
    value = players.networks.value
    by_step = (settings.num_steps, -1)
    values, next_values = (
        np.asarray(outputs(value, indices), np.float64).reshape(by_step)
        for indices in (value_indices, next_indices)
    )
    advantages = generalized_advantages(
        np.asarray(rewards, np.float64).reshape(by_step),
        values,
        next_values,
        experience.final.reshape(by_step),
        experience.ended.reshape(by_step),
        settings.discount,
        settings.trace_decay,
    )
    scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    if values_only:  # no gradient of the policies is left
        scaled = np.zeros_like(scaled)
        settings = settings._replace(entropy_weight=0.0, cloning_weight=0.0)
    lesson = Lesson(
        policy_indices=jnp.asarray(reader.policies(experience.states, experience.latents)),
        value_indices=jnp.asarray(value_indices),
        actions=jnp.asarray(experience.actions.T, jnp.int32),
        advantages=jnp.asarray(scaled.reshape(-1), jnp.float32),
        targets=jnp.asarray((advantages + values).reshape(-1), jnp.float32),
        shown=shown,
    )
    trained, value_loss, spread = _train_players(players, lesson, settings)
    return Improved(trained, float(value_loss), float(spread))


@jax.jit
def _train_players(
    trainee: Trainee, lesson: Lesson, settings: Settings
) -> tuple[Trainee, Float[Array, ""], Float[Array, ""]]:
    """PPO's updates, each on the whole batch."""
    old = taken_log_probs(outputs(trainee.networks.policies, lesson.policy_indices), lesson.actions)

    def loss(players: Players) -> tuple[Float[Array, ""], tuple[Array, Array]]:
        logits = outputs(players.policies, lesson.policy_indices)
        log_ratio = taken_log_probs(logits, lesson.actions) - old
        advantages = jnp.broadcast_to(lesson.advantages, log_ratio.shape)
        gain = clipped_surrogate(log_ratio, advantages, settings.clip).mean(1)
        spread = entropy(logits).mean(1)
        values = outputs(players.value, lesson.value_indices)[0, :, 0]
        value_loss = jnp.mean((values - lesson.targets) ** 2) / 2
        # The networks have no weights in common, so that summing their losses mixes nothing.
        total = value_loss - (gain + settings.entropy_weight * spread).sum()
        if lesson.shown is not None:
            told = taken_log_probs(
                outputs(players.policies, lesson.shown.indices), lesson.shown.actions
            )
            total -= settings.cloning_weight * told.mean(1).sum()
        return total, (value_loss, spread.mean())

    def update(_: Array, carry: tuple) -> tuple:
        trainee, _ = carry
        (_, info), gradient = jax.value_and_grad(loss, has_aux=True)(trainee.networks)
        return update_networks(trainee, gradient, settings.learning_rate), info

    start = (trainee, (jnp.zeros(()), jnp.zeros(())))
    trainee, (value_loss, spread) = jax.lax.fori_loop(0, settings.num_epochs, update, start)
    return trainee, value_loss, spread


def update_networks(
    trainee: Trainee,
    gradient: Any,
    learning_rate: float | Array,
    weight_decay: float | Array = 0.0,
) -> Trainee:
    """One update by Adam, with weights that shrink by themselves (Loshchilov, Hutter, 2019)."""
    optimizer = optax.adamw(learning_rate, weight_decay=weight_decay)
    with promotion_allowed():
        change, optimizer_state = optimizer.update(
            gradient, trainee.optimizer_state, trainee.networks
        )
        return Trainee(optax.apply_updates(trainee.networks, change), optimizer_state)


def learned_by_acting(
    task: GridTask,
    reader: Reader,
    players: Trainee,
    start: Start,
    curves: Curves,
    num_iterations: int,
) -> Learned:
    """What players have learned when all iterations are done; there is no other criterion."""
    return Learned(
        policies=policy_tables(task, reader, players.networks.policies),
        learning_curve={"cloning_loss": start.cloning_losses, **curves},
        converged=False,
        reason=f"all {num_iterations} iterations done; there is no other criterion",
    )


def policy_tables(
    task: GridTask, reader: Reader, policies: OneHotNetwork
) -> dict[str, Float[np.ndarray, "states latents actions"]]:
    """A row for every task state; where networks read states, those never met share one."""
    if reader.by_variables:
        return tables_by_variables(task, policies)
    latents = np.arange(task.num_latents)[:, None]
    capacity = policies.rows.shape[1] - sum(reader.policy_sizes)
    rows, latents = np.broadcast_arrays(reader.rows.every_row(capacity), latents)
    indices = row_indices(reader.policy_sizes, latents[..., None], rows)
    flat = indices.reshape(-1, indices.shape[-1])
    probs = probabilities(policies, np.broadcast_to(flat, (len(task.agents), *flat.shape)))
    by_latent = probs.reshape(len(task.agents), *rows.shape, task.num_actions)
    return {a: reader.rows.spread(by_latent[i]) for i, a in enumerate(task.agents)}
