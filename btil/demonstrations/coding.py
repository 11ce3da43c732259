"""How values become indices: text, number, category or nothing, whatever they came in.

The one place that codes values, for every way in: arrays, mappings and data frames, CSV, Parquet
and NPZ, files read part by part, the shell. `docs/reference/values.md` states the rules for
those who write tables; `tests/test_values.py` holds every container to them.

A value is a number, a text, or nothing (the empty cell, a null of the file format). A column
becomes indices in one of two ways: numbers are indices as they stand; texts are looked up in the
declared names, else in the sorted list of the texts that occur.
"""

import contextlib
import os
import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int

Names = tuple[str, ...]

_MAX_INDEX = np.iinfo(np.int64).max
# A float64 holds every whole number up to here; above, the value read may not be the one meant.
_MAX_EXACT_FLOAT = np.float64(2**53)
# An index that no column can have: larger ones are refused, and so is everything below -1.
_MISSING = np.int64(np.iinfo(np.int64).min)
# Texts that pandas and other tools read as nothing. Here they are a question: see `Reading`.
NOTHING = frozenset(
    ["nan", "NaN", "NAN", "-nan", "-NaN", "None", "null", "NULL", "NA", "<NA>", "N/A", "n/a"]
) | {"#NA", "#N/A", "#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"}
MINUS_ONE = frozenset(["-1", "-1.0"])
# The decimal form of a number as programs print it: no exponent, no sign or zero to spare.
_PLAIN = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.(?:0|[0-9]*[1-9]))?|-?inf")
# Characters that leave no ink, but for the two joiners, which change how their neighbours look.
_JOINERS = "\u200c\u200d"
_STYLE = "\ufe0e\ufe0f"
# Of a value in a message.
_LONGEST_SHOWN = 200
# Of a name: what every file format can hold, as the name of a column too.
_LONGEST_NAME = 10_000
_PACKAGE = f"{Path(__file__).parent}{os.sep}"


class DataWarning(UserWarning):
    """Data that can be read, but may not mean what they say.

    Raised as a Python warning by `Demonstrations`, the readers and `fit`; the command line prints
    it in one line.
    """


def warn(doubts: Iterable[str]) -> None:
    """Warn of each doubt, at the line outside btil that led to it."""
    for doubt in doubts:
        warnings.warn(doubt, DataWarning, skip_file_prefixes=(_PACKAGE,))


@runtime_checkable
class Places(Protocol):
    """Tells of a row which episode and step it is, for messages."""

    def place(self, row: int) -> str:
        """Such as "episode 3, step 0"."""


class Reading(NamedTuple):
    """What the values of a table are taken for, beyond its sizes and names.

    Attributes:
        unknown_labels: Texts that mean an unknown latent, beside the empty cell and -1. None:
            undecided, and the texts in `NOTHING` are refused. In columns other than labels those
            of them that are in `NOTHING` are missing values. All other texts are names.
        by_names: Values with names come as these names; a number is refused.
        foreign: Nothing is recorded of the table: what a column is, is told by its name.
        drop_last: An episode's last row is left out where no agent has an action in it.
        unseen: Nothing in an action or a state is a value that nobody saw.
        continuous: Columns that are measured quantities.
        known: State variables that were seen before: further columns are passed over. None: every
            other column is a state variable.
    """

    unknown_labels: frozenset[str] | None = None
    by_names: bool = False
    foreign: bool = False
    drop_last: bool = False
    unseen: bool = False
    continuous: Names = ()
    known: Names | None = None


PLAIN = Reading()


class Coded(NamedTuple):
    """A column as indices (steps,), -1 where unknown.

    Attributes:
        indices: The indices.
        size: Number of values.
        names: Their texts, None where they are numbers.
        doubt: What may be wrong with them all the same, as a sentence.
    """

    indices: Int[np.ndarray, " steps"]
    size: int
    names: Names | None
    doubt: str | None = None


def texts_for_unknown(given: Any) -> frozenset[str] | None:
    """The argument `unknown_labels`: texts, or whole numbers.

    Raises:
        ValueError: It is no sequence of such.
    """
    if given is None:
        return None
    texts = []
    for item in items("unknown_labels", given):
        if isinstance(item, Integral | np.integer) and not isinstance(item, bool | np.bool_):
            item = str(item)
        if not isinstance(item, str):
            raise ValueError(f"unknown_labels: texts or whole numbers expected, got {shown(item)}")
        texts.append(normalised(item))
    return frozenset(texts)


