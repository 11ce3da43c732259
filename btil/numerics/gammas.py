"""Gamma draws, many at a time, and what they would have been under other concentrations."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Bool, Float, Int, Key

from btil.numerics.special import digamma_and_remainder

# Gamma draws of more cells than so many are proposed so many at a time, and tried again where they
# are refused (one in thirty), not all together; so large a share of them at a time.
_MANY_CELLS = 16384
_SHARE_AGAIN = 32
# Stands for a Gamma draw that was refused: no log is as large.
_REFUSED = math.inf


def draw_log_gammas(
    key: Key[Array, ""], concentration: Float[Array, " cells"]
) -> Float[Array, " cells"]:
    r"""Logs of independent Gamma(concentration, 1) draws, all cells at once.

    A normal x is turned into a draw of Gamma(a + 1) by d v^3 with d = a + 2/3,
    v = 1 + x / \sqrt{9 d}, accepted with probability exp(x^2/2 + d - d v^3 + 3 d log v) > 0.95;
    then Gamma(a) = Gamma(a + 1) U^{1/a}, in logs, where small concentrations do not underflow.
    `jax.random.loggamma` does the same cell by cell on a CPU: many times slower, and slower to
    compile.

    References:
        Marsaglia and Tsang (2000), A simple method for generating gamma variables, ACM TOMS 26.
    """
    if len(concentration) > _MANY_CELLS:
        return _draw_many(key, concentration)
    return _draw_in_turns(key, 0, concentration)[1]


# Chains one after the other: gathering is slower side by side.
@sequential_vmap
def _draw_many(
    key: Key[Array, ""], concentration: Float[Array, " cells"]
) -> Float[Array, " cells"]:
    """`draw_log_gammas` of many cells: the few that are refused are gathered and tried again.

    They are proposed part by part, so that what is between stays in the cache of the processor.
    """
    number, first_key, key = len(concentration), *jax.random.split(key)
    parts = -(-number // _MANY_CELLS)
    padded = jnp.pad(concentration, (0, parts * _MANY_CELLS - number), constant_values=1)
    proposed = lax.map(
        lambda part: _propose(first_key, *part),
        (jnp.arange(parts, dtype=jnp.int32), padded.reshape(parts, _MANY_CELLS)),
    )

    def again(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        turn, draws = carry
        size = number // _SHARE_AGAIN
        places = jnp.nonzero(draws == _REFUSED, size=size, fill_value=number)[0]
        own = concentration.at[places].get(mode="fill", fill_value=1.0)
        turn, drawn = _draw_in_turns(key, turn, own)
        return turn, draws.at[places].set(drawn, mode="drop")

    begin = (jnp.ones((), jnp.int32), proposed.ravel()[:number])
    return lax.while_loop(_any_refused, again, begin)[1]


def _draw_in_turns(
    key: Key[Array, ""], turn: Any, concentration: Float[Array, " some"]
) -> tuple[Int[Array, ""], Float[Array, " some"]]:
    """Propose for some cells until none is refused; the number of the next turn, and the draws."""

    def again(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        turn, draws = carry
        proposed = _propose(key, turn, concentration)
        return turn + 1, jnp.where(draws == _REFUSED, proposed, draws)

    begin = (jnp.asarray(turn, jnp.int32), jnp.full_like(concentration, _REFUSED))
    return lax.while_loop(_any_refused, again, begin)


def _any_refused(carry: tuple[Array, Array]) -> Bool[Array, ""]:
    return jnp.any(carry[1] == _REFUSED)


def _propose(
    key: Key[Array, ""], turn: Any, concentration: Float[Array, " some"]
) -> Float[Array, " some"]:
    """One try of `draw_log_gammas` for some cells; `_REFUSED` where it is refused."""
    shape, dtype = concentration.shape, concentration.dtype
    uniforms = jax.random.uniform(jax.random.fold_in(key, turn), (3, *shape), dtype)
    scale = concentration + 2 / 3
    normal = math.sqrt(2) * lax.erf_inv(2 * uniforms[0] - 1)
    root = 1 + normal / jnp.sqrt(9 * scale)
    possible = root > 0
    log_cube = 3 * jnp.log(jnp.where(possible, root, 1.0))
    log_ratio = normal**2 / 2 + scale * (1 - root**3 + log_cube)
    # Sufficient, and free of the cancellation in log_ratio at large concentrations.
    surely = uniforms[1] > 0.0331 * normal**4
    fits = possible & (surely | (jnp.log1p(-uniforms[1]) < log_ratio))
    proposed = jnp.log(scale) + log_cube + jnp.log1p(-uniforms[2]) / concentration
    return jnp.where(fits, proposed, _REFUSED)


@jax.custom_jvp
def differentiable_log_gammas(
    key: Key[Array, ""], concentration: Float[Array, " cells"]
) -> Float[Array, " cells"]:
    r"""`draw_log_gammas` with derivatives: how a draw moves when its quantile is held.

    With F the distribution function and f the density of Gamma(a),

    .. math:: \frac{d \log x}{d a} = -\frac{\partial F(x; a) / \partial a}{x f(x; a)},

    and (psi(a + 1) - log x) / a in the limit of small x, where F is x^a / Gamma(a + 1): logs of
    draws that are too small for their type have derivatives too.

    References:
        Figurnov, Mohamed, Mnih (2018), Implicit reparameterization gradients.
    """
    return draw_log_gammas(key, concentration)


@differentiable_log_gammas.defjvp
def _log_gammas_jvp(
    primals: tuple[Array, Array], tangents: tuple[Any, Array]
) -> tuple[Array, Array]:
    key, a = primals
    log_x = draw_log_gammas(key, a)
    # x is right to its last digits, and so is the limit below.
    least = 0.5 * math.log(jnp.finfo(a.dtype).tiny)
    x = jnp.exp(jnp.maximum(log_x, least))
    psi, *_ = digamma_and_remainder(a + 1)
    slope = jnp.where(log_x > least, lax.random_gamma_grad(a, x) / x, (psi - log_x) / a)
    return log_x, slope * tangents[1]
