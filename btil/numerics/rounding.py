"""Sizes of arrays, rounded up so that programs are shared."""

SMALLEST_SIZE = 16

SIZES_PER_OCTAVE = 4


def rounded_up(
    count: int, smallest: int = SMALLEST_SIZE, per_octave: int = SIZES_PER_OCTAVE
) -> int:
    """The smallest grid size >= count; the grid has `per_octave` sizes between powers of two.

    Example:
        >>> [rounded_up(n) for n in (1, 17, 33, 1200)]
        [16, 20, 40, 1280]
    """
    if count <= smallest:
        return smallest
    octave = 1 << (int(count - 1).bit_length() - 1)
    spacing = max(1, octave // per_octave)
    return -(-count // spacing) * spacing
