"""Draw the gallery: `make gallery` writes docs/reference/gallery.md and the figures that it shows.

To add a figure, add an `Entry` to one of the `SECTIONS`, run the command, look at the picture. With
names of functions behind it (`python docs/make_gallery.py plot_trace`) only those are drawn again.

Every picture remembers what drew it: its setup, its call, and the code of the file that its
function is in. Where one of these is changed and the picture is not drawn again,
`tests/test_gallery.py` says so.
"""

import ast
import hashlib
import inspect
import io
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent
FIGURES = "figures/gallery"
_DPI = 110
# Colours of a figure in the gallery: so few that files are small, so many that none is missed.
_COLORS = 200
# Under this name a picture says what drew it.
DRAWN_BY = "btil drawn by"


class Entry(NamedTuple):
    """A figure of the gallery.

    Attributes:
        name: Of its file; of the function, with a word more where there are several.
        call: Python that makes the figure, under the names of its section's setup.
        reading: How to read it, in a sentence or two.
    """

    name: str
    call: str
    reading: str


class Section(NamedTuple):
    """Figures of one kind.

    Attributes:
        title: The heading.
        setup: Python that makes what they draw, after the preamble.
        entries: The figures.
    """

    title: str
    setup: str
    entries: tuple[Entry, ...]


PREAMBLE = """\
import btil
from btil import analysis
from btil.domains import overcooked

# Two people cook onion soup: eight trials of real play, of which two keep their labels.
trials = overcooked.load("cramped_room")
partly = trials.without_labels(range(2, 8))
model = overcooked.recommended_model("cramped_room")
"""

