"""Recordings whose truth is known because it was made up, and how often posteriors cover it."""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from btil.analysis.calibration.ranks import Ranked, Share, coverages, place_among
from btil.analysis.calibration.simulation import Settings, draw_data, named_as_in
from btil.analysis.monte_carlo import evenly_spaced
from btil.analysis.plots.rows import expected_visits
from btil.arguments import check_values
from btil.demonstrations import Demonstrations
from btil.files import replacing
from btil.models.cpt import ROLES
from btil.models.draws import DrawnTables, KnownRows
from btil.models.emission import DrawnChannelRows, channel_sites
from btil.models.simulate import simulate
from btil.models.team import BoundModel, TeamModel, bind
from btil.numpyro_forms.numpyro_model import BoundNumpyroModel
from btil.posterior.beliefs import Posterior
from btil.posterior.conforming import conform

if TYPE_CHECKING:
    import pandas as pd

# What is known of a channel.
_CHANNEL_PARTS = ("contexts", "coefficients", "covariance")
# Rows of the table that are of continuous columns.
_OF_COLUMNS = ("coefficients", "noise")
# Draws among which the truth is ranked.
_DRAWS = 1000


class KnownTruth(NamedTuple):
    """Made-up recordings of a team, and what they were made from.

    Attributes:
        tables: All tables, drawn from the prior.
        demos: What happened on the states of the given recordings; labelled where those are.
        test: What else happened, labelled throughout.
    """

    tables: DrawnTables
    demos: Demonstrations
    test: Demonstrations


def simulate_truth(
    model: TeamModel,
    demos: Demonstrations,
    test: Demonstrations | None = None,
    seed: int = 0,
    share_labelled: float | None = None,
) -> KnownTruth:
    """Draw tables from a model's prior, and recordings from them on given states.

    For `compare(model, made.demos, test=made.test, truth=made.tables)`. What a model leaves open of
    its emissions is taken from `demos`; `model.resolved(demos)` is that model.

    Args:
        model: The model.
        demos: Where states, episodes, sizes, names and labelled steps come from.
        test: Where the states of the held-out recordings come from; None: those of `demos` again,
            on which the team then plays anew.
        seed: Seeds everything.
        share_labelled: Label this share of the episodes instead; 0 to 1.

    Raises:
        ValueError: If the model does not fit, or the share is out of range.

    Example:
        >>> made = simulate_truth(model, demos, seed=1)  # doctest: +SKIP
    """
    check_values({"seed": seed, "share_labelled": share_labelled}, optional=["share_labelled"])
    settings = Settings(model, demos, "", {}, 0, 0, share_labelled, seed)
    tables, _, observed = draw_data(settings, 0)
    states = demos if test is None else conform(test, demos)
    played = simulate(settings.bound.model, states, tables, np.random.default_rng([seed, 0, 7]))
    return KnownTruth(tables, observed, played)


def check_truth(bound: BoundModel, truth: DrawnTables) -> None:
    """Refuse tables that are not those of the model.

    Raises:
        ValueError: Naming the site, and what differs.
    """
    if isinstance(bound, BoundNumpyroModel):
        raise ValueError(
            f"truth: {bound.own_model.name} is a NumpyroModel, which has no tables to cover"
        )
    for site, table in bound.learned.items():
        if site not in truth.tables:
            raise ValueError(
                f"truth: there is no table {site!r}; its tables are {', '.join(truth.tables)}"
            )
        ours, theirs = table.contexts, truth.tables[site].contexts
        if (ours.names, ours.row_shape) != (theirs.names, theirs.row_shape):
            raise ValueError(
                f"truth: {site} has parents {theirs.names or 'none'} and rows {theirs.row_shape}, "
                f"in the model parents {ours.names or 'none'} and rows {ours.row_shape}"
            )


