"""`btil.fit`: one verb for every inference method."""

import inspect
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, overload

import numpy as np

from btil.arguments import check_options, check_seed, check_values
from btil.demonstrations import Demonstrations
from btil.demonstrations.coding import warn
from btil.demonstrations.stream import DemonstrationsFile
from btil.inference.checkpoint import Checkpoint, describe_run
from btil.inference.memory import check_memory
from btil.inference.method import fit_function, method_names, method_of
from btil.inference.processes import Processes, ending_with_others, gather, processes_of
from btil.inference.result import FitResult
from btil.messages.layout import lay_out
from btil.models.crowding import crowded
from btil.models.parametric import check_prior
from btil.models.team import BoundModel, TeamModel, likelihood_name, refuse_emissions
from btil.numerics.precision import as_dtype, precision
from btil.numpyro_forms.numpyro_model import BoundNumpyroModel, NumpyroModel, rows_somewhere
from btil.posterior.beliefs import Posterior, filter_agents, refuse_impossible
from btil.posterior.numpyro_posterior import NumpyroPosterior, bind_model, posterior_class
from btil.posterior.posterior import TeamPosterior

_OWN_ARGUMENTS = ("bound", "seed", "progress", "dtype", "checkpoint")


@overload
def fit(
    model: NumpyroModel, demos: Demonstrations, method: str, **given: Any
) -> NumpyroPosterior: ...


@overload
def fit(
    model: TeamModel,
    demos: Demonstrations | DemonstrationsFile,
    method: str = "mfvi",
    **given: Any,
) -> TeamPosterior: ...


def fit(
    model: TeamModel,
    demos: Demonstrations | DemonstrationsFile,
    method: str = "mfvi",
    *,
    seed: int = 0,
    progress: bool = True,
    dtype: Any = None,
    checkpoint: Any = None,
    resume: bool = False,
    **options: Any,
) -> Posterior:
    """Infer a team's policies, transitions and initial distributions from demonstrations.

    Args:
        model: What is believed before: tables, or a `NumpyroModel`.
        demos: What was seen; labels, where there are any, are conditioned on. A file that
            `open_demonstrations` opened is learned from batch by batch and never in memory as a
            whole: by mfvi with a `batch_size`.
        method: "mfvi" (the paper's Algorithm 1), "svi", "nuts", "gibbs" or "exact"; of a
            `NumpyroModel` "svi" or "nuts".
        seed: A non-negative integer; the same seed gives the same bits.
        progress: Whether to show a progress line on standard error.
        dtype: float32 or float64; None is float64 for nuts and exact and wherever JAX's 64-bit
            mode is on, else float32. float64 needs no global switch.
        checkpoint: A file in which the run saves its progress as it goes, and what it ended with;
            None: nowhere. It is written whole or not at all, at most once in two seconds and so
            that writing takes a twentieth of the time.
        resume: Go on from the checkpoint, where there is one, to the answer that a run of one
            piece gives, bit by bit. Without it an existing file is refused.
        **options: Options of the method, e.g. `num_chains`, `num_warmup`, `num_samples` (nuts,
            gibbs), `keep_rows` (gibbs), `num_restarts`, `batch_size` (mfvi), `tolerance`,
            `max_iterations` (mfvi, svi), `devices` (mfvi, nuts, gibbs).

    Returns:
        The posterior, with the same interface for every method.

    Raises:
        ValueError: If the method or an option's value is unknown, the model does not fit the
            data, or the data are impossible under the model (naming episode, agent and step);
            if a checkpoint is damaged, none of btil's, or that of another run.
        FileExistsError: If the checkpoint exists and `resume` was not asked for.
        TypeError: If the method has no such option; the message lists those it has.

    Warns:
        DataWarning: If the model cannot learn from a table: its contexts are more than a third
            of the steps that read it, and these are 30 or more (10 where a single state variable
            has so many values: a column of notes or of times).

    Example:
        >>> posterior = btil.fit(model, demos, method="mfvi")  # doctest: +SKIP
    """
    check_given(method, options, model)
    seed = check_seed(seed, 2**32 - 1)
    check_values({"progress": progress, "resume": resume})
    check_model(model)
    begun = time.perf_counter()
    if isinstance(demos, DemonstrationsFile):
        _check_file(method, model, options)
        if options["batch_size"] < _count_episodes(demos, processes_of(options.get("devices"))):
            return _fit_file(model, demos, seed, progress, dtype, checkpoint, resume, options)
        demos = demos.read()
    elif not isinstance(demos, Demonstrations):
        raise ValueError(
            "demos must be Demonstrations, or a file opened by open_demonstrations; got "
            f"{type(demos).__name__}"
        )
    fitted = fit_bound(
        bind_model(model, demos),
        method,
        seed=seed,
        progress=progress,
        dtype=dtype,
        checkpoint=checkpoint,
        resume=resume,
        **options,
    )
    return replace(fitted, wall_time=time.perf_counter() - begun)


