"""Give every number that people give wrong values; print a line for each that is not refused.

Methods' options and public functions are found by their signatures, so that none is forgotten.
"""

import inspect
import math
from functools import partial
from typing import Any, cast

import jax.numpy as jnp
import numpyro
from numpyro import distributions as dist
from teams import hmm_demos

import btil
from btil.analysis import log_evidence
from btil.arguments import is_known
from btil.posterior.fit import method_options

WRONG = (True, "x", [1], None, math.nan, math.inf, -1, 2.5, 1j)
# Of what is True or False.
NO_FLAGS = ("no", 1, None)
# Options that their method checks by itself: no numbers, or not always.
UNBOUNDED = {"delay", "learning_rate", "tolerance", "within"}
OTHERS = {"guide", "start", "keep_rows", "dtype"}


def own_model(data: Any) -> None:
    skill = numpyro.sample("skill", dist.Beta(2.0, 2.0))
    rows = skill * jnp.eye(2) + (1 - skill) / 2
    data.observe("agent_0", jnp.log(jnp.full(2, 0.5)), jnp.log(rows), jnp.log(rows))


HMM = btil.TeamModel(btil.DirichletCPT(1.0), btil.DirichletCPT(1.0))
MODELS = {"tables": HMM, "own": btil.NumpyroModel(own_model)}
METHODS = [(m, "tables") for m in ("mfvi", "svi", "nuts", "gibbs", "exact")]
METHODS += [("svi", "own"), ("nuts", "own")]


def wrong_values(name: str, default: Any) -> list[Any]:
    """Values that an argument of this name cannot have."""
    return [
        value
        for value in (NO_FLAGS if isinstance(default, bool) else WRONG)
        if not (value == 2.5 and name in UNBOUNDED) and not (value is None and default is None)
    ]


def report(place: str, name: str, value: Any, call: Any) -> None:
    """Print a line unless the call is refused by one sentence that names argument and value."""
    try:
        call(**{name: value})
        told = "it is accepted"
    except ValueError as error:
        told = str(error)
        if name in told and repr(value) in told and "\n" not in told:
            return
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    print(f"{place}, {name}={value!r}: {told}")


def check_methods() -> None:
    """Every option of every method, as the signatures have them, and what all methods take."""
    demos = hmm_demos([0, 0, 1, 1], [0, -1, -1, 1])
    for method, kind in METHODS:
        call = partial(btil.fit, MODELS[kind], demos, method, progress=False)
        of_all = {"seed": 0, "dtype": None, "progress": True, "resume": False}
        options = method_options(method, MODELS[kind]) | of_all
        for name, default in options.items():
            if not is_known(name) and name not in OTHERS:
                print(f"nothing checks {name} of {method}")
            for value in wrong_values(name, default):
                report(f"{method} of {kind}", name, value, call)
    for value in (True, ["mfvi"], -1):
        report("fit", "method", value, partial(btil.fit, HMM, demos, progress=False))


def small_posterior() -> btil.TeamPosterior:
    demos = hmm_demos([0, 0, 1, 1], [0, -1, -1, 1])
    return btil.fit(HMM, demos, progress=False, max_iterations=3)


