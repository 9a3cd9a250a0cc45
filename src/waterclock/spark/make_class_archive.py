"""Makes the archive of classes: runs what sessions run, and has Java write down the classes that it took.

``python -m waterclock.spark.make_class_archive`` does it at once.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from waterclock.spark.class_archive import BUILDS_WITHIN_S, QUIET, build
from waterclock.spark.java import find_java
from waterclock.spark.session import JAVA_OPTIONS, session
from waterclock.spark.warm_up import warm_up


def run_and_dump(path: Path) -> None:
    """Run a session that does a little of everything, and have its Java write down which classes that took."""
    options = {
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} {QUIET} -XX:ArchiveClassesAtExit='{path}'",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": 1,
    }
    spark = session("waterclock class archive", "local[1]", **options)
    with tempfile.TemporaryDirectory(prefix="waterclock-") as scratch:
        warm_up(spark, Path(scratch))
        java: Any = spark.sparkContext._gateway  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # none else knows its end
        spark.stop()
        java.proc.stdin.close()  # on which it ends, and writes the archive
        java.proc.wait(BUILDS_WITHIN_S)


if __name__ == "__main__":
    os.nice(19)
    build(find_java(), run_and_dump)
