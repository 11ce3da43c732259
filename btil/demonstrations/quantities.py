"""What demonstrations hold beside indices: who was there, weights of latents, rewards, measures.

As `coding.py` codes values into indices, so this module checks numbers that stay numbers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from btil.demonstrations.coding import (
    Names,
    Places,
    as_array,
    check_text,
    distinct_values,
    listed,
    normalised,
    normalised_keys,
    shown,
)

MISSING_MEANS = ("refuse", "allow")
_THERE = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def checked_missing(missing: Any) -> str:
    """The argument `missing`.

    Raises:
        ValueError: It is neither "refuse" nor "allow".
    """
    if missing not in MISSING_MEANS:
        raise ValueError(f"missing: 'refuse' or 'allow' expected, got {shown(missing)}")
    return missing


def columns_by_agent(argument: str, given: Any, agents: Names) -> dict[str, Any]:
    """Columns of a (steps, agents) array or a mapping by agents; those left out are not there.

    Raises:
        ValueError: An unknown agent, or an array of another shape.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        columns = normalised_keys(argument, given)
        for agent in columns:
            if agent not in agents:
                raise ValueError(
                    f"{argument}: there is no agent {shown(agent)}; the agents are {listed(agents)}"
                )
        return {agent: as_array(f"{argument} of {agent}", v) for agent, v in columns.items()}
    array = as_array(argument, given)
    if array.ndim != 2 or array.shape[1] != len(agents):
        raise ValueError(
            f"{argument}: (steps, agents) with {len(agents)} agents expected, got {array.shape}"
        )
    return {agent: array[:, k] for k, agent in enumerate(agents)}


def presence(
    given: Any, agents: Names, num_steps: int, places: Places
) -> Bool[np.ndarray, "steps agents"] | None:
    """Whether each agent is there at each step; None where all always are.

    Args:
        given: Booleans, 0 and 1, or texts "true" and "false", "yes" and "no"; (steps, agents) or
            a mapping.
        agents: The agents.
        num_steps: Number of steps.
        places: Tells where a row is.

    Raises:
        ValueError: Another value, none, or a column of another length.
    """
    there = np.ones((num_steps, len(agents)), bool)
    for agent, values in columns_by_agent("present", given, agents).items():
        column = f"present_{agent}"
        _check_length(column, values, num_steps)
        codes, distinct = distinct_values(column, values)
        table = np.zeros(len(distinct) + 1, bool)
        for code, value in enumerate(distinct):
            text = _word(value)
            if text not in _THERE:
                row = int(np.argmax(codes == code))
                raise ValueError(
                    f"{column}: {places.place(row)}: {shown(value)} is not allowed; expected "
                    "true or false, yes or no, 1 or 0"
                )
            table[code] = _THERE[text]
        if (codes < 0).any():
            raise ValueError(
                f"{column}: {places.place(int(np.argmax(codes < 0)))}: a missing value is not "
                "allowed; expected true or false, yes or no, 1 or 0"
            )
        there[:, agents.index(agent)] = table[codes]
    return None if there.all() else there


def says_away(column: str, values: Any) -> Bool[np.ndarray, " steps"]:
    """Where a column of presence says that somebody is away; what it may not say is not looked at.

    Args:
        column: Its name.
        values: Its cells, as `as_array` gives them.
    """
    codes, distinct = distinct_values(column, values)
    return ~np.array([*(_THERE.get(_word(one), True) for one in distinct), True])[codes]


def _word(value: Any) -> str:
    return str(value).strip().lower().removesuffix(".0")


