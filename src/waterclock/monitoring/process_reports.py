"""Reports the progress of processes that ingest or batch. Each process writes its counts to the catalogue."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock._support.quoting import in_a_line
from waterclock.database.backend import Backend
from waterclock.database.schema.process_catalogue import ProcessKind, process_reports
from waterclock.errors import WaterclockError

EVERY = 10.0  # seconds between two reports: each is a short transaction

SILENT = 120 * 1_000_000_000
"""Age of a report, in ns, after which its process counts as silent: without a terminal, progress is read every 30 s."""

_NAME_CHARACTERS = 255

_LONGEST = 1.0  # seconds that a report may take: the process has other work, and the next report is soon due

_log = logging.getLogger(__name__)


class ProcessReport:
    """Writes the reports of one process. An error is logged once, and the process goes on.

    ``kind`` and ``name`` are the work of the process, and the name under which a later start replaces it. ``topic_id``
    is the topic that it reads; 0 if it reads none. ``fixed`` are facts that do not change. ``counts`` is the fact that
    counts messages since the start, for the rate.
    """

    def __init__(
        self,
        backend: Backend,
        kind: ProcessKind,
        name: str,
        topic_id: int,
        fixed: Mapping[str, Any] | None = None,
        counts: str = "messages",
    ) -> None:
        self._backend = backend
        self._key = {"kind": kind, "name": name[:_NAME_CHARACTERS], "topic_id": topic_id}
        self._fixed = dict(fixed or {})
        self._counts = counts
        self._has_begun = False
        self._written = moments.monotonic()
        self._counted = 0
        self._has_failed = False

    def write_sometimes(self, facts: Mapping[str, Any]) -> None:
        """Write a report if the last one is `EVERY` ago."""
        if not self._has_begun or moments.monotonic() - self._written >= EVERY:
            self.write(facts)

    def write(self, facts: Mapping[str, Any], *, ended: bool = False) -> None:
        """Write a report now."""
        now, count = moments.monotonic(), facts[self._counts]
        rate = round((count - self._counted) / max(now - self._written, 1e-3), 1)
        self._written, self._counted = now, count
        found = {**self._fixed, **facts, "messages_per_second": rate if self._has_begun else None, "ended": ended}
        try:
            self._backend.transact_within(_LONGEST, lambda connection: self._save(connection, json.dumps(found)))
            self._has_begun = True
        except WaterclockError as error:
            level = logging.DEBUG if self._has_failed else logging.INFO
            _log.log(level, "cannot write a report for the pages: %s", in_a_line(str(error)))
            self._has_failed = True

    def _save(self, connection: sa.Connection, facts: str) -> None:
        now = self._backend.now(connection)
        reports = process_reports.c
        values: dict[str, Any] = {"seen_at": now, "facts": facts}
        if not self._has_begun:
            values |= {"started_at": now, "starts": reports.starts + 1}
        of_it = sa.update(process_reports).where(*(reports[name] == value for name, value in self._key.items()))
        if not connection.execute(of_it.values(values)).rowcount:
            connection.execute(sa.insert(process_reports).values(self._key | values | {"started_at": now, "starts": 1}))


def read_reports(connection: sa.Connection, kinds: tuple[ProcessKind, ...], most: int) -> list[dict[str, Any]]:
    """Return the newest reports: the columns of the row, with ``facts`` as a dict."""
    newest = sa.select(process_reports).where(process_reports.c.kind.in_(kinds))
    rows = connection.execute(newest.order_by(process_reports.c.seen_at.desc()).limit(most)).mappings()
    return [{**row, "facts": _facts(row["facts"])} for row in rows]


def _facts(text: str) -> dict[str, Any]:
    found = json.loads(text)
    return found if isinstance(found, dict) else {}
