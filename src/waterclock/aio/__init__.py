"""The asyncio interface of Waterclock. Calls run in a pool of threads, and one thread does all the waiting."""

from waterclock.aio.database import Database, connect
from waterclock.aio.deliveries import Deliveries, Delivery
from waterclock.aio.tables import MessageGroups, MessageSchedules, MessageTable
from waterclock.aio.topics import Producer, Subscription, Topic

__all__ = [
    "Database",
    "Deliveries",
    "Delivery",
    "MessageGroups",
    "MessageSchedules",
    "MessageTable",
    "Producer",
    "Subscription",
    "Topic",
    "connect",
]
