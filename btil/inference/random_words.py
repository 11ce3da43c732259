"""Random words, many at once: Threefry written so that XLA fuses it with what uses the words.

`jax.random` makes its bits in a loop over rounds that writes the words to memory at every round
when it runs on a CPU, and throws half of them away: ten times slower a word. The words here come
of the same function and are as good; which ones a program gets is documented below, so that results
do not depend on the version of JAX.

References:
    Salmon, Moraes, Dror, Shaw (2011), Parallel random numbers: as easy as 1, 2, 3, SC11.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt32

_PARITY = np.uint32(0x1BD11BDA)
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))

Words = UInt32[Array, "..."]


def threefry(key: tuple[Words, Words], counter: tuple[Words, Words]) -> tuple[Words, Words]:
    """Threefry-2x32 of 20 rounds: two random words for each counter.

    Args:
        key: Two words.
        counter: Two words each; different counters give independent words.

    Returns:
        The words.
    """
    first_key, second_key = key
    keys = (first_key, second_key, first_key ^ second_key ^ _PARITY)
    one, other = counter[0] + first_key, counter[1] + second_key
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            one = one + other
            left, right = np.uint32(rotation), np.uint32(32 - rotation)
            other = one ^ ((other << left) | (other >> right))
        one = one + keys[(block + 1) % 3]
        other = other + keys[(block + 2) % 3] + np.uint32(block + 1)
    return one, other


def uniforms(
    key: Key[Array, ""],
    places: UInt32[Array, " places"],
    turn: UInt32[Array, ""],
    number: int,
    dtype: Any,
) -> list[Float[Array, " places"]]:
    """Uniform numbers strictly between 0 and 1, as fine as the mantissa.

    Args:
        key: The key.
        places: A place and a turn have the same numbers whatever other places there are.
        turn: As above.
        number: How many numbers each place gets; the same for every call with one key.
        dtype: float32 or float64, which takes two words a number.

    Returns:
        So many arrays of numbers.
    """
    words_each = 1 if dtype == np.float32 else 2
    blocks = -(-number * words_each // 2)
    key_words = jax.random.bits(key, (2,), jnp.uint32)
    words = [
        word
        for block in range(blocks)
        for word in threefry(
            (key_words[0], key_words[1]),
            (places, jnp.full_like(places, turn * np.uint32(blocks) + np.uint32(block))),
        )
    ]
    if words_each == 1:
        return [_between(word >> 9, 23, dtype) for word in words[:number]]
    return [
        _between((high.astype(jnp.uint64) << 20) | (low >> 12).astype(jnp.uint64), 52, dtype)
        for high, low in zip(words[0 : 2 * number : 2], words[1 : 2 * number : 2], strict=True)
    ]


def _between(whole: Array, bits: int, dtype: Any) -> Float[Array, " places"]:
    """The middle of one of 2**bits equal parts of the unit interval; exact."""
    return (whole.astype(dtype) + 0.5) * 0.5**bits
