"""How well calibrated each method is, by the amount of data and the share of labels.

`python benchmarks/calibration.py --out DIR` simulates a small team many times over and fits it by
every method: two members of two latents and three actions each, three places, episodes of ten
steps; then by mfvi and gibbs on the states of human cooks. It takes about 25 minutes on one core;
started again, it goes on where it was. The tables of docs/explanation/calibration.md are then in
DIR/tables.md, its figures in DIR/figures, and every run has a page in a folder of its own. With
`--refined` it prints the table of what draws around a mean field are worth.
"""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import btil
from btil.analysis import Calibration, calibrate, plot_ecdf_pit, plot_error_ratios, plot_latents
from btil.analysis.output import save_figure
from btil.domains import overcooked

AMOUNTS, SHARES = (10, 40, 160), (0.1, 0.5, 1.0)
# What is held while the other one varies.
AMOUNT, SHARE = 40, 0.5
OPTIONS: dict[str, dict[str, Any]] = {
    "gibbs": {"num_chains": 4, "num_warmup": 500, "num_samples": 1000},
    "nuts": {"num_chains": 2, "num_warmup": 200, "num_samples": 300},
}
ROWS = ["policy rows", "transition rows", "initial rows"]


class Run(NamedTuple):
    """A method on so much data, simulated from a seed."""

    method: str
    num_episodes: int
    share_labelled: float
    num_steps: int = 10
    seed: int = 0

    def __str__(self) -> str:
        share = round(100 * self.share_labelled)
        seed = f"-seed{self.seed}" if self.seed else ""
        return f"{self.method}-{self.num_episodes}x{self.num_steps}-{share}{seed}"


RIGHT = {
    "exact": Run("exact", 4, 0.25, num_steps=3),
    "gibbs": Run("gibbs", AMOUNT, SHARE),
    "nuts": Run("nuts", 10, SHARE),
}
APPROXIMATE = ("mfvi", "svi", "gibbs")
# What draws around a mean field are worth: one seed may say 74% of what another says 71%.
REFINED = tuple(
    Run(method, AMOUNT, share, seed=seed)
    for method in ("mfvi", "refined", "gibbs")
    for share in SHARES[:2]
    for seed in (1, 2)
)


def team(num_episodes: int, num_steps: int) -> btil.Demonstrations:
    """Where the members were; what they did there is yet to be simulated."""
    generator = np.random.default_rng(0)
    total = num_episodes * num_steps
    return btil.Demonstrations(
        {"place": generator.integers(0, 3, total)},
        np.zeros((total, 2), int),
        episodes=np.repeat(np.arange(num_episodes), num_steps),
        agents=("ann", "bob"),
        num_states={"place": 3},
        num_actions=3,
        num_latents=2,
    )


def model() -> btil.TeamModel:
    """Habits of acting that depend on the place, and latents that mostly stay."""
    return btil.TeamModel(
        policy=btil.DirichletCPT(0.5, parents=("place",)),
        transition=btil.DirichletCPT([[4.0, 1.0], [1.0, 4.0]]),
        initial=btil.DirichletCPT(1.0),
    )


def calibrated(run: Run, num_simulations: int, out: Path) -> Calibration:
    """A run, or what is left of it to do; its page is written too."""
    found = calibrate(
        model(),
        team(run.num_episodes, run.num_steps),
        run.method,
        num_simulations if run.method != "svi" else round(0.6 * num_simulations),
        share_labelled=run.share_labelled,
        seed=run.seed,
        directory=out / str(run) / "simulations",
        **OPTIONS.get(run.method, {}),
    )
    found.report(out / str(run))
    return found


def kitchen(method: str, num_simulations: int, out: Path, **options: Any) -> Calibration:
    """Four human-human Overcooked trials, of which one is labelled."""
    found = calibrate(
        overcooked.recommended_model("cramped_room"),
        overcooked.load("cramped_room").select(range(4)),
        method,
        num_simulations,
        share_labelled=0.25,
        directory=out / f"kitchen-{method}" / "simulations",
        **options,
    )
    found.report(out / f"kitchen-{method}")
    return found


# ---------------------------------------------------------------------- tables


def refined_table(found: Mapping[Run, Calibration]) -> str:
    """A row per method, share of labels and seed: truths in 89% intervals, size of errors, time."""
    rows = []
    for run, one in found.items():
        table = one.table()
        cells = [percent(table["coverage_89"][g], table["coverage_89_se"][g]) for g in ROWS]
        ratios = [f"{table['error_ratio'][g]:.2f}" for g in ROWS[:2]]
        rows.append([run.method, f"{run.share_labelled:.0%}", str(run.seed), *cells, *ratios])
    ratios = [f"error / said, {group}" for group in ROWS[:2]]
    return markdown(["method", "labelled", "seed", *ROWS, *ratios], rows)


