"""Grid-world tasks as PettingZoo environments, for learners and recorders that speak its API."""

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import logger
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Discrete
from jaxtyping import UInt8
from pettingzoo import ParallelEnv

from btil.arguments import check_values
from btil.domains.gridworld.pictures import render

if TYPE_CHECKING:
    import matplotlib.figure

    from btil.domains.gridworld.task import GridTask

_RENDER_MODES = ("human", "rgb_array")
_FRAMES_PER_SECOND = 4

Infos = dict[str, dict[str, int]]
StepResult = tuple[dict[str, np.int64], dict[str, float], dict[str, bool], dict[str, bool], Infos]


class GridParallelEnv(ParallelEnv[str, np.int64, np.int64]):
    r"""A grid world: both agents act at once, see the whole task state and share one reward.

    * **Observations**: the task state :math:`s`, a ``Discrete(task.num_states)``, the same for
      both; `task.decode_states` takes it apart, and every agent's info holds its variables,
      ``{"alice_cell": 3, "rob_cell": 5, "item_0": 0, ...}``. `state` gives it too.
    * **Actions**: ``Discrete(6)``, named by `task.action_names`.
    * **Rewards**: the team's :math:`R(s, a)`, equal for both agents: -1 for every step, and 100
      more for the one that finishes the task. What an agent has in mind plays no role in it.
    * **End**: both agents terminate when every item is on the goal, and are truncated after
      `max_steps` steps otherwise.

    Chance is in the task's own dynamics alone. `reset` with a seed starts its stream anew; without
    one the stream goes on.

    Args:
        task: Movers, Cleanup, or one of your own.
        render_mode: None; "rgb_array": `render` returns a picture; "human": a Matplotlib window
            follows every step.
        max_steps: Steps after which an episode is truncated.

    Raises:
        ValueError: If there is no such render mode, or `max_steps` is not positive.

    Example:
        >>> env = GridParallelEnv(btil.domains.movers("tiny"))  # doctest: +SKIP
        >>> observations, infos = env.reset(seed=0)  # doctest: +SKIP
        >>> actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        ... # doctest: +SKIP
        >>> observations, rewards, *_ = env.step(actions)  # doctest: +SKIP

    References:
        J. K. Terry et al. (2021), PettingZoo: Gym for multi-agent reinforcement learning.

    Attributes:
        task: The task.
        max_steps: Steps after which an episode is truncated.
        possible_agents: ["alice", "rob"].
        agents: The same, and empty when the episode is over.
        state_space: Where `state` lies.
        metadata: Name, render modes, and under "demonstrations" the names that
            `btil.domains.record` gives to variables, actions and latents.
    """

    metadata: dict[str, Any]

    def __init__(
        self, task: "GridTask", render_mode: str | None = None, max_steps: int = 200
    ) -> None:
        if render_mode is not None and render_mode not in _RENDER_MODES:
            raise ValueError(
                f"render_mode must be None, {' or '.join(map(repr, _RENDER_MODES))}; "
                f"got {render_mode!r}"
            )
        check_values({"max_steps": max_steps})
        self.task = task
        self.render_mode = render_mode
        self.max_steps = max_steps
        self.metadata = {
            "name": f"{task.name}_v0",
            "render_modes": [*_RENDER_MODES],
            "render_fps": _FRAMES_PER_SECOND,
            "is_parallelizable": True,
            "demonstrations": {
                "num_states": task.state_sizes,
                "state_names": task.state_names,
                "action_names": task.action_names,
                "latent_names": task.latent_names,
            },
        }
        self.possible_agents = [*task.agents]
        self.agents: list[str] = []
        # A space of its own for each agent, as each can be seeded.
        self.observation_spaces = {agent: Discrete(task.num_states) for agent in task.agents}
        self.action_spaces = {agent: Discrete(task.num_actions) for agent in task.agents}
        self.state_space = Discrete(task.num_states)
        self._rng: np.random.Generator | None = None
        self._state = task.start_state
        self._num_steps = 0
        self._window = _Window(task.name, 1 / _FRAMES_PER_SECOND)

    def observation_space(self, agent: str) -> Discrete:
        """The task states."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Discrete:
        """The six actions."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, np.int64], Infos]:
        """Start an episode in the task's start state.

        Args:
            seed: Starts the random stream anew; None: it goes on.
            options: Not used.

        Returns:
            Observations and infos.
        """
        if seed is not None or self._rng is None:
            self._rng = np.random.default_rng(seed)
        self.agents = [*self.possible_agents]
        self._state = self.task.start_state
        self._num_steps = 0
        if self.render_mode == "human":
            self.render()
        return self._observations(), self._infos()

    def step(self, actions: Mapping[str, Any]) -> StepResult:
        """Take a joint action.

        Args:
            actions: The action of each agent.

        Returns:
            Observations, rewards, terminations, truncations and infos of each agent.

        Raises:
            ResetNeeded: If no episode is running.
            ValueError: If an agent's action is missing or is none, or there is no such agent.
        """
        if self._rng is None or not self.agents:
            raise ResetNeeded("no episode is running: call reset() first")
        joint = [self._checked_action(agent, actions) for agent in self.agents]
        for agent in actions:
            if agent not in self.agents:
                raise ValueError(
                    f"actions: unknown agent {agent!r}; the agents are {', '.join(self.agents)}"
                )
        next_states, probs = self.task.transition(np.array([self._state]), np.array([joint]))
        self._state = int(self._rng.choice(next_states[0], p=probs[0]))
        self._num_steps += 1
        now = np.array([self._state])
        terminated = bool(self.task.is_final(now)[0])
        truncated = not terminated and self._num_steps >= self.max_steps
        reward = float(self.task.rewards(now)[0])
        result = (
            self._observations(),
            dict.fromkeys(self.agents, reward),
            dict.fromkeys(self.agents, terminated),
            dict.fromkeys(self.agents, truncated),
            self._infos(),
        )
        if terminated or truncated:
            self.agents = []
        if self.render_mode == "human":
            self.render()
        return result

    def state(self) -> np.ndarray:
        """The task state, a whole number in an array without axes."""
        return np.array(self._state)

    def render(self) -> UInt8[np.ndarray, "height width 3"] | None:
        """A picture of the task state in mode "rgb_array"; the window is renewed in "human"."""
        if self.render_mode is None:
            logger.warn("render() does nothing: the environment was made without a render_mode")
            return None
        picture = render(self.task, self._state)
        if self.render_mode == "rgb_array":
            return picture
        self._window.show(picture)
        return None

    def close(self) -> None:
        """Close the window, if there is one."""
        self._window.close()

    def _observations(self) -> dict[str, np.int64]:
        return dict.fromkeys(self.agents, np.int64(self._state))

    def _infos(self) -> Infos:
        values = self.task.decode_states(np.array([self._state]))[0].tolist()
        return {
            agent: dict(zip(self.task.state_sizes, values, strict=True)) for agent in self.agents
        }

    def _checked_action(self, agent: str, actions: Mapping[str, Any]) -> int:
        if agent not in actions:
            raise ValueError(f"actions: none for agent {agent}")
        try:
            action = operator.index(actions[agent])
        except TypeError:
            action = -1
        if not 0 <= action < self.task.num_actions:
            raise ValueError(
                f"actions: {actions[agent]!r} for agent {agent}; allowed are "
                f"0..{self.task.num_actions - 1}"
            )
        return action


class _Window:
    """A Matplotlib window that shows one picture after another."""

    def __init__(self, title: str, seconds: float) -> None:
        self._title = title
        self._seconds = seconds
        self._figure: matplotlib.figure.Figure | None = None
        self._image: Any = None

    def show(self, picture: UInt8[np.ndarray, "height width 3"]) -> None:
        import matplotlib.pyplot as plt

        if self._figure is None or not plt.fignum_exists(self._figure.number):
            height, width, _ = picture.shape
            self._figure = plt.figure(figsize=(width / 100, height / 100), dpi=100)
            manager: Any = self._figure.canvas.manager
            manager.set_window_title(self._title)
            axes = self._figure.add_axes((0, 0, 1, 1))
            axes.set_axis_off()
            self._image = axes.imshow(picture)
            manager.show()
        self._image.set_data(picture)
        canvas = self._figure.canvas
        canvas.draw_idle()
        # The window stays live, and a person can follow.
        canvas.start_event_loop(self._seconds)

    def close(self) -> None:
        if self._figure is not None:
            import matplotlib.pyplot as plt

            plt.close(self._figure)
        self._figure = self._image = None
