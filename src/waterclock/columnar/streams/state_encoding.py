"""Encodes the states that Spark keeps: a frame with a checksum around a line of JSON and arrays."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from waterclock.batching.facts import parsed, read_as
from waterclock.batching.state_bytes import refuse_version
from waterclock.checksum import framed, has_form, unframed
from waterclock.errors import InvalidArgumentError, SchemaError

REMEDY = "Start the query with a new checkpoint, from the position after its last batches"
"""The remedy for a state from which a stream cannot continue."""


class StateEncoding(NamedTuple):
    """How one kind of stream keeps its state."""

    form: bytes  # the name of its frame
    name: str  # for errors
    version: int  # the version that is written, and the only one that is read

    def encode(self, facts: list[Any], *parts: bytes) -> bytes:
        """Return the bytes of a state: facts that JSON can hold, and parts whose lengths the facts tell."""
        return framed(self.form, json.dumps([self.version, *facts]).encode(), b"\n", *parts)

    def decode(self, state: bytes) -> tuple[list[Any], memoryview]:
        """Check a state, and return its facts and its parts.

        Raises `DamagedError` if the bytes are corrupt. Raises `SchemaError` if they are something else or of another
        version.
        """
        if not has_form(self.form, state):
            raise SchemaError(f"cannot read {len(state)} bytes: they are not {self.name}. {REMEDY}")
        written = unframed(self.form, state, self.name)
        line = bytes(written[:1024]).partition(b"\n")[0]
        if len(line) == len(written[:1024]):
            line = bytes(written).partition(b"\n")[0]
        with read_as(self.name):
            found, *facts = parsed(line)
            refuse_version(found, self.version, REMEDY)
        return facts, written[len(line) + 1 :]


def refuse_options(written: object, options: object) -> None:
    """Raise an InvalidArgumentError unless a state was written with these options."""
    if written != options:
        raise InvalidArgumentError(
            f"cannot start the query: its checkpoint was written with {written}, and the query has {options}. {REMEDY}"
        )
