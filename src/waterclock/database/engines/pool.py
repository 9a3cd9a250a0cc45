"""Pooled connections: looked at before they are lent again, but only where they have lain idle."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from waterclock._support import moments

_IDLE = 0.1  # seconds; looking costs a round trip, which would be a fifth of a small append
_RETURNED = "waterclock_returned_at"


def ping_after_idling(engine: sa.Engine) -> None:
    """Replace a connection that broke while it was idle, so that a restart of the server is no error."""

    def note(_connection: Any, record: Any) -> None:
        record.info[_RETURNED] = moments.monotonic()

    def look(connection: Any, record: Any, _proxy: Any) -> None:
        returned_at = record.info.get(_RETURNED)
        if returned_at is None or moments.monotonic() - returned_at < _IDLE:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise exc.DisconnectionError from error  # the pool then makes a new one

    event.listen(engine, "checkin", note)
    event.listen(engine, "checkout", look)
