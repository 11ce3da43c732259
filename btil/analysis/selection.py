r"""Which of several models predicts a team best: by leaving episodes out, or on held-out ones.

The unit is the episode: its latents are summed out and its steps depend on each other, so that
neither steps nor agents could be left out one at a time. What is compared is the expected log
predictive density of an episode's actions (and labels), given its states.

Refused is what would be a number without a meaning: see `rank_models`.

References:
    Vehtari, Gelman, Gabry (2017), Practical Bayesian model evaluation using leave-one-out
    cross-validation and WAIC, Statistics and Computing 27; Vehtari, Simpson, Gelman, Yao, Gabry
    (2024), Pareto smoothed importance sampling, JMLR 25; Sivula, Magnusson, Matamoros, Vehtari
    (2025), Uncertainty in Bayesian leave-one-out cross-validation based model comparison.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from btil.analysis.monte_carlo import (
    blocks_of_draws,
    jackknife_error,
    log_average_over,
    stretches_of_chains,
    together,
)
from btil.analysis.output import text_table
from btil.arguments import check_count, check_seed, check_values
from btil.demonstrations import Demonstrations
from btil.inference.chains import RHAT_LIMIT, ess, rhat
from btil.inference.method import method_of
from btil.messages.layout import lay_out
from btil.posterior.beliefs import Posterior
from btil.posterior.conforming import conform
from btil.posterior.fit import fit_again

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

WAYS = ("loo", "held_out")
# An error over fewer episodes says nothing; with less than so many it is a rough one.
_FEWEST = {"loo": 5, "held_out": 2}
_ROUGH = 20
# Monte Carlo error that makes up more than this share of an error is told of.
_MUCH_CHANCE = 0.5
# Pareto k-hat up to which importance sampling is relied on, whatever the number of draws.
_LARGEST_KHAT = 0.7


class _Scores(NamedTuple):
    """Log predictive densities of the episodes under one model.

    Attributes:
        elpd: Of each episode.
        chance: Monte Carlo standard error of their sum; 0 where nothing is averaged over draws.
        khat: Pareto k-hat of each; NaN where nothing is approximated. None: not by importance.
        in_sample: Log of the average density under the whole posterior; None: held out.
    """

    elpd: Float[np.ndarray, " episodes"]
    chance: float
    khat: Float[np.ndarray, " episodes"] | None = None
    in_sample: Float[np.ndarray, " episodes"] | None = None


@dataclass(frozen=True, eq=False)
class ModelComparison:
    """Models by how well they predict episodes they have not seen.

    Attributes:
        table: A row per model, the best first: `elpd`, the summed log predictive density, with its
            standard error `se`; `difference` from the best and `difference_se`, from the
            differences episode by episode; `monte_carlo_se`, the part of `se` that more draws would
            take away; and of leaving out `num_parameters`, by how much the whole posterior would
            have flattered the model, `max_khat` and `refits`. Standard errors are those over
            episodes and those of the draws together.
        episodes: Log predictive density of each episode, a column per model.
        method: "loo" or "held_out".
        notes: What to be careful with.
    """

    table: "pd.DataFrame"
    episodes: "pd.DataFrame"
    method: str
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"ModelComparison({self.method}: {', '.join(self.table.index)}, the best first)"

    def summary_table(self) -> "Table":
        """The table for a terminal of 100 columns."""
        headings = {
            "elpd": ("log density", ",.2f"),
            "se": ("error", ",.2f"),
            "difference": ("difference", ",.2f"),
            "difference_se": ("error", ",.2f"),
            "num_parameters": ("parameters", ",.1f"),
            "max_khat": ("worst k-hat", ".2f"),
            "refits": ("refits", ".0f"),
        }
        shown = {column: one for column, one in headings.items() if column in self.table}
        rows = [
            (
                str(name),
                *(
                    "–" if np.isnan(row[column]) else format(row[column], form)
                    for column, (_, form) in shown.items()
                ),
            )
            for name, row in self.table.iterrows()
        ]
        return text_table(["", *(heading for heading, _ in shown.values())], rows)


def rank_models(
    posteriors: Mapping[str, Posterior],
    demos: Demonstrations | None = None,
    method: str = "loo",
    *,
    num_draws: int = 1000,
    refit: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> ModelComparison:
    r"""Compare models of the same team by how well they predict episodes they have not seen.

    `"loo"` leaves out each training episode in turn, by Pareto-smoothed importance sampling over
    the posterior's draws (`arviz.loo` on the log likelihood of episodes):

    .. math:: \sum_m \log p(a_m, \ell_m \mid s_m, D_{-m})

    with the labels :math:`\ell` that the models were given. `"held_out"` takes other episodes,
    whose labels are dropped:

    .. math:: \sum_m \log \frac{1}{K} \sum_k p(a_m \mid s_m, \theta_k)

    Differences are more certain than the values, as all models find the same episodes hard. A
    difference of a few of its standard errors, and of more than about 4, is one to act on. Errors
    are those over episodes and the Monte Carlo errors of the draws together.

    Args:
        posteriors: {name: posterior} of different models (parents, families, numbers of latents)
            that were fitted to the same recordings.
        demos: With "held_out" the other episodes; with "loo" None.
        method: "loo" or "held_out".
        num_draws: Posterior draws, where there are no chains that have their own; the average
            over draws is of at most so many.
        refit: With "loo": fit the model anew without each episode that importance sampling cannot
            leave out, instead of refusing.
        seed: Seeds draws and refits.
        progress: Whether refits show their progress lines.

    Returns:
        The comparison.

    Raises:
        ValueError: Where the numbers would mean nothing. The posteriors learned from different
            actions, states, columns, episodes or labels; there are too few episodes; with "loo", a
            mean field or a guide, whose draws are not the posterior's, or a Pareto k-hat above the
            limit (naming the episodes) without `refit`; with "held_out", an episode that a model
            has been fitted to.

    Example:
        >>> rank_models({"two": two, "three": three}).table  # doctest: +SKIP
    """
    if method not in WAYS:
        raise ValueError(f"method must be {' or '.join(map(repr, WAYS))}, got {method!r}")
    if len(posteriors) < 2:
        raise ValueError(f"posteriors: name at least two models, got {len(posteriors)}")
    check_count("num_draws", num_draws, 100)
    seed = check_seed(seed, 2**32 - 1)
    check_values({"progress": progress})
    posteriors = dict(posteriors)
    _check_same_data(posteriors)
    if method == "loo":
        if demos is not None:
            raise ValueError(
                "demos: 'loo' leaves out training episodes; other episodes go with 'held_out'"
            )
        shown = next(iter(posteriors.values())).demos
        _check_number(shown, method)
        _check_draws(posteriors)
        scores = {
            name: _leave_out(name, posterior, num_draws, refit, seed, progress)
            for name, posterior in posteriors.items()
        }
    else:
        if demos is None:
            raise ValueError("demos: 'held_out' needs episodes that no model has seen")
        shown = demos
        _check_number(shown, method)
        _check_unseen(posteriors, demos)
        scores = {
            name: _predict(posterior, demos, num_draws, seed)
            for name, posterior in posteriors.items()
        }
    return _summarize(scores, posteriors, shown, method)


# ---------------------------------------------------------------------- what is refused


def _listed(agents: Sequence[str]) -> str:
    return ", ".join(agents) or "nobody"


def _check_same_data(posteriors: Mapping[str, Posterior]) -> None:
    (first, reference), *others = posteriors.items()
    theirs = reference.demos
    for name, posterior in others:
        demos = posterior.demos
        both = f"{name} and {first} learned from different"
        if demos.agents != theirs.agents:
            raise ValueError(f"{both} teams: {', '.join(demos.agents)}; {', '.join(theirs.agents)}")
        if not np.array_equal(demos.episode_lengths, theirs.episode_lengths):
            raise ValueError(
                f"{both} episodes: {demos.num_episodes} with {demos.num_steps} steps, "
                f"{theirs.num_episodes} with {theirs.num_steps} steps"
            )
        if not np.array_equal(demos.actions, theirs.actions):
            raise ValueError(
                f"{both} actions, first {_first(demos.actions, theirs.actions, demos)}"
            )
        for variable in demos.num_states.keys() & theirs.num_states.keys():
            own, other = demos.state_variables[variable], theirs.state_variables[variable]
            if not np.array_equal(own, other):
                raise ValueError(f"{both} states {variable}, first {_first(own, other, demos)}")
        told, others_told = posterior.bound.measured, reference.bound.measured
        if told != others_told:
            raise ValueError(
                f"{name} explains more than actions and labels of {_listed(told)}, {first} of "
                f"{_listed(others_told)}: log likelihoods of different data cannot be compared"
            )
        columns, others_columns = _explained(posterior), _explained(reference)
        if columns.keys() != others_columns.keys():
            raise ValueError(
                f"{name} explains columns {_listed(sorted(columns))}, {first} "
                f"{_listed(sorted(others_columns))}: log likelihoods of different data cannot be "
                "compared"
            )
        for column, own in columns.items():
            if not np.array_equal(own, others_columns[column]):
                where = _first(own, others_columns[column], demos)
                raise ValueError(f"{both} {column}, first {where}")
        labels, others_labels = _named_labels(demos), _named_labels(theirs)
        numbers = [int((one.latents >= 0).sum()) for one in (demos, theirs)]
        if numbers[0] != numbers[1]:
            raise ValueError(
                f"{name} learned from {numbers[0]:,} labels and {first} from {numbers[1]:,}: log "
                "predictive densities of different data cannot be compared"
            )
        if not np.array_equal(labels, others_labels):
            raise ValueError(f"{both} labels, first {_first(labels, others_labels, demos)}")


def _explained(posterior: Posterior) -> dict[str, Float[np.ndarray, " steps"]]:
    """The continuous columns that a model explains; what nobody saw is infinite."""
    return {
        column: np.nan_to_num(posterior.demos.continuous[column], nan=np.inf)
        for agent, channel in posterior.bound.channels.items()
        for column in channel.family.columns_of(agent)
    }


def _named_labels(demos: Demonstrations) -> Shaped[np.ndarray, "steps agents"]:
    """Labels as texts, of which none is no label."""
    columns = [("", *demos.value_names(f"latent_{agent}")) for agent in demos.agents]
    return np.stack(
        [np.array(names)[own + 1] for names, own in zip(columns, demos.latents.T, strict=True)], 1
    )


def _first(own: np.ndarray, other: np.ndarray, demos: Demonstrations) -> str:
    """Where two recordings first differ."""
    row = int(np.flatnonzero((own != other).reshape(len(own), -1).any(1))[0])
    step = row - int(demos.episode_starts[np.searchsorted(demos.episode_starts, row, "right") - 1])
    return f"in episode {demos.episodes[row]}, step {step}"


def _check_number(demos: Demonstrations, method: str) -> None:
    if demos.num_episodes < _FEWEST[method]:
        raise ValueError(
            f"{demos.num_episodes} episodes are too few: an error over fewer than "
            f"{_FEWEST[method]} says nothing"
        )


def _check_draws(posteriors: Mapping[str, Posterior]) -> None:
    for name, posterior in posteriors.items():
        if method_of(posterior.method).answer == "approximation" and _learned(posterior):
            raise ValueError(
                f"{name}: draws from {posterior.method} are not the posterior's, and leaving "
                "episodes out by weighing them means nothing; use gibbs, nuts or exact, or "
                "method='held_out'"
            )


def _check_unseen(posteriors: Mapping[str, Posterior], demos: Demonstrations) -> None:
    """Refuse held-out episodes that are training episodes.

    An episode that happens to be like another is no copy of it: short ones often are. It is one if
    it has the same name too, or if all of them are like training episodes.
    """
    training = next(iter(posteriors.values())).demos
    demos = conform(demos.without_labels(), training)
    seen = set(zip(_contents(training, demos), training.episode_ids.tolist(), strict=True))
    held = list(zip(_contents(demos, training), demos.episode_ids.tolist(), strict=True))
    contents = {content for content, _ in seen}
    copies = [name for content, name in held if (content, name) in seen]
    if all(content in contents for content, _ in held):
        copies = [name for _, name in held]
    if copies:
        raise ValueError(
            f"demos: the models were fitted to episode{'s' if len(copies) > 1 else ''} "
            f"{', '.join(map(str, copies))}, which therefore cannot be held out"
        )


def _contents(demos: Demonstrations, other: Demonstrations) -> list[bytes]:
    """What happened in each episode: actions, and the states that both recordings have."""
    common = sorted(demos.num_states.keys() & other.num_states.keys())
    columns = np.column_stack([demos.actions, *(demos.state_variables[name] for name in common)])
    return [part.tobytes() for part in np.split(columns, demos.episode_starts[1:])]


# ---------------------------------------------------------------------- scores


def _leave_out(
    name: str, posterior: Posterior, num_draws: int, refit: bool, seed: int, progress: bool
) -> _Scores:
    from arviz_stats.base import array_stats

    if not _learned(posterior):
        fixed = posterior.log_likelihood(posterior.demos)
        return _Scores(fixed, 0.0, np.full(len(fixed), np.nan), fixed)
    log_likelihood = _of_draws(posterior, num_draws, seed)
    number = math.prod(log_likelihood.shape[:2])
    chains = method_of(posterior.method).answer == "chains"
    worth = ess(log_likelihood.sum(-1, keepdims=True)) if chains else number
    relative = float(np.clip(np.nan_to_num(np.ravel(worth)[0], nan=number) / number, 0.0, 1.0))
    log_weights, khat = array_stats.psislw(
        log_likelihood, r_eff=max(relative, 1 / number), axis=(0, 1)
    )
    limit = min(1 - 1 / math.log10(number), _LARGEST_KHAT)
    beyond = np.flatnonzero(khat > limit)
    ids = posterior.demos.episode_ids
    if len(beyond) and not refit:
        told = ", ".join(f"{ids[m]} ({khat[m]:.2f})" for m in beyond)
        raise ValueError(
            f"{name}: importance sampling cannot leave out episodes {told}, Pareto k-hat above "
            f"{limit:.2f}; refit=True fits the model anew without each of them, or take "
            "method='held_out'"
        )
    log_terms = log_weights + np.moveaxis(log_likelihood, -1, 0)
    elpd = np.logaddexp.reduce(log_terms, axis=(1, 2))
    weighed = np.delete(np.arange(len(elpd)), beyond)
    chances = [_chance_of_weighing(log_weights[weighed], (log_terms.T - elpd).T[weighed])]
    for m in beyond:
        elpd[m], chance = _without(posterior, int(m), num_draws, seed, progress)
        chances.append(chance)
        khat[m] = np.nan
    flat = log_likelihood.reshape(number, -1)
    in_sample = np.logaddexp.reduce(flat, axis=0) - math.log(number)
    return _Scores(elpd, float(np.linalg.norm(chances)), khat, in_sample)


def _chance_of_weighing(
    log_weights: Float[np.ndarray, "episode chain draw"],
    log_shares: Float[np.ndarray, "episode chain draw"],
) -> float:
    r"""Monte Carlo error of a sum of log densities, each weighed over the same draws.

    To first order a draw s moves :math:`\log \sum_s w_s p_s`, the weights summing to one, by
    :math:`w_s (p_s / \sum w p - 1)`; what the draws of a block move is independent of other blocks.

    Args:
        log_weights: log w_s.
        log_shares: log of w_s p_s over their sum.
    """
    moved = (np.exp(log_shares) - np.exp(log_weights)).sum(0)
    blocks = [moved[chain, draws].sum() for chain, draws in stretches_of_chains(*moved.shape)]
    return math.sqrt(len(blocks) / (len(blocks) - 1) * np.square(blocks).sum())


def _learned(posterior: Posterior) -> bool:
    """Whether anything was learned; else the model's densities are what they are."""
    return bool(posterior.result.rows or posterior.result.parameters)


