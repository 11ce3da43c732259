"""Less of everything that takes long, for pages of the documentation that are run as printed."""

import functools
import inspect
import sys
from typing import Any

import pytest

import btil
from btil.posterior import fit as fitting

# So little is done of what is asked for.
LITTLE = {
    "num_warmup": 3,
    "num_samples": 8,
    "num_restarts": 2,
    "max_iterations": 3,
    "num_particles": 1,
}
# Moves of whole paths in an iteration of gibbs.
FEW_MOVES = {"WINDOW": 4, "LONGEST_RUN": 4, "RUNS": 3, "SWAPS": 2}
# Leaving episodes out by weighing draws, as this page does, needs more of them.
MORE = {"docs/tutorials/comparison.md": {"num_warmup": 100, "num_samples": 100}}


def do_little(name: str, patch: pytest.MonkeyPatch) -> None:
    """Let everything that takes long do less, wherever it is called from.

    Args:
        name: Of the page.
        patch: What it is exchanged with.
    """
    from btil.analysis import compare
    from btil.inference import chains, path_moves, svi

    # Names of btil are looked up once: it has to be before they are exchanged, or `btil.fit` stays
    # the little one for all tests to come.
    whole, whole_bound = btil.fit, fitting.fit_bound

    def fewer(model: Any, method: str, options: dict[str, Any]) -> dict[str, Any]:
        known = fitting.method_options(method, model)
        little = {
            option: min(limit, options.get(option, known[option]))
            for option, limit in (LITTLE | MORE.get(name, {})).items()
            if option in known
        }
        return options | little

    def little_fit(model: Any, demos: Any, method: str = "mfvi", **options: Any) -> Any:
        return whole(model, demos, method, **fewer(model, method, options))

    def little_fit_bound(bound: Any, method: str, **options: Any) -> Any:
        return whole_bound(bound, method, **fewer(bound.model, method, options))

    for module in list(sys.modules.values()):
        for function, little in ((whole, little_fit), (whole_bound, little_fit_bound)):
            own = module.__dict__.get(function.__name__)
            if module.__name__.startswith("btil") and own is function:
                patch.setattr(module, function.__name__, little)
    patch.setattr(btil, "fit", little_fit)
    few_particles = {"num_replicates": 2, "num_particles": 4, "num_temperatures": 2}
    for module, function, limits in (
        (btil.analysis, "calibrate", {"num_simulations": 10}),
        (btil.analysis, "posterior_predictive_check", {"num_draws": 20}),
        (compare, "blocks_of_draws", {"num_draws": 20}),
        (compare, "estimate_bound", few_particles),
    ):
        patch.setattr(module, function, at_most(getattr(module, function), limits))
    for constant, value in FEW_MOVES.items():
        patch.setattr(path_moves, constant, value)
    # Programs that draw so few particles are nobody else's.
    patch.setattr(svi, "_BOUND_PARTICLES", 50)
    patch.setattr(svi, "make_programs", svi.make_programs.__wrapped__)
    # Chains so short do not agree; what is drawn of those that do is drawn all the same.
    patch.setattr(chains, "RHAT_LIMIT", float("inf"))


def at_most(function: Any, limits: dict[str, int]) -> Any:
    """The function with some of its arguments made smaller."""

    @functools.wraps(function)
    def less(*arguments: Any, **options: Any) -> Any:
        given = inspect.signature(function).bind(*arguments, **options)
        own = given.arguments.get("options", {}) if "options" in given.signature.parameters else {}
        for name, limit in limits.items():
            place = given.arguments if name in given.signature.parameters else own
            place[name] = min(limit, place.get(name, limit))
        if own:
            given.arguments["options"] = own
        return function(*given.args, **given.kwargs)

    return less
