"""Recognizes a file that was appended before, so that its stored messages are not appended again.

The first message of a file determines the name of its producer. The transaction of each append also stores a checksum
of all messages of the file up to the end of the append. A file is recognized if it begins with exactly the messages
that were appended. The rest of the file may differ: the file may have grown, and messages that were not yet appended
may have been corrected.

If a file shares only its first message with an appended file, it is another file, with its own producer. If it shares
more messages, but not all that were appended, its appended part was changed, and the file is refused: appending it
would duplicate messages, and skipping it would lose the change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import count, islice
from typing import NamedTuple

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.ingest.files import MessageFile
from waterclock.message import Message
from waterclock.topics.model.producer_state import AppendMetadata, ProducerState
from waterclock.topics.topic import Topic
from waterclock.topics.writing.producers import producers_named

_CHECKSUM_BYTES = 16
_NAME_DIGITS = 16
_FIRST_SUFFIX = 2


class Recognised(NamedTuple):
    """A file's producer."""

    producer: str  # its name
    before: int  # how many of the file's messages, from the first on, were processed


class Prefix:
    """A checksum of a file's first messages, which grows with them."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, message: Message) -> None:
        """Add the next message."""
        self._hash.update(_as_given(message))

    @property
    def checksum(self) -> int:
        """The checksum of the messages so far."""
        return int.from_bytes(self._hash.digest()[:_CHECKSUM_BYTES], "big")


def recognise(topic: Topic, file: MessageFile) -> Recognised | None:
    """Find the producer of a file; None for a file without messages, and for one that can be read only once.

    Raises
    ------
    InvalidArgumentError
        If the appended part of the file was changed; it names the line and the remedy.
    WaterclockError
        Any error of reading.
    """
    if not file.can_be_read_again():
        return None
    first = next(file.numbered(), None)
    if first is None:
        return None
    name = f"file-{hashlib.sha256(_as_given(first[1])).hexdigest()[:_NAME_DIGITS]}"
    known = {each: numbering for each, numbering in producers_named(topic.storage, name).items() if numbering.recent}
    if not known:
        return Recognised(name, 0)
    try:
        checksums = _checksums(file, {each.last for numbering in known.values() for each in numbering.recent})
    except (InvalidArgumentError, SchemaError) as error:
        raise type(error)(f"{error}. The topic already has this message of the file. {_REMEDY}") from error
    going_on = [
        Recognised(each, numbering.recent[-1].last + 1)
        for each, numbering in known.items()
        if _agrees(numbering.recent[-1], checksums)
    ]
    if going_on:
        return max(going_on, key=lambda each: each.before)
    for numbering in known.values():
        _refuse_changed(topic, file, numbering, checksums)
    return Recognised(next(free for number in count(_FIRST_SUFFIX) if (free := f"{name}-{number}") not in known), 0)


_REMEDY = (
    "Restore the file, and append new messages from a new file. If this is another file, give it its own --producer"
)


def _checksums(file: MessageFile, lasts: set[int]) -> dict[int, int]:
    """Compute the checksum up to each of these messages, counted from 0; those after the end of the file have none."""
    prefix = Prefix()
    found: dict[int, int] = {}
    for index, (_, message) in enumerate(islice(file.numbered(), max(lasts) + 1)):
        prefix.add(message)
        if index in lasts:
            found[index] = prefix.checksum
    return found


def _agrees(append: AppendMetadata, checksums: dict[int, int]) -> bool:
    return checksums.get(append.last) == append.checksum


def _refuse_changed(topic: Topic, file: MessageFile, numbering: ProducerState, checksums: dict[int, int]) -> None:
    recent = numbering.recent
    agreeing = [place for place, each in enumerate(recent) if _agrees(each, checksums)]
    if not agreeing and _is_another(file, [message for each in recent for message in _held(topic, each)]):
        return
    at = agreeing[-1] + 1 if agreeing else 0
    begin = recent[at - 1].last + 1 if at else 0  # up to there the file is unchanged
    where = _difference(topic, file, recent[at], begin)
    raise InvalidArgumentError(
        f"the file {quoted(file.path)} was already appended up to message {recent[-1].last + 1}, but {where}. {_REMEDY}"
    )


def _is_another(file: MessageFile, held: list[Message]) -> bool:
    first, *others = islice(_contents(file), 2)
    common = {_content(message) for message in held} - {first}
    return bool(held and others) and not any(content in common for content in _contents(file))


def _difference(topic: Topic, file: MessageFile, append: AppendMetadata, begin: int) -> str:
    """Describe where, from message ``begin`` to the end of an append, a file differs from its appended form."""
    held = list(_held(topic, append)) if append.first == begin else []
    if len(held) == append.last - append.first + 1:
        end = 0
        given = islice(file.numbered(), append.first, append.last + 1)
        for (number, message), was in zip(given, held, strict=False):
            end = number
            if _content(message) != _content(was):
                noun = "message" if file.path.endswith(".parquet") else "line"
                return f"it has changed since then in {noun} {number}"
        if end == 0:
            return "it has fewer messages now"
    return f"some of its messages {begin + 1} to {append.last + 1} have changed or are missing"


def _held(topic: Topic, append: AppendMetadata) -> Iterator[Message]:
    """Read the messages of an append as the topic has them; none if they were deleted, or all were rejected."""
    if append.position is None:
        return
    for message in topic.read(append.position, limit=append.last - append.first + 1):
        if message.position is None or message.position[:2] != append.position[:2]:
            return
        yield message


def _contents(file: MessageFile) -> Iterator[bytes]:
    return (_content(message) for _, message in file.numbered())


def _as_given(message: Message) -> bytes:
    """Encode a message, including times that a topic would fill in if missing."""
    return json.dumps([message.publish_time, message.receive_time]).encode() + _content(message)


def _content(message: Message) -> bytes:
    headers = None if message.headers is None else sorted(message.headers.items())
    return json.dumps(
        [message.source, message.stream, message.event_time, headers, message.payload.hex()], separators=(",", ":")
    ).encode()
