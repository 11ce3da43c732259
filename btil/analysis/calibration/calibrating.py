"""`btil.analysis.calibrate`: is the posterior right? Simulation-based calibration of a method."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from btil.analysis.calibration.ranks import (
    INTERVALS,
    PROBABILITY,
    Ranked,
    Reliability,
    bins_of,
    coverages,
    error_ratio,
    in_hundredths,
    ratio_of_sums,
    spread,
    tested,
    verdict,
)
from btil.analysis.calibration.simulation import (
    Settings,
    Simulation,
    draw_data,
    run_simulation,
    unpinned_agents,
)
from btil.analysis.output import text_table
from btil.analysis.words import with_error
from btil.arguments import check_seed, check_values
from btil.demonstrations import Demonstrations
from btil.files import replacing
from btil.inference.method import method_of
from btil.inference.result import check_keeps_all
from btil.models.team import TeamModel, bind
from btil.posterior.fit import check_given
from btil.progress import progress_line

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure
    from rich.table import Table

# Of these groups a rank is made from probabilities of latents.
_BY_PROBABILITY = "latents"
_SETTINGS = "settings.json"
_COUNTS = ("point", "averaged")


@dataclass(frozen=True, eq=False)
class Calibration:
    """Where truths lie in the posteriors that a method made of their data.

    Attributes:
        method: The method.
        options: Its options.
        model: The model, whose prior the truths are drawn from.
        demos: States, episodes and sizes of the simulated data.
        share_labelled: Share of episodes labelled; None: the steps that `demos` label.
        num_draws: Most draws that truths were ranked among.
        seed: The seed.
        ranked: Per group the places of its quantities, (simulations, quantities): "policy rows",
            "transition rows", "initial rows", "parameters", "log likelihood", "log prior",
            "log joint" and "latents", of these what there is.
        point: Sureness of smoothed latents under the point estimate (`posterior.smooth`).
        averaged: The same, averaged over posterior draws.
        fits: A row per simulation: draws, converged, aligned, seconds.
    """

    method: str
    options: Mapping[str, Any]
    model: TeamModel
    demos: Demonstrations
    share_labelled: float | None
    num_draws: int
    seed: int
    ranked: dict[str, Ranked]
    point: Reliability
    averaged: Reliability
    fits: "pd.DataFrame"

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{group} {word}" for group, word in self.verdicts().items())
        return f"Calibration({self.method}, {self.num_simulations} simulations: {verdicts})"

    @property
    def num_simulations(self) -> int:
        """Number of simulations."""
        return len(self.fits)

    # ------------------------------------------------------------------ verdicts

    def verdicts(self, probability: float = PROBABILITY) -> dict[str, str]:
        """Per group whether ranks are uniform, in a word.

        The distribution function of the places of one quantity per simulation must stay inside a
        simultaneous band, and mean and spread of all places be what they should within their
        errors over simulations: quantities of one simulation are not independent of each other.

        Args:
            probability: With which a right posterior is called "uniform", per group.

        Returns:
            "uniform"; or "overconfident" (truths lie further out than the posterior thinks; true
            latents were thought improbable too often), "underconfident", "too low" or "too high"
            (its values, compared with the truths); or "too few simulations".
        """
        return {
            group: verdict(ranked, probability, by_probability=group == _BY_PROBABILITY)
            for group, ranked in self.ranked.items()
        }

    def table(self, probability: float = PROBABILITY) -> "pd.DataFrame":
        """A row per group of quantities.

        Columns: `verdict` (of one quantity per simulation); over all `quantities` of all
        `simulations` then `error_ratio` (root mean squared error of the posterior mean over the
        posterior's standard deviation; 1 if right, above 1 overconfident), `spread` (of places,
        over that of uniform ones), `coverage_50` and `coverage_89` (share of truths in central
        intervals), each with its standard error `*_se` over simulations. Of latents the quantity
        is whether the most probable one is wrong, and places are by probability: they have no
        spread and no coverage.
        """
        import pandas as pd

        verdicts = self.verdicts(probability)
        records = {}
        for group, ranked in self.ranked.items():
            record: dict[str, Any] = {
                "verdict": verdicts[group],
                "simulations": len(tested(ranked)),
                "quantities": int((~np.isnan(ranked.place)).sum()),
            }
            shares = {"error_ratio": error_ratio(ranked)}
            if group != _BY_PROBABILITY:
                shares |= {"spread": spread(ranked), **coverages(ranked)}
            for name, share in shares.items():
                record[name], record[f"{name}_se"] = share
            records[group] = record
        return pd.DataFrame.from_dict(records, orient="index").rename_axis("group")

    def latent_table(self) -> "pd.DataFrame":
        """Are steps said to be 80% sure right 80% of the time? A row per kind and bin.

        Unlabelled steps of all simulations by the probability of their most probable latent:
        `steps`, mean probability `said`, share `right`, and a 95% interval of that share (`lower`,
        `upper`) that allows for steps of one simulation being right or wrong together. Kinds:
        "point" (`posterior.smooth`) and "averaged" (over posterior draws, the Bayesian answer).
        """
        import pandas as pd

        records = [
            {"kind": kind, **one._asdict()}
            for kind in _COUNTS
            for one in bins_of(getattr(self, kind))
        ]
        return pd.DataFrame(records)

    def overconfidence(self) -> dict[str, tuple[float, float]]:
        """How much surer of latents than right, {kind: (said - right, its standard error)}.

        Mean probability of the most probable latent minus the share of these that are true, over
        all unlabelled steps; kinds as in `latent_table`. Empty if every step is labelled.
        """
        found = {}
        for kind in _COUNTS:
            counted: Reliability = getattr(self, kind)
            steps = counted.steps.sum(1)
            if steps.sum() > 0:
                excess = ratio_of_sums((counted.said - counted.right).sum(1), steps)
                found[kind] = (excess.value, excess.error)
        return found

    def notes(self) -> list[str]:
        """How the numbers came about, and what to be careful with."""
        number = self.num_simulations
        labels = (
            "the steps that the data label"
            if self.share_labelled is None
            else f"{self.share_labelled:.0%} of the episodes"
        )
        notes = [
            f"{number} truths from the prior; data on the states of "
            f"{self.demos.num_episodes} episodes ({self.demos.num_steps:,} steps), labelled: "
            f"{labels}.",
            f"A right posterior is called uniform with probability {PROBABILITY:.0%}, each group "
            "by itself.",
        ]
        draws = self.fits["draws"]
        if draws.min() < self.num_draws:
            notes.append(
                "Chains were thinned to as many draws as they are worth: "
                f"{draws.min()} to {draws.max()}, median {draws.median():.0f}."
            )
        failed = int((~self.fits["converged"]).sum())
        if failed:
            notes.append(f"{failed} of {number} fits did not converge by their own criterion.")
        aligned = int(self.fits["aligned"].sum())
        if aligned and method_of(self.method).answer == "exact":
            notes.append(
                f"In {aligned} of {number} simulations nothing pins some latents; the exact "
                "posterior holds all their names at once, and single steps cannot be decoded."
            )
        elif aligned:
            notes.append(
                f"In {aligned} of {number} simulations nothing pins some latents; they were named "
                "so as to match the truth best. Ranks are then no longer sure to be uniform, even "
                "of a right posterior: label more (share_labelled) for a test."
            )
        return notes

    def written_table(
        self, probability: float = PROBABILITY
    ) -> tuple[list[str], list[tuple[str, ...]]]:
        """The table of groups as texts for a person: headings, and a row per group."""
        headings = ["ranks of", "verdict", "error / sd", "spread"]
        headings += [f"in {probability:.0%}" for probability in INTERVALS.values()]
        columns = ["error_ratio", "spread", *INTERVALS]
        rows = [
            (
                str(group),
                str(row["verdict"]),
                *(with_error(row.get(c, np.nan), row.get(f"{c}_se", np.nan), 2) for c in columns),
            )
            for group, row in self.table(probability).iterrows()
        ]
        return headings, rows

    def summary_table(self, probability: float = PROBABILITY) -> "Table":
        """The table of groups for a terminal of 100 columns."""
        return text_table(*self.written_table(probability), left=2)

    # ------------------------------------------------------------------ pictures and files

    def plot_ecdf_pit(
        self, groups: Any = None, axes: Any = None, probability: float = PROBABILITY
    ) -> "Figure":
        """Distribution functions of places minus that of uniform ones, a panel per group.

        See `btil.analysis.calibration.figures.plot_ecdf_pit`.
        """
        from btil.analysis.calibration.figures import plot_ecdf_pit

        return plot_ecdf_pit({self.method: self}, groups, axes, probability)

    def plot_latents(self, axes: Any = None) -> "Figure":
        """Reliability diagram of smoothed latents: how sure, and how often right."""
        from btil.analysis.calibration.figures import plot_latents

        return plot_latents({self.method: self}, axes)

    def report(self, directory: Any, command: str | None = None) -> Path:
        """Write a page, its figures and tables to a folder.

        Args:
            directory: The folder, made if it is not there.
            command: The shell command that made the calibration, to be told in the page.

        Returns:
            Path of the page.

        Raises:
            OSError: If the folder cannot be written to.
        """
        from btil.analysis.calibration.calibration_page import write_page

        return write_page(self, directory, command)

    def to_datatree(self) -> "xr.DataTree":
        """The tested places for ArviZ: group `prior_sbc`, a variable per group of quantities.

        Example:
            >>> arviz.plot_ecdf_pit(calibration.to_datatree())  # doctest: +SKIP
        """
        import arviz

        places = {group: tested(ranked) for group, ranked in self.ranked.items()}
        fewest = min(map(len, places.values()))
        return arviz.from_dict(
            {"prior_sbc": {group: values[:fewest] for group, values in places.items()}},
            sample_dims=["simulation"],
        )


def calibrate(
    model: TeamModel,
    demos: Demonstrations,
    method: str = "mfvi",
    num_simulations: int = 100,
    num_draws: int = 100,
    num_cells: int = 20,
    share_labelled: float | None = None,
    seed: int = 0,
    progress: bool = True,
    directory: Any = None,
    **options: Any,
) -> Calibration:
    r"""Simulation-based calibration: is a method's posterior right, on data such as these?

    For each simulation, draw all tables (and parameters) from the prior; draw latents and actions
    given them on the states of `demos`; hide labels; fit; and see where the truth lies among
    posterior draws. If the posterior is right the truth's rank is uniform:

    .. math:: \theta^* \sim p(\theta),\; y \sim p(y \mid \theta^*),\;
              \theta_l \sim p(\theta \mid y) \;\Rightarrow\;
              \operatorname{rank}\{f(\theta^*, y) \text{ among } f(\theta_l, y)\}
              \sim \mathrm{Uniform}

    for any quantity f of the parameters and the data. Ranked are cells of the rows that the
    simulated data read, model parameters where there are any, the log likelihood of the data, the
    log prior and their sum; and latents of unlabelled steps by their probabilities.

    It is the prior's team that is simulated, not that of `demos`: the answer is about the method
    on such data, and assumes that the model is right.

    Latents that no label pins have no names: a right posterior gives each naming its share, while
    chains and mean fields sit in one. They are then named so as to match the truth best, after
    which ranks are no longer sure to be uniform; `Calibration.notes` says how often that was so.
    Label some episodes to have a test (`exact` needs none; models with parameters, whose latents
    cannot be renamed, are refused without).

    Args:
        model: The model; its prior makes the truths, so it should be one that can be believed.
        demos: States, episodes, sizes and names; and labelled steps, unless a share is given.
        method: As in `btil.fit`.
        num_simulations: Number of simulations; 100 tell posteriors apart that are 20 to 30% too
            narrow from right ones.
        num_draws: Posterior draws to rank among, at most; chains are thinned to what they are
            worth if that is less.
        num_cells: Cells ranked per role, and steps per simulation for the ranks of latents. The
            first of each is tested, all are in the table.
        share_labelled: Label so large a share of the episodes, from 0 to 1, others at each
            simulation. None: the steps that are labelled in `demos`.
        seed: The same seed gives the same truths and data, whatever the method.
        progress: Whether to show a progress line.
        directory: A folder in which each simulation is saved as it ends; called again in the same
            way, `calibrate` takes up from there (also with more simulations). None: nothing is
            written.
        **options: Options of the method.

    Returns:
        Ranks, verdicts, and how sure and how right the method was of latents.

    Raises:
        ValueError: If an argument is out of range, or the folder holds simulations of another kind.
        TypeError: If the method has no such option.
        ArithmeticError: If a fit did not give numbers.

    Example:
        >>> found = btil.analysis.calibrate(model, demos, "gibbs", 50)  # doctest: +SKIP
        >>> found.verdicts()["policy rows"]  # doctest: +SKIP
        'uniform'

    References:
        Talts et al. (2018), Validating Bayesian inference algorithms with simulation-based
        calibration. Modrák et al. (2023), Simulation-based calibration checking for Bayesian
        computation: the choice of test quantities shapes sensitivity.
    """
    check_values({"progress": progress})
    settings = Settings(
        model, demos, method, options, num_draws, num_cells, share_labelled, check_seed(seed)
    )
    _check(settings, num_simulations)
    folder = None if directory is None else _prepare_folder(Path(directory), settings)
    simulations = []
    with progress_line(num_simulations, f"calibrate {method}", progress) as line:
        for number in range(num_simulations):
            file = None if folder is None else folder / f"simulation-{number:05d}.npz"
            if file is not None and file.is_file():
                simulations.append(_load(file))
            else:
                simulations.append(run_simulation(settings, number))
                if file is not None:
                    _save(simulations[-1], file)
            line.update(1)
    return _collect(settings, simulations)


def _check(settings: Settings, num_simulations: int) -> None:
    if not isinstance(settings.model, TeamModel):
        raise ValueError(f"model must be a TeamModel, got {type(settings.model).__name__}")
    if not isinstance(settings.demos, Demonstrations):
        raise ValueError(f"demos must be Demonstrations, got {type(settings.demos).__name__}")
    check_given(settings.method, settings.options, settings.model, owner=settings.method)
    check_keeps_all(settings.method, settings.options)
    numbers = {
        "num_simulations": num_simulations,
        "num_draws": settings.num_draws,
        "num_cells": settings.num_cells,
        "share_labelled": settings.share_labelled,
    }
    check_values(numbers, optional=["share_labelled"])
    if settings.bound.channels or any(t.parametric for t in settings.bound.learned.values()):
        _check_names(settings, num_simulations)


def _check_names(settings: Settings, num_simulations: int) -> None:
    """Refuse data whose latents have no names if they could not be named afterwards."""
    for number in range(num_simulations):
        unpinned = unpinned_agents(bind(settings.model, draw_data(settings, number)[2]))
        if unpinned:
            raise ValueError(
                f"simulation {number}: nothing distinguishes some latents of "
                f"{', '.join(unpinned)}, "
                "and in a model with parameters or emissions they cannot be named afterwards; "
                "label more (share_labelled)"
            )


def _collect(settings: Settings, simulations: list[Simulation]) -> Calibration:
    import pandas as pd

    order = ["policy rows", "transition rows", "initial rows", "parameters"]
    order += ["emission coefficients", "emission noise"]
    order += ["log likelihood", "log prior", "log joint", _BY_PROBABILITY]
    present = {group for one in simulations for group in one.ranked}
    ranked = {}
    for group in [group for group in order if group in present]:
        rows = [one.ranked.get(group) for one in simulations]
        widest = max(len(row.place) for row in rows if row is not None)
        padded = np.full((len(Ranked._fields), len(rows), widest), np.nan)
        for i, row in enumerate(rows):
            if row is not None:
                padded[:, i, : len(row.place)] = row
        ranked[group] = Ranked(*padded)
    fits = pd.DataFrame(
        {
            "draws": [one.num_draws for one in simulations],
            "converged": [one.converged for one in simulations],
            "aligned": [one.aligned for one in simulations],
            "seconds": [one.seconds for one in simulations],
        },
        index=pd.RangeIndex(len(simulations), name="simulation"),
    )
    point, averaged = (
        Reliability(*(np.stack(part) for part in zip(*rows, strict=True)))
        for rows in ([one.point for one in simulations], [one.averaged for one in simulations])
    )
    return Calibration(
        method=settings.method,
        options=settings.options,
        model=settings.model,
        demos=settings.demos,
        share_labelled=settings.share_labelled,
        num_draws=settings.num_draws,
        seed=settings.seed,
        ranked=ranked,
        point=point,
        averaged=averaged,
        fits=fits,
    )


# ---------------------------------------------------------------------- a folder to resume from


def _prepare_folder(folder: Path, settings: Settings) -> Path:
    """Make the folder, or see that what it holds was made in the same way.

    Raises:
        ValueError: If it was not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "method": settings.method,
        "options": {name: str(value) for name, value in sorted(settings.options.items())},
        "num_draws": settings.num_draws,
        "num_cells": settings.num_cells,
        "share_labelled": settings.share_labelled,
        "seed": settings.seed,
        "data": _fingerprint(settings),
    }
    file = folder / _SETTINGS
    if not file.is_file():
        with replacing(file) as temporary:
            temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return folder
    try:
        earlier = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        earlier = None
    if not isinstance(earlier, dict):
        raise ValueError(f"{file}: damaged; choose another folder, or delete this one")
    if earlier != record:
        different = ", ".join(
            "model or data" if name == "data" else name
            for name, value in record.items()
            if earlier.get(name) != value
        )
        raise ValueError(
            f"{folder} holds simulations made in another way ({different} differ); choose another "
            "folder, or delete them"
        )
    return folder


