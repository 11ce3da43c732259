"""Tables that are regressions: log-linear in features of the parents, or in a planner's values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro import distributions as dist

from btil.models.cpt import Contexts, Parents, check_parents, positive_number, rows_of
from btil.models.parametric import ParametricCPT, Values

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False, init=False)
class SoftmaxCPT(ParametricCPT):
    r"""Multinomial logistic regression of the row on features of its context.

    .. math:: \theta_{c,x,v} \propto \exp\Big( b_{x,v} + \sum_f \phi_f(c)\, W_{x,f,v} \Big),
              \qquad b_{x,v} \sim N(0, \tau^2), \quad W_{x,f,v} \sim N(0, \sigma^2)

    Parents act one by one: with features of their own, n variables of k values need about n k
    weights per latent where a table needs k^n rows, and contexts never seen are answered too.

    The parameters are `bias` b, (latents, values), and `weights` W, (latents, features, values);
    both without the latents' axis in an initial table. Without parents there are no weights.

    Args:
        parents: Names of the parents, or a mapping {agent: names}.
        features: A function of one mapping from parent names to int arrays (k,) that returns
            features (k, features), called on the host as `KnownCPT`'s is (and once for a context
            of zeros, to count them). None: one per value of
            each parent, 1 where the parent has it and 0 elsewhere.
        weight_scale: The positive :math:`\sigma`.
        bias_scale: The positive :math:`\tau`.

    Raises:
        ValueError: If a scale is not positive; when bound to data, if features are no finite
            numbers of shape (k, features).

    Example:
        >>> cpt = SoftmaxCPT(parents=("x", "y"))
        >>> near = SoftmaxCPT(parents=("x",), features=lambda contexts: contexts["x"][:, None] < 3)

    References:
        McCullagh and Nelder (1989), Generalized Linear Models, Chapter 5.
    """

    parents: Parents
    features: Callable[[Columns], Any] | None
    weight_scale: float
    bias_scale: float

    parameter_axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "bias": ("latent", "value"),
        "weights": ("latent", "feature", "value"),
    }

    def __init__(
        self,
        parents: Any = (),
        features: Callable[[Columns], Any] | None = None,
        weight_scale: float = 1.5,
        bias_scale: float = 1.5,
    ) -> None:
        object.__setattr__(self, "parents", check_parents(parents, "SoftmaxCPT"))
        object.__setattr__(self, "features", features)
        for name, value in (("weight_scale", weight_scale), ("bias_scale", bias_scale)):
            object.__setattr__(self, name, positive_number("SoftmaxCPT", name, value))

    def arguments(self) -> dict[str, Any] | None:
        """Parents and scales; None with features of one's own."""
        if self.features is not None:
            return None
        return {
            "parents": self.parents,
            "weight_scale": self.weight_scale,
            "bias_scale": self.bias_scale,
        }

    def exchangeable_latents(self, contexts: Contexts, first: int, second: int) -> bool:
        """Always: no latent is special in this prior."""
        return True

    def priors(self, contexts: Contexts) -> Mapping[str, dist.Distribution]:
        """Normal biases and weights."""
        *latents, values = contexts.row_shape
        probe = contexts._replace(rows=np.zeros((1, len(contexts.names)), np.int64))
        num_features = self._features(probe).shape[1]
        bias = dist.Normal(0.0, self.bias_scale).expand((*latents, values))
        if num_features == 0:
            return {"bias": bias}
        weights = dist.Normal(0.0, self.weight_scale).expand((*latents, num_features, values))
        return {"bias": bias, "weights": weights}

    def inputs(self, contexts: Contexts) -> Mapping[str, np.ndarray]:
        """The features of the contexts."""
        return {"features": self._features(contexts)}

    def log_rows(self, parameters: Values, inputs: Values) -> Float[Array, "contexts *row"]:
        """Log softmax of bias plus weighted features."""
        scores = parameters["bias"][None]
        if "weights" in parameters:
            features, known = inputs["features"], parameters["weights"].shape[-2]
            if features.shape[-1] != known:
                raise ValueError(
                    f"SoftmaxCPT: contexts with {features.shape[-1]} features, but weights of "
                    f"{known}; features, and sizes of parents, must be those that were learned with"
                )
            scores = scores + jnp.einsum("cf,...fv->c...v", features, parameters["weights"])
        return jax.nn.log_softmax(scores, axis=-1)

    def _features(self, contexts: Contexts) -> Float[np.ndarray, "contexts features"]:
        where = f"{contexts.role} of {contexts.owner}"
        if self.features is None:
            parts = [
                np.arange(size) == contexts.rows[:, [i]] for i, size in enumerate(contexts.sizes)
            ]
            shape = (len(contexts.rows), 0)
            return np.concatenate([np.zeros(shape), *parts], axis=1)
        found = np.asarray(self.features(contexts.columns()), np.float64)
        if found.ndim != 2 or len(found) != len(contexts.rows):
            raise ValueError(
                f"{where}: features of shape {found.shape} for {len(contexts.rows)} contexts; "
                f"expected ({len(contexts.rows)}, features)"
            )
        if not np.isfinite(found).all():
            row = int(np.argwhere(~np.isfinite(found))[0][0])
            context = dict(zip(contexts.names, contexts.rows[row].tolist(), strict=True))
            raise ValueError(
                f"{where}: features at {context} are not finite: {found[row].tolist()}"
            )
        if len(found) > 1:
            first = contexts._replace(rows=contexts.rows[:1])
            alone = np.asarray(self.features(first.columns()), np.float64)
            if alone.shape != (1, found.shape[1]) or not np.allclose(alone[0], found[0]):
                raise ValueError(
                    f"{where}: features of a context must depend on it alone; those of "
                    f"{dict(zip(contexts.names, contexts.rows[0].tolist(), strict=True))} are "
                    f"{found[0].tolist()} among others and {alone.ravel().tolist()} by themselves"
                )
        return found


