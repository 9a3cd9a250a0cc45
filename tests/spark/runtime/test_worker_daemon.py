"""The process that forks Python workers, without Spark: a worker that Java hangs up on ends, and says nothing."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from pathlib import Path

import pytest

from waterclock.spark.runtime.worker_python import make_python


def _started(folder: Path, module: str, worker: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",  # which is Spark's own default
        "SPARK_REUSE_WORKER": "1",
    }
    command = [make_python(folder / "python"), "-m", module, worker]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize(
    ("module", "worker"),
    [
        ("waterclock.spark.runtime.worker_daemon", "pyspark.worker"),
        # Spark's setting for it is for tasks alone.
        ("pyspark.daemon", "pyspark.sql.worker.lookup_data_sources"),
    ],
)
def test_a_worker_that_java_hangs_up_on_ends_in_silence(
    tmp_path_factory: pytest.TempPathFactory, module: str, worker: str
) -> None:
    daemon = _started(tmp_path_factory.mktemp("d"), module, worker)
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    assert daemon.stderr is not None
    where = daemon.stdout.read(int.from_bytes(daemon.stdout.read(4), "big"))
    with socket.socket(socket.AF_UNIX) as java:
        java.connect(where)
        process = os.pidfd_open(int.from_bytes(java.recv(4), "big"))
    assert select.select([process], [], [], 60)[0], "it did not end"
    os.close(process)
    daemon.stdin.close()  # so does Java end it: it ends its workers, and then itself
    said = daemon.stderr.read()
    daemon.wait(60)
    assert said == b""
