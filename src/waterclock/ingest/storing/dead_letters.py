"""Dead letters: messages that could not be mapped, stored in a separate topic."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from waterclock._support.quoting import cut, quoted
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.mapping.format_rule import Published
from waterclock.message import Message

DEAD_LETTERS = "ingest-dead-letters"
"""The topic of dead letters unless another one is named."""

MOST_PAYLOAD = 1 << 20
"""Default limit of a payload, bytes: measurements have some hundred, but brokers may allow 256 MB."""

SOURCE = "mqtt"
"""Source of all dead letters, because the source's own name may be the fault."""

STREAM = "dead-letter"

_SOURCE_OF_LINES = "file"
_PATH, _LINE = "file.path", "file.line"

KEPT_OF_LARGE = 64 << 10
"""Bytes kept of a payload above the limit: enough to recognise it, without filling the database."""

REASON = "reason"
"""The header that says why a message is a dead letter."""

_TOPIC, _TOPIC_HEX, _RETAINED, _BYTES = (
    "mqtt.topic",
    "mqtt.topic_hex",
    "mqtt.retained",
    "mqtt.payload_bytes",
)


def check_most_payload(most_payload: int, largest_value: int) -> None:
    """Raise InvalidArgumentError for less than 1, or if payloads could take more than half of the largest statement."""
    if most_payload < 1:
        raise InvalidArgumentError(f"max_payload must be at least 1, got {most_payload}")
    if most_payload > largest_value // 2:
        raise InvalidArgumentError(
            f"max_payload must be at most {largest_value // 2}, half of the largest statement that the database"
            f" accepts, got {most_payload}"
        )


def check_dead_letters(name: str, topics: Collection[str]) -> None:
    """Raise InvalidArgumentError if the topic of dead letters is one of those of the messages."""
    if name in topics:  # a replay would map the messages again
        raise InvalidArgumentError(f"dead_letters must not be the topic of the messages, got {quoted(name)}")


def dead_letter(published: Published, reason: str, received: int) -> Message:
    """Build a dead letter: the published message with the reason why it was not mapped."""
    topic, payload, is_retained = published
    headers = {REASON: clean_reason(reason)}
    if isinstance(topic, bytes):
        headers[_TOPIC_HEX] = topic.hex()
    else:
        headers[_TOPIC] = topic
    if is_retained:
        headers[_RETAINED] = "true"
    return Message.trusted(SOURCE, STREAM, received, payload, received, received, headers, None)


def dead_letter_of_large(published: Published, most: int, received: int) -> Message:
    """Build a dead letter with the beginning of a message whose payload is above the limit."""
    size = len(published.payload)
    kept = published._replace(payload=published.payload[:KEPT_OF_LARGE])
    reason = f"payload must have at most {most} bytes, got {size}; its first {len(kept.payload)} are kept"
    letter = dead_letter(kept, reason, received)
    return letter.replace(headers={**(letter.headers or {}), _BYTES: str(size)})


def dead_letter_of_line(path: str, number: int, line: bytes, reason: str, received: int) -> Message:
    """Create the message that keeps a line of a file with the reason why it was not mapped."""
    headers = {REASON: clean_reason(reason), _PATH: _clean(path), _LINE: str(number)}
    return Message.trusted(_SOURCE_OF_LINES, STREAM, received, line, received, received, headers, None)


def read_dead_letter(letter: Message) -> Published:
    """Read back the published message.

    Raises `InvalidArgumentError` if the message is not a dead letter, or holds only the beginning of a payload.
    """
    headers = letter.headers or {}
    if _BYTES in headers:
        raise InvalidArgumentError(
            f"cannot restore the message: only the first {len(letter.payload)} of its {headers[_BYTES]} bytes were kept"
        )
    with suppress(KeyError, ValueError):
        return Published(bytes.fromhex(headers[_TOPIC_HEX]), letter.payload, _RETAINED in headers)
    if letter.source != SOURCE or _TOPIC not in headers:
        raise InvalidArgumentError("cannot restore the message: it is not a dead letter of an ingest")
    return Published(headers[_TOPIC], letter.payload, _RETAINED in headers)


def clean_reason(reason: str) -> str:
    """Return a reason in the form for a header: bounded, and valid UTF-8."""
    return _clean(cut(reason))


def _clean(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
