"""For the researcher, beside a running study: backups, erasure, and the key."""

import contextlib
import os
import secrets
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from btil.study.export import number_of
from btil.study.live import sole_server
from btil.study.settings import SETTINGS_FILE
from btil.study.store import DATABASE_FILE, IDENTITIES_FILE, Store, erase_all
from btil.study.texts import languages

KEY_FILE = "researcher.key"
# What belongs to a running server, or is copied in another way.
_NOT_COPIED = (DATABASE_FILE, IDENTITIES_FILE, KEY_FILE, ".serving")


def read_key(folder: Path) -> str:
    """The researcher's key of a study, drawn and kept, for its owner alone, where there is none.

    Raises:
        ValueError: If what is kept is too short for a key.
    """
    path = folder / KEY_FILE
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        key = path.read_text(encoding="utf-8").strip()
        if len(key) < 16:
            raise ValueError(
                f"{path}: a key of at least 16 characters is expected; delete it for a new one"
            ) from None
        return key
    key = secrets.token_urlsafe(24)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{key}\n")
    return key


def erase(folder: Path, participant: str) -> int:
    """Delete all that there is of a participant.

    Args:
        folder: The study, which is not being served.
        participant: The six digits.

    Returns:
        How many sessions went.

    Raises:
        ValueError: If nobody has these digits.
        OSError: If the study is being served.
    """
    Store(folder, read_only=True).close()  # is there a study?
    with sole_server(folder):
        store = Store(folder)
        try:
            people = list(store.people())
            number = number_of(participant, people)
            who = next(one.participant for one in people if one.number == number)
            games = {game for game, member, _ in store.members() if member == who}
            sessions = sum(game in games for game, _ in store.episodes())
            store.write(erase_all(who, games))
            store.tidy()
        finally:
            store.close()
    return sessions


def back_up(folder: Path, out: Path, identities: bool = True) -> None:
    """Copy a study, as it is at one moment, with its settings and texts.

    Args:
        folder: The study, which may be running.
        out: A folder that is not there, or empty.
        identities: Whether what tells who somebody is comes along.

    Raises:
        ValueError: If there is something in the folder.
    """
    store = Store(folder, read_only=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise ValueError(f"{out} is not empty: a backup needs a folder of its own")
        out.chmod(0o700)
        store.back_up(out)
    finally:
        store.close()
    if not identities:
        (out / IDENTITIES_FILE).unlink(missing_ok=True)
    for file in sorted(folder.iterdir()):
        if file.name.startswith(_NOT_COPIED):
            continue
        if file.is_dir() and file.name == "images":
            shutil.copytree(file, out / file.name)
        elif file.is_file() and file.suffix in (".toml", ".md", ".txt", ".nc"):
            shutil.copyfile(file, out / file.name)
    for file in _named_files(folder):
        copied = out / file.relative_to(folder)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copied)


def _named_files(folder: Path) -> list[Path]:
    """The files of a study that its settings name, in all languages, whatever they are called."""

    def words_in(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield from [value] if len(value.split()) == 1 else []
        elif isinstance(value, dict | list):
            for part in value.values() if isinstance(value, dict) else value:
                yield from words_in(part)

    with contextlib.suppress(FileNotFoundError, ValueError):  # no study.toml is served
        settings = tomllib.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
        names = [Path(word) for word in words_in(settings) if "\0" not in word]
        inside = [name for name in names if not name.is_absolute() and ".." not in name.parts]
        spoken = [
            name.with_name(f"{name.stem}.{language}{name.suffix}")
            for name in inside
            for language in languages()
            if name.name
        ]
        return [file for name in (*inside, *spoken) if (file := folder / name).is_file()]
    return []


def key_of(folder: Path) -> str:
    """The key to the researcher's pages.

    Raises:
        FileNotFoundError: If the study has not been served yet.
    """
    path = folder / KEY_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {path}: it is written when `btil collect --out {folder}` first serves it"
        )
    return path.read_text(encoding="utf-8").strip()
