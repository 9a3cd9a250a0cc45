"""Appends a file's messages. If the same file is appended again, continues after the last stored message."""

from __future__ import annotations

from dataclasses import dataclass

from waterclock._support.quoting import quoted
from waterclock.cli.topics.recognising import Prefix, recognise
from waterclock.errors import InvalidArgumentError, WaterclockError
from waterclock.ingest.files import MessageFile, Progress
from waterclock.message import Message
from waterclock.topics.format.entries import encode_entry
from waterclock.topics.model.clock_skew_limit import Rejected
from waterclock.topics.topic import Topic
from waterclock.topics.writing.appending import Appended, append_entry
from waterclock.topics.writing.producers import last_sequence, newest_numbers, numbered


@dataclass(frozen=True)
class AppendedFile:
    """The outcome of appending a file."""

    given: int  # how many messages it has
    appended: int  # how many were written now
    before: int  # how many were processed before
    # The messages that the topic rejected now; each ``index`` counts from the first message of the file.
    rejected: tuple[Rejected, ...]


class OtherFileError(InvalidArgumentError):
    """The producer of a file has appended another file."""


def append_file(
    topic: Topic, file: MessageFile, producer: str | None, progress: Progress | None = None
) -> AppendedFile:
    """Append the messages of a file, numbered from 0 for a producer, and skip those that it appended before.

    Parameters
    ----------
    topic
        The topic.
    file
        The file.
    producer
        The producer's name. None: the file is recognised by its messages (`waterclock.cli.topics.recognising`).
        Standard input, which can be read only once, then has no producer and is appended whole.
    progress
        As of `MessageFile.chunks`.

    Raises
    ------
    WaterclockError
        The error of reading or appending, with the number of appended messages and how to continue.
    """
    name, before = _known(topic, file) if producer is None else (producer, _appended_before(topic, producer))
    again = None if producer is None else _Again(topic, producer)
    prefix = Prefix()
    passed = appended = 0
    rejected: list[Rejected] = []
    try:
        for chunk in file.chunks(progress):
            if again is not None:
                again.compare(chunk, passed)
            else:
                for message in chunk:
                    prefix.add(message)
            first = max(before, passed)
            new = chunk[first - passed :]
            if new:
                done = _append(topic, new, name, first, prefix.checksum if again is None else None)
                appended += 0 if done.duplicate else done.count
                rejected += [each._replace(index=first + each.index) for each in done.rejected]
            passed += len(chunk)
    except OtherFileError:
        raise  # none of its messages was appended
    except WaterclockError as error:
        raise type(error)(f"{error}; {_how_far(max(before, passed), len(rejected), name)}") from error
    if again is not None:
        again.finish()
    return AppendedFile(passed, appended, passed - appended - len(rejected), tuple(rejected))


def _known(topic: Topic, file: MessageFile) -> tuple[str | None, int]:
    recognised = recognise(topic, file)
    return (None, 0) if recognised is None else recognised


def _appended_before(topic: Topic, producer: str) -> int:
    last = last_sequence(topic.storage, producer)
    return 0 if last is None else last + 1


def _append(topic: Topic, messages: list[Message], name: str | None, first: int, checksum: int | None) -> Appended:
    """Append messages of a file, with the checksum of the file up to their end if ``checksum`` has one."""
    if name is None or checksum is None:
        return topic.append(messages, producer=name, sequence=None if name is None else first)
    storage = topic.storage
    entry = encode_entry(messages, storage.backend.now_about, storage.ahead_limit())
    return append_entry(storage, entry, numbered(name, first, None, entry.given, checksum))


class _Again:
    """Compares a file with its producer's last append: another file under its name would be skipped."""

    def __init__(self, topic: Topic, producer: str) -> None:
        self._topic = topic
        self._producer = producer
        self._numbers = newest_numbers(topic.storage, producer)
        self._messages: list[Message] = []

    def compare(self, chunk: list[Message], passed: int) -> None:
        """Compare the next messages of the file, after ``passed`` others; OtherFileError if they differ."""
        if self._numbers is None:
            return
        first, last = self._numbers
        self._messages += chunk[max(0, first - passed) : max(0, last + 1 - passed)]
        if passed + len(chunk) > last:
            self._numbers = None
            try:
                self._topic.append(self._messages, producer=self._producer, sequence=first)
            except InvalidArgumentError as error:
                raise OtherFileError(
                    f"producer {quoted(self._producer)} has already appended other messages with the numbers {first}"
                    f" to {last}. Give this file its own --producer, or omit --producer"
                ) from error

    def finish(self) -> None:
        """Note the end of the file; InvalidArgumentError if its producer has appended more."""
        if self._numbers is not None:
            raise InvalidArgumentError(
                f"producer {quoted(self._producer)} has already appended messages up to number {self._numbers[1]}, but"
                " this file has fewer messages. Give this file its own --producer, or omit --producer"
            )


def _how_far(count: int, rejected: int, producer: str | None) -> str:
    if count == 0:
        return "none of its messages were appended"
    all_in = f"its first {count} messages were appended"
    if rejected:
        all_in += f", except {rejected} that were rejected"
    if producer is None:
        return f"{all_in}: continue after them"
    return f"{all_in}: correct the file and append it again to continue after them"
