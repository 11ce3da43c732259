"""Names in the data are text wherever they are shown: pages, tables, figures, names of files."""

import csv
import io
import re
from typing import Any

import numpy as np
import pytest
from html_pages import Links
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

import btil
from btil import analysis
from btil.analysis import debrief
from btil.analysis.decoding import decoded_table
from btil.analysis.output import html_figure, html_list, html_page, html_table
from btil.cli import app
from btil.inference.result import DirichletRows, DrawnRows, FitResult
from btil.models.team import bind

SCRIPT = "</title><script>alert(1)</script>"
AGENTS = (SCRIPT, "../[red]$\\frac$[/red]")
ROOM = '"><img src=x onerror=alert(1)>'
ROOMS = ("{{7*7}} ${x} _^% $", "javascript:alert(1)")
ACTS = ("=1+1", "[bold]x[/bold] $x_{", "a/b\\c \u202egnal")
MINDS = ("$\\frac$", "&lt;b&gt; <i>'\"\u200f")
EPISODES = ("<svg/onload=alert(1)>", "[/] $$")
EVERY_NAME = (*AGENTS, ROOM, *ROOMS, *ACTS, *MINDS, *EPISODES)
# What runs or loads something, or is only in the names.
FOREIGN = {"script", "link", "iframe", "object", "embed", "base", "form", "input", "svg"}