# ---------------------------------------------------------------------- a column


def code_column(
    column: str,
    values: Any,
    size: int | None,
    names: Names | None,
    places: Places,
    reading: Reading = PLAIN,
    away: Bool[np.ndarray, " steps"] | None = None,
) -> Coded:
    """Check one column and turn it into indices.

    A latent may be unknown, and with `reading.unseen` an action or a state too. A size is what is
    declared, else the number of names, else the largest value plus one.

    Args:
        column: A state variable, "action_<agent>", "latent_<agent>" or "step".
        values: One value per step, as `as_array` gives it.
        size: The declared number of values.
        names: The declared texts of the values.
        places: Tells where a row is.
        reading: What the values are taken for.
        away: Where whom the column is about was away: there may be nothing there.

    Returns:
        The column as indices.

    Raises:
        ValueError: A value that is missing where it may not be, not whole, out of range or no
            name; numbers among names; spellings that cannot be told apart. The message names
            column, episode, step, value and what is allowed.
    """
    if names is not None and size not in (None, len(names)):
        raise ValueError(f"{column}: {len(names)} names, but the declared size is {size}")
    refuse = _Refusal(column, size if names is None else len(names), names, places, reading)
    size = refuse.size
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        indices = _code_numbers(refuse, values)
    else:
        codes, distinct = distinct_values(column, values)
        table, occurring = _code_distinct(refuse, codes, distinct)
        indices = np.append(table, _MISSING)[codes]
        if occurring is not None:
            if size not in (None, len(occurring)):
                raise ValueError(
                    f"{column}: {len(occurring)} texts occur, but the declared size is {size}; "
                    "declare the names of all its values"
                )
            names, size = occurring, len(occurring)
            refuse.occurring = occurring
    # -1 is nothing to a column of which something may be missing: for the rows of one away too.
    missing = (indices == _MISSING) | ((indices == -1) if away is not None else False)
    if missing.any():
        owed = missing if away is None else missing & ~away
        if owed.any() and not refuse.may_miss:
            row = int(np.argmax(owed))
            refuse(row, None if indices[row] == _MISSING else indices[row])
        indices = np.where(missing, -1, indices)
    outside = (indices < 0) & ~missing
    if size is not None:
        outside |= indices >= size
    if outside.any():
        row = int(np.argmax(outside))
        refuse(row, indices[row])
    if size is not None:
        found = refuse.occurring
        return Coded(indices, size, names, _numbers_among(refuse, found) or _alike(column, found))
    size = int(indices.max()) + 1
    if size == 0 and refuse.role == "latent":
        raise ValueError(
            f"{column}: no step is labelled, so the number of latents must be declared: "
            "num_latents=... (--num-latents in a shell), or latent_names=..."
        )
    if size == 0:
        raise ValueError(
            f"{column}: no step has a value, so the number of its values must be declared: "
            f"num_{refuse.role}s=..., or {refuse.role}_names=..."
        )
    return Coded(indices, size, names, _never_seen(column, indices, size))


