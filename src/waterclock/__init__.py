"""Waterclock stores messages, finds them by time, batches them by event time, and hands them out as work."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waterclock.backup.restoring import restore
    from waterclock.batching.adaptive import AdaptiveBatchLength
    from waterclock.batching.batch import Batch, Rejection
    from waterclock.batching.by_id.batcher import IdBatcher
    from waterclock.batching.by_id.columns import assign_batches_by_id
    from waterclock.batching.by_id.missing import MissingIds, missing_ids
    from waterclock.batching.by_source import BySource
    from waterclock.batching.event_time.batcher import EventTimeBatcher
    from waterclock.batching.event_time.columns import assign_batches
    from waterclock.batching.rate.by_column.columns import RateAwareColumns
    from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
    from waterclock.connection import Database, connect
    from waterclock.errors import (
        AlreadyExistsError,
        ConstraintError,
        DamagedError,
        ForbiddenError,
        InvalidArgumentError,
        LeaseLostError,
        LongCallWarning,
        NotFoundError,
        OrderError,
        OutsideWindowWarning,
        PartlyPutError,
        ProducerFencedError,
        RefusedError,
        SchemaError,
        TimedOutError,
        UnavailableError,
        WaterclockError,
    )
    from waterclock.figures.clock_offsets import clock_offsets
    from waterclock.figures.timeline import timeline
    from waterclock.message import Message, Position
    from waterclock.tables.consumers.delivery import Delivery
    from waterclock.tables.message_table import MessageTable
    from waterclock.topics.subscription import Subscription
    from waterclock.topics.topic import Topic
    from waterclock.work.ground.outcomes import DeadLetter, Discard, Retry, Snooze
    from waterclock.work.worker import Worker

    __version__: str

__all__ = [
    "AdaptiveBatchLength",
    "AlreadyExistsError",
    "Batch",
    "BySource",
    "ConstraintError",
    "DamagedError",
    "Database",
    "DeadLetter",
    "Delivery",
    "Discard",
    "EventTimeBatcher",
    "ForbiddenError",
    "IdBatcher",
    "InvalidArgumentError",
    "LeaseLostError",
    "LongCallWarning",
    "Message",
    "MessageTable",
    "MissingIds",
    "NotFoundError",
    "OrderError",
    "OutsideWindowWarning",
    "PartlyPutError",
    "Position",
    "ProducerFencedError",
    "RateAwareBatcher",
    "RateAwareColumns",
    "RefusedError",
    "Rejection",
    "Retry",
    "SchemaError",
    "Snooze",
    "Subscription",
    "TimedOutError",
    "Topic",
    "UnavailableError",
    "WaterclockError",
    "Worker",
    "__version__",
    "assign_batches",
    "assign_batches_by_id",
    "clock_offsets",
    "connect",
    "missing_ids",
    "restore",
    "timeline",
]

_HOMES = {
    "AdaptiveBatchLength": "batching.adaptive",
    "Batch": "batching.batch",
    "BySource": "batching.by_source",
    "Database": "connection",
    "DeadLetter": "work.ground.outcomes",
    "Delivery": "tables.consumers.delivery",
    "Discard": "work.ground.outcomes",
    "EventTimeBatcher": "batching.event_time.batcher",
    "IdBatcher": "batching.by_id.batcher",
    "Message": "message",
    "MessageTable": "tables.message_table",
    "MissingIds": "batching.by_id.missing",
    "Position": "message",
    "RateAwareBatcher": "batching.rate.by_message.batcher",
    "RateAwareColumns": "batching.rate.by_column.columns",
    "Rejection": "batching.batch",
    "Retry": "work.ground.outcomes",
    "Snooze": "work.ground.outcomes",
    "Subscription": "topics.subscription",
    "Topic": "topics.topic",
    "Worker": "work.worker",
    "assign_batches": "batching.event_time.columns",
    "assign_batches_by_id": "batching.by_id.columns",
    "clock_offsets": "figures.clock_offsets",
    "connect": "connection",
    "missing_ids": "batching.by_id.missing",
    "restore": "backup.restoring",
    "timeline": "figures.timeline",
}
"""The module of each public name; others are errors."""


def __getattr__(name: str) -> object:
    # Each name is imported at its first use: SQLAlchemy, pyarrow, numpy and numba take a second to import
    # together, and a program that only batches, or only prints a command's help, needs few of them.
    if name == "__version__":
        found: object = import_module("importlib.metadata").version(__name__)
    elif name in __all__:
        found = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
