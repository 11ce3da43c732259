"""The gallery shows every figure, with the call that draws it; drawing it anew is one command."""

import importlib.util
import inspect
import re
from pathlib import Path

from btil import analysis

DOCS = Path(__file__).resolve().parents[1] / "docs"
_spec = importlib.util.spec_from_file_location("make_gallery", DOCS / "make_gallery.py")
make_gallery = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_gallery)

ENTRIES = [entry for section in make_gallery.SECTIONS for entry in section.entries]
ALLOWED = 1_500_000


def called(entry):
    """The function of `btil.analysis` that an entry calls."""
    return re.match(r"analysis\.(plot_\w+)\(", entry.call).group(1)


def test_every_figure_is_in_the_gallery():
    public = {name for name in analysis.__all__ if name.startswith("plot_")}
    missing = public - {called(entry) for entry in ENTRIES}
    assert not missing, (
        f"{', '.join(sorted(missing))}: not in the gallery. Add an Entry to SECTIONS of "
        "docs/make_gallery.py, draw it with `python docs/make_gallery.py <name>`, look at it, and "
        "commit the figure and docs/reference/gallery.md."
    )


def test_entries_are_named_after_their_functions():
    names = [entry.name for entry in ENTRIES]
    assert len(set(names)) == len(names)
    for entry in ENTRIES:
        assert entry.name.startswith(called(entry))
        assert entry.reading.endswith(".")
        assert callable(getattr(analysis, called(entry)))


def test_calls_have_arguments_that_there_are():
    for entry in ENTRIES:
        taken = inspect.signature(getattr(analysis, called(entry))).parameters
        keywords = re.findall(r"[(,] ?(\w+)=", entry.call)
        assert set(keywords) <= set(taken), entry.call


def test_page_is_what_the_command_writes():
    page = (DOCS / "reference" / "gallery.md").read_text(encoding="utf-8")
    assert page == make_gallery.page(), "run `make gallery`, or edit docs/make_gallery.py instead"


def test_pictures_are_what_their_calls_draw():
    """Each remembers what drew it, which is what the page prints and what the code is today."""
    from PIL import Image

    old = []
    for section in make_gallery.SECTIONS:
        for entry in section.entries:
            with Image.open(DOCS / make_gallery.FIGURES / f"{entry.name}.png") as image:
                drawn_by = image.text.get(make_gallery.DRAWN_BY)
            if drawn_by != make_gallery.drawn_by(section, entry):
                old.append(entry.name)
    assert not old, (
        f"{', '.join(old)}: drawn by another call or by older code. Draw them again with `python "
        "docs/make_gallery.py <name>`, look at them, and commit them."
    )


def test_another_setup_call_or_code_is_noticed(monkeypatch):
    section = make_gallery.SECTIONS[0]
    entry = section.entries[0]
    known = make_gallery.drawn_by(section, entry)
    assert known == make_gallery.drawn_by(section, entry)
    others = [
        make_gallery.drawn_by(section._replace(setup=section.setup + "more = 1\n"), entry),
        make_gallery.drawn_by(section, entry._replace(call=entry.call.replace("1", "2"))),
    ]
    source = inspect.getsource(inspect.getmodule(analysis.plot_timeline))
    for changed in (source + "\n# a comment", source + "\nmore = 1\n"):
        monkeypatch.setattr(make_gallery.inspect, "getsource", lambda module, it=changed: it)
        others.append(make_gallery.drawn_by(section, entry))
    assert others.pop(2) == known
    assert known not in others


def test_figures_are_there_and_small():
    files = {file.name: file.stat().st_size for file in (DOCS / make_gallery.FIGURES).iterdir()}
    assert set(files) == {f"{entry.name}.png" for entry in ENTRIES}
    assert sum(files.values()) < ALLOWED


def test_setups_stand_on_their_own():
    """Compiled, and every name in a call is made by its section or the preamble."""
    for section in make_gallery.SECTIONS:
        code = compile(make_gallery.PREAMBLE + section.setup, section.title, "exec")
        for entry in section.entries:
            used = set(compile(entry.call, entry.name, "eval").co_names)
            attributes = set(re.findall(r"\.(\w+)", entry.call))
            assert used - attributes <= set(code.co_names), entry.call
