"""How long a live coach waits for a belief: a tracker's update beside filtering the recording anew.

`python benchmarks/online_tracking.py` fits two teams, human cooks in the Overcooked kitchen
cramped_room (the recommended model) and Movers on the paper's map (the paper's model, 38,988 task
states), and follows held-out episodes step by step. For each team it prints the median and the 99th
percentile of

- `tracker.update`, with and without the next state given,
- `posterior.filter` of the episode so far: what a coach would call without a tracker.

Programs are compiled and the tracker is made before the clock runs. On a machine that is busy with
other things `--cpu` counts processor time, not what others took.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import btil
from btil.domains import overcooked
from btil.imitation.bayesian import paper_model


def cooks() -> tuple[btil.TeamPosterior, btil.Demonstrations]:
    """The recommended model of cramped_room, and its test trials."""
    train = overcooked.load("cramped_room", "train")
    posterior = btil.fit(overcooked.recommended_model("cramped_room"), train, progress=False)
    return posterior, overcooked.load("cramped_room", "test")


def movers(num_episodes: int) -> tuple[btil.TeamPosterior, btil.Demonstrations]:
    """The paper's model of simulated Movers, and other episodes of the same team."""
    task = btil.domains.movers()
    train = task.simulate(num_episodes, seed=1)
    posterior = btil.fit(paper_model(task), train, progress=False)
    return posterior, task.simulate(10, seed=2)


Clock = Callable[[], float]


def timed(clock: Clock, function: Callable[..., Any], *arguments: Any) -> float:
    """Seconds of one call."""
    start = clock()
    function(*arguments)
    return clock() - start


def follow(
    clock: Clock,
    posterior: btil.TeamPosterior,
    demos: btil.Demonstrations,
    with_next: bool,
    **options: Any,
) -> np.ndarray:
    """Seconds of each update over all episodes, by a new tracker."""
    tracker = posterior.tracker(**options)
    states = [
        dict(zip(demos.state_variables, values, strict=True))
        for values in np.stack(list(demos.state_variables.values()), 1).tolist()
    ]
    actions = [dict(zip(demos.agents, row, strict=True)) for row in demos.actions.tolist()]
    seconds = []
    for start, length in zip(demos.episode_starts, demos.episode_lengths, strict=True):
        tracker.reset()
        for row in range(start, start + length):
            following = states[row + 1] if with_next and row + 1 < start + length else None
            seconds.append(timed(clock, tracker.update, states[row], actions[row], None, following))
    return np.array(seconds)


def refilter(clock: Clock, posterior: btil.TeamPosterior, demos: btil.Demonstrations) -> np.ndarray:
    """Seconds of filtering the first episode up to each step, programs compiled before."""
    states, actions = demos.state_variables, demos.actions
    length = int(demos.episode_lengths[0])
    prefixes = [
        demos.replace(
            states={name: values[:end] for name, values in states.items()},
            actions=actions[:end],
            latents=demos.latents[:end],
            episodes=demos.episodes[:end],
        )
        for end in range(1, length + 1)
    ]
    for _ in range(2):
        seconds = [timed(clock, posterior.filter, prefix) for prefix in prefixes]
    return np.array(seconds)


def milliseconds(seconds: np.ndarray) -> str:
    """Median, 99th percentile and maximum."""
    cells = [*np.percentile(seconds, [50, 99]), seconds.max()]
    return " ".join(f"{1000 * cell:8.3f}" for cell in cells)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=200, help="Movers to learn from")
    parser.add_argument("--cpu", action="store_true", help="processor time, not wall time")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    print(f"{'milliseconds':56} {'p50':>8} {'p99':>8} {'max':>8}")
    for name, (posterior, demos) in [
        ("cramped_room", cooks()),
        ("movers, paper's map", movers(options.episodes)),
    ]:
        sizes = ", ".join(f"{site} {t.shape[0]}" for site, t in posterior.bound.tables.items())
        print(f"{name}: contexts {sizes}; {demos.num_steps} steps followed")
        rows = {
            "tracker.update(state, actions)": follow(clock, posterior, demos, False),
            "tracker.update(state, actions, next_state=...)": follow(clock, posterior, demos, True),
            "the same, averaged over 20 draws": follow(clock, posterior, demos, True, num_draws=20),
            "posterior.filter(episode so far), compiled": refilter(clock, posterior, demos),
        }
        for title, seconds in rows.items():
            print(f"  {title:54} {milliseconds(seconds)}", flush=True)


if __name__ == "__main__":
    main()