class _Refusal:
    """Refuses values of a column, in words that all of them have in common."""

    def __init__(
        self, column: str, size: int | None, names: Names | None, places: Places, reading: Reading
    ) -> None:
        self.column, self.size, self.names = column, size, names
        self.places, self.reading = places, reading
        self.fraction = False
        self.occurring: Names = ()
        self.role = role_of(column)
        self.may_miss = self.role == "latent" or reading.unseen
        # In a table 1 may be the name "1", or the second of the names.
        doubtful = reading.foreign and any(map(_like_a_number, names or ()))
        self.no_codes = names is not None and (reading.by_names or doubtful)

    def __call__(self, row: int, value: object, expected: str | None = None) -> NoReturn:
        self.fraction = as_index(value) is None and _is_a_number(value)
        told = "a missing value" if value is None else shown(value)
        missing = value is None or (not self.may_miss and as_index(value) == -1)
        self.say(row, f"{told} is not allowed; expected {expected or self._allowed()}", missing)

    def say(self, row: int, what: str, missing: bool = False) -> NoReturn:
        remedy = self._remedy(missing)
        remedy = f"; {remedy}" if remedy else ""
        raise ValueError(f"{self.column}: {self.places.place(row)}: {what}{remedy}")

    def code_for_name(self, row: int, value: object) -> NoReturn:
        """A number where values have names, and nothing says which number is which name."""
        argument = f"{self.role}_names"
        self.say(
            row,
            f"{shown(value)} is a number, but the values of this column have names, and which "
            f"number stands for which name is not declared: {listed(self.names or ())}. Write the "
            f"names; if the numbers count the names in this order from 0, declare {argument}=... "
            "when the file is read",
        )

    def undecided(self, row: int, text: str) -> NoReturn:
        """A text that other tools read as nothing."""
        latent = self.role == "latent"
        means = "unknown" if latent else "missing"
        what = (
            f"{shown(text)} may be a name, or say that the latent is unknown"
            if latent
            else f"a missing value, or a name: {shown(text)} may be either, and is not allowed"
        )
        self.say(
            row,
            f"{what}; say which: unknown_labels=[{shown(text)}] (in a shell --unknown-labels "
            f"'{text}') reads it as {means}, unknown_labels=[] (--unknown-labels '') as a name, "
            f"and so does {self.role}_names=... that has it",
        )

    def unknown_numbers(self) -> list[int]:
        """The numbers that say that a latent is unknown, -1 aside."""
        texts = sorted(self.reading.unknown_labels or ()) if self.role == "latent" else []
        plain, whole, bad = plain_numbers(texts)
        return whole[plain & ~bad].tolist()

    def _allowed(self) -> str:
        parts = []
        if self.occurring:
            parts.append(f"a text, such as {shown(self.occurring[0])}")
        elif not self.no_codes:
            parts.append(
                "an index (a whole number 0, 1, 2, ... within 64 bits)"
                if self.size is None
                else f"a whole number from 0 to {self.size - 1}"
            )
        if self.names:
            parts.append(f"one of {listed(self.names)}")
        if self.may_miss:
            nothing = "it is unknown" if self.role == "latent" else "nobody saw it"
            parts.append(f"-1, NaN, None or a blank where {nothing}")
        return ", or ".join(parts)

    def _remedy(self, missing: bool) -> str | None:
        if self.column == "step":
            return "leave the column step out if it does not count steps"
        unseen = "missing='allow' (--missing allow in a shell)"
        if self.role == "action" and missing:
            return (
                f"{unseen} takes it for an action that nobody saw; a member who was away is "
                "recorded by present=..., in a table by a column present_<agent>; if it is the "
                "state after an episode's last action, drop_last=True of the readers (--drop-last "
                "in a shell) leaves such rows out"
            )
        if self.role != "state":
            return None
        remedies = []
        if missing:
            remedies.append(f"{unseen} takes it for a value that nobody saw")
        if self.fraction:
            remedies.append(
                f"continuous=[{self.column!r}] of the readers (--continuous {self.column} in a "
                "shell), or continuous={...} of Demonstrations, keeps a measured quantity as it is"
            )
        if self.reading.foreign:
            remedies.append(
                f"{self.column} is read as a state variable, as is every column but episode, "
                "step, action_<agent>, latent_<agent>, present_<agent> and reward: leave it out "
                "if it is none"
            )
        return "; ".join(remedies)


def role_of(column: str) -> str:
    """What a column of a table is: "action", "latent", else "state"."""
    kind = column.partition("_")[0]
    return kind if kind in ("action", "latent") and column != kind else "state"


def _code_numbers(refuse: _Refusal, values: np.ndarray) -> Int[np.ndarray, " steps"]:
    """Indices of an array of numbers, `_MISSING` where there is none."""
    data = np.ma.getdata(values)
    missing = np.ma.getmaskarray(values) | np.isnan(data)
    whole, bad = whole_numbers(data)
    bad &= ~missing
    if bad.any():
        row = int(np.argmax(bad))
        refuse(row, data[row])
    if refuse.may_miss:
        missing |= np.isin(whole, [-1, *refuse.unknown_numbers()])
    if refuse.no_codes and not missing.all():
        row = int(np.argmin(missing))
        refuse.code_for_name(row, whole[row])
    return np.where(missing, _MISSING, whole)


