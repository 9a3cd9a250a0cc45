"""Spark Connect: what a classic session does, a remote one does too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.spark import short_lived
from tests.spark.pipeline.pipeline_files import PIPELINE, SECOND, START, expected, landed, write

import waterclock as wc
from waterclock.spark.runtime.java import find_java, make_java_home

REPOSITORY = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(900)


@pytest.mark.slow  # a minute: it starts a server with a Java of its own
def test_upkeep_pipelines_and_batching_work_through_spark_connect(tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("telemetry")
        for n in range(3):
            at = START + n * 10 * SECOND
            sent = [
                wc.Message(s, f"s{k}", at + k, publish_time=at, receive_time=at + 5) for s in "ab" for k in range(9)
            ]
            sent.append(wc.Message("a", "late", at - 2 * SECOND, publish_time=at, receive_time=at + 6))
            topic.append(sent)
            topic.roll()
        database.create_table("batches", id_type="text")
        database.create_topic("rejected")
        parquet = '[[output]]\nwhat = "batches"\nparquet = "{folder}/batches"\n'
        path = write(tmp_path, PIPELINE.replace("_trigger = 70", "_trigger = 1000").replace(parquet, ""))
        client = subprocess.run(
            [sys.executable, "-m", "tests.spark.runtime.connect_client", str(path)],
            cwd=REPOSITORY,
            env={
                **os.environ,
                **short_lived.ENVIRONMENT,
                "JAVA_HOME": str(make_java_home(find_java(), tmp_path / "java")),
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert client.returncode == 0, client.stderr[-3_000:]
        said = json.loads(client.stdout.splitlines()[-1])
        batches, rejected = expected(database)
        closed = {name: payload for name, payload in batches.items() if int(name.partition("@")[2]) < at}
        assert landed(database) == closed
        assert said == {
            "kind": "pyspark.sql.connect.session",
            "upkeep": [3, 2, 2],
            "messages": 57,
            "batches": len(closed),
            "open_batches": len(batches) - len(closed),
            "rejections": {"late": 0, "future": 0, "duplicate": 0, "replaced": 0} | Counter(r.reason for r in rejected),
            "replayed": [57, len(batches), len(rejected)],
            "state_partitions": 2,
            "state_buckets": 8,
            "in_batches": ["16", "17"],
            "by_rate": 2,
        }