def fit_again(
    posterior: Posterior, demos: Demonstrations, *, seed: int, progress: bool
) -> Posterior:
    """`fit` of other demonstrations by the model, method and options of a posterior.

    Args:
        posterior: The posterior.
        demos: The demonstrations.
        seed: The seed.
        progress: Whether to show a progress line.
    """
    return fit(
        posterior.model,
        demos,
        posterior.method,
        seed=seed,
        progress=progress,
        dtype=posterior.dtype,
        **posterior.options,
    )


def fit_bound(
    bound: BoundModel,
    method: str,
    *,
    seed: int,
    progress: bool,
    dtype: Any = None,
    checkpoint: Any = None,
    resume: bool = False,
    **options: Any,
) -> Posterior:
    """`fit` of a model that is on its demonstrations already; options are not looked at again.

    Raises:
        ValueError: As `fit`.
        FileExistsError: As `fit`.
    """
    begun = time.perf_counter()
    model = bound.model
    function = method_function(method, model)
    chosen = _dtype_of(method, dtype)
    warn(crowded(bound))
    every_option = method_options(method, model) | options
    if bound.learns:
        check_memory(bound, every_option, chosen)
    saved = checkpoint is not None
    run = describe_run(bound, method, seed, chosen, every_option) if saved else None
    saving = Checkpoint(checkpoint, run, resume)
    log_evidence = _check_possible(bound)
    if bound.learns:
        with precision(chosen), saving.kept(), ending_with_others():
            result = function(
                bound, seed=seed, progress=progress, dtype=chosen, checkpoint=saving, **options
            )
    else:
        result = _nothing_to_learn(method, log_evidence)
    return posterior_class(bound)(
        bound=bound,
        method=method,
        result=result,
        seed=seed,
        dtype=chosen,
        wall_time=time.perf_counter() - begun,
        options=options,
    )


def _dtype_of(method: str, dtype: Any) -> np.dtype:
    return as_dtype(np.float64 if dtype is None and method_of(method).double else dtype)


def check_model(model: Any) -> None:
    """Refuse what is no model.

    Raises:
        ValueError: Naming what it is.
    """
    if not isinstance(model, TeamModel):
        raise ValueError(f"model must be a TeamModel, got {type(model).__name__}")


def method_function(method: str, model: Any = None) -> Any:
    """The `fit` function of a method, for a model.

    Raises:
        ValueError: If there is no such method, or it does not fit the model.
    """
    function = fit_function(method)
    if isinstance(model, NumpyroModel) and not method_of(method).own_models:
        able = " or ".join(sorted(name for name in method_names() if method_of(name).own_models))
        raise ValueError(f"method {method!r} needs tables; {model} is fitted by {able}")
    if isinstance(model, TeamModel) and not method_of(method).channels:
        able = " or ".join(sorted(name for name in method_names() if method_of(name).channels))
        refuse_emissions(model, f"method {method!r}", f"use {able}")
    return function


def check_given(
    method: str, options: Mapping[str, Any], model: Any = None, owner: str | None = None
) -> None:
    """Refuse options that a method does not have, and values that they cannot have.

    Args:
        method: The method.
        options: The options given.
        model: The model; None: any with tables.
        owner: Whose options they are, for the message; None: the method's.

    Raises:
        TypeError: Naming the unknown options and those it has.
        ValueError: Naming the option, what it may be and what was given.
    """
    defaults = method_options(method, model)
    allowed = defaults if owner is None else [*defaults, "dtype"]
    check_options(method if owner is None else owner, options, allowed)
    check_values(options, [name for name, default in defaults.items() if default is None])
    if "dtype" in options:
        as_dtype(options["dtype"])