def _code_distinct(
    refuse: _Refusal, codes: Int[np.ndarray, " steps"], distinct: list[Any]
) -> tuple[Int[np.ndarray, " distinct"], Names | None]:
    """The index of each distinct value, and the names where they come from the texts found."""
    names, reading = refuse.names, refuse.reading
    lookup = {} if names is None else {name: index for index, name in enumerate(names)}
    unknown_numbers = refuse.unknown_numbers()
    table = np.full(len(distinct), _MISSING)
    texts: dict[int, str] = {}
    numbers: list[int] = []
    named = False
    for code, value in enumerate(distinct):
        if not isinstance(value, str):
            index = as_index(value)
            if index is None:
                refuse(_first(codes, code), value)
            if refuse.may_miss and (index == -1 or index in unknown_numbers):
                continue
            table[code] = index
            numbers.append(code)
            continue
        text = normalised(value)
        if text in lookup:
            if refuse.role == "latent" and text in (reading.unknown_labels or ()):
                raise ValueError(
                    f"{refuse.column}: {shown(text)} cannot be both one of its names and one of "
                    "the unknown_labels"
                )
            table[code] = lookup[text]
            named = True
        elif _means_nothing(text, refuse):
            continue
        elif text in NOTHING and reading.unknown_labels is None:
            refuse.undecided(_first(codes, code), text)
        else:
            texts[code] = text
    if numbers and refuse.no_codes:
        refuse.code_for_name(_first(codes, numbers[0]), distinct[numbers[0]])
    if not texts:
        return table, None

    where = np.fromiter(texts, np.int64)
    plain, whole, bad = plain_numbers(list(texts.values()))
    if plain.all() and not (names and (named or numbers or any(map(_like_a_number, names)))):
        if bad.any():
            code = int(where[np.argmax(bad)])
            refuse(_first(codes, code), texts[code])
        if refuse.no_codes:
            refuse.code_for_name(_first(codes, where[0]), texts[int(where[0])])
        _refuse_two_spellings(refuse, codes, texts, whole)
        table[where] = np.where(np.isin(whole, unknown_numbers), _MISSING, whole)
        return table, None
    if names is not None:
        row = int(np.argmax(np.isin(codes, where)))
        refuse(row, texts[int(codes[row])])
    if numbers:
        refuse(
            _first(codes, where[0]),
            texts[int(where[0])],
            "numbers only or names only, as other steps have numbers",
        )
    for text in texts.values():
        check_text(refuse.column, text)
    names = tuple(sorted(set(texts.values())))
    refuse_alike(refuse.column, names)
    lookup = {name: index for index, name in enumerate(names)}
    for code, text in texts.items():
        table[code] = lookup[text]
    return table, names


def _means_nothing(text: str, refuse: _Refusal) -> bool:
    """Whether a text that is no declared name says that there is no value."""
    unknown = refuse.reading.unknown_labels or frozenset()
    if not text:
        return True
    if refuse.role == "latent":
        return text in MINUS_ONE or text in unknown
    return (refuse.may_miss and text in MINUS_ONE) or (text in unknown and text in NOTHING)


def _refuse_two_spellings(
    refuse: _Refusal,
    codes: Int[np.ndarray, " steps"],
    texts: Mapping[int, str],
    whole: Int[np.ndarray, " texts"],
) -> None:
    """1 and 1.0: one number to some, two versions to others."""
    spelled: dict[int, str] = {}
    for (code, text), number in zip(texts.items(), whole.tolist(), strict=True):
        if (other := spelled.setdefault(number, text)) != text:
            refuse.say(
                _first(codes, code),
                f"{shown(text)} and {shown(other)} are two spellings of one number; write it "
                "in one way",
            )


def plain_numbers(
    texts: Sequence[str],
) -> tuple[Bool[np.ndarray, " texts"], Int[np.ndarray, " texts"], Bool[np.ndarray, " texts"]]:
    """Whether texts are plain decimals; their numbers; which of these are no whole ones.

    A plain decimal is what a program prints for a number: 7, -1, 2.0, 1.5, inf; not 007, +1, 1e1
    or 1.50.
    Whole means exactly held: in 64 bits, and with a fraction of .0 in those of a float.
    """
    matches = [_PLAIN.fullmatch(text) for text in texts]
    plain = np.array([match is not None for match in matches], bool)
    whole = np.zeros(len(texts), np.int64)
    bad = np.zeros(len(texts), bool)
    for k, match in enumerate(matches):
        if match is None:
            continue
        digits, fraction = match.groups()
        # Python reads no numbers of thousands of digits.
        number = int(digits) if digits and len(digits) < 30 else _MAX_INDEX + 1
        largest = int(_MAX_EXACT_FLOAT) - 1 if fraction else _MAX_INDEX
        if abs(number) > largest or fraction not in (None, ".0"):
            bad[k] = True
        else:
            whole[k] = number
    return plain, whole, bad