def _of_draws(
    posterior: Posterior, num_draws: int, seed: int
) -> Float[np.ndarray, "chain draw episode"]:
    """Log likelihood of the training episodes under each draw."""
    kept = posterior.result.log_likelihood
    if kept is not None:
        return kept.astype(np.float64)
    layout = lay_out(posterior.bound)
    values = [
        posterior.episode_log_likelihood(posterior.bound, layout, rows)
        for rows in posterior.drawn_rows(posterior.bound, num_draws, seed)
    ]
    return np.array(values)[None]


def _without(
    posterior: Posterior, episode: int, num_draws: int, seed: int, progress: bool
) -> tuple[float, float]:
    """Log predictive density of an episode under the model fitted to the others, and its error."""
    others = np.delete(np.arange(posterior.demos.num_episodes), episode)
    fitted = fit_again(posterior, posterior.demos.select(others), seed=seed, progress=progress)
    left = _averaged(fitted, posterior.demos.select([episode]), num_draws, seed)
    return float(left.elpd[0]), left.chance


def _predict(posterior: Posterior, demos: Demonstrations, num_draws: int, seed: int) -> _Scores:
    shown = demos.without_labels()
    if not _learned(posterior):
        return _Scores(posterior.log_likelihood(shown), 0.0)
    return _averaged(posterior, shown, num_draws, seed)


