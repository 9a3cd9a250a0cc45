"""The session: that it starts without a Java of the machine's own, and what it sets."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from waterclock.spark.runtime import session as starting
from waterclock.spark.runtime.session import session


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


def test_an_embedded_session_keeps_the_current_folder_and_the_environment_clean(spark: SparkSession):
    spark.sql("CREATE TABLE kept (one INT) USING parquet")
    try:
        warehouse = Path(str(spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"))
        assert (warehouse / "kept").is_dir()
        assert Path.cwd() not in warehouse.parents
    finally:
        spark.sql("DROP TABLE kept")
    given = {each.partition("=")[0] for each in Path("/proc/self/environ").read_text().split("\0")}
    of_spark = {"JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "SPARK_LOCAL_IP"}
    assert of_spark & os.environ.keys() <= given


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