def _is_a_number(value: object) -> bool:
    if isinstance(value, str):
        return _PLAIN.fullmatch(value) is not None and not value.endswith("inf")
    return isinstance(value, float | np.floating) and bool(np.isfinite(value))


def is_a_name(value: Any, unknown: Set[str] = NOTHING) -> bool:
    """Whether a value is a text that is no number, and none of those that stand for nothing."""
    if not isinstance(value, str):
        return False
    text = normalised(value)
    return bool(text) and text not in unknown and _PLAIN.fullmatch(text) is None


def is_a_label(value: Any, unknown: Set[str] = NOTHING) -> bool:
    """Whether a value says something of a latent: a name, or a number that is not -1 or unknown."""
    if isinstance(value, str):
        text = normalised(value)
        return bool(text) and (unknown | MINUS_ONE).isdisjoint({text, text.removesuffix(".0")})
    return str(as_index(value)) not in unknown | MINUS_ONE


def labels_in(column: str, values: Any, reading: Reading) -> set[str]:
    """The labels that occur in a column, as texts: names, and whole numbers."""
    unknown = NOTHING if reading.unknown_labels is None else reading.unknown_labels
    said = [one for one in distinct_values(column, values)[1] if is_a_label(one, unknown)]
    texts = {normalised(one) for one in said if isinstance(one, str)}
    indices = [as_index(one) for one in said if not isinstance(one, str)]
    return texts.union(str(index) for index in indices if index is not None)


def _like_a_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _alike(column: str, names: Names) -> str | None:
    """Doubt of texts that were read as two names, though capitals or spaces alone differ."""
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(" ".join(name.casefold().split()), name)
        if other != name:
            return (
                f"{column}: {shown(other)} and {shown(name)} differ only in capitals or spaces and "
                "are taken for two values; if they are one, write it in one way; if not, "
                f"{role_of(column)}_names=... declares both"
            )
    return None


def _numbers_among(refuse: _Refusal, names: Names) -> str | None:
    """Doubt of texts that were read as names, though some are numbers: a slip in one of them?"""
    numbers = [name for name in names if _PLAIN.fullmatch(name)]
    others = [name for name in names if not _like_a_number(name)]
    if not numbers or not others:
        return None
    told = "is not a number" if len(others) == 1 else "are not numbers"
    return (
        f"{refuse.column}: {listed(others)} {told}, "
        f"so its numbers ({listed(numbers)}) are read as names too; correct what is a slip, or "
        f"declare {refuse.role}_names=..."
    )


def _never_seen(column: str, indices: Int[np.ndarray, " steps"], size: int) -> str | None:
    """Doubt of a number of latents or actions that was inferred and is not used up."""
    role = role_of(column)
    if role == "state":
        return None
    present = np.unique(indices[indices >= 0])
    if len(present) == size:
        return None
    absent = np.setdiff1d(np.arange(min(size, len(present) + 1)), present)[0]
    others = size - len(present) - 1
    also = f" (nor do{'es' * (others == 1)} {counted(others, 'other')})" if others else ""
    shell = " (--num-latents in a shell)" if role == "latent" else ""
    counts_from_1 = (
        "; if the column counts from 1, subtract 1 from its values" if absent == 0 else ""
    )
    return (
        f"{column}: the largest value is {size - 1}, so {counted(size, role)} from 0 on are "
        f"assumed, but {absent} never occurs{also}{counts_from_1}; num_{role}s={size}{shell} "
        "declares that there are so many"
    )


# ---------------------------------------------------------------------- episodes


