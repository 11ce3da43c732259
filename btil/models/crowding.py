"""Whether data can teach a table anything: its contexts, held against the steps that read them."""

from collections.abc import Iterator

import numpy as np

from btil.models.contexts import data_column
from btil.models.team import BoundModel, Table

# So many contexts per step leave most of them with the steps of one or two visits.
_LARGEST_SHARE = 1 / 3
# Fewer steps than these teach little whatever the contexts, and examples are small.
_FEWEST_STEPS = 30
# So many are enough to see that a state variable hardly ever repeats a value.
_FEWEST_STEPS_OF_A_VARIABLE = 10


def crowded(
    bound: BoundModel, num_steps: int | None = None, num_episodes: int | None = None
) -> Iterator[str]:
    """Say of which tables the model cannot learn, as nearly every step has a context of its own.

    A policy or transition of which each row is learned by itself is crowded if its contexts are
    more than a third of the steps that read it, and

    - these are at least 30 steps, or
    - they are at least 10, and a single state variable has more values than a third of them: a
      column of notes, or of times.

    Tables whose rows have parameters in common (`HierarchicalDirichletCPT`, `SoftmaxCPT` and the
    like) learn of a context from others, and are never crowded.

    Args:
        bound: The model on the data.
        num_steps: Number of steps of the data; None: those of `bound.demos`.
        num_episodes: Their number of episodes; None: as well.

    Yields:
        One sentence at most, for all tables: sites, contexts, steps, what is to blame, what to do.
    """
    steps = bound.demos.num_steps if num_steps is None else num_steps
    episodes = bound.demos.num_episodes if num_episodes is None else num_episodes
    reads = {"policy": steps, "transition": steps - episodes}
    told: list[str] = []
    roles: list[str] = []
    to_blame: dict[str, int] = {}
    for name, table in bound.learned.items():
        if table.parametric or table.contexts.role not in reads:
            continue
        number = reads[table.contexts.role] * len(table.agents)
        largest = _LARGEST_SHARE * number
        if len(table.contexts.rows) <= largest:
            continue
        alone = {
            variable: values
            for variable, values in _values_of_variables(table, bound.demos.num_states).items()
            if values > largest
        }
        if number >= (_FEWEST_STEPS_OF_A_VARIABLE if alone else _FEWEST_STEPS):
            told.append(f"{name} ({len(table.contexts.rows):,} contexts, read in {number:,} steps)")
            roles.append(table.contexts.role)
            for variable, values in alone.items():
                to_blame[variable] = max(values, to_blame.get(variable, 0))
    if not told:
        return
    flags = ", ".join(f"--{role}-parents" for role in dict.fromkeys(roles))
    remedy = f"name fewer parents (in a shell {flags}), or learn from more steps"
    if to_blame:
        columns = ", ".join(f"{name} ({values:,} values)" for name, values in to_blame.items())
        remedy = f"leave out {columns} if it is not a state; else {remedy}"
    yield (
        "the model cannot learn from tables of which most contexts are seen once or twice: "
        f"{', '.join(told)}; {remedy}; btil.suggest_model (in a shell `btil suggest`) finds "
        "a model that can learn"
    )


def _values_of_variables(table: Table, variables: dict[str, int]) -> dict[str, int]:
    """How many values of each state variable occur in the contexts of a table."""
    found: dict[str, int] = {}
    for name, column in zip(table.contexts.names, table.contexts.rows.T, strict=True):
        variable = data_column(name, variables)
        if variable in variables:
            found[variable] = max(found.get(variable, 0), len(np.unique(column)))
    return found
