"""All texts of the participants' pages, one file per language: `languages/en.toml` and others."""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

ENGLISH = "en"


def languages() -> tuple[str, ...]:
    """Codes of the languages that there are, such as "en"."""
    folder = resources.files("btil.study") / "languages"
    names = (file.name for file in folder.iterdir())
    return tuple(sorted(name[:-5] for name in names if name.endswith(".toml")))


@lru_cache
def texts_in(language: str) -> Mapping[str, str]:
    """{"section.name": text} of a language.

    Raises:
        ValueError: If there is no such language.
    """
    if language not in languages():
        raise ValueError(f"unknown language {language!r}; there are {', '.join(languages())}")
    file = resources.files("btil.study") / "languages" / f"{language}.toml"
    sections = tomllib.loads(file.read_text(encoding="utf-8"))
    return MappingProxyType(
        {
            f"{section}.{name}": text
            for section, texts in sections.items()
            for name, text in texts.items()
        }
    )


def say(language: str, key: str, **values: object) -> str:
    """One text, with what stands in its braces filled in."""
    return texts_in(language)[key].format(**values)


class Refused(ValueError):
    """What a participant asked for cannot be done now; the text is for the participant.

    Args:
        key: Of the text.
        values: What stands in its braces.
    """

    def __init__(self, key: str, **values: object) -> None:
        self.key, self.values = key, values
        super().__init__(say(ENGLISH, key, **values))

    def told(self, language: str) -> str:
        """The text in a language."""
        return say(language, self.key, **self.values)