SECTIONS = (
    Section(
        "Who had what in mind",
        """\
kitchen = btil.fit(model, partly)
held_out = overcooked.load("cramped_room", "test")

task = btil.domains.movers()  # two agents carry boxes that only both together can lift
variables = task.add_derived_variables(task.simulate(20, seed=1))
movers = btil.fit(task.recommended_model(), variables.without_labels(range(10, 20)))
""",
        (
            Entry(
                "plot_timeline",
                'analysis.plot_timeline(kitchen, held_out, 1, "player_0")',
                "A lane per intent, bright where it is probable. White bars are what the player "
                "went on to do, blue ones the decoded path, red ones where that is wrong.",
            ),
            Entry(
                "plot_timeline_bands",
                'analysis.plot_timeline(kitchen, held_out, 3, "player_1", kind="bands")',
                "The more of the height a colour has, the more probable. Above, the labels; below, "
                "the decoded path. With `num_draws=` probabilities are averaged over posterior "
                "draws, so that uncertainty about the tables is in them.",
            ),
            Entry(
                "plot_alignment",
                "analysis.plot_alignment(movers, variables, 14, task)",
                "How probable it is that the two want what goes together. Grey: as decoded they "
                "did not. Thin bars and the black line on top are the truth.",
            ),
            Entry(
                "plot_confusion",
                'analysis.plot_confusion(held_out, kitchen, "player_0")',
                "Steps by what the player went on to do (row) and what was decoded (column): all "
                "on the diagonal would be perfect.",
            ),
        ),
    ),
    Section(
        "Motion on a plane",
        """\
errands = btil.domains.errands()  # two people walk between a desk, a door and a shelf
walks = errands.simulate(60, seed=1)
walkers = btil.fit(errands.recommended_model(), walks.without_labels(range(6, 60)))
where = {agent: errands.columns(agent)[:2] for agent in errands.agents}
goals = dict(zip(errands.goal_names, errands.goals, strict=True))

# A prior said in the units of the data: who walks does so at about 0.5 a step.
said = btil.TeamModel(
    policy=None,
    emissions=btil.NormalEmission(
        {agent: errands.columns(agent)[2:] for agent in errands.agents},
        location=0.0,
        pseudo_steps=0.5,
        noise=0.5,
        degrees_of_freedom=6,
    ),
)
""",
        (
            Entry(
                "plot_paths",
                'analysis.plot_paths(walks, "ann", "ann_x", "ann_y", walkers.decode(walks))',
                "Where somebody went, coloured by what was decoded; grey where nothing is known.",
            ),
            Entry(
                "plot_motion",
                'analysis.plot_motion(walkers, "ann", "ann_x", "ann_y")',
                "Where each intent leads from everywhere on the plane, learned from six labelled "
                "episodes: arrows are expected velocities, and end near the goal.",
            ),
            Entry(
                "plot_motion_strip",
                "analysis.plot_motion_strip(walks, 6, where, walkers.decode(walks), places=goals)",
                "Steps of one episode: who is where, in the colour of what was decoded, with the "
                "way of the last twelve steps. `analysis.animate_motion` makes a film of it.",
            ),
            Entry(
                "plot_prior_predictive",
                "analysis.plot_prior_predictive(said, walks, num_draws=30)",
                "Velocities as a prior expects them (blue, a thin line per draw) beside those that "
                "were recorded (grey), in their units. A prior should cover what can be, and not "
                "much more.",
            ),
        ),
    ),
    Section(
        "What was learned",
        """\
task = btil.domains.movers()
variables = task.add_derived_variables(task.simulate(20, seed=1))
movers = btil.fit(task.recommended_model(), variables)

# How intents change, given only what is in hand.
held = {player: (f"{player}_held",) for player in partly.agents}
simple = btil.TeamModel(
    policy=model.policy, transition=btil.Shared(btil.DirichletCPT(1.01, parents=held))
)
kitchen = btil.fit(simple, partly)
""",
        (
            Entry(
                "plot_policy_rows",
                'analysis.plot_policy_rows(movers, "alice", max_contexts=2)',
                "What an agent does in a situation, by intent: posterior means with 89% intervals, "
                "grey strokes are prior means. n is how often the data read the row; rows read "
                "less than once are grey.",
            ),
            Entry(
                "plot_policy_rows_context",
                'analysis.plot_policy_rows(movers, "alice", panels="context", max_contexts=3)',
                "The same with all intents in one panel: in one situation different intents lead "
                "to different actions.",
            ),
            Entry(
                "plot_transition_graph",
                'analysis.plot_transition_graph(kitchen, "player_0", contexts=[0, 1, 2])',
                "How intents change, for each context. The ring fills with the probability of "
                "keeping an intent; arrows are as wide as a change is probable and as pale as it "
                "is uncertain. Grey intents were hardly ever held there.",
            ),
            Entry(
                "plot_prior_posterior",
                "analysis.plot_prior_posterior(kitchen)",
                "What the data have taught: of each table the cell whose mean has moved furthest, "
                "before and after.",
            ),
        ),
    ),
    Section(
        "Chains: have they converged?",
        """\
gibbs = btil.fit(
    model, partly.select([0, 2, 3]), "gibbs", num_chains=4, num_warmup=150, num_samples=150
)
""",
        (
            Entry(
                "plot_row_diagnostics",
                "analysis.plot_row_diagnostics(gibbs)",
                "Every row of the tables is a point: how well its chains agree (below the line is "
                "well) against how much data it saw. The worst have letters and are named.",
            ),
            Entry(
                "plot_row_diagnostics_ess",
                'analysis.plot_row_diagnostics(gibbs, "ess")',
                "The same with effective sample sizes: below the line there are fewer than 100 "
                "independent draws a chain.",
            ),
            Entry(
                "plot_trace",
                "analysis.plot_trace(gibbs)",
                "Rows that agree least, then rows that matter most: density and draws in order. "
                "Chains that agree look like one band of noise.",
            ),
            Entry(
                "plot_rank",
                "analysis.plot_rank(gibbs)",
                "Ranks of each chain's draws among all. Chains that agree stay near zero; black is "
                "further than chance allows.",
            ),
            Entry(
                "plot_forest",
                "analysis.plot_forest(gibbs)",
                "Intervals (50% and 89%) of each chain; those of one row should overlap.",
            ),
            Entry(
                "plot_ess",
                "analysis.plot_ess(gibbs)",
                "How many independent draws the chains are worth in each part of a cell's range.",
            ),
        ),
    ),
    Section(
        "Optimisation: has it found the best?",
        """\
runs = btil.fit(model, partly.without_labels(), num_restarts=8)
svi = btil.fit(
    model,
    partly.without_labels(),
    "svi",
    num_particles=2,
    learning_rate=0.03,
    max_iterations=150,
    dtype="float64",
)
""",
        (
            Entry(
                "plot_elbo_traces",
                'analysis.plot_elbo_traces({"mean field": runs, "SVI": svi})',
                "The bound after each sweep, as its distance from where it ended. It has converged "
                "where it is flat; other starting points are grey. svi needs more "
                "iterations than these.",
            ),
            Entry(
                "plot_restarts",
                "analysis.plot_restarts(runs)",
                "How far each run is below the best bound of all. Without labels many runs are "
                "stuck: more starting points are worth their time until several end together.",
            ),
        ),
    ),
    Section(
        "Methods side by side",
        """\
import numpy as np

# A made-up team of two, a quarter of its episodes labelled: here the chains agree.
rng = np.random.default_rng(0)
states = btil.Demonstrations(
    {"place": rng.integers(0, 3, 1000)},
    np.zeros((1000, 2), int),
    episodes=np.repeat(range(40), 25),
    agents=("ann", "bob"),
    num_actions=3,
    num_latents=2,
)
team = btil.TeamModel(
    policy=btil.DirichletCPT(1.2, parents=("place",)), transition=btil.DirichletCPT(1.01)
)
made = analysis.simulate_truth(team, states, share_labelled=0.25)
comparison = btil.compare(team, made.demos, {"Gibbs": "gibbs", "mean-field": "mfvi"}, made.test)
gibbs = comparison.aligned["Gibbs"]
others = {"mean field": comparison.aligned["mean-field"]}
""",
        (
            Entry(
                "plot_method_against_method",
                "analysis.plot_method_against_method(gibbs, others)",
                "Every probability of the tables, by the one method and by the other, with 89% "
                "intervals: on the diagonal they agree.",
            ),
            Entry(
                "plot_sd_ratios",
                "analysis.plot_sd_ratios(gibbs, others)",
                "How certain a method is: its standard deviations over the sampler's. Left of 1 it "
                "is more certain.",
            ),
            Entry(
                "plot_courses",
                "analysis.plot_courses(comparison.courses, comparison.accuracy)",
                "How soon a method comes near the reference: mean error of the probabilities in "
                "use against seconds, dashed the accuracy asked for.",
            ),
            Entry(
                "plot_reliability",
                "analysis.plot_reliability(comparison.reliabilities)",
                "Held-out steps by how sure a method was: how often was the most probable intent "
                "the true one? Below the diagonal is too sure. Underneath: how many steps are how "
                "sure.",
            ),
        ),
    ),
    Section(
        "Is the posterior right?",
        """\
import numpy as np

# A small team, so that a hundred fits take seconds.
rng = np.random.default_rng(0)
small = btil.Demonstrations(
    {"place": rng.integers(0, 2, 120)},
    np.zeros((120, 2), int),
    episodes=np.repeat(range(8), 15),
    agents=("ann", "bob"),
    num_actions=2,
    num_latents=2,
)
team = btil.TeamModel(
    policy=btil.DirichletCPT(1.0, parents=("place",)), transition=btil.DirichletCPT(1.0)
)
settings = {"share_labelled": 0.25, "num_simulations": 60}
calibrations = {
    "mean field": analysis.calibrate(team, small, **settings),
    "Gibbs": analysis.calibrate(
        team, small, "gibbs", num_chains=2, num_warmup=100, num_samples=150, **settings
    ),
}
""",
        (
            Entry(
                "plot_ecdf_pit",
                "analysis.plot_ecdf_pit(calibrations)",
                "Where truths lie among posterior draws: in the grey band if the posterior is "
                "right. Up on the left and down on the right is too narrow; of latents, below zero "
                "is too sure.",
            ),
            Entry(
                "plot_latents",
                "analysis.plot_latents(calibrations)",
                "Are steps said to be 80% sure right 80% of the time? Below the diagonal is too "
                "sure.",
            ),
            Entry(
                "plot_error_ratios",
                "analysis.plot_error_ratios(calibrations)",
                "Errors over what the posterior says they are: at 1 it is as sure as it may be, at "
                "2 its errors are twice as large as it says.",
            ),
        ),
    ),
    Section(
        "Does the model fit?",
        """\
kitchen = btil.fit(model, partly)
check = analysis.posterior_predictive_check(kitchen, num_draws=100)
""",
        (
            Entry(
                "plot_predictive_check",
                "analysis.plot_predictive_check(check)",
                "What was seen (dots) among what the model predicts (grey, 89%); red squares are "
                "surprising.",
            ),
        ),
    ),
)