def verdict_table(found: Mapping[str, Calibration]) -> str:
    """A row per method, a column per group: the verdict, errors over what the posterior says."""
    tables = {name: one.table() for name, one in found.items()}
    groups = list(next(iter(tables.values())).index)
    rows = []
    for name, table in tables.items():
        cells = [f"{table['verdict'][g]}, {table['error_ratio'][g]:.2f}" for g in groups]
        rows.append([name, *cells])
    return markdown(["", *groups], rows)


def interval_table(setting: str, found: Iterable[tuple[str, Calibration]]) -> str:
    """A row per run: how many truths lie in 89% intervals, how much too sure of the latents."""
    rows = []
    for value, one in found:
        table = one.table()
        cells = [percent(table["coverage_89"][g], table["coverage_89_se"][g]) for g in ROWS]
        excess = one.overconfidence().get("averaged")
        if excess is None:
            cells += ["", ""]
        else:
            right = one.averaged.right.sum() / one.averaged.steps.sum()
            cells += ["{:+.1f} ± {:.1f}%".format(*(100 * part for part in excess)), f"{right:.0%}"]
        rows.append([one.method, value, *cells])
    headings = ["method", setting, *ROWS, "latents: too sure by", "decoded rightly"]
    return markdown(headings, rows)


def grid_table(found: Mapping[Run, Calibration], group: str) -> str:
    """Amounts of data down, shares of labels across: truths of a group in 89% intervals."""
    rows = []
    for number in AMOUNTS:
        one = [table for run, table in found.items() if run.num_episodes == number]
        tables = [each.table().loc[group] for each in one]
        cells = [percent(row["coverage_89"], row["coverage_89_se"]) for row in tables]
        rows.append([f"{number} episodes", *cells])
    return markdown([group, *(f"{share:.0%} labelled" for share in SHARES)], rows)


def percent(value: float, error: float) -> str:
    """A share and its standard error."""
    return f"{100 * value:.0f} ± {100 * error:.0f}%"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


# ---------------------------------------------------------------------- everything


def main() -> None:
    """Run everything that is not there yet; write tables and figures."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments.add_argument("--num-simulations", type=int, default=100)
    arguments.add_argument(
        "--refined", action="store_true", help="Only mfvi, refined and gibbs on two seeds."
    )
    given = arguments.parse_args()
    if given.refined:
        done = {run: calibrated(run, given.num_simulations, given.out) for run in REFINED}
        print(refined_table(done))
        return
    amounts = [Run(method, n, SHARE) for method in APPROXIMATE for n in AMOUNTS]
    shares = [Run(method, AMOUNT, s) for method in APPROXIMATE for s in SHARES]
    grid = [Run("mfvi", n, s) for n in AMOUNTS for s in SHARES]
    # SVI, which takes longest, comes last.
    wanted = {*RIGHT.values(), *amounts, *shares, *grid}
    runs = sorted(wanted, key=lambda run: (run.method == "svi", run))
    done = {run: calibrated(run, given.num_simulations, given.out) for run in runs}

    few = round(0.3 * given.num_simulations)
    chains = {"num_chains": 2, "num_warmup": 300, "num_samples": 300}
    cooks = {
        "mfvi": kitchen("mfvi", few, given.out),
        "gibbs": kitchen("gibbs", few, given.out, **chains),
    }

    right = {name: done[run] for name, run in RIGHT.items()}
    by_amount = [(str(run.num_episodes), done[run]) for run in amounts]
    by_share = [(f"{run.share_labelled:.0%}", done[run]) for run in shares]
    by_both = {run: done[run] for run in grid}
    sections = {
        "Right methods": verdict_table(right),
        "By share of labels": interval_table("labelled", by_share),
        "By amount of data": interval_table("episodes", by_amount),
        "Mean field by both": "\n".join(grid_table(by_both, group) for group in ROWS[:2]),
        "In the kitchen": interval_table("labelled", [("25%", one) for one in cooks.values()]),
    }
    text = "\n".join(f"## {title}\n\n{table}" for title, table in sections.items())
    (given.out / "tables.md").write_text(text, encoding="utf-8")

    fewest = {method: done[Run(method, AMOUNT, SHARES[0])] for method in APPROXIMATE}
    shown = [*ROWS, "log likelihood", "log joint", "latents"]
    figures = {
        "calibration_right": plot_ecdf_pit(right, [*shown[:4], "log prior", *shown[4:]]),
        "calibration_approximate": plot_ecdf_pit(fewest, shown),
        "calibration_latents": plot_latents(fewest),
        "calibration_kitchen": plot_latents(cooks),
        "calibration_amount": plot_error_ratios(
            {f"{one.method}\n{value}": one for value, one in by_amount}
        ),
        "calibration_share": plot_error_ratios(
            {f"{one.method}\n{value}": one for value, one in by_share}
        ),
    }
    (given.out / "figures").mkdir(exist_ok=True)
    for name, figure in figures.items():
        save_figure(figure, given.out / "figures" / name)
    print(text)


if __name__ == "__main__":
    main()
