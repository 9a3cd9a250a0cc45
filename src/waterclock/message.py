"""The message: one measurement or event, and its position in a topic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.time import Time, format_time, to_time

_POSITION = re.compile(r"(\d+):(\d+):(\d+)")


class Position(NamedTuple):
    """A place in a topic. Positions of one topic compare in reading order.

    Attributes
    ----------
    ledger
        Number of the ledger in its topic, from 0.
    entry
        Number of the append in its ledger, from 0.
    index
        Number of the message in its entry, from 0.
    """

    ledger: int
    entry: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # the word of the interface; tuple.index is not used

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read what ``str(position)`` wrote, for example ``"3:17:0"``."""
        match = _POSITION.fullmatch(text)
        if match is None:
            raise InvalidArgumentError(f"position must be ledger:entry:index, for example 3:17:0, got {quoted(text)}")
        return cls(*map(int, match.groups()))


class Message:
    """One thing that was sent. Immutable; times are int nanoseconds since the epoch, UTC.

    Parameters
    ----------
    source
        The device or instrument it comes from; not empty. The unit of batching and of parallelism.
    stream
        Which kind of measurement of the source it is; not empty ("type" in *Message Batching*).
    event_time
        When it happened: an int (ns), an aware datetime, or ISO 8601 with an offset.
    payload
        Its content, opaque bytes.
    publish_time
        When its producer sent it. A topic fills it in with the database's clock if it is None.
    receive_time
        When we received it ("processing time" in *Message Batching*). Filled in like ``publish_time``.
    headers
        Text by text, for example a group.
    position
        Its position in a topic; set by the topic that it was read from.

    Raises
    ------
    InvalidArgumentError
        Naming the field and the value, for an empty source or stream, a naive datetime, a time outside int64,
        a payload that is not bytes, or headers that are not texts.
    """

    __slots__ = (
        "event_time",
        "headers",
        "payload",
        "position",
        "publish_time",
        "receive_time",
        "source",
        "stream",
    )

    source: str
    stream: str
    event_time: int
    payload: bytes
    publish_time: int | None
    receive_time: int | None
    headers: Mapping[str, str] | None
    position: Position | None

    def __init__(
        self,
        source: str,
        stream: str,
        event_time: Time,
        payload: bytes | bytearray | memoryview = b"",
        *,
        publish_time: Time | None = None,
        receive_time: Time | None = None,
        headers: Mapping[str, str] | None = None,
        position: Position | None = None,
    ) -> None:
        _fill(
            self,
            _text(source, "source"),
            _text(stream, "stream"),
            to_time(event_time, "event_time"),
            _bytes(payload),
            None if publish_time is None else to_time(publish_time, "publish_time"),
            None if receive_time is None else to_time(receive_time, "receive_time"),
            None if headers is None else _headers(headers),
            position,
        )

    @classmethod
    def trusted(
        cls,
        source: str,
        stream: str,
        event_time: int,
        payload: bytes,
        publish_time: int | None,
        receive_time: int | None,
        headers: Mapping[str, str] | None,
        position: Position | None,
    ) -> Message:
        """Create a message from fields that are already checked, as a topic does when it reads. Twice as fast."""
        message = cls.__new__(cls)
        _fill(message, source, stream, event_time, payload, publish_time, receive_time, headers, position)
        return message

    def replace(self, **changes: Any) -> Message:
        """Copy the message with some fields changed; the changed ones are checked."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        unknown = changes.keys() - fields.keys()
        if unknown:
            raise InvalidArgumentError(
                f"no message field named {quoted(min(unknown))}; the fields are {', '.join(fields)}"
            )
        return Message(**{**fields, **changes})

    def _fields(self) -> tuple[object, ...]:
        return (
            self.source,
            self.stream,
            self.event_time,
            self.payload,
            self.publish_time,
            self.receive_time,
            self.headers,
            self.position,
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"cannot set {name}: messages are immutable. Use message.replace({name}=…) for a changed copy"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"cannot delete {name}: messages are immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return (Message.trusted, self._fields())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.source, self.stream, self.event_time, self.receive_time))

    def __repr__(self) -> str:
        parts = [
            f"{quoted(self.source)}, {quoted(self.stream)}, {format_time(self.event_time)}, {len(self.payload)} bytes"
        ]
        if self.receive_time is not None:
            parts.append(f"received {format_time(self.receive_time)}")
        if self.position is not None:
            parts.append(f"at {self.position}")
        return f"<Message {', '.join(parts)}>"


_set_source = Message.__dict__["source"].__set__
_set_stream = Message.__dict__["stream"].__set__
_set_event_time = Message.__dict__["event_time"].__set__
_set_payload = Message.__dict__["payload"].__set__
_set_publish_time = Message.__dict__["publish_time"].__set__
_set_receive_time = Message.__dict__["receive_time"].__set__
_set_headers = Message.__dict__["headers"].__set__
_set_position = Message.__dict__["position"].__set__


def _fill(
    message: Message,
    source: str,
    stream: str,
    event_time: int,
    payload: bytes,
    publish_time: int | None,
    receive_time: int | None,
    headers: Mapping[str, str] | None,
    position: Position | None,
) -> None:
    # The slots' own setters pass by __setattr__, which refuses; object.__setattr__ would cost twice the time.
    _set_source(message, source)
    _set_stream(message, stream)
    _set_event_time(message, event_time)
    _set_payload(message, payload)
    _set_publish_time(message, publish_time)
    _set_receive_time(message, receive_time)
    _set_headers(message, headers)
    _set_position(message, position)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} must be a string, got {quoted(value)}")
    if not value:
        raise InvalidArgumentError(f"{name} must not be empty")
    return value


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidArgumentError(f"payload must be bytes, for example text.encode(), got {quoted(value)}")


def _headers(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"headers must be a dict of strings, got {quoted(value)}")
    checked: dict[str, str] = {}
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise InvalidArgumentError(f"headers must be a dict of strings, got {quoted(key)}: {quoted(text)}")
        checked[key] = text
    return checked
