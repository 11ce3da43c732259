r"""Errands: members of a team move on a plane between goals, each with one goal in mind.

Member i at position p with velocity v has the goal g in mind. Its next velocity is

.. math:: v_t = \alpha v_{t-1} + \beta (c_g - p_t) + \epsilon_t, \qquad
          \epsilon_t \sim N(0, \sigma^2 I), \qquad p_{t+1} = p_t + v_t,

so that it moves towards the goal's place c_g, slower as it comes closer. Near a goal it turns to
another one with some probability a step, elsewhere hardly ever: which goal a member is near is a
state variable, `<member>_near`. Positions and velocities are continuous columns. There are no
actions: what tells of the intents is motion alone.

With a speed s members walk steadily instead, whatever the distance, and stop at the goal:

.. math:: v_t = s \frac{c_g - p_t}{\sqrt{|c_g - p_t|^2 + s^2}} + \epsilon_t.

The directions to all goals are continuous columns then (`btil.directions`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from btil.arguments import check_count, check_number, check_values, pairs_of
from btil.demonstrations import Demonstrations
from btil.demonstrations.directions import directions
from btil.models.cpt import DirichletCPT, KnownCPT, UniformCPT
from btil.models.emission import LinearNormalEmission
from btil.models.team import TeamModel

if TYPE_CHECKING:
    from btil.domains.plane_env import ErrandsEnv

_NAMES = ("ann", "bob", "cid", "dee")
_GOALS = {"desk": (0.0, 0.0), "door": (8.0, 1.0), "shelf": (3.0, 7.0)}
_INERTIA, _PULL = 0.5, 0.08
# Within so much of a goal's place a member is near it.
_NEAR = 1.0
# How likely it is to turn to another goal in a step, near its own goal and elsewhere.
_TURNS_NEAR, _TURNS_ELSEWHERE = 0.4, 0.01
# As good as known.
_CERTAIN = 1e8


def errands(
    num_members: int = 2,
    goals: Any = None,
    noise: float = 0.3,
    num_steps: int = 50,
    speed: float | None = None,
) -> "Errands":
    """A team that runs errands on a plane.

    Args:
        num_members: Two to four.
        goals: {name: (x, y)}; None: a desk, a door and a shelf.
        noise: Standard deviation of a velocity around what is expected, per axis.
        num_steps: Steps of an episode.
        speed: How far members walk in a step, however far their goal is; None: the slower the
            closer they are.

    Returns:
        The task.

    Raises:
        ValueError: If there are fewer than two goals, or a number is out of range.

    Example:
        >>> task = errands(num_members=3)
        >>> task.agents
        ('ann', 'bob', 'cid')
        >>> task.simulate(2, seed=1).num_steps
        100
    """
    number = check_count("num_members", num_members, 2)
    if number > len(_NAMES):
        raise ValueError(f"num_members must be 2 to {len(_NAMES)}, got {num_members!r}")
    places = _GOALS if goals is None else goals
    found = pairs_of([*places.values()]) if isinstance(places, Mapping) else None
    if found is None or len(found) < 2:
        raise ValueError(f"goals: two places {{name: (x, y)}} at least, got {goals!r}")
    return Errands(
        _NAMES[:number],
        tuple(map(str, places)),
        found,
        check_number("noise", noise, above=0.0),
        check_count("num_steps", num_steps, 2),
        None if speed is None else check_number("speed", speed, above=0.0),
    )


class Errands:
    """The task that `errands` makes.

    Attributes:
        agents: Names of the members.
        goal_names: Names of the goals.
        goals: Their places, (goals, 2).
        noise: Standard deviation of velocities.
        num_steps: Steps of an episode.
        speed: How far members walk in a step; None: the slower the closer.
    """

    def __init__(
        self,
        agents: tuple[str, ...],
        goal_names: tuple[str, ...],
        goals: Float[np.ndarray, "goals 2"],
        noise: float,
        num_steps: int,
        speed: float | None = None,
    ) -> None:
        self.agents, self.goal_names, self.goals = agents, goal_names, goals
        self.noise, self.num_steps, self.speed = noise, num_steps, speed

    @property
    def num_latents(self) -> int:
        """Number of goals that a member may have in mind."""
        return len(self.goals)

    def columns(self, agent: str) -> tuple[str, str, str, str]:
        """A member's columns: its position, then its velocity."""
        return (f"{agent}_x", f"{agent}_y", f"{agent}_vx", f"{agent}_vy")

    def near(self, positions: Float[np.ndarray, "*members 2"]) -> Int[np.ndarray, "*members"]:
        """0 where a member is near no goal, k + 1 where it is near goal k."""
        apart = np.linalg.norm(positions[..., None, :] - self.goals, axis=-1)
        nearest = apart.argmin(-1)
        return np.where(np.take_along_axis(apart, nearest[..., None], -1)[..., 0] < _NEAR,
                        nearest + 1, 0)  # fmt: skip

    def turns(self) -> Float[np.ndarray, "near goals next_goals"]:
        """P(next goal | near, goal)."""
        size = self.num_latents
        table = np.empty((size + 1, size, size))
        for near in range(size + 1):
            for goal in range(size):
                turns = _TURNS_NEAR if near == goal + 1 else _TURNS_ELSEWHERE
                table[near, goal] = turns / (size - 1)
                table[near, goal, goal] = 1 - turns
        return table

    def expected_velocity(
        self,
        goal: Int[np.ndarray, "*members"],
        positions: Float[np.ndarray, "*members 2"],
        velocities: Float[np.ndarray, "*members 2"],
    ) -> Float[np.ndarray, "*members 2"]:
        """What the next velocity is around, given goal, position and the velocity so far."""
        apart = self.goals[goal] - positions
        if self.speed is not None:
            length = np.sqrt((apart**2).sum(-1, keepdims=True) + self.speed**2)
            return self.speed * apart / length
        return _INERTIA * velocities + _PULL * apart

    def simulate(self, num_episodes: int, seed: int = 0) -> Demonstrations:
        """Recordings of the team with all intents labelled.

        Args:
            num_episodes: How many.
            seed: Seeds them.

        Returns:
            Demonstrations without actions: state variables `<member>_near`, continuous columns
            `<member>_x`, `_y`, `_vx`, `_vy`; with a speed also `<member>_x_to_<goal>` and
            `_y_to_<goal>`.
        """
        check_values({"num_episodes": num_episodes, "seed": seed})
        generator = np.random.default_rng(seed)
        size, members = self.num_latents, len(self.agents)
        low, high = self.goals.min(0), self.goals.max(0)
        position = generator.uniform(low, high, size=(num_episodes, members, 2))
        velocity = np.zeros_like(position)
        goal = generator.integers(size, size=(num_episodes, members))
        turns = np.cumsum(self.turns(), axis=-1)
        near = self.near(position)
        seen = []
        for step in range(self.num_steps):
            if step:
                chance = generator.random((num_episodes, members, 1))
                goal = (turns[near, goal] <= chance).sum(-1)  # near where it was a step before
            near = self.near(position)
            expected = self.expected_velocity(goal, position, velocity)
            velocity = expected + self.noise * generator.standard_normal(expected.shape)
            seen.append((near, goal, position, velocity))
            position = position + velocity
        # Steps are drawn for all episodes at once, and laid one episode after the other.
        nears, goals, positions, velocities = (
            np.stack(parts, axis=1).reshape(num_episodes * self.num_steps, members, -1)
            for parts in zip(*seen, strict=True)
        )
        columns: dict[str, np.ndarray] = {}
        for i, agent in enumerate(self.agents):
            values = np.concatenate([positions[:, i], velocities[:, i]], axis=1)
            columns |= dict(zip(self.columns(agent), values.T, strict=True))
        demos = Demonstrations(
            {f"{agent}_near": nears[:, i, 0] for i, agent in enumerate(self.agents)},
            None,
            goals[..., 0],
            episodes=np.repeat(np.arange(num_episodes), self.num_steps),
            agents=self.agents,
            num_states=dict.fromkeys((f"{agent}_near" for agent in self.agents), size + 1),
            num_latents=size,
            state_names={f"{agent}_near": ("nowhere", *self.goal_names) for agent in self.agents},
            latent_names=dict.fromkeys(self.agents, self.goal_names),
            continuous=columns,
        )
        if self.speed is not None:
            places = dict(zip(self.goal_names, self.goals, strict=True))
            for agent in self.agents:
                x, y = self.columns(agent)[:2]
                demos = directions(demos, x, y, places, near=self.speed)
        return demos

    def recommended_model(self) -> TeamModel:
        """A model to learn from few labels: motion is linear in position and velocity.

        With a speed, in the directions to the goals.
        """
        return TeamModel(
            policy=None,
            transition=DirichletCPT(
                1.0, parents={agent: (f"{agent}_near",) for agent in self.agents}
            ),
            initial=UniformCPT(),
            emissions=LinearNormalEmission(
                {agent: self.columns(agent)[2:] for agent in self.agents},
                {agent: self._inputs(agent) for agent in self.agents},
            ),
        )

    def true_model(self) -> TeamModel:
        """The model that made the recordings, as good as known."""
        size = self.num_latents
        if self.speed is None:
            coefficients = np.zeros((size, 5, 2))
            coefficients[:, 0] = _PULL * self.goals
            coefficients[:, 1:3] = -_PULL * np.eye(2)
            coefficients[:, 3:5] = _INERTIA * np.eye(2)
        else:
            coefficients = np.zeros((size, 1 + 2 * size, 2))
            for goal in range(size):
                coefficients[goal, 1 + 2 * goal : 3 + 2 * goal] = self.speed * np.eye(2)
        return TeamModel(
            policy=None,
            transition=KnownCPT(
                self.turns(), parents={agent: (f"{agent}_near",) for agent in self.agents}
            ),
            initial=UniformCPT(),
            emissions=LinearNormalEmission(
                {agent: self.columns(agent)[2:] for agent in self.agents},
                {agent: self._inputs(agent) for agent in self.agents},
                location=coefficients,
                precision=_CERTAIN,
                noise=self.noise,
                degrees_of_freedom=_CERTAIN,
            ),
        )

    def _inputs(self, agent: str) -> tuple[str, ...]:
        x, y, vx, vy = self.columns(agent)
        if self.speed is not None:
            return tuple(f"{one}_to_{goal}" for goal in self.goal_names for one in (x, y))
        return (x, y, f"previous_{vx}", f"previous_{vy}")

    def to_parallel_env(self, render_mode: str | None = None) -> "ErrandsEnv":
        """The task as a PettingZoo ParallelEnv: members are told where they are and say how fast.

        Args:
            render_mode: None, or "rgb_array".
        """
        from btil.domains.plane_env import ErrandsEnv

        return ErrandsEnv(self, render_mode)

    def __repr__(self) -> str:
        return f"Errands({', '.join(self.agents)}; goals {', '.join(self.goal_names)})"
