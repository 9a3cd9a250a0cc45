"""Computes and checks the checksums of all stored data. Bytes are checked before they are decoded.

CRC-32 (ISO 3309, `zlib.crc32`) detects every change of up to 32 neighbouring bits, and all but one in four billion
other changes. It detects disk faults, memory faults and truncation, but not deliberate changes.
"""

from __future__ import annotations

import struct
import zlib

from waterclock.errors import DamagedError

_FRAME = struct.Struct("<4sI")

FRAME_BYTES = _FRAME.size
"""Bytes that a frame adds to its body."""


checksum = zlib.crc32
"""The CRC-32 of some bytes; a second argument is the checksum of the preceding bytes, to continue from."""


def framed(form: bytes, *parts: bytes) -> bytes:
    """Put a body, given in parts, behind the name of its form, of four bytes, and the checksum of both."""
    total = checksum(form)
    for part in parts:
        total = checksum(part, total)
    return b"".join([_FRAME.pack(form, total), *parts])


def has_form(form: bytes, data: bytes) -> bool:
    """Return whether bytes begin as `framed` writes this form."""
    return data[: len(form)] == form


def unframed(form: bytes, data: bytes, name: str) -> memoryview:
    """Check the output of `framed`, and return the body, without a copy.

    Raises `DamagedError` if they are too short, have another form, or differ from the written bytes.

    Parameters
    ----------
    form
        The form that is expected.
    data
        The bytes.
    name
        Their name, for the error: ``"entry 3 of ledger 5"``.
    """
    if len(data) < FRAME_BYTES:
        raise DamagedError(f"{name} is corrupt: it has only {len(data)} bytes")
    found, expected = _FRAME.unpack_from(data)
    if found != form:
        raise DamagedError(f"{name} is corrupt or has another format: it begins with {found!r} instead of {form!r}")
    body = memoryview(data)[FRAME_BYTES:]
    if checksum(body, checksum(form)) != expected:
        raise DamagedError(f"{name} is corrupt: its {len(data)} bytes do not match their checksum")
    return body


def trailer(form: bytes, body: bytes | memoryview) -> bytes:
    """Return a form and the checksum of form and body, to append to a body whose readers stop at its own end."""
    return _FRAME.pack(form, checksum(body, checksum(form)))


def has_trailer(form: bytes, data: bytes) -> bool:
    """Return whether bytes end with a `trailer` of this form."""
    return data[-FRAME_BYTES : -FRAME_BYTES + len(form)] == form


def without_trailer(form: bytes, data: bytes, name: str) -> memoryview:
    """Compare the `trailer` that `has_trailer` has found, and return the body, without a copy.

    Raises `DamagedError` if the bytes differ from their written form; the error contains ``name``.
    """
    body = memoryview(data)[:-FRAME_BYTES]
    if data[-FRAME_BYTES:] != trailer(form, body):
        raise DamagedError(f"{name} is corrupt: its {len(data)} bytes do not match their checksum")
    return body