def _fingerprint(settings: Settings) -> str:
    """Of the first simulation's truth and data: other models, states or seeds give others."""
    truth, full, observed = draw_data(settings, 0)
    digest = hashlib.sha256()
    arrays = [*full.state_variables.values(), full.actions, full.latents, observed.latents]
    arrays += [full.episode_lengths, *(values for _, values in sorted(truth.parameters.items()))]
    arrays += [truth.known[site].rows for site in sorted(truth.known)]
    arrays += full.continuous.values()
    for values in arrays:
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _save(simulation: Simulation, file: Path) -> None:
    arrays = {
        f"ranked/{group}/{name}": values
        for group, ranked in simulation.ranked.items()
        for name, values in ranked._asdict().items()
    }
    for kind in _COUNTS:
        arrays |= {f"{kind}/{n}": v for n, v in getattr(simulation, kind)._asdict().items()}
    for name in ("num_draws", "converged", "aligned", "seconds"):
        arrays[name] = np.array(getattr(simulation, name))
    with replacing(file) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)


def _load(file: Path) -> Simulation:
    """Read a simulation.

    Raises:
        ValueError: If the file is damaged.
        OSError: If it cannot be read.
    """
    with open(file, "rb") as stream:
        try:
            return _loaded(stream)
        # NumPy and zipfile raise whatever comes on a damaged file; it could be opened.
        except Exception as error:
            raise ValueError(
                f"{file}: damaged ({error}); delete it and the simulation is made again"
            ) from error


def _loaded(stream: BinaryIO) -> Simulation:
    with np.load(stream, allow_pickle=False) as stored:
        groups = dict.fromkeys(n.split("/")[1] for n in stored.files if n.startswith("ranked/"))
        return Simulation(
            ranked={
                group: Ranked(*(stored[f"ranked/{group}/{name}"] for name in Ranked._fields))
                for group in groups
            },
            **{
                kind: in_hundredths(
                    Reliability(*(stored[f"{kind}/{name}"] for name in Reliability._fields))
                )
                for kind in _COUNTS
            },
            num_draws=int(stored["num_draws"]),
            converged=bool(stored["converged"]),
            aligned=bool(stored["aligned"]),
            seconds=float(stored["seconds"]),
        )
