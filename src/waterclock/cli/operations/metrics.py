"""``waterclock metrics`` serves the metrics of a database to Prometheus until the command is stopped."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from waterclock._support import moments
from waterclock.cli.terminal.common import Common
from waterclock.cli.terminal.exporting import serving_metrics
from waterclock.cli.terminal.log_format import LogOptions
from waterclock.errors import UnavailableError

if TYPE_CHECKING:
    from waterclock.connection import Database

_log = logging.getLogger(__name__)


def metrics(
    *,
    listen: str = "127.0.0.1:9464",
    metrics_labels: int = 100,
    log: LogOptions = LogOptions(),
    common: Common = Common(),
) -> None:
    """Serve the metrics of a database to Prometheus, until it is stopped.

    Serves /metrics and two probes: /livez returns 200 while the process runs, and /readyz returns 503 while the
    database does not answer or claims fail. Starts and keeps running while the database is unavailable; waterclock_up
    is then 0.

    Parameters
    ----------
    listen
        Address at which to serve the metrics.
    metrics_labels
        How many tables, topics and subscriptions have a label of their own; further ones share "other".
    """
    from waterclock.work.running.signals import stopping_at_signals

    output = log.output(common)
    ended = threading.Event()

    def stop(*, again: bool) -> None:
        ended.set()
        if again:
            raise KeyboardInterrupt

    try:
        database = common.connect()
    except UnavailableError as error:
        _log.warning("cannot connect to the database yet; until then, its metrics are left out: %s", error)
        database = None

    def open_database() -> Database:
        return common.connect() if database is None else database

    with stopping_at_signals(stop), serving_metrics(listen, "listen", metrics_labels, open_database) as at:
        output.talk(f"serving metrics at http://{at}/metrics")
        moments.wait(ended)
