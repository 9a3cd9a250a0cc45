"""Lists, writes, moves and deletes files on Spark's own filesystems. This does not work through Spark Connect."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

_TRIES = 5
"""Attempts to move a folder to a place that others also use."""

REPLACED = "-replaced"
"""End of the name of a folder that another one replaces."""


def file_names(spark: SparkSession, folder: str) -> frozenset[str]:
    """List a folder; empty if it does not exist."""
    path, filesystem = _Hadoop(spark).open(folder)
    if not filesystem.exists(path):
        return frozenset()
    return frozenset(each.getPath().getName() for each in filesystem.listStatus(path))


def write_text(spark: SparkSession, place: str, text: str) -> None:
    """Write a file of ASCII text, and the folders above it."""
    path, filesystem = _Hadoop(spark).open(place)
    stream = filesystem.create(path)
    try:
        stream.writeBytes(text)
    finally:
        stream.close()


def read_text(spark: SparkSession, place: str) -> str:
    """Read a file of text."""
    hadoop = _Hadoop(spark)
    path, filesystem = hadoop.open(place)
    stream = filesystem.open(path)
    try:
        return hadoop.text_of(stream)
    finally:
        stream.close()


def move_if_free(spark: SparkSession, written: str, place: str) -> bool:
    """Move a complete folder to a place, and return whether that was free."""
    hadoop = _Hadoop(spark)
    source, _ = hadoop.open(written)
    target, filesystem = hadoop.open(place)
    try:
        hadoop.rename(filesystem, source, target)
    except (Py4JJavaError, OSError):
        if not (filesystem.exists(target) and filesystem.exists(source)):
            raise
        return False
    return True


def move_into_place(spark: SparkSession, written: str, place: str) -> None:
    """Move a complete folder to a place, and replace an existing one.

    If two are moved to one place at the same time, one of them stays, complete. If the process is killed in between,
    the existing folder may be left under the name of the moved one with `REPLACED`. On object stores moving is copying.
    """
    hadoop = _Hadoop(spark)
    source, _ = hadoop.open(written)
    # The existing folder is not deleted first: it has to stay if another run has removed the new one.
    replaced, _ = hadoop.open(f"{written}{REPLACED}")
    target, filesystem = hadoop.open(place)
    for tries in range(_TRIES):
        try:
            if filesystem.exists(target):
                hadoop.rename(filesystem, target, replaced)
            hadoop.rename(filesystem, source, target)
        except (Py4JJavaError, OSError):
            with suppress(Py4JJavaError, OSError):  # nothing was replaced, or another run has moved its folder there
                hadoop.rename(filesystem, replaced, target)
            if filesystem.exists(target):
                filesystem.delete(replaced, True)
            if tries == _TRIES - 1 or not filesystem.exists(source):
                raise
        else:
            filesystem.delete(replaced, True)
            return


def remove_folder(spark: SparkSession, folder: str) -> None:
    """Delete a folder with its contents; do nothing if it does not exist."""
    path, filesystem = _Hadoop(spark).open(folder)
    filesystem.delete(path, True)


class _Hadoop:
    """Java's side of a session: its classes of files."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = context = cast("Any", spark.sparkContext)
        self._gateway = context._gateway  # noqa: SLF001  # no other way leads there
        self._classes = context._jvm.org.apache.hadoop.fs  # noqa: SLF001  # as above
        self._configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001  # as above

    def open(self, place: str) -> tuple[Any, Any]:
        """Return a path and its filesystem."""
        path = self._classes.Path(place)
        filesystem = path.getFileSystem(self._configuration)
        return filesystem.makeQualified(path), filesystem

    def text_of(self, stream: Any) -> str:
        """Read a stream to its end."""
        return self._context._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")  # noqa: SLF001  # as above

    def rename(self, filesystem: Any, source: Any, target: Any) -> None:
        """Rename a folder; an error if something has the name."""
        if filesystem.getScheme() == "file":  # embedded sessions configure `FileContext` without it
            Path(source.toUri().getPath()).rename(target.toUri().getPath())
            return
        # `FileSystem` would move the folder into one that was created there meanwhile.
        context = self._classes.FileContext.getFileContext(filesystem.getUri(), self._configuration)
        context.rename(source, target, self._gateway.new_array(self._classes.Options.Rename, 0))
