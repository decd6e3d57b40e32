"""Stochastic rounding and Philox4x32-10 in Python integers, written from the papers."""

from fractions import Fraction

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the four words of one block (Salmon et al. 2011, section 3.3; ten rounds)."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(_MULTIPLIERS[0] * a, 1 << 32)
        high1, low1 = divmod(_MULTIPLIERS[1] * c, 1 << 32)
        a, b, c, d = high1 ^ b ^ k0, low1, high0 ^ d ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) % (1 << 32), (k1 + _WEYL[1]) % (1 << 32)
    return a, b, c, d


def word(seed: int, stream: int, index: int) -> int:
    """Return random word number ``index`` of a stream."""
    block, place = divmod(index, 4)
    low = (1 << 32) - 1
    counter = (block & low, block >> 32, stream & low, stream >> 32)
    return philox(counter, (seed & low, seed >> 32))[place]


def goes_up(tail: Fraction, random: int, bits: int, scheme: str) -> bool:
    """Return whether a number that lies ``tail`` of a quantum above its lower neighbour goes up."""
    scaled = tail * 2**bits
    if scheme == "A":
        return scaled // 1 + random >= 2**bits
    if scheme == "B":
        return 2 * scaled // 1 + 2 * random + 1 >= 2 ** (bits + 1)
    return round(scaled) + random >= 2**bits  # Python's round is to nearest even
