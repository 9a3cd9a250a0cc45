"""One Spark for all tests of this folder: starting it costs more than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.spark import short_lived

from waterclock.spark.session.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # More partitions than cores, so that sources do meet in one task and messages of one source do come from several.
    running = session("waterclock-tests", "local[2]", **short_lived.SETTINGS, **{"spark.sql.shuffle.partitions": 3})
    yield running
    running.stop()