def _averaged(posterior: Posterior, demos: Demonstrations, num_draws: int, seed: int) -> _Scores:
    """Log of the average density of each episode over posterior draws."""
    found = log_average_over(
        blocks_of_draws(posterior, num_draws, seed),
        lambda block: block.posterior.log_likelihood(
            demos, num_draws=block.num_draws, seed=block.seed
        ),
    )
    totals = [one.sum() for one in found.without]
    with np.errstate(invalid="ignore"):  # of impossible episodes
        return _Scores(found.whole, float(jackknife_error(totals)))


# ---------------------------------------------------------------------- what comes of it


def _summarize(
    scores: Mapping[str, _Scores],
    posteriors: Mapping[str, Posterior],
    demos: Demonstrations,
    method: str,
) -> ModelComparison:
    import pandas as pd

    number = demos.num_episodes

    def error(values: Float[np.ndarray, " episodes"]) -> float:
        return float(np.sqrt(number) * values.std(ddof=1)) if np.isfinite(values).all() else np.nan

    best = max(scores, key=lambda name: float(scores[name].elpd.sum()))
    records = {}
    for name, own in scores.items():
        with np.errstate(invalid="ignore"):
            gaps = own.elpd - scores[best].elpd
        chances = () if name == best else (own.chance, scores[best].chance)
        record: dict[str, Any] = {
            "elpd": float(own.elpd.sum()),
            "se": float(together(error(own.elpd), own.chance)),
            "difference": float(gaps.sum()),
            "difference_se": float(together(error(gaps), *chances)),
            "monte_carlo_se": own.chance,
        }
        if own.khat is not None and own.in_sample is not None:
            record["num_parameters"] = float((own.in_sample - own.elpd).sum())
            known = own.khat[~np.isnan(own.khat)]
            record["max_khat"] = float(known.max()) if len(known) else np.nan
            refits = np.isnan(own.khat).sum() if _learned(posteriors[name]) else 0
            record["refits"] = int(refits)
        records[name] = record
    table = pd.DataFrame.from_dict(records, orient="index").rename_axis("model")
    index = pd.Index(demos.episode_ids, name="episode")
    episodes = pd.DataFrame({name: own.elpd for name, own in scores.items()}, index=index)
    return ModelComparison(
        table=table.sort_values("elpd", ascending=False, kind="stable"),
        episodes=episodes,
        method=method,
        notes=tuple(_notes(table, posteriors, demos, method)),
    )


