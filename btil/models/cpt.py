"""Conditional probability tables: families, parents and priors.

A table holds one probability row for each value of its parents (a *context*) and, for
policies and transitions, for each latent. A family says what is believed of the rows:
learned with a Dirichlet prior, known, static or uniform.
"""

import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.arguments import check_number
from btil.models.contexts import known_after

Parents = tuple[str, ...] | Mapping[str, tuple[str, ...]]
ROLES = ("policy", "transition", "initial")
# Concentrations whose sums, logs and digammas are numbers in single precision as well.
CONCENTRATIONS = (1e-30, 1e30)
# What rounding may do to the sum of a probability vector: single-precision tables are welcome.
SUM_TOLERANCE = 1e-5
# Numbers that a repr writes out.
_MOST_WRITTEN = 1000


def improper_rows(rows: Float[np.ndarray, "*rows values"]) -> Bool[np.ndarray, "*rows"]:
    """Which rows are no probability vectors: negative, not finite, or with another sum than 1."""
    good = (np.isfinite(rows) & (rows >= 0)).all(-1)
    sums = np.where(good[..., None], rows, 0.0).sum(-1)
    # Of a single row NumPy makes a scalar.
    return np.asarray(~(good & (np.abs(sums - 1) <= SUM_TOLERANCE)))


def permuted_latents(
    values: Float[np.ndarray, "..."], role: str, permutation: Int[np.ndarray, " latents"]
) -> Float[np.ndarray, "..."]:
    """Rows of a table with its latents renamed: the new latent k is the old `permutation[k]`.

    A policy has latents on its last axis but one, a transition on both, an initial on its last.
    """
    if role != "policy":
        values = values[..., permutation]
    return values if role == "initial" else values[..., permutation, :]


