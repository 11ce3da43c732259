"""Annotations of intervals, as ELAN and BORIS export them: begin, end, label, member."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn
from xml.etree import ElementTree

import numpy as np

from btil.demonstrations.coding import listed, shown
from btil.files import check_there
from btil.recordings.sources import Rows, naming, read_text, rows_of_text

_CLOCK = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")
_DECIMAL = re.compile(r"\d+\.\d+")
_WHOLE = re.compile(r"\d+")
# The forms of time that ELAN writes, as the headers of its columns name them.
_FORMS = {"hh:mm:ss.ms": "clock", "ss.msec": "seconds", "msec": "milliseconds"}
_ENDINGS = (".eaf", ".txt", ".tsv", ".csv")


class Interval(NamedTuple):
    """An annotation: what a coder saw a member do, or took it to want, from when until when.

    Attributes:
        begin: When it begins, in seconds.
        end: When it ends; that of a point event is its begin.
        label: The label.
        member: Whom it is about: ELAN's participant, or where there is none its tier; BORIS'
            subject.
        tier: ELAN's tier; BORIS' subject once more.
        episode: BORIS' observation id; None: the file does not say.
    """

    begin: float
    end: float
    label: str
    member: str
    tier: str = ""
    episode: str | None = None


def read_intervals(path: str | os.PathLike[str]) -> list[Interval]:
    """Read annotations of intervals: files of ELAN and BORIS.

    What a file is, its content says:

    - ELAN's own file (`.eaf`). An annotation without times of its own has those of the one that it
      refers to, shared out evenly where several do; times that ELAN left open are spread evenly
      between their neighbours.
    - ELAN's "tab-delimited text": with a line of names (in English), and either a column "Tier" or
      one column for each tier; or without one, and then with the columns tier, participant, begin,
      end (and duration), each in one or several forms, and the annotation. Lines that begin with #
      are skipped.
    - BORIS' "aggregated events": the columns "Subject", "Behavior", "Start (s)" and "Stop (s)", and
      "Observation id" where it is there.
    - BORIS' "tabular events": the columns "Subject", "Behavior", "Time" and "Behavior type" (in
      older versions "Status"), whose START and STOP of one subject, behaviour and modifiers make
      an interval, and whose POINT one without length.

    Modifiers of BORIS are left out of the label.

    Args:
        path: The file: `.eaf`, `.txt`, `.tsv` or `.csv`.

    Returns:
        The intervals, in the order of the file.

    Raises:
        ValueError: The file is none of these, or an interval that ends before it begins, has no
            end, no label or no member. The message names file, line (of an `.eaf` file the
            annotation), column and what is allowed.
        OSError: The file cannot be read.

    Example:
        >>> read_intervals("coded.eaf")[0]  # doctest: +SKIP
        Interval(begin=0.5, end=2.0, label='lift', member='ann', tier='intent', episode=None)

    Source:
        ELAN's manual, "Exporting a document as a tab-delimited text file", and the schema EAF 3.0;
        BORIS' user guide, "Export events".
    """
    file = Path(path)
    check_there(file)
    with naming(path):
        if file.suffix.lower() not in _ENDINGS:
            raise ValueError(f"the ending must be one of {', '.join(_ENDINGS)}")
        text = read_text(file)
        if file.suffix.lower() == ".eaf":
            return _eaf(text)
        lines = (line for line in text.splitlines() if line.strip() and not _is_comment(line))
        tabs = "\t" in next(lines, "")
        delimiter = "\t" if tabs else ","
        # A quote in ELAN's text is a character like any other.
        rows = _without_comments(rows_of_text(text, delimiter, quoted=not tabs))
        if not rows.rows:
            raise ValueError("there are no rows; at least one is needed")
        header = _header(rows)
        if header is not None and _has(rows.rows[header], "Behavior"):
            return _boris(_without_comments(rows_of_text(text, delimiter)), header)
        if not tabs and header is None:
            _refuse_kind(rows)
        return _elan(rows) if header is None else _elan_with_header(rows, header)


def _without_comments(found: Rows) -> Rows:
    kept = [k for k, row in enumerate(found.rows) if not _is_comment(row[0])]
    return Rows([found.rows[k] for k in kept], [found.lines[k] for k in kept])


def _is_comment(line: str) -> bool:
    """Whether a line says where the media are, as ELAN writes it: "#file:///..."."""
    return line.lstrip('" ').startswith("#")


def _has(row: Sequence[str], name: str) -> bool:
    return name.lower() in {cell.lower() for cell in row}


def _header(rows: Rows) -> int | None:
    """Which row has the names of the columns."""
    for k, row in enumerate(rows.rows):
        starts = any(cell.lower().startswith("begin time") for cell in row)
        times = _has(row, "Time") or _has(row, "Start (s)")
        if starts or (_has(row, "Behavior") and times):
            return k
    return None


def _refuse_kind(rows: Rows) -> NoReturn:
    raise ValueError(
        f"line {rows.lines[0]}: neither an export of ELAN nor of BORIS: {listed(rows.rows[0])}; "
        "expected a line of names with 'Begin Time', 'End Time' (ELAN), 'Subject', 'Behavior', "
        "'Start (s)', 'Stop (s)' or 'Subject', 'Behavior', 'Behavior type', 'Time' (BORIS), in "
        "English; or ELAN's rows of tier, participant, times, annotation"
    )


def _interval(
    place: str, begin: float, end: float, label: str, member: str, tier: str, episode: str | None
) -> Interval:
    if end < begin:
        raise ValueError(f"{place}: ends at {end:g}, before it begins at {begin:g}")
    if not label.strip():
        raise ValueError(f"{place}: there is no label; expected a text")
    if not member.strip():
        raise ValueError(f"{place}: there is no member; expected a name of one")
    return Interval(begin, end, label.strip(), member.strip(), tier.strip(), episode)


# ---------------------------------------------------------------------- tables of ELAN


def _form(cell: str) -> str | None:
    """In which of ELAN's forms a time is written."""
    for form, pattern in (("clock", _CLOCK), ("seconds", _DECIMAL), ("milliseconds", _WHOLE)):
        if pattern.fullmatch(cell):
            return form
    return None


