"""What all outputs share: the terminal, figures as files, pages of HTML."""

import base64
import contextlib
import errno
import io
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from btil.files import flush, naming, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

# A larger drawing is shown as a picture of dots; the drawing lies beside it all the same.
_LARGEST_DRAWING = 400_000
_PNG_DPI = 150
_SCREEN_DPI = 96
_WIDTH_OF_A_FILE = 120

_PAGE_STYLE = """
:root { color-scheme: light; --ink: #1d2733; --soft: #5b6775; --line: #d9dfe6; --tint: #f4f6f9;
        --accent: #1f5f8b; --warn: #8a4b00; --warn-tint: #fff6e8; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 66rem; color: var(--ink);
       font: 16px/1.55 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; background: #fff; }
h1 { font-size: 1.9rem; margin: 0 0 .3rem; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .8rem; padding-bottom: .3rem;
     border-bottom: 2px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .5rem; }
p, li { max-width: 48rem; }
.lead { color: var(--soft); margin-top: 0; }
.scroll { overflow-x: auto; margin: 0 0 1.2rem; }
details { margin: .6rem 0; }
summary { cursor: pointer; color: var(--accent); }
table { border-collapse: collapse; font-size: .92rem; width: 100%; }
th, td { padding: .38rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
         vertical-align: top; }
thead th { background: var(--tint); border-bottom: 2px solid var(--line); }
th[scope=row] { font-weight: 600; }
.results th[scope=row] { min-width: 12rem; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
td.what { color: var(--soft); font-size: .86rem; min-width: 17rem; }
td small { color: var(--soft); display: block; }
.warn { color: var(--warn); font-weight: 700; }
.notes { background: var(--warn-tint); border-left: 4px solid #e0a548; margin: 1rem 0;
         padding: .7rem 1rem .7rem 2.1rem; max-width: 52rem; }
.notes li { margin: .25rem 0; }
figure { margin: 1.4rem 0 2.2rem; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .92rem; max-width: 48rem; margin-top: .5rem; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 4px;
      padding: .8rem 1rem; overflow-x: auto; font-size: .86rem; line-height: 1.45; }
nav a { color: var(--accent); margin-right: 1.1rem; }
a { color: var(--accent); }
@media print { body { max-width: none; padding: 0; } figure { break-inside: avoid; } }
"""


def output_console() -> "Console":
    """Standard output for tables; in a file or a pipe it is wide enough that nothing is cut."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_A_FILE)


@contextlib.contextmanager
def staged_page(directory: Path, page: str, record: str) -> Iterator[Path]:
    """A folder to write a page and its files to; they are moved when all are complete.

    Args:
        directory: Where they go.
        page: The file that shows the others; it is moved last.
        record: File that lists what was put there, so that the next time those files are
            replaced and no others.

    Raises:
        OSError: As the block or the file system has it; one of a new file names `directory`.
    """
    with tempfile.TemporaryDirectory(prefix=f".{Path(page).stem}-", dir=directory) as temporary:
        staging = Path(temporary)
        with naming(directory, instead_of=staging):
            yield staging
            _publish(staging, directory, page, record)


def _publish(staging: Path, directory: Path, page: str, record: str) -> None:
    """Put complete files in their place, and drop those of an earlier page."""
    files = sorted(f.relative_to(staging).as_posix() for f in staging.rglob("*") if f.is_file())
    listed = directory / record
    earlier = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
    (staging / record).write_text("\n".join(files) + "\n", encoding="utf-8")
    for name in [record, *files]:
        if (directory / name).is_dir():  # before the first of them is moved
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(directory / name))
        flush(staging / name)
    for name in [*(f for f in files if f != page), record, page]:
        (directory / name).parent.mkdir(exist_ok=True)
        os.replace(staging / name, directory / name)
    for name in set(earlier) - set(files):
        stale = directory / name
        if stale.resolve().is_relative_to(directory.resolve()):
            stale.unlink(missing_ok=True)


# ---------------------------------------------------------------------- figures


def save_figure(figure: "Figure", stem: Path) -> dict[str, bytes]:
    """Write `<stem>.svg` and `<stem>.png`, each whole or not at all; the same figure, same bytes.

    Args:
        figure: What to draw.
        stem: Path of the files without their endings.

    Returns:
        The contents, by ending.
    """
    import matplotlib as mpl

    drawn = {}
    # Laid out once, not for each format.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    # Without date and random identifiers the same figure is the same file.
    with mpl.rc_context({"svg.hashsalt": "btil", "svg.fonttype": "path"}):
        for ending, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": _PNG_DPI})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=ending, bbox_inches="tight", **options)
            drawn[ending] = buffer.getvalue()
            with replacing(stem.with_name(f"{stem.name}.{ending}")) as temporary:
                temporary.write_bytes(drawn[ending])
    return drawn


# ---------------------------------------------------------------------- pages


def html_figure(drawn: Mapping[str, bytes], name: str, caption: str) -> str:
    """A figure inside a page, from what `save_figure` wrote.

    Args:
        drawn: The contents by ending.
        name: What links to it say.
        caption: What it shows, in plain words; it is escaped here.
    """
    ending = "svg" if len(drawn["svg"]) <= _LARGEST_DRAWING else "png"
    kind = {"svg": "image/svg+xml", "png": "image/png"}[ending]
    data = base64.b64encode(drawn[ending]).decode("ascii")
    text = escape(caption)
    # The size in print, whichever of the two is shown.
    width = round(struct.unpack(">I", drawn["png"][16:20])[0] * _SCREEN_DPI / _PNG_DPI)
    return (
        f'<figure id="{escape(name)}">\n'
        f'<img alt="{text}" width="{width}" src="data:{kind};base64,{data}">\n'
        f"<figcaption>{text}</figcaption>\n</figure>\n"
    )


def html_table(header: Iterable[str], rows: Iterable[Iterable[str]], numbers: bool = True) -> str:
    """A table of texts, escaped here; the first column names the row."""
    kind = ' class="number"' if numbers else ""
    first, *others = header
    head = f"<th>{escape(first)}</th>" + "".join(f"<th{kind}>{escape(t)}</th>" for t in others)
    body = ""
    for label, *cells in rows:
        written = "".join(f"<td{kind}>{escape(text)}</td>" for text in cells)
        body += f'<tr><th scope="row">{escape(label)}</th>{written}</tr>\n'
    return (
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody></table></div>\n"
    )


def html_list(items: Iterable[str], attribute: str = "") -> str:
    """A list of texts, escaped here."""
    return f"<ul{attribute}>\n" + "".join(f"<li>{escape(i)}</li>\n" for i in items) + "</ul>\n"


def html_page(title: str, lead: str, body: str, links: str = "") -> str:
    """A whole page that needs no other file.

    Args:
        title: Its heading, escaped here.
        lead: A sentence below it, escaped here.
        body: The rest, as HTML.
        links: Links to the sections, as HTML.
    """
    navigation = f"<nav>{links}</nav>\n" if links else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_PAGE_STYLE}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n'
        f"{navigation}</header>\n{body}</body>\n</html>\n"
    )
