"""The bytes in which Spark keeps states: a frame with a checksum, a line of JSON, and arrays."""

from __future__ import annotations

from waterclock.checksum import has_form, unframed
from waterclock.errors import SchemaError

REMEDY = "Start the query with a new checkpoint, from the position after its last batches"
"""The remedy for a state from which a stream cannot continue."""


def state_parts(form: bytes, state: bytes, name: str) -> tuple[bytes, memoryview]:
    """Check a state, and return its JSON line and the rest.

    Parameters
    ----------
    form
        The name of its frame.
    state
        The bytes.
    name
        Their name, for the error.

    Raises
    ------
    DamagedError
        If the bytes are corrupt.
    SchemaError
        If they are something else.
    """
    if not has_form(form, state):
        raise SchemaError(f"state of {len(state)} bytes is not {name}. {REMEDY}")
    written = unframed(form, state, name)
    line = bytes(written[:1024]).partition(b"\n")[0]
    if len(line) == len(written[:1024]):
        line = bytes(written).partition(b"\n")[0]
    return line, written[len(line) + 1 :]
