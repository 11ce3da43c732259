"""Columns that are called otherwise: the message says what is meant and what to do."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import btil
from btil.analysis.debriefing.debrief_page import _file_names
from btil.cli import app
from btil.cli.reading import Reading


def table(folder: Path, header: str, *rows: str) -> Path:
    path = folder / "team.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("other", ["mary ann", "MaryAnn", "Mary_Ann"])
def test_a_member_written_two_ways_is_one(other: str, tmp_path: Path) -> None:
    path = table(tmp_path, f"episode,where,action_Mary Ann,latent_{other}", "a,hall,push,lift")
    told = f"column 'latent_{other}': there is no 'action_{other}', but there is 'action_Mary Ann'"
    with pytest.raises(ValueError, match=told):
        btil.read_demonstrations(path)


def test_names_that_are_alike_may_both_be_there(tmp_path: Path) -> None:
    header = "episode,where,action_Ann,latent_Ann,action_ann,latent_ann"
    path = table(tmp_path, header, "a,hall,push,lift,wait,rest")
    assert btil.read_demonstrations(path).agents == ("Ann", "ann")


def test_no_action_column_says_how_to_call_one(tmp_path: Path) -> None:
    path = table(tmp_path, "episode,where,does", "a,hall,push")
    with pytest.raises(ValueError, match="Name what a member does action_<its name>"):
        btil.read_demonstrations(path)


def test_steps_without_an_episode_column_say_so(tmp_path: Path) -> None:
    columns = "step,where,action_ann,latent_ann"
    rows = ("a,0,hall,push,lift", "a,1,hall,wait,rest", "b,0,hall,push,lift")
    path = table(tmp_path, f"session,{columns}", *rows)
    with pytest.raises(ValueError, match="Without a column 'episode' all rows are one episode"):
        btil.read_demonstrations(path)
    rows = ("a,0,hall,push,lift", "a,2,hall,wait,rest")
    with_episodes = table(tmp_path, f"episode,{columns}", *rows)
    with pytest.raises(ValueError, match="where steps are missing"):
        btil.read_demonstrations(with_episodes)


def test_what_to_do_next_reads_the_file_alike(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = [
        f"{episode},{'hall' if step % 2 else 'door'},{generator.random():.2f},"
        f"{'' if step == 3 else 'push' if (step // 2) % 2 else 'wait'},"
        f"{'lift' if (step // 2) % 2 else 'rest'}"
        for episode in "abcd"
        for step in range(8)
    ]
    path = table(tmp_path, "episode,where,speed,action_ann,latent_ann", *rows)
    options = ["--continuous", "speed", "--missing", "allow"]
    out = str(tmp_path / "m.toml")
    told = CliRunner().invoke(app, ["suggest", str(path), *options, "--out", out, "--quiet"])
    assert told.exit_code == 0, told.output
    (line,) = [one for one in told.output.splitlines() if one.startswith("next")]
    assert "--missing allow --continuous speed --model" in line


def test_options_of_reading_as_they_are_written() -> None:
    assert Reading().words() == ""
    read = Reading(unknown_labels="NA", drop_last=True, continuous="a x,b")
    assert read.words() == " --unknown-labels NA --drop-last --continuous 'a x,b'"


def test_figures_of_an_episode_are_called_as_it_is() -> None:
    assert _file_names(["drill-07", "7", "8"]) == ["drill-07", "7", "8"]
    assert _file_names(["a b", "a/b", "../c", "<>"]) == ["a_b_1", "a_b_2", "c", "4"]
