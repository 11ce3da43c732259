"""What all outputs share: the terminal, figures as files, pages of HTML."""

import base64
import contextlib
import errno
import io
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from markupsafe import Markup

from btil.figures import narrow
from btil.files import flush, naming, replacing

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

# A larger drawing is shown as a picture of dots; the drawing lies beside it all the same.
_LARGEST_DRAWING = 400_000
_PNG_DPI = 150
_SCREEN_DPI = 96
# Inches up to which a phone shows a figure as it is; dots per inch of those made for it.
_WIDE, _NARROW_DPI = 4.6, 200
_WIDTH_OF_A_FILE = 120


def output_console() -> "Console":
    """Standard output for tables; in a file or a pipe it is wide enough that nothing is cut."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_A_FILE)


def text_table(headings: Iterable[str], rows: Iterable[Iterable[str]], left: int = 1) -> "Table":
    """A table of texts for a terminal: `left` columns that name the rows, then numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=None, pad_edge=False)
    for position, heading in enumerate(headings):
        justify: Literal["left", "right"] = "left" if position < left else "right"
        table.add_column(Text(heading), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


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
        figure: What to draw; a wide one is left in its narrow form.
        stem: Path of the files without their endings.

    Returns:
        The contents, by ending; of a wide figure "narrow" as well, a PNG for phones.
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
        if figure.get_figwidth() > _WIDE:
            narrow(figure)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", bbox_inches="tight", dpi=_NARROW_DPI)
            drawn["narrow"] = buffer.getvalue()
    return drawn


# ---------------------------------------------------------------------- pages


@runtime_checkable
class PagePart(Protocol):
    """What has a part of a page of its own, such as what `suggest_model` returns."""

    def html(self) -> Markup:
        """The part."""


class HtmlCell(NamedTuple):
    """A cell of a table.

    Attributes:
        text: What it says.
        kind: Its class.
        labels: Whether it names the row.
        below: What stands under it, small.
    """

    text: str
    kind: str = ""
    labels: bool = False
    below: str = ""


@cache
def _templates() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("btil.analysis"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )


def html(part: str, *given: Any, file: str = "parts.html") -> Markup:
    """A part of a page, from a macro in `templates/`; texts that it is given are escaped there.

    Args:
        part: The macro.
        *given: Its arguments; `Markup`, as this returns, is HTML already.
        file: The template that has it.
    """
    return getattr(_templates().get_template(file).module, part)(*given)


def html_figure(drawn: Mapping[str, bytes], name: str, caption: str) -> Markup:
    """A figure inside a page, from what `save_figure` wrote.

    Args:
        drawn: The contents by ending.
        name: What links to it say.
        caption: What it shows, in plain words.
    """
    ending = "svg" if len(drawn["svg"]) <= _LARGEST_DRAWING else "png"
    kind = {"svg": "image/svg+xml", "png": "image/png"}[ending]
    data = base64.b64encode(drawn[ending]).decode("ascii")
    # The size in print, whichever of the two is shown.
    width = round(struct.unpack(">I", drawn["png"][16:20])[0] * _SCREEN_DPI / _PNG_DPI)
    narrow = base64.b64encode(drawn.get("narrow", b"")).decode("ascii")
    phone = f"data:image/png;base64,{narrow}" if narrow else ""
    return html("figure", name, caption, width, f"data:{kind};base64,{data}", phone)


def written_figure(figure: "Figure", stem: Path, caption: str) -> Markup:
    """Write a figure as `save_figure` does, and give it for a page under the name of its files."""
    return html_figure(save_figure(figure, stem), stem.name, caption)


def html_paragraph(text: str) -> Markup:
    """A paragraph of text."""
    return html("paragraph", text)


def html_table(
    header: Iterable[str], rows: Iterable[Iterable[str]], numbers: bool = True
) -> Markup:
    """A table of texts; the first column names the row."""
    kind = "number" if numbers else ""
    first, *others = header
    head = [HtmlCell(first), *(HtmlCell(text, kind) for text in others)]
    body = [
        [HtmlCell(label, labels=True), *(HtmlCell(text, kind) for text in cells)]
        for label, *cells in rows
    ]
    return html("table", head, body, "")


def html_list(items: Iterable[str], kind: str = "") -> Markup:
    """A list of texts."""
    return html("list", items, kind)


def html_sections(sections: Mapping[str, str]) -> tuple[Markup, Markup]:
    """Sections {heading: content} of a page, and the links to them."""
    parts = [
        (heading.lower().replace(",", "").replace(" ", "-"), heading, content)
        for heading, content in sections.items()
    ]
    return html("sections", parts), html("links", parts)


def html_page(title: str, lead: str, body: str, links: str = "") -> str:
    """A whole page that needs no other file.

    Args:
        title: Its heading.
        lead: A sentence below it.
        body: The rest, as HTML.
        links: Links to the sections, as HTML.
    """
    page = _templates().get_template("page.html")
    return page.render(title=title, lead=lead, body=body, links=links)
