"""Checkpoints: a run saves how far it has come, and goes on from there to the same bits.

A method offers its progress after every block of work. Now and then an offer is written, whole or
not at all; so is the last one, when a run ends or is interrupted. The file is a zip archive of
NumPy arrays (no pickle), each with a checksum, and says which run it belongs to.
"""

import contextlib
import json
import os
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from btil.files import check_writable, replacing
from btil.identity import checksum as _digest
from btil.inference.method import method_of
from btil.models.cpt import CPT
from btil.models.parametric import ParametricCPT, all_priors, parametric_sites
from btil.models.team import BoundModel, Table
from btil.numerics.precision import precision
from btil.numpyro_forms.numpyro_model import BoundNumpyroModel, computes

_FORMAT = "btil checkpoint"
_VERSION = 1
_RUN = "run"
# Between two writes at least so many seconds, and so many times what a write takes: the share of
# the time that goes into writing is small, however large the progress.
LEAST_SECONDS = 2.0
_TIMES_A_WRITE = 20.0
_SECONDS_TO_RETRY = 60.0
# These decide the bits of an answer, but not what is right.
_LIBRARIES = ("btil", "jax", "jaxlib", "numpyro", "numpy")
# Of these, those by which a function's program is written as it is.
_WRITE_PROGRAMS = ("btil", "jax", "numpyro")
# What a run's description calls what an own model's function computes.
_FUNCTION = "function"

Run = dict[str, str]


class Checkpoint:
    """Where a run saves its progress. Without a path nothing is saved.

    Args:
        path: The file.
        run: What the run is (`describe_run`); a file of another run is refused.
        resume: Go on from the file, where there is one.

    Raises:
        FileExistsError: If there is a file and it is not to be resumed.
        ValueError: If the file is damaged, no checkpoint, or that of another run.
        OSError: If it could not be written.
    """

    def __init__(self, path: Any = None, run: Run | None = None, resume: bool = False) -> None:
        # A link stays a link: what it points to is written.
        self.path = None if path is None else Path(os.path.realpath(path))
        self.saved: Saved | None = None
        self._run = run or {}
        self._offered: Mapping[str, Any] | None = None
        self._own = False
        self._due = 0.0
        if self.path is None:
            if resume:
                raise ValueError("resume=True needs the checkpoint=PATH to resume from")
            return
        check_writable(self.path)
        if self.path.exists():
            if not resume:
                raise FileExistsError(
                    f"{self.path} exists; pass resume=True (--resume) to go on from it, or remove "
                    "it to start over"
                )
            self.saved = Saved(_read(self.path, self._run))
            self._own = True

    def offer(self, **progress: Any) -> None:
        """Hand over what the run needs to go on from here; it is written if it is time to.

        Args:
            progress: Trees of arrays and numbers by name. What they hold must not change before
                the next offer.

        Raises:
            OSError: If the first write fails: there is nothing to lose yet. Later on that is a
                warning, and the run goes on.
        """
        if self.path is None:
            return
        self._offered = progress
        if time.monotonic() >= self._due:
            self._write_or_warn()

    def _write_or_warn(self) -> None:
        try:
            self.write()
        except OSError as error:
            if not self._own:
                raise
            self._due = time.monotonic() + max(LEAST_SECONDS, _SECONDS_TO_RETRY)
            warnings.warn(
                f"{self.path} could not be written ({error.strerror or error}) and is as it was "
                "before; the run goes on and tries again later",
                stacklevel=3,
            )

    def write(self) -> None:
        """Write the last offer, unless that was done; of several processes the first does."""
        if self.path is None or self._offered is None or jax.process_index() > 0:
            return
        if not self._own and self.path.exists():
            raise FileExistsError(f"{self.path} has just been made by another run")
        begun = time.monotonic()
        arrays = {
            f"{name}:{k}": _as_array(leaf)
            for name, tree in self._offered.items()
            for k, leaf in enumerate(jax.tree.leaves(tree))
        }
        head = {"format": _FORMAT, "version": _VERSION, "run": self._run, "made_by": _versions()}
        with replacing(self.path) as temporary, open(temporary, "wb") as handle:
            np.savez(handle, allow_pickle=False, **{_RUN: np.array(json.dumps(head))}, **arrays)
        self._own = True
        self._offered = None
        ended = time.monotonic()
        self._due = ended + max(LEAST_SECONDS, _TIMES_A_WRITE * (ended - begun))

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """While this lasts, whatever ends the run leaves its last offer in the file."""
        try:
            yield
        except BaseException as error:
            if self.path is not None:
                # What ended the run is what should be told, not that it could not be saved.
                with contextlib.suppress(Exception):
                    self.write()
                if self.path.exists():
                    error.add_note(f"{self.path} holds the run; resume=True (--resume) goes on")
            raise
        self._write_or_warn()


NOWHERE = Checkpoint()