def numbers(
    column: str, values: Any, num_steps: int, places: Places, blank: bool
) -> Float[np.ndarray, " steps"]:
    """A column of finite numbers as float64, NaN where there is none and there may be none.

    Raises:
        ValueError: No number, an infinite one, a missing one where none may be missing.
    """
    values = as_array(column, values)
    _check_length(column, values, num_steps)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        found = np.array(np.ma.getdata(values), np.float64)
        found[np.ma.getmaskarray(values)] = np.nan
    else:
        codes, distinct = distinct_values(column, values)
        table = np.full(len(distinct) + 1, np.nan)
        for code, value in enumerate(distinct):
            text = value.strip() if isinstance(value, str) else value
            try:
                table[code] = np.nan if text == "" else float(text)
            except (TypeError, ValueError):
                row = int(np.argmax(codes == code))
                raise ValueError(
                    f"{column}: {places.place(row)}: {shown(value)} is not a number; expected a "
                    "finite number" + (", or a blank where nobody saw it" if blank else "")
                ) from None
        found = table[codes]
    bad = np.isinf(found) if blank else ~np.isfinite(found)
    if bad.any():
        row = int(np.argmax(bad))
        told = "a missing value" if np.isnan(found[row]) else shown(found[row])
        raise ValueError(
            f"{column}: {places.place(row)}: {told} is not allowed; expected a finite number"
            + (", or NaN (a blank) where nobody saw it" if blank else "")
        )
    return found


def measures(
    given: Any, variables: Names, num_steps: int, places: Places
) -> dict[str, Float[np.ndarray, " steps"]]:
    """The argument `continuous`: columns of measured quantities, NaN where nobody saw them.

    Raises:
        ValueError: It is no mapping, a name is taken, or a value is no number.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f"continuous: a mapping {{column: numbers}} expected, got {shown(given)}")
    columns = normalised_keys("continuous", given)
    for name in columns:
        check_text("continuous", name)
        if name in variables:
            raise ValueError(f"continuous: {shown(name)} is a state variable already")
    return {
        normalised(name): numbers(name, values, num_steps, places, blank=True)
        for name, values in columns.items()
    }


def checked_rewards(
    given: Any, agents: Names, num_steps: int, places: Places
) -> Float[np.ndarray, "steps *agents"] | None:
    """The argument `rewards`: one number a step, or one per agent.

    Raises:
        ValueError: Another shape, an agent left out, a value that is no finite number.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        given = as_array("rewards", given)
        if given.ndim == 1:
            return numbers("reward", given, num_steps, places, blank=False)
    columns = columns_by_agent("rewards", given, agents)
    left_out = [agent for agent in agents if agent not in columns]
    if left_out:
        raise ValueError(f"rewards: {listed(left_out)} left out; all agents or one number a step")
    return np.stack(
        [
            numbers(f"reward_{agent}", columns[agent], num_steps, places, blank=False)
            for agent in agents
        ],
        axis=1,
    )


def checked_weights(
    given: Any,
    agents: Names,
    sizes: Mapping[str, int],
    there: Bool[np.ndarray, "steps agents"],
    places: Places,
) -> dict[str, Float[np.ndarray, "steps latents"]]:
    """The argument `latent_weights`: p(annotation | latent) up to a factor, of some agents.

    Args:
        given: {agent: (steps, latents)}.
        agents: The agents.
        sizes: Their numbers of latents.
        there: Where they are there; elsewhere weights are not looked at, and become 1.
        places: Tells where a row is.

    Raises:
        ValueError: Another shape, a negative or no number, a row of zeros.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(
            "latent_weights: a mapping {agent: (steps, latents)} expected, got "
            f"{type(given).__name__}"
        )
    weights = {}
    columns = columns_by_agent("latent_weights", given, agents)
    for agent in (agent for agent in agents if agent in columns):
        k = agents.index(agent)
        expected = (len(there), sizes[agent])
        try:
            found = np.array(columns[agent], np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"latent_weights of {agent}: numbers expected") from None
        if found.shape != expected:
            raise ValueError(
                f"latent_weights of {agent}: (steps, latents) = {expected} expected, got "
                f"{found.shape}"
            )
        found[~there[:, k]] = 1.0
        bad = ~(np.isfinite(found) & (found >= 0))
        if bad.any():
            row, latent = np.argwhere(bad)[0]
            raise ValueError(
                f"latent_weights of {agent}: {places.place(int(row))}: latent {latent}: "
                f"{shown(found[row, latent])} is not allowed; expected a finite number from 0 on"
            )
        empty = ~(found > 0).any(axis=1)
        if empty.any():
            raise ValueError(
                f"latent_weights of {agent}: {places.place(int(np.argmax(empty)))}: all weights "
                "are 0, so no latent would be possible; all 1 say that nothing is known"
            )
        weights[agent] = found
    return weights


def _check_length(column: str, values: Any, num_steps: int) -> None:
    if values.ndim != 1 or len(values) != num_steps:
        raise ValueError(
            f"{column}: one value per step expected ({num_steps}), got shape {values.shape}"
        )


def without_sets(
    column: str, values: Any, names: Names | None
) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """A column of labels without the cells that say "one of these": "lift|carry".

    Args:
        column: Its name, for messages.
        values: The labels, as `as_array` gives them.
        names: The declared names of the latents; a name with a bar in it is a name.

    Returns:
        The column with nothing in these cells; and the latents of each such text.

    Raises:
        ValueError: A set with an empty or a repeated part.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values, {}
    codes, distinct = distinct_values(column, values)
    found = {}
    for value in distinct:
        if isinstance(value, str) and "|" in value and normalised(value) not in (names or ()):
            parts = tuple(normalised(part) for part in value.split("|"))
            if not all(parts) or len(set(parts)) < len(parts):
                raise ValueError(
                    f"{column}: {shown(value)} is not allowed; expected a latent, or different "
                    "ones with bars between them where it is one of these"
                )
            found[value] = parts
    if not found:
        return values, {}
    return np.array([*distinct, None], object)[codes], found


