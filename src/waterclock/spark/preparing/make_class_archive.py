"""Creates the class archive, for which Java records the classes that a typical session loads."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from waterclock.spark.preparing.warm_up import warm_up
from waterclock.spark.runtime.class_archive import BUILDS_WITHIN_S, QUIET, build
from waterclock.spark.runtime.java import find_java
from waterclock.spark.runtime.session import JAVA_OPTIONS, session


def make_class_archive() -> Path:
    """Build the archive for this machine's Java and Spark, in a minute, and return its path.

    For a process of its own: it starts a session and ends it.

    Raises `UnavailableError` if Java is missing or writes no archive, or no folder can hold the archive.
    """
    return build(find_java(), run_and_dump)


def run_and_dump(path: Path) -> None:
    """Run a session that uses a little of everything, and make its Java record the loaded classes."""
    options: dict[str, Any] = {
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} {QUIET} -XX:ArchiveClassesAtExit='{path}'",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": 1,
    }
    spark = session("local[1]", app_name="waterclock class archive", **options)
    with tempfile.TemporaryDirectory(prefix="waterclock-") as scratch:
        warm_up(spark, Path(scratch))
        java: Any = spark.sparkContext._gateway  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # none else knows its end
        spark.stop()
        java.proc.stdin.close()  # on that it ends, and writes the archive
        java.proc.wait(BUILDS_WITHIN_S)
