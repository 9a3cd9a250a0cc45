"""The bytes in which Spark keeps the state of one source: a frame with a checksum, a line of JSON, and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from waterclock.checksum import has_form, unframed
from waterclock.errors import DamagedError, SchemaError
from waterclock.spark.packing import Records

REMEDY = "start the query with a new checkpoint, from the position after its last batches"
"""What to do about a state that cannot be gone on with."""


def state_parts(form: bytes, unframed_form: bytes, state: bytes, name: str) -> tuple[bytes, bytes]:
    """Check a state, and give its line and what follows.

    Parameters
    ----------
    form
        The name of its frame.
    unframed_form
        How states of earlier versions begin, which have no frame.
    state
        The bytes.
    name
        What they are, for the error.

    Raises
    ------
    DamagedError
        Where they are not as they were written.
    SchemaError
        Where they are something else.
    """
    if has_form(form, state):
        written = bytes(unframed(form, state, name))
    elif state.startswith(unframed_form):
        written = state[len(unframed_form) :]
    else:
        raise SchemaError(f"{len(state)} bytes are not {name}; {REMEDY}")
    line, _, rest = written.partition(b"\n")
    return line, rest


def kept_messages(data: bytes, record: np.dtype[Any], streams: list[str], name: str) -> Records:
    """Read the messages of a state.

    Raises
    ------
    DamagedError
        Where they are no whole records, or of other streams than the state names.
    """
    if len(data) % record.itemsize:
        raise DamagedError(f"{name} is damaged: {len(data)} bytes are no messages of {record.itemsize} each")
    messages = np.frombuffer(data, record)
    if len(messages) and messages["stream"].max() >= len(streams):
        raise DamagedError(f"{name} is damaged: a message is of none of its {len(streams)} streams")
    return messages
