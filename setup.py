"""The README as package indexes show it; all else of the package is told by pyproject.toml.

Its links lead to files of the repository, which are nowhere beside an installed package. Where
pyproject.toml has the repository's address (`Source` in `project.urls`) they lead there; else what
they would lead to is told in words.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def outside(readme: str, source: str | None) -> str:
    """The README without links that work in the repository only."""

    def mended(found: re.Match[str]) -> str:
        picture, words, link = found.groups()
        if "://" in link or link.startswith("#"):
            return found.group(0)
        if source:
            kind = "raw" if picture else "blob"
            return f"{picture}[{words}]({source.rstrip('/')}/{kind}/main/{link})"
        return f"*{words}*" if picture else f"`{words}`" if words == link else words

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", mended, readme)


project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
setup(
    long_description=outside(
        (ROOT / "README.md").read_text(encoding="utf-8"), project.get("urls", {}).get("Source")
    ),
    long_description_content_type="text/markdown",
)