@dataclass(frozen=True, eq=False, init=False)
class GoalConditionedCPT(ParametricCPT):
    r"""A policy that acts on a planner's values, one set of them per latent.

    .. math:: \pi(a \mid s, x) = (1 - \epsilon)
              \frac{\exp(\lambda\, Q_x(s, a) + b_a)}{\sum_{a'} \exp(\lambda\, Q_x(s, a') + b_{a'})}
              + \frac{\epsilon}{|A|}

    What a latent means is known (a goal, and how it is best reached); what is learned is how
    closely the agent follows it. Three small parameters stand for all states, seen or not:

    - `rationality`, the inverse temperature :math:`\lambda`, log-normal around 1 with scale 1;
    - `bias` b, (actions,), normal with `bias_scale`: habits that no goal explains;
    - `lapse` :math:`\epsilon`, Beta(1, 19): the share of actions that are anyone's guess. With it
      no action is impossible, also where a planner forbids one.

    Args:
        values: Q, either an array with the axes of a `KnownCPT` policy, (states, latents, actions),
            or a function as of `KnownCPT` that returns (k, latents, actions). -inf forbids an
            action; constants per row do not matter. `np.log(task.policies()[agent])` of a
            grid-world task, say: log policies are values at temperature 1.
        parents: Names of the parents.
        bias_scale: Standard deviation of the biases.

    Raises:
        ValueError: If the table is no policy; when bound to data, if values are NaN or +inf, a row
            forbids everything, or a shape is wrong.

    Example:
        >>> policy = GoalConditionedCPT(np.zeros((4, 2, 3)), parents=("state",))

    References:
        Baker, Saxe, Tenenbaum (2009), Action understanding as inverse planning.
    """

    values: Any
    parents: Parents
    bias_scale: float

    parameter_axes: ClassVar[Mapping[str, tuple[str, ...]]] = {"bias": ("value",)}

    def __init__(self, values: Any, parents: Any = ("state",), bias_scale: float = 1.0) -> None:
        if not callable(values):
            values = np.array(values, np.float64)
            values.flags.writeable = False
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "parents", check_parents(parents, "GoalConditionedCPT"))
        object.__setattr__(
            self, "bias_scale", positive_number("GoalConditionedCPT", "bias_scale", bias_scale)
        )

    def validate(self, role: str) -> None:
        """Only a policy has actions to value."""
        super().validate(role)
        if role != "policy":
            raise ValueError(f"GoalConditionedCPT describes a policy, it cannot be a {role}")

    def arguments(self) -> dict[str, Any] | None:
        """Values, parents and the biases' scale; None with values by a function."""
        if callable(self.values):
            return None
        return {"values": self.values, "parents": self.parents, "bias_scale": self.bias_scale}

    def priors(self, contexts: Contexts) -> Mapping[str, dist.Distribution]:
        """Rationality, biases and lapse."""
        return {
            "rationality": dist.LogNormal(0.0, 1.0),
            "bias": dist.Normal(0.0, self.bias_scale).expand((contexts.num_values,)),
            "lapse": dist.Beta(1.0, 19.0),
        }

    def inputs(self, contexts: Contexts) -> Mapping[str, np.ndarray]:
        """The values, largest of a row 0, and which actions are allowed."""
        values = rows_of(self.values, contexts, "GoalConditionedCPT")
        where = f"{contexts.role} of {contexts.owner}"
        wrong = np.isnan(values) | (values == np.inf) | ~np.isfinite(values).any(-1, keepdims=True)
        if wrong.any():
            row, latent, _ = np.argwhere(wrong)[0]
            context = dict(zip(contexts.names, contexts.rows[row].tolist(), strict=True))
            raise ValueError(
                f"{where}: values at {context}, latent {latent} are {values[row, latent].tolist()};"
                " allowed are finite numbers, and -inf for some actions"
            )
        allowed = np.isfinite(values)
        best = values.max(-1, keepdims=True)
        return {
            "values": np.where(allowed, values - best, 0.0),
            "forbidden": np.where(allowed, 0.0, 1.0),
        }

    def log_rows(
        self, parameters: Values, inputs: Values
    ) -> Float[Array, "contexts latents actions"]:
        """Log of the softmax of scaled values and biases, mixed with a uniform lapse."""
        scores = parameters["rationality"] * inputs["values"] + parameters["bias"][None, None]
        # A finite stand-in for -inf keeps the gradient of a forbidden action zero, not NaN.
        scores = jnp.where(inputs["forbidden"] > 0, -1e9, scores)
        lapse = parameters["lapse"]
        lucky = jnp.log(lapse) - jnp.log(jnp.asarray(scores.shape[-1], scores.dtype))
        return jnp.logaddexp(jnp.log1p(-lapse) + jax.nn.log_softmax(scores, axis=-1), lucky)
