"""The bytes of a batcher's state: Arrow IPC with facts in its schema metadata, in a frame with a checksum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from waterclock.arrow import check_messages, from_ipc, to_arrow, to_ipc
from waterclock.checksum import framed, has_form, unframed
from waterclock.errors import DamagedError, InvalidArgumentError, SchemaError
from waterclock.message import Message
from waterclock.quoting import quoted


class StateForm(NamedTuple):
    """One kind of state.

    Attributes
    ----------
    form
        Name of its frame, four bytes.
    key
        Under which its facts stand in the schema metadata.
    name
        What it is, for errors.
    """

    form: bytes
    key: bytes
    name: str

    def write(self, facts: bytes, messages: Sequence[Message]) -> bytes:
        """Write facts and messages."""
        columns = to_arrow(messages, positions=True)
        return framed(self.form, to_ipc(columns.replace_schema_metadata({self.key: facts})))

    def read(self, data: bytes) -> tuple[bytes, pa.RecordBatch]:
        """Read back the facts and the messages.

        Raises
        ------
        DamagedError
            Where the bytes are those of such a state, but not as they were written.
        SchemaError
            Where they are something else.
        InvalidArgumentError
            Where they are no bytes.
        """
        if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may not check types
            raise InvalidArgumentError(
                f"state: {quoted(data)} is a {type(data).__name__}; give the bytes of {self.name}"
            )
        if not has_form(self.form, data):
            raise SchemaError(f"{len(data)} bytes are not {self.name}")
        columns = from_ipc(unframed(self.form, data, self.name))
        facts = (columns.schema.metadata or {}).get(self.key)
        if facts is None:
            raise DamagedError(f"{self.name} is damaged: its {len(data)} bytes hold no facts")
        check_messages(columns)
        return facts, columns


_REMEDY = "replay the source's messages since the last batch into a new batcher"


def refuse_version(version: object, known: int, remedy: str = _REMEDY) -> None:
    """Refuse a state of another version than the one that this Waterclock writes.

    Raises
    ------
    SchemaError
        With what to do about it.
    """
    if version != known:
        raise SchemaError(
            f"the batcher's state has version {quoted(version)} and this Waterclock reads {known}; {remedy}"
        )