def _elan_seconds(place: str, cell: str, form: str) -> float:
    if form == "clock":
        clock = _CLOCK.fullmatch(cell)
        if clock:
            hours, minutes, seconds = clock.groups()
            return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    elif form == "milliseconds" and _WHOLE.fullmatch(cell):
        return int(cell) / 1000
    elif form == "seconds" and (_DECIMAL.fullmatch(cell) or _WHOLE.fullmatch(cell)):
        return float(cell)
    expected = {
        "clock": "hh:mm:ss.ms, such as 00:01:02.500",
        "seconds": "seconds, such as 62.500",
        "milliseconds": "milliseconds, such as 62500",
    }
    raise ValueError(f"{place}: {shown(cell)} is not allowed; expected {expected[form]}")


def _elan(rows: Rows) -> list[Interval]:
    """Tier, participant, begin, end and perhaps duration in each of some forms, annotation."""
    found = []
    for row, line in zip(rows.rows, rows.lines, strict=True):
        forms = [_form(cell) for cell in row[2:-1]]
        kinds = list(dict.fromkeys(forms))
        repeats = len(forms) // len(kinds) if kinds else 0
        if None in kinds or repeats not in (2, 3) or forms != kinds * repeats:
            if line == rows.lines[0]:
                _refuse_kind(rows)
            raise ValueError(
                f"line {line}: {listed(row)} is not allowed; expected tier, participant, begin, "
                "end (and duration) in the same forms of time, annotation"
            )
        times = [
            _elan_seconds(f"line {line}", cell, form or "")
            for cell, form in zip(row[2 : 2 + 2 * len(kinds)], forms, strict=False)
        ]
        best = len(kinds) - 1 if kinds[-1] == "milliseconds" else 0
        tier, participant, label = row[0], row[1], row[-1]
        begin, end = times[best], times[len(kinds) + best]
        if label:  # an annotation may be empty
            found.append(
                _interval(f"line {line}", begin, end, label, participant or tier, tier, None)
            )
    return found


def _elan_with_header(rows: Rows, header: int) -> list[Interval]:
    names = rows.rows[header]
    times = {kind: _time_column(names, kind) for kind in ("begin time", "end time", "duration")}
    begin = times["begin time"]
    last = times["end time"] or times["duration"]
    if begin is None or last is None:
        raise ValueError(
            f"line {rows.lines[header]}: expected columns 'Begin Time - ...' and 'End Time - ...' "
            f"(or 'Duration - ...') in one of the forms {listed(_FORMS)}; found {listed(names)}"
        )
    small = [name.lower() for name in names]
    tier_at = small.index("tier") if "tier" in small else None
    member_at = small.index("participant") if "participant" in small else None
    kinds = tuple(times)
    labels = [
        k
        for k, name in enumerate(small)
        if k not in (tier_at, member_at) and not name.startswith(kinds)
    ]
    if not labels or (tier_at is not None and len(labels) > 1):
        raise ValueError(
            f"line {rows.lines[header]}: expected a column 'Tier' and one of annotations, or one "
            f"column of annotations for each tier; found {listed(names)}"
        )
    found = []
    for row, line in zip(rows.rows[header + 1 :], rows.lines[header + 1 :], strict=True):
        if len(row) > len(names):
            raise ValueError(
                f"line {line}: {len(row)} cells, but the columns are {len(names)}: {listed(names)}"
            )
        cells = [*row, *[""] * (len(names) - len(row))]
        start = _elan_seconds(
            f"line {line}, column {shown(names[begin[0]])}", cells[begin[0]], begin[1]
        )
        end = _elan_seconds(f"line {line}, column {shown(names[last[0]])}", cells[last[0]], last[1])
        end = end if times["end time"] else start + end
        for k in labels:
            if not cells[k]:
                continue
            tier = names[k] if tier_at is None else cells[tier_at]
            member = (cells[member_at] if member_at is not None else "") or tier
            place = f"line {line}, column {shown(names[k])}"
            found.append(_interval(place, start, end, cells[k], member, tier, None))
    return found