def weights_of_sets(
    column: str,
    cells: Any,
    sets: Mapping[str, tuple[str, ...]],
    size: int,
    names: Names | None,
    places: Places,
) -> Float[np.ndarray, "steps latents"]:
    """1 for the latents of a cell's set, 0 for all others; all 1 where the cell is no set.

    Raises:
        ValueError: A part that is no latent.
    """
    weights = np.ones((len(cells), size))
    for text, parts in sets.items():
        rows = np.flatnonzero(np.asarray(cells, object) == text)
        known = names or tuple(map(str, range(size)))
        for part in parts:
            if part not in known:
                raise ValueError(
                    f"{column}: {places.place(int(rows[0]))}: {shown(part)} in {shown(text)} is "
                    f"not allowed; expected one of {listed(known)}"
                )
        weights[rows] = np.isin(known, parts)
    return weights


def weight_columns(columns: Sequence[str], agents: Sequence[str]) -> dict[str, dict[str, str]]:
    """The columns that hold weights of latents, "latent_ann[lift]": {agent: {latent: column}}."""
    found: dict[str, dict[str, str]] = {}
    for agent in agents:
        prefix = f"latent_{agent}["
        for column in columns:
            if column.startswith(prefix) and column.endswith("]"):
                found.setdefault(agent, {})[normalised(column[len(prefix) : -1])] = column
    return found


def weights_from_columns(
    columns: Mapping[str, Any], latents: Mapping[str, str], names: Names, places: Places
) -> Float[np.ndarray, "steps latents"]:
    """Weights of an agent's latents from one column each; a step of blanks says nothing.

    A latent without a column weighs 0 where the others have weights.

    Raises:
        ValueError: A column of no latent, a step with some weights and some blanks, no number.
    """
    for latent, column in latents.items():
        if latent not in names:
            raise ValueError(
                f"{column}: there is no latent {shown(latent)}; expected {listed(names)}"
            )
    num_steps = len(next(iter(columns.values())))
    given = np.stack(
        [
            numbers(column, columns[column], num_steps, places, blank=True)
            for column in latents.values()
        ],
        axis=1,
    )
    blank = np.isnan(given)
    partly = blank.any(axis=1) & ~blank.all(axis=1)
    if partly.any():
        row = int(np.argmax(partly))
        column = list(latents.values())[int(np.argmax(blank[row]))]
        raise ValueError(
            f"{column}: {places.place(row)}: a missing value is not allowed next to weights of "
            "other latents; write 0 where a latent is ruled out, or leave all blank"
        )
    weights = np.zeros((num_steps, len(names)))
    weights[:, [names.index(latent) for latent in latents]] = given
    weights[blank.all(axis=1)] = 1.0
    return weights