def _notes(
    table: "pd.DataFrame",
    posteriors: Mapping[str, Posterior],
    demos: Demonstrations,
    method: str,
) -> list[str]:
    labels = int((demos.latents >= 0).sum())
    if method == "loo":
        what = "actions" + (f" and {labels:,} labels" if labels else "")
        notes = [
            f"Each of {demos.num_episodes} training episodes left out in turn; scored: {what}."
        ]
    else:
        notes = [f"{demos.num_episodes} held-out episodes; scored: actions, labels are dropped."]
    if demos.num_episodes < _ROUGH:
        notes.append("With so few episodes the standard errors are rough, and rather too small.")
    for name, row in table.iterrows():
        if row["monte_carlo_se"] > _MUCH_CHANCE * row["se"]:
            notes.append(
                f"{name}: {row['monte_carlo_se']:.2f} of the error {row['se']:.2f} is Monte Carlo "
                "error; more draws would take it away."
            )
    infinite = table.index[~np.isfinite(table["elpd"])].tolist()
    if infinite:
        notes.append(f"Impossible under {', '.join(infinite)}: at least one episode.")
    for name, posterior in posteriors.items():
        log_likelihood = posterior.result.log_likelihood
        if log_likelihood is None or len(log_likelihood) < 2:
            continue
        disagreement = float(rhat(log_likelihood.sum(-1, keepdims=True, dtype=np.float64))[0])
        if disagreement >= RHAT_LIMIT:
            notes.append(
                f"{name}: the chains disagree about the log likelihood (R-hat "
                f"{disagreement:.2f}); an average over them is not one over the posterior."
            )
    return notes