def code_episodes(
    values: Any, first_row: int = 0, reading: Reading = PLAIN
) -> Int[np.ndarray, " steps"] | np.ndarray:
    """The id of each row: int64, or text (never a mixture of both).

    An id is only a name, so that numbers stay numbers and texts stay texts.

    Args:
        values: One id per row.
        first_row: The number of the first row, for messages.
        reading: What the values are taken for.

    Raises:
        ValueError: An id that is missing, neither a whole number nor a text, or one of two that
            print alike.
    """

    def refuse(row: int, value: object) -> NoReturn:
        raise ValueError(
            f"episode: row {first_row + row} (counted from 0): {shown(value)} is not allowed; "
            "expected an id, all of them whole numbers or all of them texts"
        )

    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        whole, bad = whole_numbers(np.ma.getdata(values))
        bad = bad | np.ma.getmaskarray(values)
        if bad.any():
            row = int(np.argmax(bad))
            refuse(row, values[row])
        return whole
    codes, distinct = distinct_values("episode", values)
    if (codes < 0).any():
        refuse(int(np.argmax(codes < 0)), None)
    missing = NOTHING if reading.unknown_labels is None else NOTHING & reading.unknown_labels
    ids: list[Any] = []
    for code, value in enumerate(distinct):
        text = normalised(value) if isinstance(value, str) else None
        if text and text not in missing:
            check_text("episode", text)
            ids.append(text)
        elif (
            text is None and not isinstance(value, bool | np.bool_) and as_index(value) is not None
        ):
            ids.append(as_index(value))
        else:
            refuse(_first(codes, code), value)
        if type(ids[code]) is not type(ids[0]):
            refuse(_first(codes, code), value)
    if ids and isinstance(ids[0], str):
        refuse_alike("episode", sorted(set(ids)))
    return np.array(ids)[codes]


def untyped_episodes(values: Any) -> Any:
    """Ids of a file without types: numbers where every one is a plain decimal, else as they are."""
    codes, distinct = distinct_values("episode", values)
    plain, whole, bad = plain_numbers([normalised(text) for text in distinct])
    if not plain.all() or bad.any() or len(np.unique(whole)) < len(whole) or (codes < 0).any():
        return values
    return whole[codes]


# ---------------------------------------------------------------------- values of any make


def as_array(column: str, values: Any) -> Any:
    """An array; masks, and pandas' categories (coded texts), are kept.

    Raises:
        ValueError: It cannot be one.
    """
    dtype = getattr(values, "dtype", None)
    if isinstance(values, np.ndarray) or getattr(dtype, "name", None) == "category":
        return values
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{column}: cannot be read as an array: {error}") from None


def distinct_values(column: str, values: Any) -> tuple[Int[np.ndarray, " steps"], list[Any]]:
    """Values as codes into those that occur, in order of appearance; -1: None, NaN or masked.

    Categories that no row has are none.

    Raises:
        ValueError: Something in a cell that is neither number nor text.
    """
    import pandas as pd

    if not isinstance(values, np.ndarray):  # a column of pandas' categories is coded already
        categories = pd.Categorical(values)
        codes = np.asarray(categories.codes, np.int64)
        here = codes >= 0
        found = np.full(len(codes), -1, np.int64)
        found[here], used = pd.factorize(codes[here])
        return found, categories.categories[used].tolist()
    cells = np.ma.getdata(values)
    if cells.dtype.kind in "mM":  # NumPy would make plain numbers of nanoseconds of times
        cells = pd.Series(cells).astype(object).to_numpy()
    cells = cells.astype(object)
    if isinstance(values, np.ma.MaskedArray):
        cells[np.ma.getmaskarray(values)] = None
    try:
        codes, distinct = pd.factorize(cells)
    except TypeError:
        raise ValueError(f"{column}: one number or text per step expected") from None
    return codes.astype(np.int64), list(distinct)


