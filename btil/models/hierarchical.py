"""Tables whose rows are alike: they scatter around base rows that are learned with them."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro import distributions as dist

from btil.arguments import check_flag
from btil.models.cpt import (
    Contexts,
    MadeOfArguments,
    Parents,
    check_parents,
    positive_number,
)
from btil.models.parametric import ParametricCPT, Values

# Prior of a strength that is learned: half of it within a factor of 3 of 7 pseudo-counts.
_LOG_STRENGTH = (2.0, 1.5)


def _strength_prior(strength: float | None) -> dict[str, dist.Distribution]:
    return {} if strength is not None else {"strength": dist.LogNormal(*_LOG_STRENGTH)}


def _strength(strength: float | None, parameters: Values) -> Any:
    return parameters["strength"] if strength is None else strength


class HierarchicalDirichletCPT(MadeOfArguments, ParametricCPT):
    r"""Rows of all contexts scatter around one base row per latent.

    .. math:: \beta_x \sim \mathrm{Dirichlet}(\gamma, \dots, \gamma), \qquad
              \theta_{c,x} \mid \beta_x \sim \mathrm{Dirichlet}(\alpha \beta_x + \kappa\, \delta_x)

    What is learned in contexts that are seen often carries over to those seen rarely, and to those
    never seen. The strength :math:`\alpha` counts like so many observations; None learns it, with
    prior :math:`\log\alpha \sim N(2, 1.5^2)`. In a transition :math:`\kappa` favours staying.

    The parameter `base` is :math:`\beta`, (latents, values), or (values,) for an initial table;
    `strength` is :math:`\alpha` where it is learned.

    Args:
        strength: The positive :math:`\alpha`, or None.
        base_concentration: The positive :math:`\gamma`.
        stay: The non-negative :math:`\kappa`; transitions only.
        parents: Names of the parents, or a mapping {agent: names}.
        shared_base: Whether the agents have the base rows (and a learned strength) in common,
            while each has rows of its own. `Shared(...)` would give them the same rows.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> HierarchicalDirichletCPT(5.0, parents=("state",)).parents
        ('state',)

    References:
        MacKay and Bauman Peto (1995), A hierarchical Dirichlet language model.
    """

    strength: float | None
    base_concentration: float
    stay: float
    parents: Parents
    shared_parameters: bool

    argument_attributes: ClassVar[Mapping[str, str]] = {"shared_base": "shared_parameters"}
    parameter_axes: ClassVar[Mapping[str, tuple[str, ...]]] = {"base": ("latent", "value")}

    def __init__(
        self,
        strength: float | None = None,
        base_concentration: float = 1.0,
        stay: float = 0.0,
        parents: Any = (),
        shared_base: bool = False,
    ) -> None:
        family = "HierarchicalDirichletCPT"
        if strength is not None:
            strength = positive_number(family, "strength", strength)
        object.__setattr__(self, "strength", strength)
        object.__setattr__(
            self,
            "base_concentration",
            positive_number(family, "base_concentration", base_concentration),
        )
        object.__setattr__(self, "stay", positive_number(family, "stay", stay, zero=True))
        object.__setattr__(self, "parents", check_parents(parents, family))
        shared = check_flag(f"{family}: shared_base", shared_base)
        object.__setattr__(self, "shared_parameters", shared)

    def validate(self, role: str) -> None:
        """Only in a transition can a latent stay."""
        super().validate(role)
        if self.stay and role != "transition":
            raise ValueError(f"HierarchicalDirichletCPT: stay is for a transition, not a {role}")

    def exchangeable_latents(self, contexts: Contexts, first: int, second: int) -> bool:
        """Always: no latent is special in this prior."""
        return True

    def priors(self, contexts: Contexts) -> Mapping[str, dist.Distribution]:
        """Base rows, and the strength where it is learned."""
        base = dist.Dirichlet(np.full(contexts.row_shape, self.base_concentration))
        return {"base": base, **_strength_prior(self.strength)}

    def row_concentration(self, parameters: Values, inputs: Values) -> Float[Array, "1 *row"]:
        """alpha beta + kappa delta, the same in every context."""
        base = parameters["base"]
        concentration = _strength(self.strength, parameters) * base
        if self.stay:
            concentration = concentration + self.stay * jnp.eye(base.shape[-1])
        return concentration[None]


class StickBreakingCPT(MadeOfArguments, ParametricCPT):
    r"""As many latents as the data need, out of the K that are offered.

    .. math:: v_k \sim \mathrm{Beta}(1, \gamma), \quad
              \beta_k = v_k \prod_{j < k} (1 - v_j), \quad v_K = 1, \qquad
              \theta_{c,x} \mid \beta \sim \mathrm{Dirichlet}(\alpha \beta + \kappa\, \delta_x)

    The Dirichlet-process prior over next latents, truncated at K: every row goes mostly to the
    same few latents, and one the data do not need is left with next to no probability of ever
    being entered. About :math:`\gamma \log(1 + n / \gamma)` latents are expected among n draws of
    :math:`\beta`. Give the initial table the same family, or latents that nothing moves to are
    still begun in.

    The parameter `sticks` is v, (K - 1,); `strength` is :math:`\alpha` where it is learned. Latents
    are in order of size in the prior: they are not interchangeable.

    Args:
        concentration: The positive :math:`\gamma`.
        strength: The positive :math:`\alpha`, or None to learn it as in `HierarchicalDirichletCPT`.
        stay: The non-negative :math:`\kappa`; transitions only.
        parents: Names of the parents, or a mapping {agent: names}.

    Raises:
        ValueError: If a number is out of range, or the table is a policy.

    Example:
        >>> transition = StickBreakingCPT(1.0, strength=5.0, stay=10.0)

    References:
        Sethuraman (1994), A constructive definition of Dirichlet priors; Teh, Jordan, Beal, Blei
        (2006), Hierarchical Dirichlet processes; Fox, Sudderth, Jordan, Willsky (2011), A sticky
        HDP-HMM (whose weak-limit approximation has Dirichlet(gamma / K) weights instead).
    """

    stick_concentration: float
    strength: float | None
    stay: float
    parents: Parents

    argument_attributes: ClassVar[Mapping[str, str]] = {"concentration": "stick_concentration"}
    parameter_axes: ClassVar[Mapping[str, tuple[str, ...]]] = {"sticks": ("stick",)}

    def __init__(
        self,
        concentration: float = 1.0,
        strength: float | None = None,
        stay: float = 0.0,
        parents: Any = (),
    ) -> None:
        family = "StickBreakingCPT"
        if strength is not None:
            strength = positive_number(family, "strength", strength)
        object.__setattr__(
            self, "stick_concentration", positive_number(family, "concentration", concentration)
        )
        object.__setattr__(self, "strength", strength)
        object.__setattr__(self, "stay", positive_number(family, "stay", stay, zero=True))
        object.__setattr__(self, "parents", check_parents(parents, family))

    def validate(self, role: str) -> None:
        """A policy chooses actions, of which none is left over."""
        super().validate(role)
        if role == "policy":
            raise ValueError("StickBreakingCPT describes latents, it cannot be a policy")
        if self.stay and role != "transition":
            raise ValueError(f"StickBreakingCPT: stay is for a transition, not an {role}")

    def priors(self, contexts: Contexts) -> Mapping[str, dist.Distribution]:
        """The sticks, and the strength where it is learned.

        Raises:
            ValueError: If there is only one latent.
        """
        if contexts.num_latents < 2:
            raise ValueError(
                f"{contexts.role} of {contexts.owner}: StickBreakingCPT needs two latents or more"
            )
        sticks = np.full((contexts.num_latents - 1,), self.stick_concentration)
        return {"sticks": dist.Beta(1.0, sticks), **_strength_prior(self.strength)}

    def row_concentration(self, parameters: Values, inputs: Values) -> Float[Array, "1 *row"]:
        """alpha beta + kappa delta, the same in every context."""
        weights = stick_breaking(parameters["sticks"])
        concentration = _strength(self.strength, parameters) * weights
        if self.stay:
            concentration = concentration[None] + self.stay * jnp.eye(len(weights))
        # One axis for the contexts, and in a transition (where rows may differ) one for latents.
        return concentration[None]


def stick_breaking(sticks: Float[Array, " sticks"]) -> Float[Array, " weights"]:
    """Weights of a stick broken again and again: v_k of what is left, the last takes the rest.

    Example:
        >>> stick_breaking(jnp.array([0.5, 0.5])).tolist()
        [0.5, 0.25, 0.25]
    """
    left = jnp.cumprod(1 - sticks)
    before = jnp.concatenate([jnp.ones(1, sticks.dtype), left])
    return before * jnp.concatenate([sticks, jnp.ones(1, sticks.dtype)])
