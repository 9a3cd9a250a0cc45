"""The options of commands that export metrics, and the server that exports them while such a command runs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cyclopts import Parameter

from waterclock.errors import InvalidArgumentError

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from waterclock.cli.terminal.output import Output
    from waterclock.connection import Database

_LABELS = 100


@Parameter(name="*")
@dataclass(frozen=True)
class MetricsOptions:
    """Options of commands that export metrics."""

    metrics: str | None = None
    """Address at which to serve metrics for Prometheus, and the probes /livez and /readyz, such as 127.0.0.1:9464."""
    metrics_labels: int = _LABELS
    """How many tables, topics, subscriptions and kinds have a label of their own; further ones share "other"."""


@contextmanager
def exporting(
    options: MetricsOptions,
    output: Output,
    open_database: Callable[[], Database],
    collectors: Iterable[Collector] = (),
    reasons: Callable[[], Sequence[str]] | None = None,
) -> Generator[None]:
    """Serve the metrics of a database and of this process until the block ends, if an address was given.

    Parameters
    ----------
    collectors
        Further metrics, of this process.
    reasons
        Why the process is not ready although the database is; None: if claims of any process fail.
    """
    if options.metrics is None:
        yield
        return
    with serving_metrics(options.metrics, "metrics", options.metrics_labels, open_database, collectors, reasons) as at:
        output.talk(f"serving metrics at http://{at}/metrics")
        yield


@contextmanager
def serving_metrics(
    address: str,
    name: str,
    labels: int,
    open_database: Callable[[], Database],
    collectors: Iterable[Collector] = (),
    reasons: Callable[[], Sequence[str]] | None = None,
) -> Generator[str]:
    """Serve metrics as `exporting` does; yield the address."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    from waterclock.monitoring.database_metrics import DatabaseMetrics
    from waterclock.monitoring.serving import serving

    if labels < 1:
        raise InvalidArgumentError(f"--metrics-labels must be at least 1, got {labels}")
    registry = CollectorRegistry(auto_describe=False)
    database = DatabaseMetrics(open_database, labels)
    for collector in (database, *collectors):
        registry.register(collector)
    ProcessCollector(registry=registry)

    def not_ready() -> Sequence[str]:
        if reasons is None:
            return database.reasons_not_ready()
        away = database.is_away()
        return [*([] if away is None else [away]), *reasons()]

    with serving(address, name, registry, not_ready) as at:
        yield at
