"""Which shard a message belongs to: ids map to 64-bit keyspace ids, and shards hold ranges of these. Pure.

Ranges are written as in *Vitess Messaging* ("Subsetting"): ``-80`` ends before keyspace id 0x8000000000000000, ``80-``
begins there, ``40-80`` lies between, ``-`` is all.
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
"""The keyspace id after the last one."""

WHOLE = "-"
"""The key range of a table that is not sharded."""

_UNSHARDED = ("", "0")  # names that *Vitess Messaging* allows for the only shard
_RANGE = re.compile(r"((?:[0-9a-f]{2}){0,8})-((?:[0-9a-f]{2}){0,8})", re.IGNORECASE)


def keyspace_id(message_id: int | str | uuid.UUID) -> int:
    """Map an id to its place in the keyspace, from 0 to less than 2**64: the same everywhere and for ever.

    It is the first eight bytes, as a big-endian number, of the SHA-256 of the id as text in UTF-8: a number in decimal
    digits, a UUID as its 36 characters in lower case. Every language has what that needs, and so have the databases:
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
    """Keyspace ids from ``start`` to before ``end``. ``str()`` writes it as short as it can be."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str, argument: str) -> KeyRange:
        """Read a range; InvalidArgumentError names the argument."""
        found = _RANGE.fullmatch(text) if isinstance(text, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        if found is None:
            raise InvalidArgumentError(
                f"{argument}: {quoted(text)} is no key range; write pairs of hexadecimal digits on one side of a hyphen"
                " or on both, such as '-80', '40-80' or '80-'"
            )
        start = int(found[1].ljust(16, "0"), 16)
        end = int(found[2].ljust(16, "0"), 16) if found[2] else KEYSPACE_END
        if start >= end:
            raise InvalidArgumentError(f"{argument}: {quoted(text)} ends where it begins or before; swap its sides")
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
            raise InvalidArgumentError(f"shards: no shard has the key range {KeyRange(reached, one.start)}; add one")
        if before is not None and one.start < reached:
            raise InvalidArgumentError(
                f"shards: {before} and {one} both have the key range {KeyRange(one.start, min(reached, one.end))};"
                " every keyspace id belongs to one shard"
            )
        reached, before = one.end, one
    if reached < KEYSPACE_END:
        raise InvalidArgumentError(f"shards: no shard has the key range {KeyRange(reached, KEYSPACE_END)}; add one")
    return ordered


def choose(ranges: Iterable[KeyRange], shard: str | None, key_range: str | None) -> list[KeyRange]:
    """Return the shards that a subscriber names by ``shard`` or by ``key_range``; all where it names none.

    Raises
    ------
    InvalidArgumentError
        Where no shard, and no row of neighbours, has exactly that range; it lists the ranges there are.
    """
    ordered = sorted(ranges)
    if shard is not None and key_range is not None:
        raise InvalidArgumentError(
            f"shard: {quoted(shard)} and key_range {quoted(key_range)} are both given; give one of them"
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
            f"{named}: {quoted(shard if shard is not None else key_range)} is not exactly that of a shard"
            f"{'' if shard is not None else ' or of neighbouring ones'}; the shards are {', '.join(map(str, ordered))}"
        )
    return chosen


def check_unsharded(name: str, own: str, shard: str | None, key_range: str | None) -> None:
    """Refuse to subscribe to a part of a table that has no parts.

    Parameters
    ----------
    name
        The table's.
    own
        Its key range.
    """
    whole: Mapping[str, tuple[str, ...]] = {"shard": (*_UNSHARDED, own), "key_range": (own,)}
    for argument, given in (("shard", shard), ("key_range", key_range)):
        if given is not None and given not in whole[argument]:
            allowed = " or ".join(map(repr, whole[argument]))
            raise InvalidArgumentError(
                f"{argument}: {quoted(given)} names a part of {quoted(name)}, which is in one database; leave it out,"
                f" or give {allowed}"
            )


def _digits(place: int) -> str:
    digits = f"{place:016x}".rstrip("0")
    return digits + "0" * (len(digits) % 2)
