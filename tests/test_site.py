"""Pages of the site that are made from the code, and what they have to hold."""

import re
from pathlib import Path

import make_inventories
import make_reference
import pytest

from btil.inference.method import method_names
from btil.posterior.fit import method_options

ROOT = Path(__file__).resolve().parents[1]


def test_every_option_of_a_method_is_told_with_its_meaning() -> None:
    page = make_reference.options_page()
    for method in method_names():
        section = page.partition(f"\n## {method}\n")[2].partition("\n## ")[0]
        for option in method_options(method):
            meaning = re.search(
                rf"^\| `{option}` \| `[^|]*` \| (.+) \|$", section, flags=re.MULTILINE
            )
            assert meaning, f"{method}: {option} has no line in Args of its `fit`"


def test_the_help_of_every_command_is_there() -> None:
    page = make_reference.shell_page()
    for command in ("btil fit", "btil compare", "btil collect export", "btil play"):
        assert f"\n## {command}\n" in page
        assert f"Usage: {command} " in page


@pytest.mark.parametrize("module", make_reference.MODULES)
def test_every_public_name_has_an_entry_and_a_first_sentence(module: str) -> None:
    import inspect

    page = make_reference.page_of(module)
    for name in make_reference.thing(module).__all__:
        if not inspect.ismodule(make_reference.thing(f"{module}.{name}")):
            assert re.search(rf":: {re.escape(module)}\.{name}$", page, flags=re.MULTILINE), name
            assert make_reference.first_sentence(f"{module}.{name}")


def test_code_type_leads_to_names() -> None:
    assert make_reference.target_of("btil.fit(model, demos)") == "btil.fit"
    assert make_reference.target_of("posterior.decode") == "btil.TeamPosterior.decode"
    assert make_reference.target_of("TeamModel") == "btil.TeamModel"
    assert make_reference.target_of("num_samples") is None
    assert make_reference.public_name("btil.models.team.TeamModel") == "btil.TeamModel"


def test_links_of_files_lead_to_pages_or_to_their_text() -> None:
    text = "[a](../docs/how-to/large.md#x) [b](sweep.py) [c](https://example.org) [d](#e)"
    page = "reference/made/speed.md"
    assert make_reference.with_links(text, "benchmarks/README.md", page) == (
        "[a](../../how-to/large.md#x) b [c](https://example.org) [d](#e)"
    )
    link = "[speed](../../benchmarks/README.md)"
    assert make_reference.with_links(link, "docs/how-to/gpu.md", "how-to/gpu.md") == (
        "[speed](../reference/made/speed.md)"
    )


def test_inventories_are_what_their_script_writes() -> None:
    for library in make_inventories.ADDRESSES:
        kept = (make_inventories.FOLDER / f"{library}.inv").read_bytes()
        assert kept == make_inventories.text_of(library), "run python docs/make_inventories.py"


def test_works_that_docstrings_name_are_among_the_citations() -> None:
    """By the first author's name and the year."""

    def plain(path: Path) -> str:
        text = path.read_text(encoding="utf-8")
        for letter, letters in {"ü": "ue", "ö": "oe", "ä": "ae"}.items():
            text = text.replace(letter, letters)
        return text

    page = plain(ROOT / "docs" / "reference" / "citations.md")
    missing = set()
    for path in (ROOT / "btil").rglob("*.py"):
        text = " ".join(plain(path).split())
        for told in re.findall(r"References: (.{0,700})", text):
            for authors, year in re.findall(r"([A-Z][^();:.\d]{2,120}?),? \((\d{4})\)", told):
                last = re.split(r",| and | et al", authors.rpartition("after ")[2].strip())[
                    0
                ].split()[-1]
                if not re.search(rf"^\| [^|]*{last}[^|]*\({year}\)", page, flags=re.MULTILINE):
                    missing.add(f"{last} {year}")
    assert not missing


def test_the_network_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import draw_network

    monkeypatch.setattr(draw_network, "FILE", tmp_path / "network.svg")
    draw_network.write()
    assert b"<svg" in (tmp_path / "network.svg").read_bytes()