def method_options(method: str, model: Any = None) -> dict[str, Any]:
    """Options of a method, for a model, with their defaults."""
    parameters = inspect.signature(method_function(method, model)).parameters
    return {
        name: parameter.default
        for name, parameter in parameters.items()
        if name not in _OWN_ARGUMENTS
    }


def _check_possible(bound: BoundModel) -> float:
    """Refuse impossible data; the log evidence at prior means (all there is if nothing learns).

    Rows with a Dirichlet prior make everything possible: only given zeros can exclude the data,
    so the prior's means (or an own model's rows at one point) stand for all that could be learned.
    Where there is something to learn and no zero, no message is passed, and the answer is NaN.
    """
    with precision(np.float64) as dtype:
        if isinstance(bound, BoundNumpyroModel):
            tables = rows_somewhere(bound)
        else:
            for table in bound.learned.values():
                check_prior(table)
            tables = {name: table.prior_mean() for name, table in bound.tables.items()}
        measured = {likelihood_name(agent) for agent in bound.demos.agents}
        excludes = (
            np.any(np.isneginf(rows) if name in measured else ~(rows > 0))
            for name, rows in tables.items()
        )
        if bound.learns and not any(excludes):
            return float("nan")
        layout = lay_out(bound, coarse=True)
        total = 0.0
        for agent, filtered in filter_agents(layout, tables, dtype).items():
            refuse_impossible(bound.demos, agent, filtered.log_normalizer, layout)
            total += float(np.sum(np.asarray(filtered.log_normalizer)[layout.lanes >= 0]))
    return total


def _check_file(method: str, model: TeamModel, options: dict[str, Any]) -> None:
    """Refuse what cannot be learned from a file batch by batch."""
    instead = "read_demonstrations reads the file whole, for all methods"
    if isinstance(model, NumpyroModel):
        raise ValueError(f"{model} is fitted to demonstrations in memory; {instead}")
    if not method_of(method).reads_files or options.get("batch_size") is None:
        raise ValueError(
            "a file opened by open_demonstrations is learned from batch by batch, by method "
            f"'mfvi' with batch_size=...; {instead}"
        )


def _count_episodes(file: DemonstrationsFile, processes: Processes) -> int:
    """Episodes of a file; of several processes each counts those of its part."""
    if processes.number == 1:
        return file.num_episodes
    counts = gather(processes, lambda: np.array([file.shard(*processes).num_episodes]))
    return int(np.sum(counts))


def _fit_file(
    model: TeamModel,
    file: DemonstrationsFile,
    seed: int,
    progress: bool,
    dtype: Any,
    checkpoint: Any,
    resume: bool,
    options: dict[str, Any],
) -> Posterior:
    """Mean field by batches that are read from a file when they are needed."""
    from btil.inference import stochastic
    from btil.inference.mfvi import channel_outline
    from btil.inference.streaming import streamed

    begun = time.perf_counter()
    chosen = _dtype_of("mfvi", dtype)
    if checkpoint is None or not resume:
        Checkpoint(checkpoint, resume=resume)  # what it refuses, it refuses before a long pass
    size, processes = options["batch_size"], processes_of(options.get("devices"))
    with streamed(model, file, _check_possible, size, processes) as (data, log_evidence, checksum):
        warn(crowded(data.bound, int(data.lengths.sum()), len(data.lengths)))
        if data.bound.learns:
            every_option = method_options("mfvi", model) | options
            every_option["episodes"] = (data.lengths, checksum)
            run = describe_run(data.bound, "mfvi", seed, chosen, every_option)
            saving = Checkpoint(checkpoint, run, resume)
            with precision(chosen), saving.kept(), ending_with_others():
                result = stochastic.fit(
                    data,
                    seed=seed,
                    progress=progress,
                    dtype=chosen,
                    checkpoint=saving,
                    outline=channel_outline,
                    **options,
                )
        else:
            result = _nothing_to_learn("mfvi", log_evidence)
    return TeamPosterior(
        bound=data.bound,
        method="mfvi",
        result=result,
        seed=seed,
        dtype=chosen,
        wall_time=time.perf_counter() - begun,
        options=options,
    )


def _nothing_to_learn(method: str, log_evidence: float) -> FitResult:
    known = method_of(method)
    return FitResult(
        rows={},
        converged=True,
        reason="nothing to learn: every table is given",
        elbo=log_evidence if known.bounds else None,
        elbo_standard_error=0.0 if known.noisy else None,
        elbo_trace=np.array([log_evidence]) if known.bounds else None,
    )
