"""What the README points to is there. Its blocks are run by `test_docs.py`."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_files_it_names_exist():
    root = Path(__file__).parents[1]
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (root / link).exists()] == []


def test_its_commands_are_targets_of_the_makefile():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"^make (\w+)", README, flags=re.MULTILINE)
    assert set(commands) == {"demo", "test"}
    for command in commands:
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE)