def _time_column(names: Sequence[str], kind: str) -> tuple[int, str] | None:
    """Where a time is, and in which form: the last of those that are there is the simplest."""
    found = None
    for text, form in _FORMS.items():
        for k, name in enumerate(names):
            if name.lower() in (f"{kind} - {text}", kind if form == "clock" else ""):
                found = k, form
    return found


# ---------------------------------------------------------------------- tables of BORIS


def _boris(rows: Rows, header: int) -> list[Interval]:
    names = rows.rows[header]
    at = {name.lower(): k for k, name in enumerate(names)}
    aggregated = "start (s)" in at
    status = "behavior type" if "behavior type" in at else "status"
    needed = ["subject", "behavior"]
    needed += ["start (s)", "stop (s)"] if aggregated else ["time", status]
    lacking = [name for name in needed if name not in at]
    if lacking:
        raise ValueError(
            f"line {rows.lines[header]}: the columns of BORIS' "
            f"{'aggregated' if aggregated else 'tabular'} events are needed: {listed(needed)}; "
            f"found {listed(names)}"
        )
    above = {row[0].lower(): row[1] for row in rows.rows[:header] if len(row) > 1}
    modifiers = [k for name, k in at.items() if name.startswith("modifier")]
    found: list[Interval] = []
    begun: dict[tuple[str, ...], tuple[float, int, int]] = {}
    for row, line in zip(rows.rows[header + 1 :], rows.lines[header + 1 :], strict=True):
        if len(row) != len(names):
            raise ValueError(
                f"line {line}: {len(row)} cells, but the columns are {len(names)}: {listed(names)}"
            )
        cells = {name: row[k] for name, k in at.items()}
        subject, label = cells["subject"], cells["behavior"]
        episode = cells.get("observation id") or above.get("observation id") or None
        place = f"line {line}"

        def seconds(column: str, cells: Mapping[str, str] = cells, place: str = place) -> float:
            return _boris_seconds(f"{place}, column {shown(names[at[column]])}", cells[column])

        if aggregated:
            begin, end = seconds("start (s)"), seconds("stop (s)")
            found.append(_interval(place, begin, end, label, subject, subject, episode))
            continue
        key = (episode or "", subject, label, *(row[k] for k in modifiers))
        kind, time = cells[status].upper(), seconds("time")
        if kind == "POINT":
            found.append(_interval(place, time, time, label, subject, subject, episode))
        elif kind == "START":
            if key in begun:
                raise ValueError(
                    f"{place}: {shown(label)} of {shown(subject)} begins, but what began in line "
                    f"{begun[key][1]} has not ended; expected its STOP first"
                )
            begun[key] = time, line, len(found)
            # Its end comes later: the place in the order is that of its begin.
            found.append(_interval(place, time, np.inf, label, subject, subject, episode))
        elif kind == "STOP":
            if key not in begun:
                raise ValueError(
                    f"{place}: {shown(label)} of {shown(subject)} ends, but has not begun; "
                    "expected its START first"
                )
            begin, _, k = begun.pop(key)
            found[k] = _interval(place, begin, time, label, subject, subject, episode)
        else:
            raise ValueError(
                f"{place}, column {shown(names[at[status]])}: {shown(cells[status])} is not "
                "allowed; expected START, STOP or POINT"
            )
    if begun:
        (_, subject, label, *_), (_, line, _) = next(iter(begun.items()))
        raise ValueError(
            f"line {line}: {shown(label)} of {shown(subject)} begins and never ends; expected its "
            "STOP"
        )
    return found


