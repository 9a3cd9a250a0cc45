"""Appending a file's messages so that the same file, appended again, goes on where it was broken off."""

from __future__ import annotations

from dataclasses import dataclass

from waterclock.errors import WaterclockError
from waterclock.ingest.files import content_name, read_messages
from waterclock.topics.producers import last_sequence
from waterclock.topics.topic import Topic


@dataclass(frozen=True)
class AppendedFile:
    """What became of a file: messages appended now, and those that the topic held already."""

    appended: int
    before: int


def append_file(topic: Topic, file: str, producer: str | None) -> AppendedFile:
    """Append the messages of a file, numbered from 0 for a producer, and pass over those that it appended before.

    Parameters
    ----------
    topic
        The topic.
    file
        A path, or ``-`` for standard input.
    producer
        Who appends. None: the file's content; what can be read only once, such as standard input, has no producer then
        and is appended whole.

    Raises
    ------
    WaterclockError
        What reading or appending raises, with how many messages are in and how to go on.
    """
    name = content_name(file) if producer is None and file != "-" else producer
    last = None if name is None else last_sequence(topic.storage, name)
    before = 0 if last is None else last + 1
    passed = appended = 0
    try:
        for chunk in read_messages(file):
            new = chunk[max(before - passed, 0) :]
            passed += len(chunk)
            if new:
                sequence = None if name is None else before + appended
                topic.append(new, producer=name, sequence=sequence)
                appended += len(new)
    except WaterclockError as error:
        raise type(error)(f"{error}; {_how_far(before + appended, name)}") from error
    return AppendedFile(appended, min(before, passed))


def _how_far(count: int, producer: str | None) -> str:
    if count == 0:
        return "none of its messages is in"
    if producer is None:
        return f"its first {count} messages are in: go on after them"
    return f"its first {count} messages are in: put it right, and go on after them with --producer {producer}"
