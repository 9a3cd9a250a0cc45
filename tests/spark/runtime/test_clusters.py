"""The stream on a standalone cluster, a master and two workers of the pip package: the same batches, byte for byte."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
import pytest
from tests.spark import short_lived
from tests.spark.pipeline.pipeline_files import SECOND, START, expected, landed, write
from tests.spark.pipeline.pipeline_process import WITH_US, Pipeline, end_group, executors_of, kill_executors

import waterclock as wc
from waterclock.spark.runtime.java import find_java, make_java_home

DEPLOY = "org.apache.spark.deploy"
PLACE = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
MASTER_SAYS = re.compile(r"Starting Spark master at (spark://\S+)")
WORKER_SAYS = re.compile(r"Successfully registered with master")
LOUD_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %m%n
"""
LOCAL = os.environ | short_lived.ENVIRONMENT | {"SPARK_LOCAL_IP": "127.0.0.1"}

pytestmark = pytest.mark.timeout(900)


@contextmanager
def daemon(folder: Path, ready: re.Pattern[str], *words: str) -> Generator[tuple[subprocess.Popen[str], re.Match[str]]]:
    """Run one of Spark's daemons, from when it says that it is ready."""
    folder.mkdir()
    (folder / "log4j2.properties").write_text(LOUD_LOGGING)
    environment = {
        **os.environ,
        "JAVA_HOME": str(make_java_home(find_java(), folder / "java")),
        "SPARK_HOME": str(SPARK_CLASS.parents[1]),
        "SPARK_CONF_DIR": str(folder),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
    }
    process = subprocess.Popen(
        [*WITH_US, "bash", str(SPARK_CLASS), *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if found := ready.search(line):
                break
        else:
            pytest.fail("".join(said)[-2_000:])
        # Read on, or the daemon would wait for us once the pipe is full.
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield process, found
    finally:
        end_group(process)
    drain.wait()


class Cluster(NamedTuple):
    url: str
    workers: list[subprocess.Popen[str]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    """A master with two workers of one core each."""
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as running:
        _, found = running.enter_context(daemon(folder / "master", MASTER_SAYS, f"{DEPLOY}.master.Master", *PLACE))
        workers = [running.enter_context(worker(folder / name, found[1])) for name in ("first", "second")]
        yield Cluster(found[1], workers)


@contextmanager
def worker(folder: Path, url: str) -> Generator[subprocess.Popen[str]]:
    """Add a worker of one core to a master."""
    words = (f"{DEPLOY}.worker.Worker", *PLACE, "--cores", "1", "--memory", "1g", url)
    with daemon(folder, WORKER_SAYS, *words) as (process, _):
        yield process


@pytest.mark.slow  # a cluster of six JVMs takes minutes on two cores
def test_a_standalone_cluster_that_loses_an_executor_gives_the_batches_of_one_process(
    cluster: Cluster, tmp_path: Path
) -> None:
    pipeline = Pipeline(tmp_path, seed=6)
    with pipeline.appended_to(), pipeline.query(cluster.url, "on") as process:
        kill_executors(pipeline, process, kills=1, workers=cluster.workers)
    pipeline.finish(cluster.url)
    pipeline.check()


@pytest.mark.slow  # as above
def test_a_standalone_cluster_that_loses_a_worker_gives_the_batches_of_one_process(
    cluster: Cluster, tmp_path: Path
) -> None:
    pipeline = Pipeline(tmp_path, seed=7)
    with (
        worker(tmp_path / "worker", cluster.url) as lost,
        pipeline.appended_to(),
        pipeline.query(cluster.url, "on") as process,
    ):
        pipeline.wait_for(process, "end")
        pipeline.wait_for(process, "begin")
        time.sleep(pipeline.chance.uniform(0, 1))  # in the middle of a micro-batch, this is the point
        assert executors_of([lost]), "the worker has nothing to lose"
        end_group(lost)
        pipeline.wait_for(process, "end")
        pipeline.wait_for(process, "end")
    pipeline.finish(cluster.url)
    pipeline.check()


def run_on(cluster: Cluster, folder: Path, *words: str, **started: Any) -> subprocess.CompletedProcess[str]:
    """Run a pipeline of 60 messages once on a cluster, and check the batches that it writes."""
    with wc.connect(f"sqlite:///{folder}/f.db") as database:
        topic = database.create_topic("telemetry")
        database.create_table("batches", id_type="text")
        database.create_topic("rejected")
        at = [START + n * SECOND for n in range(20)]
        topic.append([wc.Message(s, "x", time, publish_time=time, receive_time=time) for time in at for s in "abc"])
        command = [sys.executable, "-m", "waterclock", "pipeline", "run", str(write(folder)), "--once", "--json"]
        command += ["--master", cluster.url, "--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, **started)
        assert done.returncode == 0, done.stderr[-3_000:]
        closed = {name for name in expected(database)[0] if int(name.partition("@")[2]) < at[-1]}
        assert set(landed(database)) == closed
    return done


@pytest.mark.slow  # as above
def test_a_pipeline_on_a_cluster_keeps_its_state_in_as_many_partitions_as_there_are_cores(
    cluster: Cluster, tmp_path: Path
) -> None:
    done = run_on(cluster, tmp_path, env=LOCAL)
    assert json.loads(done.stdout)["messages"] == 60
    plan = next(line for line in done.stderr.splitlines() if line.startswith('{"event": "plan"'))
    assert json.loads(plan)["state_partitions"] == 2


WHERE_FROM = """
import sys
import pandas as pd
from waterclock.spark import session

def where(frames):
    import os, waterclock
    yield pd.DataFrame({"file": [os.path.relpath(waterclock.__file__)], "python": [sys.executable]})

settings = {"spark.archives": sys.argv[2], "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
spark = session(sys.argv[1], **settings, **{"spark.ui.enabled": "false"})
print(spark.range(0, 2, 1, 2).mapInPandas(where, "file STRING, python STRING").first().file)
"""


@pytest.mark.slow  # as above
def test_executors_take_waterclock_from_a_packed_environment(cluster: Cluster, tmp_path: Path) -> None:
    packed = packed_environment(tmp_path)
    python = {"PYSPARK_PYTHON": "./environment/bin/python"}  # the driver's planning takes it from its own folder
    command = [sys.executable, "-c", WHERE_FROM, cluster.url, f"{packed}#environment"]
    asked = subprocess.run(command, cwd=tmp_path, env=LOCAL | python, capture_output=True, text=True, check=False)
    assert asked.stdout.startswith("environment/lib/"), asked.stderr[-3_000:]
    archive = ("--conf", f"spark.archives={packed}#environment")
    run_on(cluster, tmp_path, *archive, cwd=tmp_path, env=LOCAL | python)


def packed_environment(folder: Path) -> Path:
    """Pack an environment with a Waterclock of its own; all else it takes from the one of the tests, to stay small."""
    made = folder / "environment"
    venv.create(made, with_pip=False)
    libraries = Path(sysconfig.get_path("purelib", vars={"base": str(made), "platbase": str(made)}))
    package = Path(wc.__file__).parent
    shutil.copytree(package, libraries / "waterclock", ignore=shutil.ignore_patterns("__pycache__"))
    (libraries / "others.pth").write_text(sysconfig.get_path("purelib"))
    packed = folder / "environment.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(made, ".")
    return packed
