"""Signs of life of a subscription, so that its exclusive groups stay with it while a message takes long."""

from __future__ import annotations

import logging
import threading

from waterclock.errors import WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.consumers.leaving import PATIENCE, leaving
from waterclock.tables.groups import consumers

_SIGNS_OF_A_LEASE = 4
_SECOND = 1_000_000_000
_log = logging.getLogger(__name__)


class Presence:
    """A consumer that is there until it is closed."""

    def __init__(self, context: TableContext, name: str) -> None:
        self._context = context
        self._name = name
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"presence of {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave: the consumer's groups go to others at once."""
        self._over.set()
        context = self._context
        # A sign of life that comes after the consumer has left is none.
        self._thread.join(PATIENCE if context.sql.one_writer else None)
        with leaving(context, self._name):
            while not context.backend.transact(lambda own: consumers.sign_out(context, own, self._name)):
                pass

    def _live(self) -> None:
        context = self._context
        while not self._over.wait(context.options.ack_wait / _SECOND / _SIGNS_OF_A_LEASE):
            try:
                until = context.backend.now() + context.options.ack_wait
                context.backend.transact(lambda own, until=until: consumers.renew(context, own, self._name, until))
            except WaterclockError as error:
                # The next sign may get through in time; if none does, others take over, as they must.
                _log.warning("consumer %s of %s gave no sign of life: %s", self._name, context.name, error)


class NoPresence:
    """Nothing to do, where groups do not stay with a consumer."""

    def close(self) -> None:
        """Nothing to leave."""


def stay_present(context: TableContext, consumer: str | None) -> Presence | NoPresence:
    """Give signs of life where they matter."""
    if context.options.groups != "exclusive" or consumer is None:
        return NoPresence()
    return Presence(context, consumer)