class Saved:
    """What a checkpoint holds.

    Args:
        arrays: Leaves of the trees that were offered, by name and number.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = arrays

    def __contains__(self, name: str) -> bool:
        return f"{name}:0" in self._arrays

    def array(self, name: str) -> np.ndarray:
        """What was offered as a single array or number."""
        return self._arrays[f"{name}:0"]

    def arrays(self, name: str) -> list[np.ndarray]:
        """What was offered as a list of arrays."""
        found: list[np.ndarray] = []
        while (key := f"{name}:{len(found)}") in self._arrays:
            found.append(self._arrays[key])
        return found

    def tree(self, name: str, like: Any) -> Any:
        """What was offered as a tree of JAX arrays.

        Args:
            name: Its name.
            like: A tree of the same structure, of arrays or of their shapes.
        """
        leaves, structure = jax.tree.flatten(like)
        return jax.tree.unflatten(
            structure,
            [_as_leaf(array, leaf) for array, leaf in zip(self.arrays(name), leaves, strict=True)],
        )


def _as_array(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _as_leaf(array: np.ndarray, like: Any) -> Any:
    if not jnp.issubdtype(like.dtype, jax.dtypes.prng_key) and array.shape != like.shape:
        raise ValueError(f"the checkpoint holds shape {array.shape} where {like.shape} is expected")
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(array))
    return jnp.asarray(array, like.dtype)


def _read(path: Path, run: Run) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint.

    Raises:
        ValueError: If it is none, is damaged, or belongs to another run.
    """
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("not an archive")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        head = json.loads(str(arrays.pop(_RUN)))
        if head["format"] != _FORMAT:
            raise ValueError("another format")
        found, made_by = dict(head["run"]), dict(head["made_by"])
    except MemoryError:
        raise
    except Exception as error:
        # Damage shows in many ways: wrong checksums, lengths, headers, names.
        raise ValueError(
            f"{path} is not a checkpoint of btil, or is damaged; remove it, or name another file, "
            "to start over"
        ) from error
    if head["version"] != _VERSION:
        raise ValueError(f"{path} has format version {head['version']}, this btil reads {_VERSION}")
    now = _versions()
    differing = [name for name in {**run, **found} if run.get(name) != found.get(name)]
    if any(made_by.get(name) != now[name] for name in _WRITE_PROGRAMS):
        # Other versions write the same program in another way.
        differing = [name for name in differing if name != _FUNCTION]
    if "method" in differing:
        differing = ["method"]  # the others follow from it
    if differing:
        listed = "; ".join(
            f"{name}: {found.get(name, 'none')} there, {run.get(name, 'none')} here"
            for name in differing
        )
        raise ValueError(f"{path} is the checkpoint of another run ({listed})")
    changed = [f"{name} {made_by[name]}, now {now[name]}" for name in now if name in made_by]
    if made_by != now:
        warnings.warn(
            f"{path} was written under {', '.join(changed)}: the run goes on, but its answer may "
            "differ from that of one piece in the last digits",
            stacklevel=2,
        )
    return arrays


def _versions() -> dict[str, str]:
    return {name: version(name) for name in _LIBRARIES}


# ---------------------------------------------------------------------- which run it is


def describe_run(
    bound: BoundModel, method: str, seed: int, dtype: np.dtype, options: Mapping[str, Any]
) -> Run:
    """What decides the bits of a run, in words where short and as checksums elsewhere.

    On how many devices mfvi and gibbs run is left out: they may go on on others, to the same
    answer up to rounding. An own model's function counts twice: by what Python sees of it, and by
    what it computes.
    """
    demos = bound.demos
    data: tuple[Any, ...] = (
        dict(demos.state_variables),
        demos.actions,
        demos.latents,
        demos.episode_lengths,
        demos.agents,
        demos.num_actions,
        demos.num_latents,
    )
    if demos.latent_weights or demos.away or demos.unseen:
        data += (demos.present, demos.latent_weights)
    run = {"method": method, "seed": str(seed), "dtype": dtype.name}
    free = method_of(method).free
    run |= {name: _told(value) for name, value in options.items() if name not in free}
    run |= {"model": _digest(_model_record(bound)), "demonstrations": _digest(data)}
    if isinstance(bound, BoundNumpyroModel):
        with precision(dtype):
            run[_FUNCTION] = computes(bound).identity
    return run


def _model_record(bound: BoundModel) -> Any:
    if isinstance(bound, BoundNumpyroModel):
        return bound.own_model.function, bound.parameters, bound.data
    tables = [
        (name, table.agents, table.contexts._asdict(), _numbers_of(table), _settings(table.cpt))
        for name, table in bound.tables.items()
    ]
    channels = [
        (one.name, type(one.family), one.family.arguments(), one.observed._asdict(), one.row)
        for one in bound.channels.values()
    ]
    recorded = tables, all_priors(parametric_sites(bound))
    return (*recorded, channels) if channels else recorded


def _numbers_of(table: Table) -> Any:
    if table.learned and isinstance(table.cpt, ParametricCPT):
        return table.cpt.inputs(table.contexts), table.prior_mean()
    return table.cpt.concentration(table.contexts) if table.learned else table.prior_mean()


def _settings(cpt: CPT) -> Any:
    """The family and, of one with parameters, all that it was made of: its rows tell not all."""
    if not cpt.parametric:
        return type(cpt)
    arguments = cpt.arguments()
    return type(cpt), vars(cpt) if arguments is None else arguments


def _told(value: Any) -> str:
    """An option as a person would write it; a checksum of what is long."""
    if isinstance(value, np.generic):
        value = value.item()
    return repr(value) if isinstance(value, str | int | float | bool | None) else _digest(value)
