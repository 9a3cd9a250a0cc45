"""The bytes in which Spark keeps states: a frame with a checksum, a line of JSON, and arrays."""

from __future__ import annotations

from typing import Any

from waterclock.batching.facts import parsed, read_as
from waterclock.batching.state_bytes import refuse_version
from waterclock.checksum import has_form, unframed
from waterclock.errors import InvalidArgumentError, SchemaError

REMEDY = "Start the query with a new checkpoint, from the position after its last batches"
"""The remedy for a state from which a stream cannot continue."""


def state_parts(form: bytes, state: bytes, name: str, version: int) -> tuple[list[Any], memoryview]:
    """Check a state, and return the facts of its JSON line, without the version, and the rest.

    Raises `DamagedError` if the bytes are corrupt. Raises `SchemaError` if they are something else or of another
    version.

    Parameters
    ----------
    form
        The name of its frame.
    state
        The bytes.
    name
        Their name, for the error.
    version
        The version that this Waterclock writes.
    """
    if not has_form(form, state):
        raise SchemaError(f"state of {len(state)} bytes is not {name}. {REMEDY}")
    written = unframed(form, state, name)
    line = bytes(written[:1024]).partition(b"\n")[0]
    if len(line) == len(written[:1024]):
        line = bytes(written).partition(b"\n")[0]
    with read_as(name):
        found, *facts = parsed(line)
        refuse_version(found, version, REMEDY)
    return facts, written[len(line) + 1 :]


def refuse_options(written: object, options: object) -> None:
    """Raise an InvalidArgumentError unless a state was written with these options."""
    if written != options:
        raise InvalidArgumentError(
            f"cannot start the query: its checkpoint was written with {written}, and the query has {options}. {REMEDY}"
        )
