"""Leaving a table: what a consumer that closes writes, and for how long it waits to write it."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from waterclock.errors import UnavailableError
from waterclock.tables.catalogue.context import TableContext

PATIENCE = 1.0
"""Seconds for which a consumer that leaves waits to write, where writers take turns.

The writer may be the caller itself, in a transaction that it ends only after its subscription is closed.
"""

_log = logging.getLogger(__name__)


@contextmanager
def leaving(context: TableContext, consumer: str | None) -> Generator[None]:
    """Write what a consumer leaves behind; where another one writes for long, the end of its leases does it instead."""
    if not context.sql.one_writer:
        yield
        return
    try:
        with context.backend.patience(PATIENCE):
            yield
    except UnavailableError as error:
        _log.warning("%s leaves what it has of %r to the end of its lease: %s", consumer, context.name, error)
