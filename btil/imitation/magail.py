r"""Multi-agent generative adversarial imitation learning, its centralised form.

A discriminator tells the team's demonstrated steps from those of the learners,

.. math:: \max_D\ E_{\text{shown}}[\log D(s, x, a)] + E_{\text{learners}}[\log(1 - D(s, x, a))],
          \qquad D = \mathrm{sigmoid}(f),

and the learners, one policy per agent, act in the task so as to be taken for the team. They are
trained by PPO with the reward :math:`-\log(1 - D)`, the same for all, and one value network that
sees the state and every agent's latent. Latents move by the true T_x. Before that the policies are
cloned from the demonstrations for some iterations (the paper, Appendix D).

That reward is positive: whoever finishes the task forgoes what longer episodes would bring. The
other forms, :math:`\log D - \log(1 - D)` and :math:`\log D`, do not pay for staying.

References:
    Song, Ren, Sadigh and Ermon (2018), Multi-agent generative adversarial imitation learning.
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
from btil.imitation.learning import Learned, require_labels
from btil.imitation.networks import (
    OneHotNetwork,
    StateRows,
    check_layers,
    make_networks,
    outputs,
    probabilities,
    row_indices,
    with_state_rows,
)
from btil.imitation.ppo import clipped_surrogate, entropy, generalized_advantages, taken_log_probs
from btil.numerics.promotion import promotion_allowed
from btil.numerics.rounding import rounded_up
from btil.progress import progress_line

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


class State(NamedTuple):
    """What the next iteration needs."""

    players: Trainee
    discriminator: Trainee
    scene: Scene


class Info(NamedTuple):
    """What is kept of an iteration.

    Attributes:
        discriminator_loss: Cross entropy of telling shown from own steps, in nats for one of
            each: 2 log 2 where they cannot be told apart.
        mean_reward: Average of the learners' rewards per step.
        value_loss: Half the squared error of the values, before their last update.
        entropy: Of the policies, in nats, before their last update.
    """

    discriminator_loss: float
    mean_reward: float
    value_loss: float
    entropy: float


class Lesson(NamedTuple):
    """A batch of steps as PPO takes it.

    Attributes:
        policy_indices: Rows of the policies' inputs.
        value_indices: Rows of the value network's inputs.
        actions: Actions taken.
        advantages: Of the joint actions.
        targets: For the values.
    """

    policy_indices: Int[Array, "agents batch policy_inputs"]
    value_indices: Int[Array, "1 batch value_inputs"]
    actions: Int[Array, "agents batch"]
    advantages: Float[Array, " batch"]
    targets: Float[Array, " batch"]


class Settings(NamedTuple):
    """The options of PPO, and what they share with the discriminator."""

    num_steps: int
    max_steps: int
    learning_rate: float
    num_epochs: int
    clip: float
    discount: float
    trace_decay: float
    entropy_weight: float
    reward: tuple[float, float] = (1.0, 0.0)
    discriminator_decay: float = 0.0


# Weights of -log(1 - D) and of log D.
_REWARDS = {"positive": (1.0, 0.0), "difference": (1.0, 1.0), "negative": (0.0, 1.0)}


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


def learn(
    task: GridTask,
    demos: Demonstrations,
    *,
    known_transition: bool,
    seed: int,
    progress: bool,
    num_iterations: int = 500,
    batch_size: int = 128,
    num_runs: int = 8,
    max_steps: int = 200,
    learning_rate: float = 7e-4,
    pretraining_iterations: int = 100,
    discriminator_updates: int = 5,
    first_discriminator_updates: int = 100,
    first_iterations: int = 10,
    num_epochs: int = 4,
    clip: float = 0.2,
    discount: float = 0.99,
    trace_decay: float = 0.95,
    entropy_weight: float = 0.01,
    hidden: tuple[int, ...] = (64, 128, 128),
    discriminator_hidden: tuple[int, ...] = (128, 128),
    activation: str = "tanh",
    inputs: str = "state",
    reward: str = "positive",
    discriminator_learning_rate: float | None = None,
    discriminator_decay: float = 0.0,
) -> Learned:
    """Pretrain the policies, then let them and the discriminator learn from each other.

    Args:
        task: The task.
        demos: Demonstrations, every step labelled.
        known_transition: Must be true.
        seed: Seeds networks, batches and episodes.
        progress: Whether to show progress lines.
        num_iterations: Rollouts, each followed by updates of all networks.
        batch_size: Steps in the task per iteration, and examples per discriminator update.
        num_runs: Episodes that run side by side; divides `batch_size`.
        max_steps: Steps after which an episode is cut.
        learning_rate: Adam's, for all networks.
        pretraining_iterations: Updates by cloning beforehand.
        discriminator_updates: Updates of the discriminator per iteration.
        first_discriminator_updates: The same, in the first iterations.
        first_iterations: How many these are.
        num_epochs: Updates of policies and values per iteration, each on the whole batch.
        clip: Of the ratio of probabilities in PPO.
        discount: Of rewards, gamma.
        trace_decay: Lambda of the advantages.
        entropy_weight: Of the policies' entropy in PPO's objective.
        hidden: Width of each hidden layer of policies and value.
        discriminator_hidden: The same of the discriminator.
        activation: "tanh", "relu" or "gelu".
        inputs: "state": networks read the task state. "variables": every state variable.
        reward: "positive": -log(1 - D); "difference": log D - log(1 - D); "negative": log D.
        discriminator_learning_rate: The same of the discriminator; None: no other one.
        discriminator_decay: By how much its weights shrink per update, as a multiple of that.

    Raises:
        ValueError: If a label is missing or an option has no such value.
    """
    require_labels(demos, known_transition, "magail")
    check_layers(hidden, activation)
    check_layers(discriminator_hidden, activation)
    if batch_size % num_runs:
        raise ValueError(f"num_runs must divide batch_size, {batch_size}; got {num_runs}")

    settings = Settings(
        num_steps=batch_size // num_runs,
        max_steps=max_steps,
        learning_rate=learning_rate,
        num_epochs=num_epochs,
        clip=clip,
        discount=discount,
        trace_decay=trace_decay,
        entropy_weight=entropy_weight,
        reward=_REWARDS[reward],
        discriminator_decay=discriminator_decay,
    )
    telling_rate = discriminator_learning_rate or learning_rate
    reader = Reader(task, inputs)
    states = task_states(task, demos)
    reader.meet(states)
    capacity = 0
    if not reader.by_variables:
        capacity = rounded_up(min(task.num_states, max(_FEWEST_ROWS, 2 * reader.rows.count)))
    generator = np.random.default_rng(seed)
    make = partial(make_networks, generator, num_state_rows=capacity, activation=activation)
    cloned = clone(
        make(
            len(task.agents),
            sizes=reader.policy_sizes,
            hidden=tuple(hidden),
            num_outputs=task.num_actions,
        ),
        stack_examples([*reader.policies(states, demos.latents)], [*demos.actions.T]),
        generator,
        num_iterations=pretraining_iterations,
        batch_size=batch_size,
        learning_rate=learning_rate,
        description="magail: cloning",
        progress=progress,
    )
    value = make(1, sizes=reader.value_sizes, hidden=tuple(hidden), num_outputs=1)
    discriminator = make(
        1, sizes=reader.discriminator_sizes, hidden=tuple(discriminator_hidden), num_outputs=1
    )
    shown_indices = reader.discriminator(states, demos.latents, demos.actions)
    # Padded, so that programs are shared between sets of like sizes; padding is never chosen.
    padding = rounded_up(len(states)) - len(states)
    shown = jnp.asarray(np.pad(shown_indices, ((0, 0), (0, padding), (0, 0))))

    state = State(
        players=with_optimizer(Players(cloned.networks, value), learning_rate),
        discriminator=with_optimizer(discriminator, telling_rate),
        scene=opening_scene(task, num_runs, generator),
    )
    most_updates = max(discriminator_updates, first_discriminator_updates)
    history = []
    with progress_line(num_iterations, "magail", progress) as line:
        for iteration in range(num_iterations):
            experience, scene = roll_out(
                task, reader, state.players.networks.policies, state.scene, settings, generator
            )
            while reader.rows.count > capacity:
                state = with_state_rows(state, capacity)
                capacity *= 2
            early = iteration < first_iterations
            updates = first_discriminator_updates if early else discriminator_updates
            chosen = np.zeros((most_updates, batch_size), np.int32)
            chosen[:updates] = generator.integers(0, len(states), (updates, batch_size))
            state, info = train(
                reader,
                state._replace(scene=scene),
                experience,
                shown,
                chosen,
                updates,
                settings,
                telling_rate,
            )
            history.append(info)
            line.update(1)
            line.set_postfix_str(
                f"reward {info.mean_reward:.3f}, discriminator {info.discriminator_loss:.3f}"
            )
    curves = {name: np.array([getattr(one, name) for one in history]) for name in Info._fields}
    return Learned(
        policies=tables_by_variables(task, state.players.networks.policies)
        if reader.by_variables
        else _policy_tables(task, reader, state.players.networks.policies),
        learning_curve={"cloning_loss": cloned.losses, **curves},
        converged=False,
        reason=f"all {num_iterations} iterations done; there is no other criterion",
    )


def with_optimizer(networks: Any, learning_rate: float) -> Trainee:
    """Networks with the state of an optimizer that has done nothing yet."""
    return Trainee(networks, optax.adamw(learning_rate).init(networks))


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


def train(
    reader: Reader,
    state: State,
    experience: Experience,
    shown: Int[Array, "1 shown inputs"],
    chosen: Int[np.ndarray, "updates batch"],
    discriminator_updates: int,
    settings: Settings,
    discriminator_learning_rate: float | None = None,
) -> tuple[State, Info]:
    """Train the discriminator on what was just done, and the players by its verdict."""
    own = reader.discriminator(experience.states, experience.latents, experience.actions)
    discriminator, discriminator_loss = _train_discriminator(
        state.discriminator,
        shown,
        own,
        chosen,
        discriminator_updates,
        discriminator_learning_rate or settings.learning_rate,
        settings.discriminator_decay,
    )
    value_indices = reader.value(experience.states, experience.latents)
    next_indices = reader.value(experience.next_states, experience.next_latents)
    networks = state.players.networks
    by_step = (settings.num_steps, -1)
    rewards, values, next_values = (
        np.asarray(part, np.float64).reshape(by_step)
        for part in _judge(
            discriminator.networks,
            networks.value,
            own,
            value_indices,
            next_indices,
            settings.reward,
        )
    )
    advantages = generalized_advantages(
        rewards,
        values,
        next_values,
        experience.final.reshape(by_step),
        experience.ended.reshape(by_step),
        settings.discount,
        settings.trace_decay,
    )
    scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    lesson = Lesson(
        policy_indices=jnp.asarray(reader.policies(experience.states, experience.latents)),
        value_indices=jnp.asarray(value_indices),
        actions=jnp.asarray(experience.actions.T, jnp.int32),
        advantages=jnp.asarray(scaled.reshape(-1), jnp.float32),
        targets=jnp.asarray((advantages + values).reshape(-1), jnp.float32),
    )
    players, value_loss, spread = _train_players(state.players, lesson, settings)
    info = Info(*map(float, (discriminator_loss, rewards.mean(), value_loss, spread)))
    return State(players, discriminator, state.scene), info


@jax.jit
def _train_discriminator(
    trainee: Trainee,
    shown: Int[Array, "1 shown inputs"],
    own: Int[Array, "1 batch inputs"],
    chosen: Int[Array, "updates batch"],
    count: int | Array,
    learning_rate: float | Array,
    weight_decay: float | Array = 0.0,
) -> tuple[Trainee, Float[Array, ""]]:
    """Make `count` updates, each on all own steps and as many chosen of those shown."""

    def loss(network: OneHotNetwork, indices: Int[Array, "1 batch inputs"]) -> Float[Array, ""]:
        told = jax.nn.softplus(-outputs(network, indices)).mean()
        return told + jax.nn.softplus(outputs(network, own)).mean()

    def update(i: Array, carry: tuple[Trainee, Array]) -> tuple[Trainee, Array]:
        trainee, total = carry
        value, gradient = jax.value_and_grad(loss)(trainee.networks, shown[:, chosen[i]])
        return _step(trainee, gradient, learning_rate, weight_decay), total + value

    trainee, total = jax.lax.fori_loop(0, count, update, (trainee, jnp.zeros(())))
    return trainee, total / jnp.asarray(count, total.dtype)


@jax.jit
def _judge(
    discriminator: OneHotNetwork,
    value: OneHotNetwork,
    own: Int[Array, "1 batch inputs"],
    value_indices: Int[Array, "1 batch value_inputs"],
    next_indices: Int[Array, "1 batch value_inputs"],
    weights: tuple[float | Array, float | Array] = (1.0, 0.0),
) -> tuple[Float[Array, " batch"], Float[Array, " batch"], Float[Array, " batch"]]:
    """Rewards by the weights of -log(1 - D) and log D; the values before and after each step."""
    told = outputs(discriminator, own)[0, :, 0]
    rewards = weights[0] * jax.nn.softplus(told) - weights[1] * jax.nn.softplus(-told)
    return (
        rewards,
        outputs(value, value_indices)[0, :, 0],
        outputs(value, next_indices)[0, :, 0],
    )


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
        return total, (value_loss, spread.mean())

    def update(_: Array, carry: tuple) -> tuple:
        trainee, _ = carry
        (_, info), gradient = jax.value_and_grad(loss, has_aux=True)(trainee.networks)
        return _step(trainee, gradient, settings.learning_rate), info

    start = (trainee, (jnp.zeros(()), jnp.zeros(())))
    trainee, (value_loss, spread) = jax.lax.fori_loop(0, settings.num_epochs, update, start)
    return trainee, value_loss, spread


def _step(
    trainee: Trainee,
    gradient: Any,
    learning_rate: float | Array,
    weight_decay: float | Array = 0.0,
) -> Trainee:
    optimizer = optax.adamw(learning_rate, weight_decay=weight_decay)
    with promotion_allowed():
        change, optimizer_state = optimizer.update(
            gradient, trainee.optimizer_state, trainee.networks
        )
        return Trainee(optax.apply_updates(trainee.networks, change), optimizer_state)


def _policy_tables(
    task: GridTask, reader: Reader, policies: OneHotNetwork
) -> dict[str, Float[np.ndarray, "states latents actions"]]:
    """A row for every task state; the states never met share one."""
    latents = np.arange(task.num_latents)[:, None]
    capacity = policies.rows.shape[1] - sum(reader.policy_sizes)
    rows, latents = np.broadcast_arrays(reader.rows.every_row(capacity), latents)
    indices = row_indices(reader.policy_sizes, latents[..., None], rows)
    flat = indices.reshape(-1, indices.shape[-1])
    probs = probabilities(policies, np.broadcast_to(flat, (len(task.agents), *flat.shape)))
    by_latent = probs.reshape(len(task.agents), *rows.shape, task.num_actions)
    return {a: reader.rows.spread(by_latent[i]) for i, a in enumerate(task.agents)}