def team(steps: int = 24) -> btil.Demonstrations:
    generator = np.random.default_rng(0)
    latents = np.repeat(generator.integers(0, 2, (steps // 3, 2)), 3, axis=0)
    labels = latents.copy()
    labels[steps // 2 :, 0] = -1
    return btil.Demonstrations(
        states={ROOM: generator.integers(0, 2, steps)},
        actions=np.where(generator.random((steps, 2)) < 0.8, latents, 2),
        latents=labels,
        episodes=np.repeat(EPISODES, [steps - 9, 9]),
        agents=AGENTS,
        state_names={ROOM: ROOMS},
        action_names=ACTS,
        latent_names=MINDS,
    )


def made(kind: Any, method: str) -> btil.TeamPosterior:
    """A posterior made by hand: nothing is compiled."""
    model = btil.TeamModel(btil.DirichletCPT(1.0, (ROOM,)), btil.DirichletCPT(1.0))
    bound = bind(model, team())
    generator = np.random.default_rng(1)
    rows = {site: kind(generator, table.shape) for site, table in bound.learned.items()}
    result = FitResult(rows, True, "made by hand", elbo=-9.0, elbo_trace=np.arange(-12.0, -8))
    return btil.TeamPosterior(bound, method, result, 0, np.dtype(np.float64), 1.0)


@pytest.fixture(scope="module")
def mean_field() -> btil.TeamPosterior:
    return made(lambda g, shape: DirichletRows(g.gamma(2.0, 4.0, shape) + 0.5), "mfvi")


@pytest.fixture(scope="module")
def chains() -> btil.TeamPosterior:
    def drawn(generator: np.random.Generator, shape: tuple[int, ...]) -> DrawnRows:
        return DrawnRows(generator.dirichlet(np.ones(shape[-1]), (2, 20, *shape[:-1])))

    return made(drawn, "gibbs")


def assert_only_text(page: str) -> Links:
    """No name became an element, an attribute or an address of a page."""
    found = Links(page)
    assert not found.open
    assert not FOREIGN & set(found.elements)
    assert found.elements.count("title") == 1
    assert all(address.startswith(("data:image/", "#")) for address in found.addresses)
    assert not re.search(r"<[^>]*\son\w+\s*=", re.sub(r'"[^"]*"', '""', page))
    return found


def test_the_parts_of_pages_show_names_as_they_are():
    drawn = {"svg": b"<svg/>", "png": bytes(16) + b"\x00\x00\x01\x00"}
    table = html_table(EVERY_NAME, [EVERY_NAME])
    figure = html_figure(drawn, ROOM, SCRIPT)
    page = html_page(SCRIPT, ROOM, table + figure + html_list(EVERY_NAME))
    shown = assert_only_text(page).text
    assert all(shown.count(name) >= 3 for name in EVERY_NAME)


def test_a_debrief_shows_names_as_they_are(mean_field, tmp_path):
    told = debrief(mean_field, team(), tmp_path / "out", relearn=False, progress=False)
    shown = assert_only_text(told.page.read_text(encoding="utf-8")).text
    assert all(name in shown for name in (*AGENTS, *MINDS, *EPISODES))
    for file in (tmp_path / "out").rglob("*"):
        assert re.fullmatch(r"[\w.-]+", file.name), file.name
    for file in (tmp_path / "out").rglob("*.svg"):
        assert not re.search(r"<script|onerror|javascript:|<!ENTITY", file.read_text("utf-8"))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["out"]


FIGURES = {
    "confusion": lambda m, c: analysis.plot_confusion(m.demos, np.zeros((24, 2), int), AGENTS[1]),
    "methods": lambda m, c: analysis.plot_method_against_method(c, {"$\\frac$": m, "a_^%$": m}),
    "policy": lambda m, c: analysis.plot_policy_rows(m, AGENTS[0]),
    "policy latent": lambda m, c: analysis.plot_policy_rows(m, AGENTS[1], panels="latent"),
    "policy context": lambda m, c: analysis.plot_policy_rows(m, AGENTS[1], panels="context"),
    "diagnostics": lambda m, c: analysis.plot_row_diagnostics(c),
    "timeline": lambda m, c: analysis.plot_timeline(m, m.demos, 0),
    "bands": lambda m, c: analysis.plot_timeline(m, m.demos, 1, AGENTS[1], kind="bands"),
    "graph": lambda m, c: analysis.plot_transition_graph(m, AGENTS[1]),
    "alignment": lambda m, c: analysis.plot_alignment(m, m.demos, 0),
    "forest": lambda m, c: analysis.plot_forest(c),
    "trace": lambda m, c: analysis.plot_trace(c),
    "rank": lambda m, c: analysis.plot_rank(c),
    "ess": lambda m, c: analysis.plot_ess(c),
    "prior": lambda m, c: analysis.plot_prior_posterior(c),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_show_names_as_they_are(name, mean_field, chains):
    figure = FIGURES[name](mean_field, chains)
    figure = figure if isinstance(figure, Figure) else np.ravel(figure)[0].get_figure()
    # As users do: by matplotlib's own settings, in which dollars are formulas.
    figure.savefig(io.BytesIO(), format="svg")


def test_tables_in_a_terminal_show_names_as_they_are(chains):
    console = Console(file=io.StringIO(), width=400, force_terminal=True, color_system="truecolor")
    console.print(analysis.posterior_predictive_check(chains, num_draws=2).summary_table())
    shown = Text.from_ansi(console.file.getvalue()).plain
    assert all(name in shown for name in AGENTS)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_commands_show_names_as_they_are(mean_field, tmp_path):
    table, posterior = str(tmp_path / "team.csv"), str(tmp_path / "team.nc")
    btil.write_demonstrations(team(), table)
    mean_field.save(posterior)
    told = run("info", table)
    assert told.exit_code == 0
    assert all(name in told.stdout for name in (*AGENTS, ROOM, *ROOMS, *ACTS, *MINDS))
    decoded = run("decode", posterior, table)
    assert decoded.exit_code == 0
    header, *rows = csv.reader(io.StringIO(decoded.stdout))
    assert header == ["episode", "step", *(f"decoded_{agent}" for agent in AGENTS)]
    assert {row[2] for row in rows} <= set(MINDS)


def test_two_names_that_make_one_column_are_refused():
    demos = btil.Demonstrations(
        [0, 1],
        np.zeros((2, 2), int),
        agents=("a", "a_b"),
        latent_names={"a": ["b_c"], "a_b": ["c"]},
    )
    beliefs = {agent: np.ones((2, 1)) for agent in demos.agents}
    with pytest.raises(ValueError, match="the name 'probability_a_b_c'"):
        decoded_table(demos, np.zeros((2, 2), int), beliefs)
