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

Policies soon unlearn what was cloned. Two options keep it: values that learn first
(`value_iterations`), and cloning as a part of PPO's objective (`cloning_weight`; Jena, Liu, Sycara,
2021). What was found to learn is in `docs/explanation/reproduction.md`.

References:
    Song, Ren, Sadigh and Ermon (2018), Multi-agent generative adversarial imitation learning.
    Jena, Liu and Sycara (2021), Augmenting GAIL with BC for sample efficient imitation learning.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from btil.demonstrations import Demonstrations
from btil.domains.gridworld.derived import task_states
from btil.domains.gridworld.task import GridTask
from btil.imitation.learning import Learned, require_labels
from btil.imitation.networks import (
    OneHotNetwork,
    check_layers,
    make_networks,
    outputs,
)
from btil.imitation.players import (
    Experience,
    Reader,
    Scene,
    Settings,
    Shown,
    Trainee,
    check_runs,
    cloned_players,
    improve,
    learned_by_acting,
    opening_scene,
    roll_out,
    update_networks,
    with_optimizer,
    with_room,
)
from btil.numerics.rounding import rounded_up
from btil.progress import progress_line

# Steps shown that policies go on imitating, per iteration.
_CLONED_AT_ONCE = 512


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


class Telling(NamedTuple):
    """The options of the discriminator.

    Attributes:
        reward: Weights of -log(1 - D) and of log D in the rewards that it gives.
        learning_rate: Adam's.
        weight_decay: By how much its weights shrink per update, as a multiple of that.
    """

    reward: tuple[float, float]
    learning_rate: float
    weight_decay: float


