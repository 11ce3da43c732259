"""Columns that are called otherwise: the message says what is meant and what to do."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import btil
from btil.analysis.debriefing.debrief_page import _file_names
from btil.cli import app
from btil.cli.reading import Reading
from btil.demonstrations.naming import (
    agents_but_for_capitals,
    agents_in,
    form_of,
    have_forms,
    nearly,
    spoken,
)
from btil.demonstrations.stream import open_as_seen
from btil.demonstrations.tables import read_as_seen


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


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("presnt_Piet", "present_Piet"),
        ("presennt_Piet", "present_Piet"),
        ("presemt_Piet", "present_Piet"),
        ("preesnt_Piet", "present_Piet"),
        ("present_Pite", "present_Piet"),
        ("Present_piet", "present_Piet"),
        ("latnet_Piet", "latent_Piet"),
        ("laten_Piet", "latent_Piet"),
        ("latent Piet", "latent_Piet"),
        ("rewad_Piet", "reward_Piet"),
        ("rewards", "reward"),
        ("Episode", "episode"),
    ],
)
def test_a_slip_in_the_name_of_a_column_is_doubted(slip: str, meant: str, tmp_path: Path) -> None:
    path = table(tmp_path, f"where,{slip},action_Piet", "hall,1,push", "door,0,wait")
    says = f"team.csv: column '{slip}' is taken for a state variable; if it is '{meant}', which is"
    with pytest.warns(btil.DataWarning, match=says) as doubts:
        demos = btil.read_demonstrations(path, num_latents=2)
    assert len(doubts) == 1
    assert list(demos.num_states) == ["where", slip]
    # Where it was no slip before it is none now, and neither is a measured column.
    btil.read_demonstrations(path, like=demos)
    btil.read_demonstrations(path, continuous=[slip], num_latents=2)


def test_a_slip_is_doubted_once_where_a_file_is_read_part_by_part(tmp_path: Path) -> None:
    path = tmp_path / "team.parquet"
    frame = pd.DataFrame({"epsiode": [0, 0, 1], "where": [0, 1, 1], "action_Piet": [0, 1, 1]})
    frame.to_parquet(path)
    says = "team.parquet: column 'epsiode' is taken for a state variable; if it is 'episode'"
    with pytest.warns(btil.DataWarning, match=says) as doubts:
        demos = btil.open_demonstrations(path, num_latents=2).read()
    assert len(doubts) == 1
    # What btil wrote is meant so.
    btil.write_demonstrations(demos, path)
    assert btil.read_demonstrations(path) == btil.open_demonstrations(path).read() == demos


def test_a_slip_in_a_column_that_is_passed_over_is_doubted(tmp_path: Path) -> None:
    header = "where,presnt_Piet,note,action_Piet"
    path = table(tmp_path, header, "hall,1,a,push", "door,0,b,wait")
    seen = btil.Demonstrations(
        {"where": ["hall", "door"]}, {"Piet": ["push", "wait"]}, num_latents=2
    )
    parts = path.with_suffix(".parquet")
    pd.read_csv(path).to_parquet(parts)
    for read in (
        lambda: btil.read_demonstrations(path, like=seen),
        lambda: btil.open_demonstrations(parts, like=seen).read(),
        lambda: read_as_seen(path, seen),
        lambda: open_as_seen(parts, seen).read(),
    ):
        with pytest.warns(btil.DataWarning, match="'presnt_Piet' is passed over; if.*'present_Pi"):
            assert list(read().num_states) == ["where"]


def test_honest_names_are_not_doubted(tmp_path: Path) -> None:
    honest = ["latency_ann", "present_level", "reaction_ann", "faction_ann", "reward_left", "stop"]
    columns = ",".join([*honest, "latent_ann", "latent_bob", "action_ann", "action_bob"])
    path = table(tmp_path, columns, ",".join("0000000000"), ",".join("1111111111"))
    assert list(btil.read_demonstrations(path).num_states) == honest
    # A column like one that is there is another one.
    path = table(tmp_path, "latest_ann,latent_ann,action_ann", "0,0,1", "1,1,0")
    assert list(btil.read_demonstrations(path).num_states) == ["latest_ann"]


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


def test_of_whom_a_name_speaks() -> None:
    """Words of a name are agents, whole ones; of names within names the longest."""
    team = ["ann", "ann b", "bob", "c.d"]
    assert agents_in("ann_to_bob", team) == {"ann", "bob"}
    assert agents_in("annual bobsled, joann", team) == set()
    assert agents_in("ann b-x", team) == {"ann b"}
    assert agents_in("cxd c.d2", team) == set()
    assert agents_in("2 c.d.x", team) == {"c.d"}
    assert agents_but_for_capitals("ANN_Bob", team) == ["ann", "bob"]
    assert agents_but_for_capitals("ann_Bob", team) == []
    assert have_forms(team)
    for agent in ("own", "other", "other2"):
        assert not have_forms(["ann", agent])
    assert have_forms(["owner", "others", "another"])


def test_names_seen_from_an_agent() -> None:
    team = ["bob", "ann", "cleo"]
    assert form_of("ann_to_cleo", "ann", team) == "{own}_to_{other2}"
    assert form_of("ann_to_cleo", "cleo", team) == "{other1}_to_{own}"
    assert form_of("ann_to_cleo", "bob", team) == "{other1}_to_{other2}"
    assert form_of("ann_cell", "bob", ["ann", "bob"]) == "{other}_cell"
    assert form_of("zone", "bob", team) == "zone"
    assert spoken("{own}_to_{other2}") == "own_to_other2"
    assert spoken("{another}") == "{another}"


@pytest.mark.parametrize(
    ("name", "other", "near"),
    [
        ("present_ann", "present_ann", False),
        ("presentann", "present_ann", True),
        ("present_annn", "present_ann", True),
        ("present_an", "present_ann", True),
        ("present_nan", "present_ann", True),
        ("present_amn", "present_ann", True),
        ("PRESENT_ANN", "present_ann", True),
        ("present_aamm", "present_ann", False),
        ("presetn_nan", "present_ann", False),
        ("prestne_ann", "present_ann", False),
        ("xpresent_ann", "present_ann", False),
        ("resent_ann", "present_ann", False),
        ("", "r", False),
    ],
)
def test_a_slip_is_one_letter(name: str, other: str, near: bool) -> None:
    assert nearly(name, other) is near
    assert nearly(other, name) is near


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
