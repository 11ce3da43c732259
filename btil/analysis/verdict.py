"""What a comparison comes to: whom to believe, where methods agree, what to use for what."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from btil.analysis.modes import WeighedMode, told_modes
from btil.analysis.words import listed
from btil.inference.method import method_of
from btil.posterior.beliefs import Posterior
from btil.progress import time_of

if TYPE_CHECKING:
    from btil.analysis.compare import Comparison

# Methods agree about a row's means where these differ by less of the reference's standard
# deviation, and about how sure to be where the ratio of theirs is as near to 1.
_SAME_MEANS, _SAME_SPREAD, _MOST_CHANCE = 0.25, 0.1, 0.1
# Decoding errors nearer to each other than this are as good as each other.
_SAME_ERROR = 0.01
# What must be longer, and by how much to begin with.
_LONGER = 4
_PURPOSES = ("decoding", "intervals", "live coach")


class Agreement(NamedTuple):
    """How a method stands to the reference, over the rows that data are read by.

    Attributes:
        mean_difference: Mean absolute difference of the cells' means, in the reference's standard
            deviations of them.
        chance: About how large that would be by Monte Carlo errors alone; nan where it is not
            known.
        sd_ratio: Median of the method's standard deviations over the reference's.
        agrees: Whether both are as near as makes no difference.
    """

    mean_difference: float
    chance: float
    sd_ratio: float
    agrees: bool


class Verdict(NamedTuple):
    """What a comparison comes to; `str()` is the same in sentences.

    Attributes:
        believed: The methods whose answers can be believed to be theirs: they have converged.
        doubted: {method: why its answer cannot be believed}.
        reference: What the others are measured against; None where nothing can be.
        modes: Weights of the modes that the reference's draws are in, the largest first, each with
            its standard error, NaN where they are not known. Empty where there is one mode.
        agreements: {method: how it stands to the reference}, of those that can be believed.
        uses: {purpose: the method to use}, for "decoding", "intervals" and "live coach"; a purpose
            for which none will do is missing.
        next_steps: What to run next, and about how long it takes.
        sentences: All of this, a sentence or two a line.
    """

    believed: tuple[str, ...]
    doubted: dict[str, str]
    reference: str | None
    modes: tuple[tuple[float, float], ...]
    agreements: dict[str, Agreement]
    uses: dict[str, str]
    next_steps: tuple[str, ...]
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def judge_comparison(comparison: "Comparison") -> Verdict:
    """Judge a comparison.

    Args:
        comparison: What several methods make of the same demonstrations.

    Example:
        >>> print(btil.compare(model, demos).verdict)  # doctest: +SKIP
    """
    converged = comparison.convergence
    believed = tuple(name for name, one in converged.items() if one.converged)
    doubted = {name: one.reason for name, one in converged.items() if not one.converged}
    measured = comparison.no_differences is None
    agreements = (
        {name: _agreement(comparison, name) for name in comparison.others if name in believed}
        if measured
        else {}
    )
    uses = _uses(comparison, believed, agreements)
    next_steps = tuple(_next_steps(comparison, doubted, uses))
    reference = comparison.reference if measured else None
    modes = tuple((mode.weight, mode.weight_se) for mode in _modes(comparison))
    sentences = [
        _on_belief(believed, doubted),
        _on_modes(comparison),
        _on_agreement(comparison, agreements),
        _on_decoding(comparison, uses),
        _on_uses(uses, bool(_errors(comparison, "viterbi", believed))),
        *(f"Next: {step}" for step in next_steps),
    ]
    return Verdict(
        believed,
        doubted,
        reference,
        modes,
        agreements,
        uses,
        next_steps,
        tuple(sentence for sentence in sentences if sentence),
    )


def _agreement(comparison: "Comparison", name: str) -> Agreement:
    found = comparison.differences[name]
    # Where no row is in use there is nothing to differ about.
    difference = float(np.nan_to_num(found.mean_difference_in_sds))
    chance = found.mean_difference_in_use_se / found.mean_sd_in_use
    ratio = found.sd_ratio_in_use
    error = float(np.nan_to_num(found.sd_ratio_in_use_se))
    # Of few draws chance explains much: that is no agreement.
    same_means = difference < _SAME_MEANS + min(float(np.nan_to_num(chance)), _MOST_CHANCE)
    same_spread = bool(np.isnan(ratio)) or abs(ratio - 1) < max(_SAME_SPREAD, 2 * error)
    return Agreement(difference, chance, ratio, same_means and same_spread)


def _errors(comparison: "Comparison", kind: str, names: Sequence[str]) -> dict[str, float]:
    """Mean decoding error over the agents, of methods that have one."""
    columns = [f"{kind}_error_{agent}" for agent in comparison.demos.agents]
    if not all(column in comparison.table for column in columns):
        return {}
    means = comparison.table.loc[list(names), columns].astype(float).mean(axis=1)
    return {str(name): float(value) for name, value in means.items() if np.isfinite(value)}


def _uses(
    comparison: "Comparison", believed: Sequence[str], agreements: Mapping[str, Agreement]
) -> dict[str, str]:
    """For each purpose the fastest of the methods that do for it."""
    seconds = comparison.table["seconds"].astype(float).to_dict()

    def fastest(names: Sequence[str]) -> str:
        return min(names, key=lambda name: float(seconds[name]))

    uses = {}
    for purpose, kind in (("decoding", "viterbi"), ("live coach", "filtering")):
        errors = _errors(comparison, kind, believed)
        good = [name for name, one in errors.items() if one <= min(errors.values()) + _SAME_ERROR]
        if good:
            uses[purpose] = fastest(good)
        elif believed:
            uses[purpose] = fastest(believed)

    def honest(name: str) -> bool:
        if method_of(comparison.posteriors[name].method).answer != "approximation":
            return True
        return name in agreements and agreements[name].agrees

    sure = [name for name in believed if honest(name)]
    if sure:
        uses["intervals"] = fastest(sure)
    return {purpose: uses[purpose] for purpose in _PURPOSES if purpose in uses}


def _next_steps(
    comparison: "Comparison", doubted: Mapping[str, str], uses: Mapping[str, str]
) -> list[str]:
    steps = []
    for name in doubted:
        posterior = comparison.posteriors[name]
        about = time_of(_LONGER * posterior.wall_time)
        if method_of(posterior.method).answer == "chains":
            chains, number = _chains_and_draws(posterior)
            if chains < 2:
                steps.append(f"{name} with num_chains of 4: one chain shows nothing.")
                continue
            steps.append(
                f"{name} with num_warmup and num_samples of {_LONGER * number:,} (up to {about}); "
                "if its chains then still differ they are in different modes."
            )
        elif method_of(posterior.method).answer == "draws":
            steps.append(f"{name} with a larger num_draws or num_sweeps (up to {about}).")
        else:
            steps.append(f"{name} with a larger max_iterations (up to {about}).")
    if "intervals" not in uses:
        field = [n for n, p in comparison.posteriors.items() if p.method == "mfvi"]
        if field and field[0] not in doubted:
            steps.append(f"draws around {field[0]} (method refined) for its intervals.")
    return steps


def _chains_and_draws(posterior: Posterior) -> tuple[int, int]:
    """Chains, and draws of each."""
    log_likelihood = posterior.result.log_likelihood
    return (4, 1000) if log_likelihood is None else log_likelihood.shape[:2]


def _on_belief(believed: Sequence[str], doubted: Mapping[str, str]) -> str:
    said = f"{listed(list(believed))} converged." if believed else "No method converged."
    reasons = [f"{name} did not: {reason.rstrip('.')}." for name, reason in doubted.items()]
    return " ".join([said, *reasons])


def _modes(comparison: "Comparison") -> list[WeighedMode]:
    """The modes of the reference's draws; none where there is one alone."""
    weighed = comparison.weighed.get(comparison.reference, ())
    return list(weighed) if len(weighed) > 1 else []


