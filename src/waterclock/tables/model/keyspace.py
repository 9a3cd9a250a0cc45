"""Finds the shard of a message. Ids map to 64-bit keyspace ids, and each shard has ranges of keyspace ids.

Ranges are written as in *Vitess Messaging* ("Subsetting"). ``-80`` ends before keyspace id 0x8000000000000000, ``80-``
begins there, ``40-80`` lies between, and ``-`` contains all ids.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError

KEYSPACE_END = 1 << 64
"""The end of the keyspace."""

WHOLE = "-"
"""The key range of a table that is not sharded."""

_UNSHARDED = ("", "0")  # names that *Vitess Messaging* allows for the only shard
_RANGE = re.compile(r"((?:[0-9a-f]{2}){0,8})-((?:[0-9a-f]{2}){0,8})", re.IGNORECASE)


def keyspace_id(message_id: int | str | uuid.UUID) -> int:
    """Map an id to its place in the keyspace, from 0 to less than 2**64: the same everywhere and forever.

    It is the first eight bytes, as a big-endian number, of the SHA-256 of the id as text in UTF-8: a number in decimal
    digits, a UUID as its 36 characters in lower case. Every language can compute that, and so can the databases:
    ``sha256(convert_to(id::text, 'UTF8'))`` on PostgreSQL, ``SHA2(id, 256)`` on MariaDB.

    ==========================================  ====================
    id                                          keyspace id
    ==========================================  ====================
    1                                           0x6b86b273ff34fce1
    -1                                          0x1bad6b8cf97131fc
    9223372036854775807                         0xb34a1c30a715f6bf
    "Köln"                                      0x430b4fc55e4ef149
    UUID 018f4d1e-7c2a-7b3c-8d4e-5f6071829304   0x49fe7245136a3277
    ==========================================  ====================
    """
    return int.from_bytes(hashlib.sha256(str(message_id).encode()).digest()[:8])


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """Keyspace ids from ``start`` to before ``end``. ``str()`` writes the shortest form."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str, argument: str) -> KeyRange:
        """Parse a range; InvalidArgumentError names the argument."""
        found = _RANGE.fullmatch(text) if isinstance(text, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]  # users' input
        if found is None:
            raise InvalidArgumentError(
                f"{argument} must be a key range of hexadecimal digits such as '-80', '40-80' or '80-', got"
                f" {quoted(text)}"
            )
        start = int(found[1].ljust(16, "0"), 16)
        end = int(found[2].ljust(16, "0"), 16) if found[2] else KEYSPACE_END
        if start >= end:
            raise InvalidArgumentError(f"{argument} must end after its start, got {quoted(text)}")
        return cls(start, end)

    def __contains__(self, place: int) -> bool:
        return self.start <= place < self.end

    def __str__(self) -> str:
        return f"{_digits(self.start)}-{'' if self.end == KEYSPACE_END else _digits(self.end)}"


def check_cover(ranges: Iterable[str]) -> list[KeyRange]:
    """Return the ranges of a keyspace's shards in order; InvalidArgumentError names a hole or an overlap."""
    ordered = sorted(KeyRange.parse(text, "shards") for text in ranges)
    reached = 0
    before: KeyRange | None = None
    for one in ordered:
        if one.start > reached:
            raise InvalidArgumentError(
                f"shards must cover all keys, but no shard has the key range {KeyRange(reached, one.start)}"
            )
        if before is not None and one.start < reached:
            raise InvalidArgumentError(
                f"shards must not overlap, but {before} and {one} both have the key range"
                f" {KeyRange(one.start, min(reached, one.end))}"
            )
        reached, before = one.end, one
    if reached < KEYSPACE_END:
        raise InvalidArgumentError(
            f"shards must cover all keys, but no shard has the key range {KeyRange(reached, KEYSPACE_END)}"
        )
    return ordered


def choose(ranges: Iterable[KeyRange], shard: str | None, key_range: str | None) -> list[KeyRange]:
    """Return the shards that a subscriber names by ``shard`` or by ``key_range``; by default all.

    Raises `InvalidArgumentError` if neither a shard nor several neighbouring ones have exactly that range; the error
    lists the ranges.
    """
    ordered = sorted(ranges)
    if shard is not None and key_range is not None:
        raise InvalidArgumentError(
            f"shard and key_range must not both be given, got {quoted(shard)} and {quoted(key_range)}"
        )
    if shard is not None:
        wanted = KeyRange.parse(shard, "shard")
        chosen = [one for one in ordered if one == wanted]
    elif key_range is not None:
        wanted = KeyRange.parse(key_range, "key_range")
        chosen = [one for one in ordered if wanted.start <= one.start and one.end <= wanted.end]
        if chosen and (chosen[0].start, chosen[-1].end) != (wanted.start, wanted.end):
            chosen = []
    else:
        return ordered
    if not chosen:
        named = "shard" if shard is not None else "key_range"
        raise InvalidArgumentError(
            f"{named} must be exactly the range of a shard{'' if shard is not None else ' or of neighbouring shards'},"
            f" got {quoted(shard if shard is not None else key_range)}; the shards are"
            f" {', '.join(map(str, ordered))}"
        )
    return chosen


def check_unsharded(name: str, own: str, shard: str | None, key_range: str | None) -> None:
    """Raise if a subscriber names a part of an unsharded table.

    Parameters
    ----------
    name
        Name of the table.
    own
        Its key range.
    """
    whole: Mapping[str, tuple[str, ...]] = {"shard": (*_UNSHARDED, own), "key_range": (own,)}
    for argument, given in (("shard", shard), ("key_range", key_range)):
        if given is not None and given not in whole[argument]:
            allowed = " or ".join(map(repr, whole[argument]))
            raise InvalidArgumentError(
                f"{argument} must be {allowed} or omitted, got {quoted(given)}: table {quoted(name)} is not sharded"
            )


def _digits(place: int) -> str:
    digits = f"{place:016x}".rstrip("0")
    return digits + "0" * (len(digits) % 2)