def page() -> str:
    """The text of docs/reference/gallery.md."""
    lines = [
        "# Gallery",
        "",
        "Everything to look at, each by one function of `btil.analysis`: with the call that drew "
        "it and how to read it. All take Matplotlib axes (`axes=` or `ax=`; those drawn by ArviZ "
        "lay out a figure of their own) and return the figure. `make gallery` draws this page "
        "anew; it starts with",
        "",
        "```python",
        PREAMBLE.rstrip(),
        "```",
        "",
    ]
    for section in SECTIONS:
        lines += [f"## {section.title}", "", "```python", section.setup.rstrip(), "```", ""]
        for entry in section.entries:
            lines += ["```python", entry.call, "```", ""]
            lines += [f"![{entry.name}](../{FIGURES}/{entry.name}.png)", "", entry.reading, ""]
    return "\n".join(lines)


def drawn_by(section: Section, entry: Entry) -> str:
    """What draws a figure, in short: the same for the same setup, call and code."""
    from btil import analysis

    function = getattr(analysis, entry.call.split("(")[0].removeprefix("analysis."))
    module = inspect.getmodule(function)
    assert module is not None
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):  # words about it do not count
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:]
    parts = (PREAMBLE, section.setup, entry.call, ast.dump(tree))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def draw(names: set[str], say: Any = print) -> None:
    """Draw the figures of the entries with these names."""
    for section in SECTIONS:
        wanted = [entry for entry in section.entries if entry.name in names]
        if not wanted:
            continue
        begun = time.perf_counter()
        made: dict[str, Any] = {}
        exec(PREAMBLE + section.setup, made)
        for entry in wanted:
            path = FOLDER / FIGURES / f"{entry.name}.png"
            write(eval(entry.call, made), path, drawn_by(section, entry))
        say(f"{section.title}: {time.perf_counter() - begun:.0f} s")


def write(figure: Any, path: Path, source: str) -> None:
    """A figure as a small PNG: few colours, what drew it, and the same bytes each time."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, bbox_inches="tight")
    image = Image.open(buffer).convert("RGB").quantize(_COLORS, dither=Image.Dither.NONE)
    about = PngInfo()
    about.add_text(DRAWN_BY, source)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, optimize=True, pnginfo=about)


def main(functions: list[str]) -> None:
    """Draw the figures of these functions, or all, and write the page."""
    names = {entry.name for section in SECTIONS for entry in section.entries}
    unknown = [f for f in functions if not any(name.startswith(f) for name in names)]
    if unknown:
        raise SystemExit(f"no figure of {', '.join(unknown)}; there are {', '.join(sorted(names))}")
    chosen = {name for name in names if not functions or name.startswith(tuple(functions))}
    draw(chosen)
    (FOLDER / "reference" / "gallery.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
