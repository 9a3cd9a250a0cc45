"""Finds the SQLSTATE with which PostgreSQL refused a login, because libpq returns only a translated text."""

from __future__ import annotations

import re
import select
import tempfile
from typing import Any

from waterclock._support import moments

_SECONDS = 5.0
_CODE = re.compile(rb'\tErrorResponse\t.*? C "([0-9A-Z]{5})"')


def state_of_refusal(error: Any) -> str | None:
    """Try to connect once more, and read the SQLSTATE of the answer from the wire.

    The answer's text is in the server's language, and the driver keeps nothing else of it. Returns None if the server
    did not check the password, or answers differently now, or if the driver or the system cannot trace.
    """
    failed = getattr(error, "pgconn", None)
    if failed is None or not (failed.used_password or failed.needs_password):
        return None
    from psycopg import Error, pq  # noqa: PLC0415  # the driver need not be there for other databases
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415  # as above

    options = {option.keyword.decode(): option.val.decode() for option in failed.info if option.val is not None}
    with tempfile.TemporaryFile() as heard:  # deleted with its handle, and in no folder
        try:
            connection = pq.PGconn.connect_start(make_conninfo(**options).encode())
            try:
                connection.trace(heard.fileno())
                _wait(connection, pq)
                connection.untrace()  # flushes the trace
            finally:
                connection.finish()
        except (Error, OSError, ValueError):
            return None
        heard.seek(0)
        codes = _CODE.findall(heard.read())
    return codes[-1].decode() if codes else None


def _wait(connection: Any, pq: Any) -> None:
    give_up_at = moments.monotonic() + _SECONDS
    while connection.status != pq.ConnStatus.BAD and (left := give_up_at - moments.monotonic()) > 0:
        step = connection.connect_poll()
        if step == pq.PollingStatus.READING:
            select.select([connection.socket], [], [], left)
        elif step == pq.PollingStatus.WRITING:
            select.select([], [connection.socket], [], left)
        else:
            return
