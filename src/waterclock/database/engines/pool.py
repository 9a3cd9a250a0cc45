"""Pings pooled connections before reuse, but only after 0.1 s of idling."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from waterclock._support import moments

_IDLE = 0.1  # seconds; a ping costs a round trip, which would be a fifth of a small append
_RETURNED = "waterclock_returned_at"


def ping_after_idling(engine: sa.Engine) -> None:
    """Replace a connection that broke while idle, so that a restart of the server causes no error."""

    def note(_connection: Any, record: Any) -> None:
        record.info[_RETURNED] = moments.monotonic()

    def look(connection: Any, record: Any, _proxy: Any) -> None:
        returned_at = record.info.get(_RETURNED)
        if returned_at is None or moments.monotonic() - returned_at < _IDLE:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise exc.DisconnectionError from error  # the pool then opens a new one

    event.listen(engine, "checkin", note)
    event.listen(engine, "checkout", look)