# Weights of -log(1 - D) and of log D.
_REWARDS = {"positive": (1.0, 0.0), "difference": (1.0, 1.0), "negative": (0.0, 1.0)}


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
    value_iterations: int = 0,
    cloning_weight: float = 0.0,
    pretraining_batch_size: int | None = None,
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
        value_iterations: Iterations, the first ones, in which of the players only the values learn:
            by values that know nothing, policies unlearn what was cloned.
        cloning_weight: Weight of cloning in PPO's objective: policies go on imitating 512 of the
            steps shown, others in each iteration, while they follow the rewards.
        pretraining_batch_size: Examples per update by cloning beforehand; None: `batch_size`.

    Raises:
        ValueError: If a label is missing or an option has no such value.
    """
    require_labels(demos, known_transition, "magail")
    check_layers(hidden, activation)
    check_layers(discriminator_hidden, activation)
    check_runs(batch_size, num_runs)
    settings = Settings(
        num_steps=batch_size // num_runs,
        max_steps=max_steps,
        learning_rate=learning_rate,
        num_epochs=num_epochs,
        clip=clip,
        discount=discount,
        trace_decay=trace_decay,
        entropy_weight=entropy_weight,
        cloning_weight=cloning_weight,
    )
    telling_rate = discriminator_learning_rate or learning_rate
    telling = Telling(_REWARDS[reward], telling_rate, discriminator_decay)
    reader = Reader(task, inputs)
    generator = np.random.default_rng(seed)
    start = cloned_players(
        task,
        reader,
        demos,
        generator,
        hidden=hidden,
        activation=activation,
        learning_rate=learning_rate,
        num_iterations=pretraining_iterations,
        batch_size=pretraining_batch_size or batch_size,
        description="magail: cloning",
        progress=progress,
    )
    capacity = start.capacity
    discriminator = make_networks(
        generator,
        1,
        sizes=reader.discriminator_sizes,
        num_state_rows=capacity,
        hidden=tuple(discriminator_hidden),
        num_outputs=1,
        activation=activation,
    )
    state = State(
        players=start.players,
        discriminator=with_optimizer(discriminator, telling_rate),
        scene=opening_scene(task, num_runs, generator),
    )
    shown = _demonstrated(task, reader, demos)
    most_updates = max(discriminator_updates, first_discriminator_updates)
    history = []
    with progress_line(num_iterations, "magail", progress) as line:
        for iteration in range(num_iterations):
            experience, scene = roll_out(
                task, reader, state.players.networks.policies, state.scene, settings, generator
            )
            state, capacity = with_room(state, reader, capacity)
            early = iteration < first_iterations
            updates = first_discriminator_updates if early else discriminator_updates
            chosen = np.zeros((most_updates, batch_size), np.int32)
            chosen[:updates] = generator.integers(0, shown.number, (updates, batch_size))
            state, info = train(
                reader,
                state._replace(scene=scene),
                experience,
                shown.told,
                chosen,
                updates,
                settings,
                telling,
                iteration < value_iterations,
                shown.some(generator) if cloning_weight else None,
            )
            history.append(info)
            line.update(1)
            line.set_postfix_str(
                f"reward {info.mean_reward:.3f}, discriminator {info.discriminator_loss:.3f}"
            )
    curves = {name: np.array([getattr(one, name) for one in history]) for name in Info._fields}
    return learned_by_acting(task, reader, state.players, start, curves, num_iterations)


class _Demonstrated(NamedTuple):
    """The steps shown, as networks read them.

    Attributes:
        number: How many they are.
        told: Inputs of the discriminator. Padded, so that programs are shared between sets of like
            sizes; padding is never chosen.
        read: Inputs of the policies.
        actions: The actions shown.
    """

    number: int
    told: Int[Array, "1 shown inputs"]
    read: Int[np.ndarray, "agents steps inputs"]
    actions: Int[np.ndarray, "agents steps"]

    def some(self, generator: np.random.Generator) -> Shown:
        """Steps to go on imitating in one iteration."""
        steps = generator.integers(0, self.number, _CLONED_AT_ONCE)
        return Shown(
            jnp.asarray(self.read[:, steps]), jnp.asarray(self.actions[:, steps], jnp.int32)
        )


def _demonstrated(task: GridTask, reader: Reader, demos: Demonstrations) -> _Demonstrated:
    states = task_states(task, demos)
    padding = rounded_up(len(states)) - len(states)
    told = reader.discriminator(states, demos.latents, demos.actions)
    return _Demonstrated(
        number=len(states),
        told=jnp.asarray(np.pad(told, ((0, 0), (0, padding), (0, 0)))),
        read=reader.policies(states, demos.latents),
        actions=demos.actions.T,
    )


def train(
    reader: Reader,
    state: State,
    experience: Experience,
    shown: Int[Array, "1 shown inputs"],
    chosen: Int[np.ndarray, "updates batch"],
    discriminator_updates: int,
    settings: Settings,
    telling: Telling,
    values_only: bool = False,
    cloned: Shown | None = None,
) -> tuple[State, Info]:
    """Train the discriminator on what was just done, and the players by its verdict."""
    own = reader.discriminator(experience.states, experience.latents, experience.actions)
    discriminator, discriminator_loss = _train_discriminator(
        state.discriminator,
        shown,
        own,
        chosen,
        discriminator_updates,
        telling.learning_rate,
        telling.weight_decay,
    )
    rewards = np.asarray(_judge(discriminator.networks, own, telling.reward), np.float64)
    players, value_loss, spread = improve(
        reader, state.players, experience, rewards, settings, values_only, cloned
    )
    info = Info(float(discriminator_loss), float(rewards.mean()), value_loss, spread)
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
        return update_networks(trainee, gradient, learning_rate, weight_decay), total + value

    trainee, total = jax.lax.fori_loop(0, count, update, (trainee, jnp.zeros(())))
    return trainee, total / jnp.asarray(count, total.dtype)


@jax.jit
def _judge(
    discriminator: OneHotNetwork,
    own: Int[Array, "1 batch inputs"],
    weights: tuple[float | Array, float | Array] = (1.0, 0.0),
) -> Float[Array, " batch"]:
    """Rewards by the weights of -log(1 - D) and log D."""
    told = outputs(discriminator, own)[0, :, 0]
    return weights[0] * jax.nn.softplus(told) - weights[1] * jax.nn.softplus(-told)
