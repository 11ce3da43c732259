"""Of whom a column speaks: the agents whose names are words of its name."""

import re
from collections.abc import Sequence


def word_of(agent: str) -> str:
    """A pattern for an agent's name where it is a word: "ann" in "ann_cell", not in "annual"."""
    return rf"(?<![^\W_]){re.escape(agent)}(?![^\W_])"


def words_of(agents: Sequence[str]) -> str:
    """A pattern for any agent's name; longer names first: "ann b" before "ann"."""
    return "|".join(word_of(one) for one in sorted(agents, key=lambda one: (-len(one), one)))


def agents_in(name: str, agents: Sequence[str]) -> set[str]:
    """The agents whose names occur in a name.

    Example:
        >>> sorted(agents_in("ann_to_bob", ["ann", "bob", "cleo"]))
        ['ann', 'bob']
    """
    return set(re.findall(words_of(agents), name))
