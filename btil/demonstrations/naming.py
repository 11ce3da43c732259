"""Of whom a column speaks: agents whose names are words of its name, and who they are to one."""

import re
from collections.abc import Sequence

OWN, OTHER = "{own}", "{other"
_MEMBERS = re.compile(r"own|other\d*")
_BRACED = re.compile(r"\{(own|other\d*)\}")


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


def without_owner(name: str, agent: str) -> str:
    """A name as its own agent would say it: without the agent's.

    Example:
        >>> without_owner("next_ann_cell", "ann"), without_owner("joann_cell", "ann")
        ('next_cell', 'joann_cell')
    """
    return re.sub(f"{word_of(agent)}_", "", name, count=1)


def agents_but_for_capitals(name: str, agents: Sequence[str]) -> list[str]:
    """The agents whose names occur in a name that speaks of no agent, if capitals are left aside.

    Example:
        >>> agents_but_for_capitals("ann_cell", ["Ann", "Bob"])
        ['Ann']
        >>> agents_but_for_capitals("Ann_cell", ["Ann", "Bob"])
        []
    """
    if agents_in(name, agents):
        return []
    return [one for one in agents if re.search(word_of(one), name, re.IGNORECASE)]


def nearly(name: str, other: str) -> bool:
    """Whether a slip makes the difference: a letter more, less or another, two turned, capitals.

    Not at the first letter, where a slip is rare and makes other words.

    Example:
        >>> [nearly(one, "present_ann") for one in ("presnt_ann", "presetn_ann", "Present_ann")]
        [True, True, True]
        >>> nearly("latency_ann", "latent_ann"), nearly("faction_ann", "action_ann")
        (False, False)
    """
    if name == other:
        return False
    name, other = name.casefold(), other.casefold()
    pairs = enumerate(zip(name, other, strict=False))
    at = next((k for k, (one, two) in pairs if one != two), min(len(name), len(other)))
    left, right = name[at:], other[at:]
    turned = left[:2] == right[1::-1] and left[2:] == right[2:]
    slips = (left[1:], right), (left, right[1:]), (left[1:], right[1:])
    return at > 0 and (turned or any(one == two for one, two in slips))


def have_forms(agents: Sequence[str]) -> bool:
    """Whether "own" and "other" in a name say who it is about: nobody is called so."""
    return not any(_MEMBERS.fullmatch(agent) for agent in agents)


def form_of(name: str, agent: str, agents: Sequence[str]) -> str:
    """A name seen from an agent: agents' names replaced by who they are to that one, in braces.

    Example:
        >>> form_of("ann_cell", "ann", ["ann", "bob"]), form_of("ann_cell", "bob", ["ann", "bob"])
        ('{own}_cell', '{other}_cell')
        >>> form_of("cell-cleo", "ann", ["ann", "bob", "cleo"])
        'cell-{other2}'
    """
    others = sorted(other for other in agents if other != agent)
    labels = {agent: OWN} | {
        other: OTHER + "}" if len(others) == 1 else f"{OTHER}{k + 1}}}"
        for k, other in enumerate(others)
    }
    return re.sub(words_of(agents), lambda found: labels[found.group(0)], name)


def spoken(form: str) -> str:
    """A form as a word: "own_cell" of "{own}_cell".

    Example:
        >>> spoken("{other1}_cell")
        'other1_cell'
    """
    return _BRACED.sub(r"\1", form)
