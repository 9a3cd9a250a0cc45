"""The options for reading a topic, as a batch or a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError, NotFoundError
from waterclock.message import Position
from waterclock.spark.buckets import checked_buckets
from waterclock.spark.options import Opening, known_only, needed, number, truth
from waterclock.spark.reading.columns import METADATA_COLUMNS, check_columns
from waterclock.time import is_duration, to_duration, to_time
from waterclock.topics.catalogue.damage_policy import OnDamage, check_on_damage
from waterclock.topics.finding.finding import check_by
from waterclock.topics.finding.positions import beginning
from waterclock.topics.model.literals import By
from waterclock.topics.topic import Topic

_KNOWN = (
    "url",
    "ledgers",
    "topic",
    "columns",
    "packed",
    "buckets",
    "idOf",
    "startingTimestamp",
    "endingTimestamp",
    "by",
    "startingPosition",
    "endingPosition",
    "maxMessagesPerTrigger",
    "failOnDataLoss",
    "onDamage",
    "haltFile",
    "rule",
    "lengthFile",
)
_STREAM_ONLY = ("buckets", "maxMessagesPerTrigger", "failOnDataLoss", "haltFile", "rule", "lengthFile")


@dataclass(frozen=True, repr=False)
class TopicReadOptions(Opening):
    """The options of a read, checked."""

    topic: str
    columns: tuple[str, ...]  # the columns wanted, in order
    packed: bool  # whether messages are packed (`waterclock.columnar.packing`), with only `METADATA_COLUMNS`
    # Number of buckets into which the read gathers a stream's messages, which implies packed; None: by source.
    buckets: int | None
    # The header that holds the ids of packed messages, for batching by id; None: messages without ids.
    id_of: str | None
    since: int | str | None  # time to begin at, ns, or how long ago as a text; None: not given
    until: int | str | None  # time to stop before, as ``since``
    by: By  # which time of a message they are
    start: Position | Literal["latest"] | None  # position to begin at; None: not given
    stop: Position | None  # position to stop before; None: not given
    max_messages: int | None  # approximate messages per micro-batch; None: all existing ones
    fail_on_data_loss: bool  # whether a stream ends with an error if messages were deleted that it has not read
    on_damage: OnDamage  # the behaviour of tasks if messages are corrupt, lost or missing
    halt_file: str | None  # path on the driver: once a file is there, a stream takes no more messages; None: not given
    # Facts in a stream's offsets in addition to the buckets, as JSON, which a pipeline reads back; None: nothing.
    rule: str | None
    # Path on the driver of a file with the batch length of a pipeline's next micro-batch; None: not given.
    length_file: str | None

    @classmethod
    def checked(cls, options: Mapping[str, str]) -> TopicReadOptions:
        """Check the user's options, without opening anything.

        Raises
        ------
        InvalidArgumentError
            Naming the option that is missing, unknown or has a wrong value.
        """
        given = known_only(options, _KNOWN)
        if "startingtimestamp" in given and "startingposition" in given:
            raise InvalidArgumentError("startingTimestamp and startingPosition must not both be given")
        if "endingtimestamp" in given and "endingposition" in given:
            raise InvalidArgumentError("endingTimestamp and endingPosition must not both be given")
        buckets = number(given, "buckets")
        packed = truth(given, "packed", default=buckets is not None)
        if packed and "columns" in given:
            name = "packed" if buckets is None else "buckets"
            raise InvalidArgumentError(f"{name} and columns must not both be given")
        if buckets is not None and not packed:
            raise InvalidArgumentError("buckets and packed=false must not both be given")
        id_of = given.get("idof")
        if id_of is not None and not packed:
            raise InvalidArgumentError(f"idOf needs packed=true or buckets, got {quoted(id_of)} without either")
        if id_of == "":
            raise InvalidArgumentError("idOf must be the name of a header, got ''")
        position = given.get("startingposition", "earliest")
        return cls(
            url=needed(given, "url"),
            ledgers=given.get("ledgers"),
            topic=needed(given, "topic"),
            columns=_packed_columns(id_of) if packed else check_columns(given.get("columns")),
            packed=packed,
            buckets=None if buckets is None else checked_buckets(buckets),
            id_of=id_of,
            since=_time(given, "startingTimestamp"),
            until=_time(given, "endingTimestamp"),
            by=check_by(given.get("by", "publish_time")),
            start=None if position == "earliest" else "latest" if position == "latest" else Position.parse(position),
            stop=Position.parse(given["endingposition"]) if "endingposition" in given else None,
            max_messages=number(given, "maxMessagesPerTrigger"),
            fail_on_data_loss=truth(given, "failOnDataLoss", default=True),
            on_damage=check_on_damage(given.get("ondamage", "raise"), "onDamage"),
            halt_file=given.get("haltfile"),
            rule=given.get("rule"),
            length_file=given.get("lengthfile"),
        )


def _packed_columns(id_of: str | None) -> tuple[str, ...]:
    return METADATA_COLUMNS if id_of is None else (*METADATA_COLUMNS, "headers")


def refuse_stream_options(options: Mapping[str, str]) -> None:
    """Refuse options that apply only to a stream."""
    given = {name.lower(): value for name, value in options.items()}
    for name in _STREAM_ONLY:
        if name.lower() in given:
            raise InvalidArgumentError(f"option {quoted(name)} only works with spark.readStream")
    if given.get("startingposition") == "latest":
        raise InvalidArgumentError("startingPosition 'latest' only works with spark.readStream")


def refuse_end(options: TopicReadOptions) -> None:
    """Refuse an end position for a stream."""
    for name, given in (("endingTimestamp", options.until), ("endingPosition", options.stop)):
        if given is not None:
            raise InvalidArgumentError(f"option {quoted(name)} only works with spark.read")


def refuse_expired(topic: Topic, start: Position | Literal["latest"] | None) -> None:
    """Check that the messages from a position on, if it is not None, have not been deleted.

    Raises
    ------
    NotFoundError
        Naming the position and the first that is left.
    """
    if start is None or start == "latest":
        return
    first = beginning(topic.storage).position
    if start.ledger < first.ledger:
        raise NotFoundError(
            f"startingPosition {start} of topic {topic.name!r} has expired. Start at {first}, the first remaining"
            " message, or omit startingPosition"
        )


def _time(options: Mapping[str, str], name: str) -> int | str | None:
    given = options.get(name.lower())
    if given is None:
        return None
    # Options are texts to Spark, so a time in ns arrives as its digits.
    if given.lstrip("-").isdigit():
        return to_time(int(given), name)
    if is_duration(given):
        to_duration(given, name)
        return given
    return to_time(given, name)
