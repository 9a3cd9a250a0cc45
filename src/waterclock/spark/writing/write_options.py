"""The options for writing a DataFrame or a stream."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from waterclock._support.quoting import quoted
from waterclock.connection import Database, connect
from waterclock.errors import InvalidArgumentError
from waterclock.spark.options import Opening, known_only, needed, truth
from waterclock.spark.streaming.batch_rows import Payloads
from waterclock.topics.catalogue.damage_policy import OnDamage, check_on_damage
from waterclock.topics.model.names import check_name
from waterclock.topics.topic import Topic

_KNOWN = (
    "url",
    "ledgers",
    "table",
    "topic",
    "payloads",
    "payloadsUrl",
    "payloadsLedgers",
    "failOnDataLoss",
    "onDamage",
    "producer",
    "microBatch",
)
# Spark also passes a stream's own options to its sink.
_SPARKS = ("checkpointLocation", "path", "queryName")

_MOST_DIGITS = 9
"""Of a micro-batch's number: with the number of the row, it has to fit into the 63 bits of a producer's sequence."""


@dataclass(frozen=True, repr=False)
class WriteOptions(Opening):
    """The options of a write, checked.

    Attributes
    ----------
    table, topic
        Target of the write: exactly one of them is set.
    payloads
        Topic that holds the messages' payloads, found by position; None: the messages have no payloads.
    payloads_url, payloads_ledgers
        The database of that topic; None: the one that is written to.
    fail_on_data_loss, on_damage
        The treatment of messages whose payloads were deleted since, or are corrupt, lost or missing.
    producer
        Name under which a topic remembers the write, so that a repeated write adds nothing; None: the stream's own id,
        or one for this write alone.
    micro_batch
        Number of this write among the producer's, if ``foreachBatch`` writes; each is larger than the one before.
    """

    table: str | None
    topic: str | None
    payloads: str | None
    payloads_url: str | None
    payloads_ledgers: str | None
    fail_on_data_loss: bool
    on_damage: OnDamage
    producer: str | None
    micro_batch: int | None

    @classmethod
    def checked(cls, options: Mapping[str, str]) -> WriteOptions:
        """Check the user's options, and that their topics and tables exist.

        Raises
        ------
        InvalidArgumentError
            Naming the option that is missing, unknown or has a wrong value.
        NotFoundError
            If the table or a topic does not exist.
        """
        sparks = {name.lower() for name in _SPARKS}
        given = known_only({name: value for name, value in options.items() if name.lower() not in sparks}, _KNOWN)
        table, topic, producer = given.get("table"), given.get("topic"), given.get("producer")
        if (table is None) == (topic is None):
            raise InvalidArgumentError(
                f"exactly one of the options table and topic must be given, got table {table} and topic {topic}"
            )
        if producer is not None and topic is None:
            raise InvalidArgumentError(
                "option 'producer' only works with a topic; a table recognises a batch by its id"
            )
        if producer is not None:
            check_name(producer)
        micro_batch = given.get("microbatch")
        if micro_batch is not None and producer is None:
            raise InvalidArgumentError("option 'microBatch' needs the option 'producer'")
        if micro_batch is not None and not (micro_batch.isdecimal() and len(micro_batch) <= _MOST_DIGITS):
            raise InvalidArgumentError(
                f"microBatch must be an integer ≥ 0 of at most {_MOST_DIGITS} digits, got {quoted(micro_batch)}"
            )
        checked = cls(
            url=needed(given, "url"),
            ledgers=given.get("ledgers"),
            table=table,
            topic=topic,
            payloads=given.get("payloads"),
            payloads_url=given.get("payloadsurl"),
            payloads_ledgers=given.get("payloadsledgers"),
            fail_on_data_loss=truth(given, "failOnDataLoss", default=True),
            on_damage=check_on_damage(given.get("ondamage", "raise"), "onDamage"),
            producer=producer,
            micro_batch=None if micro_batch is None else int(micro_batch),
        )
        if checked.payloads is None and checked.payloads_url is not None:
            raise InvalidArgumentError("option 'payloadsUrl' needs the option 'payloads'")
        if checked.payloads_url is None and checked.payloads_ledgers is not None:
            raise InvalidArgumentError("option 'payloadsLedgers' needs the option 'payloadsUrl'")
        with checked.connect() as database:
            if table is not None:
                database.table(table)
            if topic is not None:
                database.topic(topic)
            with checked.open_payloads(database):
                pass
        return checked

    @contextmanager
    def open_payloads(self, database: Database) -> Generator[Payloads | None]:
        """Open the topic with the payloads; ``database`` is the target of the write."""
        if self.payloads is None:
            yield None
        elif self.payloads_url is None:
            yield self._payloads(database.topic(self.payloads))
        else:
            with connect(self.payloads_url, self.payloads_ledgers) as other:
                yield self._payloads(other.topic(self.payloads))

    def _payloads(self, topic: Topic) -> Payloads:
        return Payloads.to_write(topic, fail_on_data_loss=self.fail_on_data_loss, on_damage=self.on_damage)
