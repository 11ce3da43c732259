"""What the researcher sees: sessions played back beside labels and a posterior's beliefs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
from starlette.testclient import TestClient
from study_site import BROWSER, PHONE, ROOT, WIDE, Process, open_browser, write_study

import btil
from btil.posterior.posterior import TeamPosterior
from btil.study.episode import Row, begin
from btil.study.export import Group, Session, export_study, grouped, sessions
from btil.study.replay import Replay, fits, replay_routes
from btil.study.server import Keyed, address_of, make_app
from btil.study.settings import Stage
from btil.study.store import About, Store
from btil.study.teammate import rules_for
from btil.study.views import board, destination_label

ADDRESS = address_of("127.0.0.1", 8001)
SETTINGS = """
title = "Played"
consent = "consent.md"
thanks = "thanks.md"
max_steps = 40
[[tasks]]
domain = "movers"
map = "tiny"
sessions = 2
practice = 1
[[tasks]]
domain = "cleanup"
map = "tiny"
sessions = 1
practice = 0
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that two simulated participants went through, and a posterior of its Movers."""
    folder = write_study(tmp_path_factory.mktemp("played"), SETTINGS)
    server = Process(folder, 0, "--seed", "3")
    try:
        for who in range(2):
            with server.page(server.enter()) as page:
                page.generator = np.random.default_rng(who)
                while page.seen["kind"] != "thanks":
                    page.step()
    finally:
        server.kill()
    list(export_study(folder, folder / "demos.csv", derived=True))
    demos = btil.read_demonstrations(folder / "demos-movers.csv")
    # Everything is given, so there is nothing to learn: it fits at once.
    model = btil.domains.movers("tiny").true_model(0.3)
    btil.fit(model, demos, progress=False).save(folder / "movers.nc")
    return folder


@pytest.fixture(scope="module")
def posterior(played: Path) -> btil.TeamPosterior:
    return btil.load_posterior(played / "movers.nc", btil.domains.movers("tiny").true_model(0.3))


def groups_of(folder: Path) -> dict[str, Any]:
    store = Store(folder, read_only=True)
    found = {group.name: group for group in grouped(sessions(store))}
    store.close()
    return found


def test_an_episode_shows_states_labels_beliefs_and_misalignment(
    played: Path, posterior: btil.TeamPosterior
) -> None:
    group = groups_of(played)["movers"]
    assert [session.stage.practice for session in group.sessions] == [True, False] * 2
    replay = Replay(group, posterior)
    task = group.task
    for index, session in enumerate(group.sessions):
        shown = replay.episode(index)
        rows = session.rows
        alone = task.add_derived_variables(
            group._replace(sessions=[session]).demonstrations().without_labels()
        )
        belief = posterior.smooth(alone)
        for agent, lane in zip(task.agents, shown["belief"], strict=True):
            np.testing.assert_allclose(lane, belief[agent], atol=1e-4)
        path = posterior.decode(alone)
        assert shown["model_apart"] == (path[:, 0] != path[:, 1]).tolist()
        labels = [row.latents for row in rows]
        assert shown["apart"] == [a != b and not session.stage.practice for a, b in labels]
        assert [step["labels"] for step in shown["steps"]] == labels
        assert len(shown["boards"]) == len(rows) + 1
        cells = task.grid.cells[task.situation([rows[-1].state]).cells[0]]
        assert shown["boards"][-2]["agents"] == cells.tolist()


def test_what_is_shown_of_a_session_is_its_own_part_of_what_was_played() -> None:
    """Two sessions, of which the second is asked for; the posterior is made up."""
    task = btil.domains.cleanup("tiny")
    stage = Stage("session", domain="cleanup", map="tiny", max_steps=9, select_every=5)
    rules = rules_for(stage, "human")
    played, states = [], [task.start_state, 17, 40, 40, 61]
    for name, part, seats in (("a-01", slice(0, 2), (0, 1)), ("b-01", slice(2, 5), (1,))):
        rows = [
            Row(t, state, (t, 5 - t), (-1 if t == 1 else 0, 0), (t == 0, False), 0.5 + t)
            for t, state in enumerate(states[part])
        ]
        episode = begin(rules, np.zeros(5))._replace(state=77, over=name == "b-01")
        played.append(Session(name, (1,), stage, episode, rows, [], About(), "", seats))
    group = Group("cleanup", task, played)
    beliefs = {
        agent: np.random.default_rng(i).dirichlet(np.ones(4), 5)
        for i, agent in enumerate(task.agents)
    }
    path = np.array([[0, 0], [0, 1], [3, 3], [0, 0], [1, 0]])
    posterior = create_autospec(TeamPosterior, instance=True)
    posterior.smooth.return_value, posterior.decode.return_value = beliefs, path
    for variables, derived in (("alice_cell", False), ("lying", True)):
        posterior.demos.num_states = {variables: 9}
        shown = Replay(group, posterior).episode(1)
        (asked,) = posterior.decode.call_args.args
        assert ("lying" in asked.num_states) == derived
        assert posterior.smooth.call_args.args == (asked,)
        assert (
            task.encode(np.stack([asked.state_variables[n] for n in task.state_sizes], 1)).tolist()
            == states
        )
        for agent, lane in zip(task.agents, shown["belief"], strict=True):
            np.testing.assert_allclose(lane, beliefs[agent][2:], atol=5e-5)
        assert shown["model_apart"] == task.suboptimal(states[2:], path[2:]).tolist()
    # By the labels, where both have one.
    both_same = task.suboptimal(states[2:], np.zeros((3, 2), int))
    assert shown["apart"] == (both_same & [True, False, True]).tolist()
    assert both_same.any()
    assert (shown["id"], shown["length"], shown["over"]) == ("b-01", 3, True)
    assert shown["robots"] == [True, False]
    assert shown["boards"] == [board(task, state) for state in [*states[2:], 77]]
    assert shown["steps"][1] == {
        "actions": (1, 4), "labels": (-1, 0), "answered": (False, False), "seconds": 1.5
    }  # fmt: skip
    assert [step["seconds"] for step in shown["steps"]] == [0.5, 1.5, 2.5]
    assert shown["latents"] == [destination_label(task, "cleanup", k, "en") for k in range(4)]
    alone = Replay(group, None).episode(0)
    assert (alone["belief"], alone["model_apart"], alone["length"]) == (None, None, 2)


def test_a_posterior_goes_with_its_own_task(played: Path, posterior: btil.TeamPosterior) -> None:
    groups = groups_of(played)
    assert fits(posterior, groups["movers"])
    assert not fits(posterior, groups["cleanup"])
    other = btil.domains.movers("A 0 G\nR . 1")
    demos = other.simulate(2)
    elsewhere = btil.fit(other.true_model(), demos, progress=False)
    with pytest.raises(ValueError, match="1 of the posteriors fits no task"):
        replay_routes(played, [elsewhere], Keyed("k", ADDRESS, "key"))


def test_pages_and_data_need_the_key(played: Path) -> None:
    keyed = Keyed("k", ADDRESS, "key")
    app = make_app([*replay_routes(played, [], keyed), *keyed.routes()], ADDRESS)
    client = TestClient(app, base_url="http://127.0.0.1:8001")
    for path in ("/", "/sessions", "/sessions/0", "/?key=key"):
        assert client.get(path).status_code == 403
    origin = {"origin": "http://127.0.0.1:8001"}
    assert client.post("/signin", json={"key": "key"}, headers=origin).status_code == 204
    assert client.get("/").status_code == 200
    listed = client.get("/sessions").json()["sessions"]
    assert [one["domain"] for one in listed] == ["cleanup"] * 2 + ["movers"] * 4
    assert client.get(f"/sessions/{listed[0]['id']}").json()["belief"] is None
    assert client.get("/sessions/6").status_code == 404


@pytest.fixture
def served(played: Path, posterior: btil.TeamPosterior) -> Iterator[str]:
    """`btil collect replay` as a process of its own; its address with the key."""
    # A posterior of given tables is saved without them; one that was learned needs no model.
    learned = btil.fit(
        btil.TeamModel(
            policy=btil.DirichletCPT(1.2, parents=()), transition=btil.DirichletCPT(1.0)
        ),
        posterior.demos,
        progress=False,
        max_iterations=3,
    )
    learned.save(played / "learned.nc")
    command = ["-m", "btil", "collect", "replay", played, "--posterior", played / "learned.nc"]
    process = subprocess.Popen(
        [sys.executable, *map(str, command), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    line = process.stderr.readline()
    assert line.startswith("researcher"), line + process.stderr.read()
    yield line.split()[1]
    process.kill()
    process.wait()
    process.stderr.close()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_session_is_played_back_in_a_browser(served: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with open_browser() as browser:
        for size in (WIDE, PHONE):
            tab = browser.new_context(viewport=size).new_page()
            errors: list[Any] = []
            tab.on("pageerror", lambda error, seen=errors: seen.append(error))
            tab.goto(served)
            tab.wait_for_selector("#lanes svg")
            # the key does not stay in the address bar
            assert tab.url.endswith("/")
            options = tab.locator("#session option").all_text_contents()
            movers = next(k for k, text in enumerate(options) if "movers, test" in text)
            tab.select_option("#session", index=movers)
            tab.wait_for_selector("#legend:has-text('Blue')")
            first = tab.inner_html("#drawing")
            tab.get_by_label("One step on").click()
            assert tab.inner_text("#where").startswith("Step 1 of")
            assert "%" in tab.inner_text("#minds")
            tab.get_by_label("One step back").click()
            assert tab.inner_html("#drawing") == first
            tab.get_by_role("button", name="Play").click()
            tab.wait_for_selector("#where:has-text('Step 1 of')")
            tab.get_by_role("button", name="Stop").click()
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
            found = Axe().run(tab).response["violations"]
            assert [one["id"] for one in found if one["impact"] != "minor"] == []
            assert errors == []
