"""A process that purges, and kills itself before or after a statement that a pattern finds; tests run it."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

from sqlalchemy import event

from waterclock.connection import connect


def main(url: str, now: str, moment: str, pattern: str) -> None:
    with connect(url, "unused", clock=lambda: int(now)) as database:
        table = database.table("orders")

        def die(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if re.search(pattern, statement):
                os.kill(os.getpid(), signal.SIGKILL)

        event.listen(database.backend.engine, f"{moment}_cursor_execute", die)
        table.purge()