def _boris_seconds(place: str, cell: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise ValueError(
            f"{place}: {shown(cell)} is not allowed; expected seconds (observations from pictures "
            "have none: export them with a time lapse)"
        )
    return number


# ---------------------------------------------------------------------- ELAN's own files


def _eaf(text: str) -> list[Interval]:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("a document type or entities are not allowed in an .eaf file")
    try:
        # The text is decoded already: what it says of its encoding is past.
        root = ElementTree.fromstring(re.sub(r"^\s*<\?xml[^>]*\?>", "", text))
    except ElementTree.ParseError as error:
        line, column = error.position
        raise ValueError(f"line {line}, character {column}: no XML ({error})") from None
    if root.tag != "ANNOTATION_DOCUMENT":
        raise ValueError(f"expected an ANNOTATION_DOCUMENT of ELAN, found {shown(root.tag)}")
    header = root.find("HEADER")
    units = "milliseconds" if header is None else header.get("TIME_UNITS", "milliseconds")
    if units != "milliseconds":
        raise ValueError(f"HEADER: TIME_UNITS {shown(units)}; expected 'milliseconds'")
    slots: dict[str, float | None] = {}
    for slot in root.iterfind("TIME_ORDER/TIME_SLOT"):
        value = slot.get("TIME_VALUE")
        name = _attribute(slot, "TIME_SLOT_ID", "TIME_ORDER")
        if value is not None and not _WHOLE.fullmatch(value):
            raise ValueError(
                f"time slot {shown(name)}: {shown(value)} is not allowed; expected milliseconds"
            )
        slots[name] = None if value is None else int(value) / 1000
    times = _annotation_times(root, slots)
    found = []
    for tier in root.iterfind("TIER"):
        name = _attribute(tier, "TIER_ID", "a tier")
        for annotation in _annotations(tier):
            own = _attribute(annotation, "ANNOTATION_ID", f"tier {shown(name)}")
            label = (annotation.findtext("ANNOTATION_VALUE") or "").strip()
            if not label:  # ELAN keeps annotations that nobody filled in
                continue
            place = f"tier {shown(name)}, annotation {shown(own)}"
            begin, end = times[own]
            member = tier.get("PARTICIPANT") or name
            found.append(_interval(place, begin, end, label, member, name, None))
    return found


def _attribute(element: ElementTree.Element, name: str, place: str) -> str:
    value = element.get(name)
    if value is None:
        raise ValueError(f"{place}: {element.tag} has no {name}; expected one")
    return value


def _annotations(tier: ElementTree.Element) -> Iterator[ElementTree.Element]:
    for annotation in tier.iterfind("ANNOTATION"):
        yield from annotation


def _annotation_times(
    root: ElementTree.Element, slots: Mapping[str, float | None]
) -> dict[str, tuple[float, float]]:
    """Begin and end of every annotation, in seconds."""
    times: dict[str, tuple[float, float]] = {}
    referring: dict[tuple[str, str], list[str]] = {}
    parents: dict[str, tuple[str, str]] = {}
    for tier in root.iterfind("TIER"):
        name = _attribute(tier, "TIER_ID", "a tier")
        place = f"tier {shown(name)}"
        ends: dict[str, tuple[str, str]] = {}
        for annotation in _annotations(tier):
            own = _attribute(annotation, "ANNOTATION_ID", place)
            where = f"{place}, annotation {shown(own)}"
            if own in times or own in parents or own in ends:
                raise ValueError(f"{where}: there is another annotation of this id")
            if annotation.tag == "REF_ANNOTATION":
                parents[own] = name, _attribute(annotation, "ANNOTATION_REF", where)
                referring.setdefault(parents[own], []).append(own)
                continue
            refs = [_attribute(annotation, f"TIME_SLOT_REF{k}", where) for k in (1, 2)]
            for ref in refs:
                if ref not in slots:
                    raise ValueError(f"{where}: there is no time slot {shown(ref)}")
            ends[own] = refs[0], refs[1]
        known = _filled_in(place, ends, slots)
        times |= {own: (known[begin], known[end]) for own, (begin, end) in ends.items()}

    def place_of(own: str, seen: tuple[str, ...] = ()) -> tuple[float, float]:
        if own in times:
            return times[own]
        if own not in parents or own in seen:
            at = f"annotation {shown(seen[-1])}: " if seen else ""
            raise ValueError(f"{at}there is no annotation {shown(own)} with times to refer to")
        begin, end = place_of(parents[own][1], (*seen, own))
        siblings = referring[parents[own]]
        k, share = siblings.index(own), (end - begin) / len(siblings)
        return begin + k * share, begin + (k + 1) * share

    return times | {own: place_of(own) for own in parents}


def _filled_in(
    place: str, ends: Mapping[str, tuple[str, str]], slots: Mapping[str, float | None]
) -> dict[str, float]:
    """The time of every slot of a tier: those without one lie evenly between their neighbours."""
    order = list(dict.fromkeys(slot for pair in ends.values() for slot in pair))
    known = {slot: time for slot in order if (time := slots[slot]) is not None}
    at = [k for k, slot in enumerate(order) if slot in known]
    for k, slot in enumerate(order):
        if slot not in known and not (at and at[0] < k < at[-1]):
            raise ValueError(f"{place}: time slot {shown(slot)} has no time, nor a neighbour's")
    if not at:
        return {}
    filled = np.interp(np.arange(len(order)), at, [known[order[k]] for k in at])
    return dict(zip(order, filled.tolist(), strict=True))
