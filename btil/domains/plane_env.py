"""Errands on a plane as a PettingZoo environment, for learners that speak its API."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box
from jaxtyping import UInt8
from pettingzoo import ParallelEnv

from btil.arguments import pairs_of

if TYPE_CHECKING:
    from btil.domains.plane import Errands

_RENDER_MODES = ("rgb_array",)
_ARRIVAL_REWARD = 1.0


class ErrandsEnv(ParallelEnv[str, np.ndarray, np.ndarray]):
    """Members see where all are and choose their velocities.

    * **Observations**: positions and velocities of all members, the agent's own first, (4 n,).
    * **Actions**: a velocity, (2,), the step's motion.
    * **Rewards**: 1 to a member that comes near a goal where it was not before.
    * **End**: truncated after the task's number of steps.

    Attributes:
        task: The task.
        possible_agents: Its members.
        agents: The same, and empty when the episode is over.
        metadata: Name, render modes.
    """

    metadata: dict[str, Any]

    def __init__(self, task: "Errands", render_mode: str | None) -> None:
        if render_mode is not None and render_mode not in _RENDER_MODES:
            raise ValueError(f"render_mode must be None or 'rgb_array'; got {render_mode!r}")
        self.task = task
        self.render_mode = render_mode
        self.metadata = {
            "name": "errands_v0", "render_modes": [*_RENDER_MODES], "is_parallelizable": True
        }  # fmt: skip
        self.possible_agents = [*task.agents]
        self.agents: list[str] = []
        size = 4 * len(task.agents)
        self.observation_spaces = {
            agent: Box(-np.inf, np.inf, (size,), np.float64) for agent in task.agents
        }
        self.action_spaces = {agent: Box(-10.0, 10.0, (2,), np.float64) for agent in task.agents}
        self._rng = np.random.default_rng()
        self._positions = np.zeros((len(task.agents), 2))
        self._velocities = np.zeros_like(self._positions)
        self._step = 0

    def observation_space(self, agent: str) -> Box:
        """Where an agent's observations lie."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Box:
        """Where an agent's actions lie."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Begin an episode, everybody at rest.

        Args:
            seed: Where chance starts from; None: it goes on.
            options: {"positions": (members, 2)} to begin there.

        Raises:
            ValueError: If positions are no finite numbers, two for each member.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        goals = self.task.goals
        begin = (options or {}).get("positions")
        if begin is None:
            begin = self._rng.uniform(goals.min(0), goals.max(0), size=self._positions.shape)
        positions = pairs_of(begin)
        if positions is None or len(positions) != len(self.possible_agents):
            raise ValueError(
                f"options: positions must be finite numbers (x, y) of {len(self.possible_agents)} "
                f"members, got {begin!r}"
            )
        self._positions = positions
        self._velocities = np.zeros_like(self._positions)
        self._step = 0
        self.agents = [*self.possible_agents]
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Everybody moves by its velocity.

        Args:
            actions: {agent: velocity (2,)}, of every agent.

        Raises:
            ResetNeeded: If the episode is over.
            ValueError: If an action is missing, or outside of its space, or there is no such agent.
        """
        if not self.agents:
            raise ResetNeeded("the episode is over, or has not begun: call reset")
        velocities = []
        for agent in actions:
            if agent not in self.agents:
                raise ValueError(
                    f"actions: unknown agent {agent!r}; the agents are {', '.join(self.agents)}"
                )
        for agent in self.agents:
            velocity = pairs_of([actions.get(agent)])
            if velocity is None or not self.action_spaces[agent].contains(velocity[0]):
                raise ValueError(
                    f"action of {agent} is {actions.get(agent)!r}; allowed are velocities (x, y) "
                    "from -10 to 10"
                )
            velocities.append(velocity[0])
        before = self.task.near(self._positions)
        self._velocities = np.array(velocities)
        self._positions = self._positions + self._velocities
        after = self.task.near(self._positions)
        self._step += 1
        over = self._step >= self.task.num_steps
        agents = self.agents
        arrived = (after > 0) & (after != before)
        rewards = {
            agent: _ARRIVAL_REWARD * float(one) for agent, one in zip(agents, arrived, strict=True)
        }
        observations = self._observations()
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in agents}
        if over:
            self.agents = []
        return (
            observations,
            rewards,
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, over),
            infos,
        )

    def _observations(self) -> dict[str, np.ndarray]:
        both = np.concatenate([self._positions, self._velocities], axis=1)
        return {
            agent: np.concatenate([both[i], np.delete(both, i, axis=0).ravel()])
            for i, agent in enumerate(self.agents)
        }

    def render(self) -> UInt8[np.ndarray, "height width 3"] | None:
        """A picture of the plane; None without a render mode."""
        if self.render_mode is None:
            return None
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        from btil.figures import CATEGORY_COLORS, new_figure

        figure = new_figure(4.0, 4.0)
        axes = figure.subplots()
        axes.plot(*self.task.goals.T, "x", color="0.4")
        for (x, y), name in zip(self.task.goals, self.task.goal_names, strict=True):
            axes.annotate(name, (x, y))
        for i, agent in enumerate(self.possible_agents):
            axes.plot(*self._positions[i], "o", color=CATEGORY_COLORS[i], label=agent)
        axes.set_aspect("equal")
        axes.legend()
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()

    def close(self) -> None:
        """Nothing is open."""
