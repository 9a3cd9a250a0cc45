"""A stream whose driver or executors are killed gives what one process gives: byte for byte, once; on clusters too."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.spark.pipeline.pipeline_process import (
    Pipeline,
    kill_executors,
)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path, seed=5)


LOCAL_CLUSTER = "local-cluster[2,1,1024]"


pytestmark = pytest.mark.timeout(900)


def kill_the_driver(pipeline: Pipeline, kills: int) -> None:
    with pipeline.appended_to():
        for kill in range(kills):
            with pipeline.query("local[2]", "on") as process:
                pipeline.wait_for(process, "begin")
                if kill % 4 == 0:  # it gets on, however slow the machine
                    pipeline.wait_for(process, "end")
                time.sleep(pipeline.chance.uniform(0, 3))  # at any moment, this is the point
    pipeline.finish("local[2]")
    pipeline.check()


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_twenty_killed_drivers_change_nothing(pipeline: Pipeline) -> None:
    kill_the_driver(pipeline, kills=20)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_twenty_killed_executors_change_nothing(pipeline: Pipeline) -> None:
    with pipeline.appended_to(), pipeline.query(LOCAL_CLUSTER, "on") as process:
        kill_executors(pipeline, process, kills=20)
    pipeline.finish(LOCAL_CLUSTER)
    pipeline.check()
