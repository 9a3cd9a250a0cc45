"""Appending a file's messages so that the same file, appended again, goes on where it was broken off."""

from __future__ import annotations

from dataclasses import dataclass

from waterclock.errors import WaterclockError
from waterclock.ingest.files import content_name, read_messages
from waterclock.topics.ahead import Rejected
from waterclock.topics.producers import last_sequence
from waterclock.topics.topic import Topic


@dataclass(frozen=True)
class AppendedFile:
    """What became of a file.

    Attributes
    ----------
    given
        How many messages it has.
    appended
        Those that were written now.
    before
        Those that had their turn before.
    rejected
        Those that the topic did not take now; each ``index`` counts from the first message of the file.
    """

    given: int
    appended: int
    before: int
    rejected: tuple[Rejected, ...]


def append_file(topic: Topic, file: str, producer: str | None) -> AppendedFile:
    """Append the messages of a file, numbered from 0 for a producer, and pass over those that it appended before.

    Parameters
    ----------
    topic
        The topic.
    file
        A path, or ``-`` for standard input.
    producer
        The producer's name. None: the file's content; what can be read only once, such as standard input, has no
        producer then and is appended whole.

    Raises
    ------
    WaterclockError
        What reading or appending raises, with how many messages are in and how to go on.
    """
    name = content_name(file) if producer is None and file != "-" else producer
    last = None if name is None else last_sequence(topic.storage, name)
    before = 0 if last is None else last + 1
    passed = appended = 0
    rejected: list[Rejected] = []
    try:
        for chunk in read_messages(file):
            first = max(before, passed)
            new = chunk[first - passed :]
            if new:
                done = topic.append(new, producer=name, sequence=None if name is None else first)
                appended += done.count
                rejected += [each._replace(index=first + each.index) for each in done.rejected]
            passed += len(chunk)
    except WaterclockError as error:
        raise type(error)(f"{error}; {_how_far(max(before, passed), len(rejected), name)}") from error
    return AppendedFile(passed, appended, min(before, passed), tuple(rejected))


def _how_far(count: int, rejected: int, producer: str | None) -> str:
    if count == 0:
        return "none of its messages is in"
    all_in = f"its first {count} messages are in"
    if rejected:
        all_in += f", but for {rejected} that were rejected"
    if producer is None:
        return f"{all_in}: go on after them"
    return f"{all_in}: put it right, and go on after them with --producer {producer}"
