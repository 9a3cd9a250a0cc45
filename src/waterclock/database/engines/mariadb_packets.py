"""Refuses statements larger than MariaDB's max_allowed_packet before they are sent.

The server would close the connection while a larger statement is being sent, so the driver would only report a lost
connection.
"""

from __future__ import annotations

import weakref
from typing import Any

PACKET_TOO_LARGE = 1153  # the server's code for this error

ALWAYS_FITS = 65_536
"""Bytes of a statement below which the limit is not looked up, which costs a round trip. The server's default limit is
16 MiB.
"""

_PREFIX = 1  # byte of a packet with its type


def refuse_oversized(connection: Any) -> None:
    """Patch a driver's connection to raise its DataError for a statement that exceeds the session's limit."""
    connection.query = Sending(connection)


class Sending:
    """Sends statements within the limit."""

    def __init__(self, connection: Any) -> None:
        self._connection = weakref.ref(connection)  # avoids a reference cycle
        self._limit: int | None = None

    def __call__(self, statement: str | bytes, unbuffered: bool = False) -> Any:
        """Send a statement, or raise the driver's DataError."""
        connection: Any = self._connection()
        if len(statement) > ALWAYS_FITS:
            size = len(statement.encode(errors="surrogateescape") if isinstance(statement, str) else statement)
            limit = self.session_limit(connection)
            if size + _PREFIX >= limit:
                raise connection.DataError(
                    PACKET_TOO_LARGE, f"a statement of {size} bytes exceeds max_allowed_packet ({limit} bytes)"
                )
        return type(connection).query(connection, statement, unbuffered=unbuffered)

    def session_limit(self, connection: Any) -> int:
        """Return the max_allowed_packet of the session, which stays the same while it lasts."""
        if self._limit is None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT @@max_allowed_packet")
                ((self._limit,),) = cursor.fetchall()
        assert self._limit is not None  # noqa: S101  # as for each variable of the server
        return self._limit
