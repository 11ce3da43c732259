"""Where each intent leads on a plane, of motion that keeps a speed as of motion that slows down."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from btil.analysis.metrics import agent_position
from btil.demonstrations.directions import plane_columns
from btil.posterior.posterior import TeamPosterior

# Beyond so many times the breadth of the positions nearness is as good as infinite.
_FARTHEST = 1e3


class Goal(NamedTuple):
    """A place that motion leads to, and how.

    Attributes:
        x: First coordinate of the place.
        y: Second one.
        speed: Velocity far away, in units of length per step.
        near: Within about this distance motion slows down.
        inertia: Which share of a velocity is that of the step before.
    """

    x: float
    y: float
    speed: float
    near: float
    inertia: float


def goals(
    posterior: TeamPosterior, agent: str, position: Sequence[str], velocity: Sequence[str]
) -> dict[str, Goal]:
    r"""Find the place that each latent leads to, by least squares.

    With w the probability of the latent at each step of the demonstrations that were learned from,
    their labels used, it takes the place c, the speed s, the nearness r and the inertia a for which

    .. math:: \sum_t w_t \Big| v_t - a v_{t-1} - s \frac{c - p_t}{\sqrt{|c - p_t|^2 + r^2}} \Big|^2

    is least. A small r is motion at constant speed, one beyond the breadth of the positions motion
    that is the slower the closer it is. The first is not linear in the position, but in the
    directions to the places that are found: `btil.directions` makes them covariates.

    Args:
        posterior: A posterior whose latents are about right, e.g. of a `LinearNormalEmission` of
            the velocity given the position.
        agent: Name of the agent.
        position: Names of the two continuous columns that tell where it is.
        velocity: Names of the two that tell how it moves.

    Returns:
        {name of the latent: the goal}.

    Raises:
        ValueError: If the agent or a column is not there, or no step has them all.

    Example:
        >>> goals(posterior, "ann", ("ann_x", "ann_y"), ("ann_vx", "ann_vy"))  # doctest: +SKIP
        {'desk': Goal(x=0.1, y=-0.2, speed=0.8, near=0.7, inertia=0.0), ...}
    """
    demos = posterior.demos
    stays = demos.stays[agent_position(demos, agent)]
    p = plane_columns(demos, position, f"goals of {agent}: position")
    v = plane_columns(demos, velocity, f"goals of {agent}: velocity")
    before = np.roll(v, 1, axis=0)
    before[stays] = np.nan
    weights = posterior.smooth(demos, use_labels=True)[agent]
    known = np.isfinite(np.concatenate([p, v, before, weights], axis=1)).all(1)
    if not known.any():
        raise ValueError(f"goals of {agent}: no step has position, velocity and the one before")
    latents = demos.value_names(f"latent_{agent}")
    p, v, before, weights = p[known], v[known], before[known], weights[known]
    return {
        str(latent): _goal(p, v, before, own)
        for latent, own in zip(latents, weights.T, strict=True)
    }


def _goal(
    p: Float[np.ndarray, "steps 2"],
    v: Float[np.ndarray, "steps 2"],
    before: Float[np.ndarray, "steps 2"],
    weights: Float[np.ndarray, " steps"],
) -> Goal:
    from scipy.optimize import least_squares

    root = np.sqrt(weights)[:, None]

    def residual(values: Float[np.ndarray, " 5"]) -> Float[np.ndarray, " residuals"]:
        apart = values[:2] - p
        speed, near = np.exp(values[2:4])
        length = np.sqrt((apart**2).sum(1, keepdims=True) + near**2)
        return (root * (v - values[4] * before - speed * apart / length)).ravel()

    # It begins where a regression on the position is at rest, or at the edge on the way there.
    inputs = np.concatenate([np.ones((len(p), 1)), p], axis=1)
    slopes = np.linalg.lstsq(root * inputs, root * v, rcond=None)[0]
    rest = np.linalg.lstsq(slopes[1:].T, -slopes[0], rcond=None)[0]
    low, high = p.min(0), p.max(0)
    breadth = max(float((high - low).max()), 1e-12)
    pace = max(float(np.median(np.linalg.norm(v, axis=1))), 1e-9 * breadth)
    span = math.log(_FARTHEST)
    log_pace, log_breadth = math.log(pace), math.log(breadth)
    bounds = (
        [*(low - 2 * breadth), log_pace - span, log_breadth - span, -2.0],
        [*(high + 2 * breadth), log_pace + span, log_breadth + span, 2.0],
    )
    begin = [*np.clip(rest, low, high), log_pace, log_breadth - math.log(4), 0.0]
    x, y, log_speed, log_near, inertia = least_squares(residual, begin, bounds=bounds).x
    return Goal(float(x), float(y), math.exp(log_speed), math.exp(log_near), float(inertia))
