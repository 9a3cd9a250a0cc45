"""Damages bytes in the ways in which they get damaged; what a seed makes of given bytes never changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence


def mutated(data: bytes, others: Sequence[bytes], seed: int) -> bytes:
    """Damage bytes once, or now and then twice.

    Parameters
    ----------
    data
        What to damage.
    others
        Bytes of the same form, to splice with.
    seed
        Chooses the damage.
    """
    chance = random.Random(seed)  # noqa: S311  # it is to be the same each time
    for _ in range(chance.choice((1, 1, 1, 2))):
        data = chance.choice(_MUTATIONS)(data, others, chance)
    return data


def _flip(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    first, stop = _range(data, chance)
    return chance.choice((data[:first], data[first:], data[:first] + data[stop:]))


def _duplicate(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    first, stop = _range(data, chance)
    return data[:stop] + data[first:]


def _splice(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    other = chance.choice(others)
    place = chance.randrange(min(len(data), len(other)) + 1)
    return chance.choice((data[:place] + other[place:], other[:place] + data[place:], data + other))


def _randomise(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    first, stop = _range(data, chance)
    return data[:first] + chance.randbytes(stop - first) + data[stop:]


def _clear(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    first, stop = _range(data, chance)
    return data[:first] + bytes(stop - first) + data[stop:]


def _extreme(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """Write a number that a length or an offset must not be."""
    place = chance.randrange(len(data) + 1) & ~3
    width = chance.choice((4, 8))
    number = chance.choice((-1, 1, 2 ** (8 * width - 2), 2 ** (4 * width), -(2 ** (8 * width - 1))))
    return data[:place] + number.to_bytes(width, "little", signed=True) + data[place + width :]


_MUTATIONS: tuple[Callable[[bytes, Sequence[bytes], random.Random], bytes], ...] = (
    _flip,
    _flip,
    _cut,
    _duplicate,
    _splice,
    _randomise,
    _clear,
    _extreme,
)


def _range(data: bytes, chance: random.Random) -> tuple[int, int]:
    first = chance.randrange(len(data) + 1)
    return first, min(len(data), first + chance.choice((1, 4, 8, 64, 1000)))