def absent(column: str, values: Any) -> Bool[np.ndarray, " steps"]:
    """Where an action is not there: nothing, a blank or -1."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        data = np.ma.getdata(values)
        return np.ma.getmaskarray(values) | np.isnan(data) | (data == -1)
    codes, distinct = distinct_values(column, values)
    nothing = [
        normalised(value) in ({""} | MINUS_ONE) if isinstance(value, str) else as_index(value) == -1
        for value in distinct
    ]
    return np.append(np.array(nothing, bool), True)[codes]


def as_index(value: Any) -> int | None:
    """A single number as an int, None where it is not a whole number of 64 bits."""
    if isinstance(value, float | np.floating):
        whole, bad = whole_numbers(np.array([value]))
        return None if bad[0] else int(whole[0])
    if isinstance(value, np.timedelta64):  # to NumPy a whole number
        return None
    if isinstance(value, Integral | np.bool_) and abs(int(value)) <= _MAX_INDEX:
        return int(value)
    return None


def whole_numbers(values: np.ndarray) -> tuple[Int[np.ndarray, " k"], Bool[np.ndarray, " k"]]:
    """Numbers as int64, and where they are none: not whole, or not exact in 64 bits."""
    if values.dtype.kind == "f":
        bad = ~(np.abs(values) < _MAX_EXACT_FLOAT) | (values != np.floor(values))
        return np.where(bad, 0, values).astype(np.int64), bad
    if values.dtype.kind == "u":
        bad = values > np.uint64(_MAX_INDEX)
        return np.where(bad, 0, values).astype(np.int64), bad
    whole = values.astype(np.int64)
    # The least of 64 bits is none here: it is what NumPy makes of NaN that it takes for a number.
    return whole, whole == _MISSING


def _first(codes: np.ndarray, code: int | np.integer) -> int:
    """The first row of a code."""
    return int(np.argmax(codes == code))


# ---------------------------------------------------------------------- names


def normalised(text: str) -> str:
    """A text without spaces around it, its accents composed (Unicode's form NFC)."""
    text = text.strip()
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def normalised_keys(argument: str, given: Mapping[Any, Any]) -> dict[Any, Any]:
    """A mapping by names, with their accents composed.

    Raises:
        ValueError: Two keys are one name.
    """
    keys: dict[Any, Any] = {}
    for key, value in given.items():
        name = unicodedata.normalize("NFC", key) if isinstance(key, str) else key
        if name in keys:
            raise ValueError(f"{argument}: {shown(name)} is given in two spellings")
        keys[name] = value
    return keys


def refuse_alike(what: str, names: Iterable[str]) -> None:
    """Refuse names that differ only in what does not show in print.

    Raises:
        ValueError: Naming two of them.
    """
    printed: dict[str, str] = {}
    for name in names:
        other = printed.setdefault(_printed(name), name)
        if other != name:
            raise ValueError(
                f"{what}: {other!a} and {name!a} look alike in print; write the name in one way"
            )


def _printed(name: str) -> str:
    """A name without what leaves no ink, all kinds of spaces being one."""
    if name.isascii():
        return name
    seen = "".join(
        " " if character.isspace() else character
        for character in name
        if character in _JOINERS
        or (unicodedata.category(character) != "Cf" and character not in _STYLE)
    )
    return unicodedata.normalize("NFC", seen)


def check_text(what: str, text: Any) -> None:
    """A name survives every file format: visible text in one line, not padded, not endless.

    Raises:
        ValueError: It would not.
    """
    if (
        not isinstance(text, str)
        or not text
        or text != text.strip()
        or any(c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff" for c in text)
    ):
        raise ValueError(
            f"{what}: a text without control characters or spaces around it expected, got "
            f"{shown(text)}"
        )
    if len(text) > _LONGEST_NAME:
        raise ValueError(
            f"{what}: a text of at most {_LONGEST_NAME:,} characters expected, got {len(text):,}: "
            f"{shown(text)}"
        )


def items(argument: str, values: Any) -> list[Any]:
    """The names in a sequence, or whatever can be gone through in a certain order.

    Raises:
        ValueError: It is no such thing.
    """
    # A text is a sequence of letters, and neither a set nor a mapping says which name is first.
    if not isinstance(values, str | bytes | Set | Mapping):
        with contextlib.suppress(TypeError):
            return list(values)
    raise ValueError(f"{argument}: a sequence of texts expected, got {shown(values)}")


# ---------------------------------------------------------------------- words


def shown(value: Any) -> str:
    """A value as a person wrote it, not as NumPy's scalar, and not pages of it."""
    try:
        text = repr(value.item() if isinstance(value, np.generic) else value)
    except ValueError:  # Python writes no numbers of thousands of digits
        return f"a huge {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def listed(values: Iterable[Any]) -> str:
    """Values with commas between them, a dozen at most."""
    texts = [shown(value) for value in values]
    some = texts if len(texts) <= 12 else [*texts[:10], f"... ({len(texts)} in all)"]
    return ", ".join(some) or "nothing"


def counted(number: int, noun: str) -> str:
    """A number of things: "1 step", "2 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