def write_truth(truth: DrawnTables, path: Any) -> None:
    """Write the rows and parameters that are known of a truth to an NPZ file, for `read_truth`.

    Rows that nobody has asked for yet are not there: they would be drawn when asked for.

    Args:
        truth: The tables.
        path: The file; it is replaced once the new one is complete.
    """
    sites = list(truth.known)
    arrays: dict[str, Any] = {
        "channels": np.array(list(truth.channels), np.str_),
        "sites": np.array(sites, np.str_),
        "parameters": np.array(list(truth.parameters), np.str_),
    }
    for number, site in enumerate(sites):
        arrays[f"contexts_{number}"] = truth.known[site].contexts
        arrays[f"rows_{number}"] = truth.known[site].rows
    for number, value in enumerate(truth.parameters.values()):
        arrays[f"parameter_{number}"] = value
    for number, channel in enumerate(truth.channels.values()):
        for part in _CHANNEL_PARTS:
            arrays[f"channel_{part}_{number}"] = getattr(channel, part)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_truth(path: Any, model: TeamModel, demos: Demonstrations) -> DrawnTables:
    """Tables written by `write_truth`.

    Args:
        path: The file.
        model: The model that they are tables of.
        demos: Demonstrations that tell agents, state variables and sizes.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or the tables are those of another model.

    Example:
        >>> truth = read_truth("report/truth.npz", model, demos)  # doctest: +SKIP
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"no such file: {source}")
    bound = bind(model, demos)
    tables, generator = bound.tables, np.random.default_rng(0)
    try:
        # NumPy leaves a damaged file open that it has opened itself.
        with open(source, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            known = {
                str(site): KnownRows(file[f"contexts_{number}"], file[f"rows_{number}"])
                for number, site in enumerate(file["sites"])
            }
            parameters = {
                str(site): file[f"parameter_{number}"]
                for number, site in enumerate(file["parameters"])
            }
            channels = {
                str(agent): DrawnChannelRows(
                    bound.channels[str(agent)],
                    generator,
                    *(file[f"channel_{part}_{number}"] for part in _CHANNEL_PARTS),
                )
                for number, agent in enumerate(file.get("channels", ()))
            }
    except (ValueError, LookupError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{source}: this is not a truth written by btil, or it is damaged"
        ) from error
    for site, one in known.items():
        shape = tables[site].shape[1:] if site in tables else None
        if one.rows.shape[1:] != shape or len(one.rows) != len(one.contexts):
            raise ValueError(f"{source}: {site} is not a table of the model, or has another shape")
    for agent, channel in channels.items():
        if channel.coefficients.shape[1:] != bound.channels[agent].shape[1:]:
            raise ValueError(f"{source}: the emission of {agent} has another shape in the model")
    return DrawnTables(tables, parameters, generator, known, channels)


def coverage_table(posterior: Posterior, truth: DrawnTables, seed: int = 0) -> "pd.DataFrame":
    """How often central posterior intervals cover the true probabilities.

    Of the rows in use, those that the posterior expects its data to have read at least once: all
    others are near their prior by any method. Latents that nothing pins are named as in the truth.
    Of continuous columns a row is what a latent has in a context: its coefficients, and the
    logarithms of its standard deviations.

    Args:
        posterior: The posterior.
        truth: The tables that its data came from.
        seed: Seeds draws, and the order of ties.

    Returns:
        A row per role, "coefficients" and "noise" of columns among them, and one for "all":
        `rows`, `coverage_50`, `coverage_89`, each with a standard error `*_se`, as if rows were
        independent of each other.
    """
    import pandas as pd

    check_values({"seed": seed})
    records = {}
    for role, ranked in _ranked(posterior, truth, seed).items():
        record: dict[str, float] = {"rows": len(ranked.place)}
        for name, share in coverages(ranked).items():
            record |= {name: share.value, f"{name}_se": _error(share, len(ranked.place))}
        records[role] = record
    return pd.DataFrame.from_dict(records, orient="index").rename_axis("tables")


def _error(share: Share, number: int) -> float:
    """Standard error of a share of rows; of all or none of them that of two more of each kind.

    Source: Agresti, Coull (1998), Approximate is better than "exact" for interval estimation.
    """
    if 0 < share.value < 1:
        return share.error
    middle = (number * share.value + 2) / (number + 4)
    return float(np.sqrt(middle * (1 - middle) / (number + 4)))


def _ranked(posterior: Posterior, truth: DrawnTables, seed: int) -> dict[str, Ranked]:
    """Places of the true cells among draws, (rows, values), by role and for all."""
    posterior = named_as_in(posterior, truth)
    visits = expected_visits(posterior)
    # Of chains each draw once: a draw that counts twice makes its chain no longer.
    few, number = evenly_spaced(posterior, _DRAWS)
    draws = few.sample(number, seed)
    generator = np.random.default_rng([seed, 5])
    found: dict[str, list[np.ndarray]] = {}
    tiny = np.finfo(posterior.dtype).tiny
    for site, table in posterior.bound.learned.items():
        used = visits[site] >= 1
        if table.shape[-1] == 1 or not used.any():
            continue
        # What is too small for the fit's precision is equal in both.
        true, drawn = (
            np.maximum(values.astype(posterior.dtype), tiny).astype(np.float64)
            for values in (truth.rows(site, table.contexts)[used], draws[site][:, used])
        )
        place = place_among(true.ravel(), drawn.reshape(len(drawn), -1), generator)
        found.setdefault(table.contexts.role, []).append(place.reshape(true.shape))
    for agent, channel in posterior.bound.channels.items():
        used = _channel_visits(posterior, agent) >= 1
        points = truth.channels[agent].rows(channel.contexts)
        sites = channel_sites(channel)
        for kind, true, drawn in zip(
            _OF_COLUMNS,
            _of_columns(*points),
            _of_columns(draws[sites[0]].reshape(number, *channel.shape), draws[sites[1]]),
            strict=True,
        ):
            own = true[used]
            place = place_among(own.ravel(), drawn[:, used].reshape(number, -1), generator)
            found.setdefault(kind, []).append(place.reshape(own.shape))
    ordered = {role: found[role] for role in (*ROLES, *_OF_COLUMNS) if role in found}
    ordered["all"] = [place for places in ordered.values() for place in places]
    return {role: _stacked(places) for role, places in ordered.items() if places}


def _channel_visits(posterior: Posterior, agent: str) -> Float[np.ndarray, "contexts latents"]:
    """How many steps of a channel are expected to have had each latent, by context."""
    channel = posterior.bound.channels[agent]
    belief = posterior.smooth(posterior.demos, use_labels=True)[agent]
    visits = np.zeros(channel.shape[:2])
    np.add.at(visits, channel.row[channel.observed.rows], belief[channel.observed.rows])
    return visits


def _of_columns(
    coefficients: Float[np.ndarray, "*draws contexts latents p d"],
    covariance: Float[np.ndarray, "*draws contexts latents d d"],
) -> tuple[Float[np.ndarray, "*draws contexts latents pd"], Float[np.ndarray, "*draws _ _ d"]]:
    """What is looked at of columns: coefficients, and logs of standard deviations."""
    flat = coefficients.reshape(*coefficients.shape[:-2], -1).astype(np.float64)
    variance = np.diagonal(covariance, axis1=-2, axis2=-1).astype(np.float64)
    return flat, 0.5 * np.log(variance)


def _stacked(places: list[np.ndarray]) -> Ranked:
    """Places of rows of several tables, filled up with NaN to equal lengths."""
    width = max(place.shape[1] for place in places)
    filled = [
        np.pad(place, ((0, 0), (0, width - place.shape[1])), constant_values=np.nan)
        for place in places
    ]
    place = np.concatenate(filled)
    nothing = np.full_like(place, np.nan)
    return Ranked(place, nothing, nothing, nothing)