class Contexts(NamedTuple):
    """The contexts for which a table's rows are asked.

    Attributes:
        role: "policy", "transition" or "initial".
        owner: The agents whose table this is, for error messages.
        parents: The parents as the modeler wrote them, e.g. `("state", "actions")`.
        names: The expanded parents, one per column, e.g. `("x", "y", "action_alice")`.
        sizes: Number of values of each expanded parent.
        groups: For each entry of `parents`, the columns it expands to.
        rows: Values of the expanded parents, one context per row.
        num_latents: Number of latents K.
        num_values: Number of columns V of a probability row: actions or next latents.
    """

    role: str
    owner: str
    parents: tuple[str, ...]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    rows: Int[np.ndarray, "contexts parents"]
    num_latents: int
    num_values: int

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one context's block: (K, V), or (V,) for an initial table."""
        if self.role == "initial":
            return (self.num_values,)
        return (self.num_latents, self.num_values)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the table: contexts, then `row_shape`."""
        return (len(self.rows), *self.row_shape)

    def joint(self, columns: Sequence[int]) -> Int[np.ndarray, " contexts"]:
        """Row-major joint index of some columns, the first most significant."""
        sizes = [self.sizes[column] for column in columns]
        if np.prod(sizes, dtype=float) > np.iinfo(np.int64).max:
            raise ValueError(
                f"{self.role} of {self.owner}: the joint index of {len(sizes)} parents overflows "
                "64 bits; name single state variables as parents instead"
            )
        self.refuse_values_of_none(columns)
        joint = np.zeros(len(self.rows), np.int64)
        for column, size in zip(columns, sizes, strict=True):
            joint = joint * size + self.rows[:, column]
        return joint

    def refuse_values_of_none(self, columns: Sequence[int]) -> None:
        """Refuse contexts in which a parent has no value: it was not seen, or is away.

        Raises:
            ValueError: Naming the table and the parent.
        """
        for column in columns:
            if (self.rows[:, column] < 0).any():
                raise ValueError(
                    f"{self.role} of {self.owner}: the parent {self.names[column]} has no value in "
                    "some steps (nobody saw it, the member is away, or no step is before), and a "
                    "given table or a function has no row for that; use a DirichletCPT, which "
                    "learns one, or leave out the parent"
                )

    def columns(self) -> dict[str, Int[np.ndarray, " contexts"]]:
        """The mapping that a `KnownCPT` function receives: parent name to values."""
        self.refuse_values_of_none(range(len(self.names)))
        mapping = {name: self.rows[:, i].copy() for i, name in enumerate(self.names)}
        for parent, group in zip(self.parents, self.groups, strict=True):
            if parent in ("state", "next_state"):
                mapping[parent] = self.joint(group)
            elif len(group) == 1:  # under the name that it was given, such as "own_cell"
                mapping.setdefault(parent, self.rows[:, group[0]].copy())
        return mapping


def check_parents(parents: Any, family: str) -> Parents:
    """Normalise parents to a tuple of names or a mapping {agent: tuple of names}."""
    if isinstance(parents, Mapping):
        return {str(agent): _as_names(names, family) for agent, names in parents.items()}
    return _as_names(parents, family)


def _as_names(parents: Any, family: str) -> tuple[str, ...]:
    if isinstance(parents, str):
        raise ValueError(
            f"{family}: parents must be a tuple of names, such as ({parents!r},); "
            f"got the bare string {parents!r}"
        )
    names = tuple(parents)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"{family}: a parent must be a name (str), got {name!r}")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{family}: parent named more than once: {', '.join(repeated)}")
    return names


def positive_number(family: str, name: str, value: Any, zero: bool = False) -> float:
    """A positive finite number, or also zero.

    Raises:
        ValueError: Naming the family, the argument and its value.
    """
    bound = {"least" if zero else "above": 0.0}
    return check_number(f"{family}: {name}", value, **bound)


class CPT:
    """A family of conditional probability tables.

    A family is one of three kinds: *learned* (`concentration` gives the Dirichlet prior of each
    row, and every inference method works), *fixed* (`probabilities` gives the rows), or
    *parametric* (`btil.ParametricCPT`: rows depend on parameters that have priors).

    Attributes:
        parents: Names of the parents, or a mapping {agent: names}.
        parametric: Whether the rows depend on parameters that have priors of their own.
    """

    parents: Parents = ()
    parametric: ClassVar[bool] = False

    def __repr__(self) -> str:
        given = ", ".join(f"{k}={v!r}" for k, v in (self.arguments() or {}).items())
        return f"{type(self).__name__}({given or f'parents={self.parents!r}'})"

    def parents_of(self, agent: str) -> tuple[str, ...]:
        """The parents of one agent's table, as written by the modeler.

        Raises:
            ValueError: If the parents are a mapping in which the agent is missing.
        """
        if isinstance(self.parents, Mapping):
            if agent not in self.parents:
                raise ValueError(
                    f"parents are given for {', '.join(self.parents) or 'no agent'} "
                    f"but not for agent {agent!r}"
                )
            return self.parents[agent]
        return self.parents

    @property
    def learned(self) -> bool:
        """Whether the rows are inferred from data."""
        return False

    @property
    def dirichlet_rows(self) -> bool:
        """Whether rows are learned with a Dirichlet prior (given the parameters, if any)."""
        return self.learned

    def exchangeable_latents(self, contexts: Contexts, first: int, second: int) -> bool:
        """Whether swapping two latents leaves the prior, or the given rows, as they are."""
        rows = self.concentration(contexts) if self.learned else self.probabilities(contexts)
        swap = np.arange(contexts.num_latents)
        swap[[first, second]] = second, first
        return np.array_equal(permuted_latents(rows, contexts.role, swap), rows)

    def concentration(self, contexts: Contexts) -> Float[np.ndarray, "..."]:
        """Dirichlet concentration of every row, shape `contexts.shape`; learned families only."""
        raise NotImplementedError(f"{type(self).__name__} has no Dirichlet prior")

    def probabilities(self, contexts: Contexts) -> Float[np.ndarray, "..."]:
        """The rows, shape `contexts.shape`; fixed families only."""
        raise NotImplementedError(f"{type(self).__name__} is learned, its rows are not given")

    def arguments(self) -> dict[str, Any] | None:
        """The arguments that make this family anew, for a file; None if a file cannot hold them."""
        return {}

    def validate(self, role: str) -> None:
        """Refuse parents that the role of the table cannot have.

        A policy sees no action and nothing of the next step, an initial table the state alone.

        Raises:
            ValueError: Naming the role, the parent and what is allowed.
        """
        tables = self.parents.values() if isinstance(self.parents, Mapping) else [self.parents]
        for name in itertools.chain.from_iterable(tables):
            if role != "transition" and known_after(name):
                raise ValueError(
                    f"{role}: {name!r} cannot be a parent; a {role} may have 'state' or the names "
                    "of state variables as parents (actions and next_* are known only after it)"
                )


class MadeOfArguments:
    """Mixed into a family that is what its constructor was given, and never changes.

    Two with equal arguments are equal: they share compiled programs, and agents who have equal
    `Shared` tables have one. The repr makes the family anew, with the names of btil at hand, unless
    an argument is a function or a table of more than 1000 numbers.

    Every argument of the constructor is an attribute of the same name, or of the one that
    `argument_attributes` has for it. (A subclass of which that is not true goes by its attributes.)
    """

    argument_attributes: ClassVar[Mapping[str, str]] = {}

    def _given(self) -> dict[str, Any]:
        kept = vars(self)
        names = inspect.signature(type(self)).parameters
        attributes = {name: self.argument_attributes.get(name, name) for name in names}
        if not kept.keys() >= set(attributes.values()):
            return dict(kept)
        return {name: kept[attribute] for name, attribute in attributes.items()}

    def arguments(self) -> dict[str, Any] | None:
        """The arguments that make this family anew, for a file; None if one is a function."""
        given = self._given()
        return None if any(map(callable, given.values())) else given

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={_source(value)}" for name, value in self._given().items())
        return f"{type(self).__name__}({given})"

    def __eq__(self, other: object) -> bool:
        if self is other or type(self) is not type(other):
            return self is other
        assert isinstance(other, MadeOfArguments)
        theirs = other._given()
        return all(_same(value, theirs[name]) for name, value in self._given().items())

    def __hash__(self) -> int:
        # Of a table the shape: it may be large, and equality is looked at in any case.
        parts = (_hashable(value) for value in self._given().values())
        return hash((type(self), *parts))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} never changes; make another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} never changes; make another one")


def _source(value: Any) -> str:
    """A value as a person would write it."""
    if isinstance(value, np.ndarray) and value.size > _MOST_WRITTEN:
        return f"<{'x'.join(map(str, value.shape))} numbers>"
    written = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(written, list):
        return f"[{', '.join(map(_source, written))}]"
    if isinstance(written, float) and not np.isfinite(written):
        return f"float('{written}')"
    return repr(written)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return one is other if callable(one) or callable(other) else one == other


def _hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.shape if value.ndim else value.item()
    if isinstance(value, Mapping):
        return frozenset(value.items())
    return id(value) if callable(value) else value


class DirichletCPT(MadeOfArguments, CPT):
    r"""Learned rows with independent Dirichlet priors.

    For every context c and latent x, the row is
    $\theta_{c,x} \sim \mathrm{Dirichlet}(u_1, \dots, u_V)$; the paper's
    $\pi_{i,sx} \sim \mathrm{Dir}(u^\pi)$ and $T_{x_i} \sim \mathrm{Dir}(u^{T})$. The row of a
    context never visited is its prior, exactly, so only visited contexts are stored.

    Args:
        concentration: A scalar u per cell, or an array that broadcasts to one context's block,
            (latents, values) or (values,) for an initial; or with one leading axis per expanded
            parent (of the parent's size or 1) before that block.
        parents: Names of the parents, or a mapping {agent: names}.

    Raises:
        ValueError: If a concentration is not positive and finite (1e-30 to 1e30), or does not
            broadcast.

    Example:
        >>> DirichletCPT(1.2, parents=("state",)).parents
        ('state',)
    """

    argument_attributes: ClassVar[Mapping[str, str]] = {"concentration": "concentration_per_cell"}
    concentration_per_cell: Float[np.ndarray, "..."]

    def __init__(self, concentration: Any = 1.0, parents: Any = ()) -> None:
        values = np.array(concentration, dtype=np.float64)
        least, most = CONCENTRATIONS
        if values.size == 0 or not np.all((values >= least) & (values <= most)):
            raise ValueError(
                "DirichletCPT: concentration must be positive and finite in every cell, from "
                f"{least:g} to {most:g}, got {concentration!r}"
            )
        values.flags.writeable = False
        object.__setattr__(self, "concentration_per_cell", values)
        object.__setattr__(self, "parents", check_parents(parents, "DirichletCPT"))

    @property
    def learned(self) -> bool:
        """Always true."""
        return True

    def concentration(self, contexts: Contexts) -> Float[np.ndarray, "..."]:
        """Dirichlet concentration of every row, shape `contexts.shape`."""
        values = np.asarray(self.concentration_per_cell)
        block = contexts.row_shape
        leading = values.ndim - len(block)
        expected = (*contexts.sizes, *block)
        if leading > 0 and leading == len(contexts.names):
            axes = zip(values.shape, expected, strict=True)
            if all(given in (1, wanted) for given, wanted in axes):
                contexts.refuse_values_of_none([i for i in range(leading) if values.shape[i] > 1])
                index = tuple(
                    contexts.rows[:, i]
                    if values.shape[i] > 1
                    else np.zeros_like(contexts.rows[:, i])
                    for i in range(leading)
                )
                return np.array(np.broadcast_to(values[index], contexts.shape))
        while values.ndim > len(block) and values.shape[0] == 1:
            values = values[0]
        if values.ndim <= len(block):
            try:
                return np.array(np.broadcast_to(values, contexts.shape))
            except ValueError:
                pass
        raise ValueError(
            f"{contexts.role} of {contexts.owner}: concentration of shape "
            f"{np.shape(self.concentration_per_cell)} does not broadcast to one context's block "
            f"{block} or to one axis per parent {expected}"
        )


class StickyDirichletCPT(DirichletCPT):
    r"""Learned transition rows whose Dirichlet priors favour staying.

    .. math:: \theta_{c,x} \sim \mathrm{Dirichlet}(u + \kappa\, \delta_x)

    The self-transition weight :math:`\kappa` counts like so many steps at which the latent stayed;
    before any data, the chance of staying is :math:`(u_x + \kappa) / (\sum_j u_j + \kappa)`. It is
    conjugate like `DirichletCPT`, so every method takes it.

    Args:
        concentration: u, as in `DirichletCPT`.
        stay: The non-negative :math:`\kappa`.
        parents: Names of the parents, or a mapping {agent: names}.
        unless: A state variable, or one for each agent in a mapping: staying is favoured only
            while it keeps its value, so an intent lasts until its event. It and `next_<variable>`
            must be parents. None: always.

    Raises:
        ValueError: If a number is out of range, the table is no transition, or `unless` is not
            among the parents.

    Example:
        >>> StickyDirichletCPT(1.0, stay=20.0, parents=("actions",)).stay
        20.0
        >>> StickyDirichletCPT(0.1, 1e4, parents=("held", "next_held"), unless="held").unless
        'held'

    References:
        Fox, Sudderth, Jordan, Willsky (2011), A sticky HDP-HMM with application to speaker
        diarization (there the base measure is learned as well, see `StickBreakingCPT`).
    """

    stay: float
    unless: str | Mapping[str, str] | None

    def __init__(
        self,
        concentration: Any = 1.0,
        stay: float = 10.0,
        parents: Any = (),
        unless: Any = None,
    ) -> None:
        super().__init__(concentration, parents)
        stay = positive_number("StickyDirichletCPT", "stay", stay, zero=True)
        object.__setattr__(self, "stay", stay)
        if isinstance(unless, Mapping):
            unless = dict(unless)
        texts = unless.values() if isinstance(unless, dict) else [unless]
        if unless is not None and not all(isinstance(text, str) for text in texts):
            raise ValueError(
                "StickyDirichletCPT: unless must be the name of a state variable, or a mapping "
                f"{{agent: name}}, got {unless!r}"
            )
        object.__setattr__(self, "unless", unless)

    def validate(self, role: str) -> None:
        """Only in a transition can a latent stay."""
        super().validate(role)
        if role != "transition":
            raise ValueError(f"StickyDirichletCPT describes a transition, it cannot be a {role}")

    def concentration(self, contexts: Contexts) -> Float[np.ndarray, "..."]:
        """Dirichlet concentration of every row, shape `contexts.shape`."""
        stay = self.stay * np.eye(contexts.num_latents)
        if self.unless is None:
            return super().concentration(contexts) + stay
        keeps = np.equal(*self._before_and_after(contexts).T)
        return super().concentration(contexts) + np.where(keeps[:, None, None], stay, 0.0)

    def _before_and_after(self, contexts: Contexts) -> Int[np.ndarray, "contexts 2"]:
        """The values of the variable in each context, before the step and after it."""
        name = self.unless
        if isinstance(name, Mapping):
            if contexts.owner not in name:
                raise ValueError(
                    f"transition of {contexts.owner}: unless is given for "
                    f"{', '.join(name) or 'no agent'} but not for agent {contexts.owner!r}"
                )
            name = name[contexts.owner]
        pair = (name, f"next_{name}")
        missing = [one for one in pair if one not in contexts.names]
        if missing:
            raise ValueError(
                f"transition of {contexts.owner}: unless is {name!r}, but {missing[0]!r} is not "
                f"among the parents {', '.join(contexts.names) or '(none)'}"
            )
        return contexts.rows[:, [contexts.names.index(one) for one in pair]]


class KnownCPT(MadeOfArguments, CPT):
    """Given rows; nothing is learned. Zeros are allowed.

    Args:
        table_or_function: Either an array with one leading axis per parent, then (latents,
            actions), (latents, next_latents) or, for an initial, (latents,); or a function of
            one mapping from parent names to int arrays (k,) that returns the k rows. The
            function is called on the host with contexts that occur (`contexts["state"]` is the
            joint index of the state variables, `contexts["action_alice"]`, ...), never for
            padding and never for a transition after the last step of an episode.
        parents: Names of the parents, or a mapping {agent: names}.

    Raises:
        ValueError: When bound to data, if the shape is wrong or a row that occurs is not a
            probability vector.

    Example:
        >>> cpt = KnownCPT(lambda contexts: np.full((len(contexts["state"]), 2, 3), 1 / 3),
        ...                parents=("state",))
    """

    table_or_function: Any

    def __init__(self, table_or_function: Any, parents: Any = ()) -> None:
        value = table_or_function
        if not callable(value):
            value = np.array(value, dtype=np.float64)
            value.flags.writeable = False
        object.__setattr__(self, "table_or_function", value)
        object.__setattr__(self, "parents", check_parents(parents, "KnownCPT"))

    def probabilities(self, contexts: Contexts) -> Float[np.ndarray, "..."]:
        """The rows of the contexts, checked to be probability vectors."""
        rows = rows_of(self.table_or_function, contexts, "KnownCPT")
        wrong = improper_rows(rows)
        if wrong.any():
            first = np.argwhere(wrong)[0]
            context = dict(zip(contexts.names, contexts.rows[first[0]].tolist(), strict=True))
            latent = f", latent {first[1]}" if len(first) > 1 else ""
            raise ValueError(
                f"{contexts.role} of {contexts.owner}: the row at "
                f"{context or 'the only context'}{latent} is not a probability "
                f"vector: {rows[tuple(first)].tolist()} (non-negative entries that sum to 1)"
            )
        return rows


def rows_of(table_or_function: Any, contexts: Contexts, family: str) -> Float[np.ndarray, "..."]:
    """Rows of contexts, looked up in a table or asked of a function; shape `contexts.shape`.

    Args:
        table_or_function: As of `KnownCPT`.
        contexts: The contexts.
        family: Who asks, for error messages.

    Raises:
        ValueError: If the table or what the function returns has another shape.
    """
    if len(contexts.rows) == 0:
        return np.zeros(contexts.shape)
    if not callable(table_or_function):
        return _look_up(table_or_function, contexts, family)
    rows = np.asarray(table_or_function(contexts.columns()), dtype=np.float64)
    if rows.shape != contexts.shape:
        raise ValueError(
            f"{contexts.role} of {contexts.owner}: the {family} function returned shape "
            f"{rows.shape} for {len(contexts.rows)} contexts, expected {contexts.shape}"
        )
    return rows


def _look_up(
    table: Float[np.ndarray, "..."], contexts: Contexts, family: str
) -> Float[np.ndarray, "..."]:
    leading = len(table.shape) - len(contexts.row_shape)
    expected = []
    # A parent such as "state" or "actions" may have one joint axis or one axis per variable.
    for split in itertools.product((False, True), repeat=len(contexts.groups)):
        axes: list[tuple[int, ...]] = []
        for group, separate in zip(contexts.groups, split, strict=True):
            axes += [(column,) for column in group] if separate else [group]
        sizes = [int(np.prod([contexts.sizes[c] for c in axis], dtype=object)) for axis in axes]
        shape = (*sizes, *contexts.row_shape)
        if table.shape == shape and leading == len(axes):
            return (
                table[tuple(contexts.joint(axis) for axis in axes)]
                if axes
                else np.array(np.broadcast_to(table, contexts.shape))
            )
        if shape not in expected:
            expected.append(shape)
    raise ValueError(
        f"{contexts.role} of {contexts.owner}: the {family} table has shape {table.shape}, "
        "expected " + " or ".join(map(str, expected)) + f" for parents {contexts.parents}"
    )


class StaticCPT(MadeOfArguments, CPT):
    """A transition in which the latent never changes, T_x = 1(x = x') (the paper, Section 4)."""

    def validate(self, role: str) -> None:
        """Only a transition can be static."""
        if role != "transition":
            raise ValueError(f"StaticCPT describes a transition, it cannot be a {role}")

    def probabilities(self, contexts: Contexts) -> Float[np.ndarray, "..."]:
        """The identity for every context."""
        return np.array(np.broadcast_to(np.eye(contexts.num_latents), contexts.shape))


class UniformCPT(MadeOfArguments, CPT):
    """Every row uniform: 1/V in each of V cells."""

    def probabilities(self, contexts: Contexts) -> Float[np.ndarray, "..."]:
        """1/V everywhere."""
        return np.full(contexts.shape, 1.0 / contexts.num_values)


@dataclass(frozen=True)
class Shared:
    """One table for all agents instead of one each.

    The agents' latents and actions must agree in number, and the k-th parents of all agents are
    one variable seen from each one's side: with
    `Shared(DirichletCPT(1.0, parents={"ann": ("ann_held",), "bob": ("bob_held",)}))` both
    players' rows are learned together as functions of what the player himself holds.

    Args:
        cpt: The family of the common table.
    """

    cpt: CPT

    def __post_init__(self) -> None:
        if not isinstance(self.cpt, CPT):
            raise ValueError(f"Shared: expected a CPT, got {type(self.cpt).__name__}")
