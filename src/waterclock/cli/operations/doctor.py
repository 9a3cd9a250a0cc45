"""``waterclock doctor`` lists installed and missing components, and shows how to install the missing ones."""

from __future__ import annotations

import platform
import sqlite3
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from waterclock._support.urls import redacted, shown
from waterclock.batching.kernels import KERNELS, Kernel
from waterclock.cli.terminal.common import Common
from waterclock.cli.terminal.extras import install_command
from waterclock.errors import ForbiddenError, NotFoundError, UnavailableError, WaterclockError
from waterclock.spark.runtime.class_archive import SWITCH, find_archive, is_wanted
from waterclock.spark.runtime.java import Java, find_java

if TYPE_CHECKING:
    from waterclock.database.backend import Backend

OLDEST_SQLITE = (3, 35)
"""The first SQLite whose UPDATE returns rows, which a claim needs."""

_NEEDED = ("waterclock", "sqlalchemy", "pyarrow", "numpy", "numba")
_DRIVERS = {"PostgreSQL": (("psycopg",), "postgresql"), "MariaDB": (("pymysql",), "mysql")}
_SERVICES = {
    "Spark Connect": (("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard"), "spark-connect"),
    "MQTT": (("paho-mqtt",), "mqtt"),
    "Kafka": (("confluent-kafka",), "kafka"),
    "ESS formats": (("ess-streaming-data-types",), "ess"),
    "Server": (("fastapi", "jinja2", "uvicorn"), "server"),
    "Metrics": (("prometheus-client",), "metrics"),
    "OpenTelemetry": (("opentelemetry-api",), "otel"),
}


class Finding(NamedTuple):
    """One checked item.

    ``status`` is ``"ok"``, ``"absent"`` (an option not installed), ``"warning"`` (it works slowly) or ``"broken"``.
    """

    what: str
    status: str
    found: str
    remedy: str


def doctor(*, common: Common = Common()) -> int:
    """Show the installed parts, databases and Java, and how to install missing parts."""
    findings = list(_examine(common))
    common.output.rows((finding._asdict() for finding in findings), Finding._fields)
    return int(any(finding.status == "broken" for finding in findings))


def _examine(common: Common) -> Iterator[Finding]:
    yield Finding("Python", "ok", platform.python_version(), "")
    for package in _NEEDED:
        yield _packages(package, (package,), None, needed=True)
    yield _kernels()
    yield _sqlite()
    for database, (packages, extra) in _DRIVERS.items():
        yield _packages(database, packages, extra, needed=False)
    yield _packages("Spark", ("pyspark",), "spark", needed=False)
    yield from _java()
    for service, (packages, extra) in _SERVICES.items():
        yield _packages(service, packages, extra, needed=False)
    if common.url is not None:
        yield from _database(common)


def _packages(what: str, packages: Sequence[str], extra: str | None, *, needed: bool) -> Finding:
    found: list[str] = []
    for package in packages:
        try:
            found.append(version(package) if what == package else f"{package} {version(package)}")
        except PackageNotFoundError:
            return Finding(what, "broken" if needed else "absent", f"no {package}", install_command(extra))
    return Finding(what, "ok", ", ".join(found), "")


def _kernels() -> Finding:
    what = "Compiled kernels"
    waiting = (
        "the first large table waits up to 45 s for Numba. Install a wheel for this platform, or run 'make compiled'"
    )
    missing = 0
    for name in KERNELS:
        try:
            Kernel(name).load_shipped()
        except FileNotFoundError:
            missing += 1
        except UnavailableError as error:
            return Finding(what, "warning", f"{name}: {error}", waiting)
    if missing:
        return Finding(what, "absent", f"{len(KERNELS) - missing} of {len(KERNELS)}", waiting)
    return Finding(what, "ok", str(len(KERNELS)), "")


def _sqlite() -> Finding:
    if sqlite3.sqlite_version_info >= OLDEST_SQLITE:
        return Finding("SQLite", "ok", sqlite3.sqlite_version, "")
    oldest = ".".join(map(str, OLDEST_SQLITE))
    return Finding("SQLite", "broken", sqlite3.sqlite_version, f"use a Python built with SQLite {oldest} or newer")


def _java() -> Iterator[Finding]:
    try:
        java = find_java()
    except WaterclockError as error:
        yield Finding("Java", "absent", "none", str(error))
        return
    yield Finding("Java", "ok", str(java), "")
    if find_spec("pyspark") is not None:
        yield _class_archive(java)


def _class_archive(java: Java) -> Finding:
    what = "Spark's class archive"
    if not is_wanted():
        return Finding(what, "ok", f"disabled: {SWITCH}=off", "")
    archive = find_archive(java)
    if archive is None:
        return Finding(what, "absent", "none", "waterclock spark prepare: Spark starts in half the time")
    return Finding(what, "ok", str(archive), "")


def _database(common: Common) -> Iterator[Finding]:
    try:
        import sqlalchemy as sa

        from waterclock.database.schema.table_catalogue import message_tables
        from waterclock.database.schema.topic_catalogue import topics

        with common.connect() as database:
            with database.backend.snapshot() as connection:
                there = [
                    connection.scalar(sa.select(sa.func.count()).select_from(each)) for each in (topics, message_tables)
                ]
            counts = f"{there[0]} topics, {there[1]} message tables"
            yield Finding("Database", "ok", f"{database.backend.name}: {counts}", "")
            yield from _snapshots(database.backend)
    except NotFoundError as error:
        yield Finding("Database", "absent", shown(common.url), redacted(error, common.url))
    except WaterclockError as error:
        yield Finding("Database", "broken", shown(common.url), redacted(error, common.url))


def _snapshots(backend: Backend) -> Iterator[Finding]:
    from waterclock.database.held_snapshots import held_snapshots

    what = "Open transactions"
    try:
        held = held_snapshots(backend)
    except ForbiddenError as error:
        yield Finding(what, "absent", "not shown to this user", str(error))
        return
    for one in held or ():
        remedy = (
            "end this transaction: the server keeps all rows that were changed since it began, and queues get slower"
        )
        yield Finding(what, "warning", str(one), remedy)
    if held == []:
        yield Finding(what, "ok", "none that is old", "")
