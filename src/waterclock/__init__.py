"""Waterclock: keeps messages found by time, batches them by when they happened, hands them out as work done once."""

from waterclock.backup.restoring import restore
from waterclock.batching.adaptive import AdaptiveBatchLength
from waterclock.batching.batch import Batch, Rejection
from waterclock.batching.by_source import BySource
from waterclock.batching.columnar import assign_batches
from waterclock.batching.event_time import EventTimeBatcher
from waterclock.batching.rate_aware import RateAwareBatcher
from waterclock.connection import Database, connect
from waterclock.errors import (
    AlreadyExistsError,
    DamagedError,
    InvalidArgumentError,
    LeaseLostError,
    NotFoundError,
    OrderError,
    PartlyPutError,
    ProducerFencedError,
    SchemaError,
    UnavailableError,
    WaterclockError,
)
from waterclock.message import Message, Position

__all__ = [
    "AdaptiveBatchLength",
    "AlreadyExistsError",
    "Batch",
    "BySource",
    "DamagedError",
    "Database",
    "EventTimeBatcher",
    "InvalidArgumentError",
    "LeaseLostError",
    "Message",
    "NotFoundError",
    "OrderError",
    "PartlyPutError",
    "Position",
    "ProducerFencedError",
    "RateAwareBatcher",
    "Rejection",
    "SchemaError",
    "UnavailableError",
    "WaterclockError",
    "assign_batches",
    "connect",
    "restore",
]
