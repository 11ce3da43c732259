"""Emissions for continuous columns: which of them to explain, and by what."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from btil.demonstrations import Demonstrations
from btil.demonstrations.naming import agents_in
from btil.models.emission import Emission, LinearNormalEmission, NormalEmission

# What a regression leaves of a column that the step before tells.
_TOLD = 1e-6


class Columns(NamedTuple):
    """An agent's continuous columns.

    Attributes:
        shown: Those that an emission can explain.
        told: Those that the step before tells, as velocities tell the next position.
    """

    shown: tuple[str, ...]
    told: tuple[str, ...]


def own_columns(demos: Demonstrations, agent: str) -> Columns:
    """The continuous columns with the agent's name in theirs; of a team of one, all.

    Columns of one value throughout are left out.
    """
    own = [
        name
        for name, values in demos.continuous.items()
        if (demos.num_agents == 1 or set(agents_in(name, demos.agents)) == {agent})
        and np.nanmax(values, initial=-np.inf) > np.nanmin(values, initial=np.inf)
    ]
    if not own:
        return Columns((), ())
    values = np.stack([demos.continuous[name] for name in own], axis=1)
    before = np.roll(values, 1, axis=0)
    before[demos.stays[demos.agents.index(agent)]] = np.nan
    known = np.isfinite(np.concatenate([values, before], axis=1)).all(1)
    rest = _left(values[known], before[known])
    told = tuple(name for name, one in zip(own, rest, strict=True) if one < _TOLD)
    shown = tuple(name for name in own if name not in told)
    return Columns(shown, told) if shown else Columns(tuple(own), ())


def _left(
    values: Float[np.ndarray, "steps d"], before: Float[np.ndarray, "steps d"]
) -> Float[np.ndarray, " d"]:
    """Of each column the share of its spread that a regression on the step before leaves."""
    steps, number = values.shape
    if steps < 3 * (number + 1):
        return np.ones(number)
    inputs = np.concatenate([np.ones((steps, 1)), before - before.mean(0)], axis=1)
    slopes = np.linalg.lstsq(inputs, values - values.mean(0), rcond=None)[0]
    residual = values - values.mean(0) - inputs @ slopes
    return residual.std(0) / values.std(0)


def proposals(demos: Demonstrations) -> list[dict[str, Emission]]:
    """Emissions to try, the most likely one first; none where nobody has columns.

    Positions are told by the step before: they are covariates of velocities. Columns that nothing
    tells are normal, or depend on their own previous values.
    """
    columns = {agent: own_columns(demos, agent) for agent in demos.agents}
    columns = {agent: one for agent, one in columns.items() if one.shown}
    if not columns:
        return []
    plain: dict[str, Emission] = {}
    places: dict[str, Emission] = {}
    full: dict[str, Emission] = {}
    for agent, (shown, told) in columns.items():
        plain[agent] = NormalEmission(shown)
        places[agent] = LinearNormalEmission(shown, told) if told else plain[agent]
        full[agent] = LinearNormalEmission(shown, (*told, *(f"previous_{name}" for name in shown)))
    moving = any(one.told for one in columns.values())
    return [full, places, plain] if moving else [plain, full]
