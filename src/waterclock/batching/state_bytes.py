"""The bytes of a batcher's state: a frame with a checksum around Arrow IPC, whose schema metadata holds JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from waterclock._support.quoting import quoted
from waterclock.arrow import batches_from_ipc, check_messages, to_arrow, to_ipc
from waterclock.checksum import framed, has_form, unframed
from waterclock.errors import DamagedError, InvalidArgumentError, SchemaError
from waterclock.message import Message

_LARGEST_RUN = 256 << 20
"""Characters and bytes of messages in one record batch: Arrow counts the bytes of a column, up to four a character,
with 31 bits, and a state may hold more."""


class StateForm(NamedTuple):
    """One kind of state."""

    form: bytes  # name of its frame, four bytes
    key: bytes  # key of its facts in the schema metadata
    name: str  # its name, for errors

    def write(self, facts: bytes, messages: Sequence[Message]) -> bytes:
        columns = [to_arrow(run, positions=True).replace_schema_metadata({self.key: facts}) for run in _runs(messages)]
        return framed(self.form, to_ipc(*columns))

    def read(self, data: bytes) -> tuple[bytes, pa.Table]:
        """Read back the facts and the messages.

        Raises `DamagedError` if the bytes are such a state, but corrupt. Raises `SchemaError` if they are something
        else. Raises `InvalidArgumentError` if they are not bytes.
        """
        if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may not check types
            raise InvalidArgumentError(f"state must be bytes that hold {self.name}, got {quoted(data)}")
        if not has_form(self.form, data):
            raise SchemaError(f"cannot read {len(data)} bytes: they are not {self.name}")
        columns = batches_from_ipc(unframed(self.form, data, self.name))
        facts = (columns[0].schema.metadata or {}).get(self.key)
        if facts is None:
            raise DamagedError(f"{self.name} is corrupt: the Arrow schema in its {len(data)} bytes has no metadata")
        for run in columns:
            check_messages(run)
        return facts, pa.Table.from_batches(columns)


def _runs(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Cut messages into runs that a record batch can hold; one empty run without messages."""
    first = size = 0
    for at, message in enumerate(messages):
        own = len(message.payload) + len(message.source) + len(message.stream)
        own += sum(len(name) + len(value) for name, value in (message.headers or {}).items())
        if size and size + own > _LARGEST_RUN:
            yield messages[first:at]
            first, size = at, 0
        size += own
    yield messages[first:]


_REMEDY = "Replay the source's messages since the last batch into a new batcher"


def refuse_version(version: object, known: int, remedy: str = _REMEDY) -> None:
    """Refuse a state of another version than the one that this Waterclock writes.

    Raises
    ------
    SchemaError
        With what to do about it.
    """
    if version != known:
        raise SchemaError(
            f"cannot read the batcher's state: it has version {quoted(version)}, and this Waterclock reads"
            f" {known}. {remedy}"
        )