def _on_modes(comparison: "Comparison") -> str:
    modes = _modes(comparison)
    return f"{comparison.reference}: {told_modes(modes)}." if modes else ""


def _on_agreement(comparison: "Comparison", agreements: Mapping[str, Agreement]) -> str:
    reference = comparison.reference
    if comparison.no_differences is not None:
        return f"Nothing is measured against {reference}, which has not converged."
    if not agreements:
        return ""
    same = {name: one for name, one in agreements.items() if one.agrees}
    said = []
    if same:
        verb = "agrees" if len(same) == 1 else "agree"
        most = max(one.mean_difference for one in same.values())
        ratios = sorted(one.sd_ratio for one in same.values() if not np.isnan(one.sd_ratio))
        told = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (ratios[:1] + ratios[-1:])))
        wide = f", intervals {told} as wide" if told else ""
        said.append(
            f"{listed(list(same))} {verb} with {reference}: means at most {most:.2f} sd off on "
            f"average{wide}."
        )
    for name, one in agreements.items():
        if not one.agrees:
            wide = "" if np.isnan(one.sd_ratio) else f", its intervals {one.sd_ratio:.2f} as wide"
            said.append(
                f"{name} differs from {reference}: its means are {one.mean_difference:.2f} sd off "
                f"on average{wide}."
            )
    return "On rows in use: " + " ".join(said)


def _on_decoding(comparison: "Comparison", uses: Mapping[str, str]) -> str:
    """Predicting well and decoding these labels well are two questions."""
    errors = _errors(comparison, "viterbi", list(comparison.posteriors))
    column = "log_likelihood_per_step"
    if len(errors) < 2 or column not in comparison.table:
        return ""
    decodes = min(errors, key=lambda name: errors[name])
    scores = comparison.table[column].astype(float)
    predicts = str(scores.idxmax())
    if decodes == predicts or errors[predicts] < errors[decodes] + _SAME_ERROR:
        return ""
    return (
        f"{predicts} predicts held-out actions best ({scores[predicts]:.3f} a step, {decodes} "
        f"{scores[decodes]:.3f}), {decodes} decodes the labels best ({errors[decodes]:.3f} wrong, "
        f"{predicts} {errors[predicts]:.3f}): what predicts actions need not be what was labelled."
    )


def _on_uses(uses: Mapping[str, str], tested: bool) -> str:
    if not uses:
        return "None of them can be used yet."
    words = {"decoding": "decoding", "intervals": "intervals", "live coach": "a live coach"}
    purposes: dict[str, list[str]] = {}
    for purpose, name in uses.items():
        purposes.setdefault(name, []).append(words[purpose])
    said = listed([f"{name} for {listed(own)}" for name, own in purposes.items()])
    missing = "" if "intervals" in uses else " Nobody's intervals can be believed yet."
    untested = "" if tested else " How well they decode was not tested: no held-out labels."
    return f"Use {said}.{missing}{untested}"