def analysis_calls() -> dict[str, Any]:
    """How each public function that takes a number is called, the number apart."""
    one = small_posterior()
    demos = one.demos
    calls = {
        f"TeamPosterior.{name}": partial(getattr(one, name), demos)
        for name in (
            "decode",
            "filter",
            "log_likelihood",
            "predict_actions",
            "predict_columns",
            "smooth",
        )
    }
    task = btil.domains.movers(map="tiny")
    played = task.simulate(1)
    return calls | {
        "TeamPosterior.actors": partial(one.actors, "draw"),
        "TeamPosterior.drawn_tables": lambda **given: next(
            one.drawn_tables(**{"num_draws": 1, **given})
        ),
        "TeamPosterior.refined": partial(one.refined, progress=False),
        "TeamPosterior.sample": lambda **given: one.sample(**{"num_draws": 1, **given}),
        "TeamPosterior.to_datatree": one.to_datatree,
        "TeamPosterior.tracker": one.tracker,
        "animate_motion": partial(
            btil.analysis.animate_motion, demos, 0, {"agent_0": ("x", "y")}, "walk.gif"
        ),
        "calibrate": partial(btil.analysis.calibrate, HMM, demos, "mfvi", progress=False),
        "choose_rows": partial(btil.analysis.choose_rows, one),
        "compare": partial(btil.compare, HMM, demos, methods=("mfvi", "gibbs")),
        "rank_models": partial(btil.analysis.rank_models, {"one": one, "other": one}),
        "compare_posteriors": partial(btil.analysis.compare_posteriors, {"one": one, "other": one}),
        "debrief": partial(btil.analysis.debrief, one, demos, "nowhere"),
        "decode_file": partial(btil.analysis.decode_file, one, cast(Any, None), "nowhere.parquet"),
        "score_file": partial(btil.analysis.score_file, one, cast(Any, None)),
        "learn": partial(btil.imitation.learn, cast(Any, None), demos),
        "log_evidence": partial(log_evidence, HMM, demos),
        "play": lambda **given: btil.domains.play(
            task, task.policies(), **{"num_episodes": 1, **given}
        ),
        "plot_alignment": partial(btil.analysis.plot_alignment, one, demos, 0),
        "plot_courses": partial(btil.analysis.plot_courses, {}),
        "plot_ecdf_pit": partial(btil.analysis.plot_ecdf_pit, {}),
        "plot_method_against_method": partial(
            btil.analysis.plot_method_against_method, one, {"one": one}
        ),
        "plot_policy_rows": partial(btil.analysis.plot_policy_rows, one, "agent_0"),
        "plot_prior_posterior": partial(btil.analysis.plot_prior_posterior, one),
        "plot_prior_predictive": partial(btil.analysis.plot_prior_predictive, HMM, demos),
        "plot_restarts": partial(btil.analysis.plot_restarts, one),
        "plot_row_diagnostics": partial(btil.analysis.plot_row_diagnostics, one),
        "plot_timeline": partial(btil.analysis.plot_timeline, one, demos, 0),
        "plot_transition_graph": partial(btil.analysis.plot_transition_graph, one, "agent_0"),
        "posterior_predictive_check": partial(btil.analysis.posterior_predictive_check, one),
        "record": lambda **given: btil.domains.record(None, {}, **{"num_episodes": 1, **given}),
        "reproduce": partial(btil.analysis.reproduce, "table1", "nowhere"),
        "suggest_model": partial(btil.suggest_model, demos, progress=False),
        "simulate_truth": partial(btil.analysis.simulate_truth, HMM, demos),
        "team_performance": partial(btil.analysis.team_performance, task, played),
    }


def public_numbers() -> dict[str, list[inspect.Parameter]]:
    """Of each public function, the arguments that `check_values` knows."""
    found = {}
    places = [(btil.analysis, ""), (btil, ""), (btil.domains, ""), (btil.imitation, "")]
    for owner, prefix in [*places, (btil.TeamPosterior, "TeamPosterior.")]:
        for name in dir(owner):
            function = getattr(owner, name)
            if name.startswith("_") or not inspect.isfunction(function):
                continue
            known = [p for p in inspect.signature(function).parameters.values() if is_known(p.name)]
            if known:
                found[prefix + name] = known
    del found["fit"]  # above
    # Asked by the package itself, of numbers already checked.
    del found["TeamPosterior.drawn_rows"], found["TeamPosterior.drawn_channel"]
    return found


def check_functions() -> None:
    """Every number that a public function takes."""
    numbers, calls = public_numbers(), analysis_calls()
    for name in sorted(set(numbers) ^ set(calls)):
        print(f"{name} is not as this file has it")
    for name in set(numbers) & set(calls):
        for parameter in numbers[name]:
            for value in wrong_values(parameter.name, parameter.default):
                report(name, parameter.name, value, calls[name])


if __name__ == "__main__":
    check_methods()
    check_functions()
