"""Which of several tables decode best in fits that learn from unlabelled steps too.

Scores of labelled steps alone judge tables as if nothing else could be learned from, and labels of
a few long episodes say little: many sets of parents come close. The closest are fitted
(`btil.suggestion.fold_fits`) and compared by their errors in the episodes whose labels were left
out. Labels of few episodes are few units, so small differences say nothing: the set that the scores
speak for stays, without parents that are not needed, unless another errs much less.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from btil.suggestion.held_out import Refined
from btil.suggestion.search import MOST_PARENTS, Found, Parents, Scored, Search

# Sets beside the first that are fitted; fewer for each table where there are several.
_MOST_POLICIES, _MOST_TRANSITIONS = 8, 4
_FEWEST = 2
_SINGLES = 2
# What a parent may bring that is dropped, as a multiple of the least: where labelled episodes times
# members are fewer, and where they are more.
_MANY_UNITS = 10
_DROPPED_OF_FEW, _DROPPED = 4.0, 1.5
# By how much another has to err less. Over splits of the labels smaller differences were noise.
_LEAST_DIFFERENCE = 0.04
_EQUAL = 1e-9


class Option(NamedTuple):
    """A table, and how its fits decode.

    Attributes:
        scored: Its parents and prior.
        errors: Of every member in every labelled episode.
    """

    scored: Scored
    errors: Float[np.ndarray, " units"]

    @property
    def error(self) -> float:
        """Its mean error."""
        return float(self.errors.mean())


def preferred(options: Sequence[Option], least: float) -> int:
    """The first, unless another errs clearly less; without parents that are not needed.

    Clearly less is less by a standard error of the difference, over members and episodes, and by
    .04 at least. A parent is not needed where the fits err as little without it and the scores
    hardly speak for it.

    Args:
        options: The options, the first being the one that the scores speak for.
        least: What a parent has to bring in a score.
    """
    first, best = options[0], min(options, key=lambda one: round(one.error, 9))
    less = first.errors - best.errors
    spread = less.std(ddof=1) / np.sqrt(len(less)) if len(less) > 1 else np.inf
    chosen = best if less.mean() > max(spread, _LEAST_DIFFERENCE) + _EQUAL else first
    # Of few episodes scores say less than they seem to: steps of one stretch are alike.
    episodes_are_few = len(less) < _MANY_UNITS
    most = least * (_DROPPED_OF_FEW if episodes_are_few else _DROPPED)

    def needs_no_more(one: Option) -> bool:
        dropped = set(chosen.scored.parents) - set(one.scored.parents)
        return (
            set(one.scored.parents) <= set(chosen.scored.parents)
            and one.error <= chosen.error + _EQUAL
            and chosen.scored.score - one.scored.score <= most * len(dropped) + _EQUAL
        )

    enough = [k for k, one in enumerate(options) if one is chosen or needs_no_more(one)]
    return min(enough, key=lambda k: (len(options[k].scored.parents), k))


def other_policies(found: Found, refined: Refined, tables: int) -> list[Scored]:
    """Policies to fit beside the one that was found, the likeliest first.

    Those that tell held-out labels nearly as well, those with a parent less, the best single
    parents, and what explains the actions best, alone or beside what was found. Their scores are
    log p(labels | actions).

    Args:
        found: What the search by evidence ended with.
        refined: What the search by held-out labels ended with.
        tables: How many policies there are: of many, fewer are fitted for each.
    """
    scores, number = refined.scores, max(_MOST_POLICIES // tables, _FEWEST)

    def rank(parents: Parents) -> tuple[float, Parents]:
        return (-round(scores.known[parents][0] - found.least * len(parents), 6), parents)

    now, explaining = refined.best.parents, found.best.parents
    ranked = sorted(scores.known, key=rank)
    singles = [one for one in ranked if len(one) == 1][: max(_SINGLES // tables, 1)]
    near = _distinct([scores.scored(one) for one in (now, *ranked)])[: number + 1]
    both = tuple(sorted({*explaining, *now}))
    more = [*_fewer(now), *singles, explaining]
    more += [both] if len(both) <= MOST_PARENTS else []
    every = _distinct([*near, *(scores.scored(one) for one in more)])
    return [one for one in every if one.parents != now]


def other_transitions(found: Found, tables: int) -> list[Scored]:
    """Transitions to fit beside the one that was found: its neighbours, and the way to it."""
    number = max(_MOST_TRANSITIONS // tables, _FEWEST)
    scores, now = Search(found.pool), found.best.parents
    passed = [tried.scored for tried in reversed(found.path[1:-1])]
    near = _distinct([found.best, *found.runners_up])[: number + 1]
    fewer = [scores.score(one) for one in _fewer(now)]
    fewer.sort(key=lambda one: (-round(one.score, 6), one.parents))
    every = _distinct([*near, *passed[:number], *fewer[:number]])
    return [one for one in every if one.parents != now]


def _fewer(parents: Parents) -> list[Parents]:
    """The parents without one of them."""
    return [tuple(other for other in parents if other != one) for one in parents]


def _distinct(sets: Sequence[Scored]) -> list[Scored]:
    """Without those that split the labelled steps as an earlier one does.

    Columns that others tell make many of these. Of them the one with the fewest parents is kept.
    """
    found: dict[tuple[float, int], Scored] = {}
    for one in sets:
        key = (round(one.score, 6), one.contexts)
        if key not in found or len(one.parents) < len(found[key].parents):
            found[key] = one
    return list(found.values())
