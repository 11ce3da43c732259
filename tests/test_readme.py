"""What the README shows must run as it stands."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.slow
def test_the_examples_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "team.csv").write_text(blocks("text")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names = {}
    for source in blocks("python"):
        exec(compile(source, "README.md", "exec"), names)
    decoded, test = names["decoded"], names["test"]
    assert decoded.shape == (test.num_steps, 2)
    assert names["belief"].shape == (test.num_steps, 6)
    assert names["posterior"].policy("ann", states={"where": ["door", "hall"]}).shape == (2, 2, 2)
    assert (tmp_path / "team.nc").is_file()
    assert "converged" in capsys.readouterr().out


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
