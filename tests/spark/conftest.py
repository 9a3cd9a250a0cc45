"""One Spark for all tests of this folder: starting it costs more than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.spark import short_lived

from waterclock.spark import session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if "PYTEST_XDIST_WORKER" in os.environ:  # whose folder is beside those of the others
        try:
            (tmp_path_factory.getbasetemp().parent / "spark").mkdir()
        except FileExistsError:
            pytest.fail("another worker has started Spark; --dist loadscope has one of them do so", pytrace=False)
    # More partitions than cores, so that sources do meet in one task and messages of one source do come from several.
    running = session("local[2]", **short_lived.SETTINGS, **{"spark.sql.shuffle.partitions": 3})
    yield running
    running.stop()
