"""Reads a topic as a DataFrame: sealed files through Spark's own Parquet reader, and the rest through Python.

Moving rows between Java and Python is expensive, and Spark does not tell a Python reader which columns a query needs.
So sealed messages are read without Python: the catalogue names the files, and Spark reads them. Unsealed messages, and
files that are only partly in the range, are cut into slices, which tasks read through the format ``waterclock``.

The files and the slices come from one snapshot, which stays readable while ledgers are sealed and compacted. If an
entry is sealed meanwhile, it is read from its file, and a compacted file is kept for the grace time.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.datasource import InputPartition

from waterclock._support.quoting import quoted
from waterclock.errors import DamagedError, InvalidArgumentError, UnavailableError
from waterclock.message import Position
from waterclock.spark.options import plainly
from waterclock.spark.reading.columns import NS_PER_US, TIMESTAMPS, check_columns, spark_schema
from waterclock.spark.reading.source import SLICE_MESSAGES, partitions_of, read_part
from waterclock.spark.reading.topic_read_options import TopicReadOptions
from waterclock.spark.runtime.workers import freezing_imports
from waterclock.time import Time
from waterclock.topics.finding.finding import check_by, find_first, find_start
from waterclock.topics.model.literals import By
from waterclock.topics.reading.whole_files import whole_files
from waterclock.topics.store.ledger_files import LedgerFiles, LostFileError
from waterclock.topics.store.sealed_file import FILE_SCHEMA, SHARED_SCHEMA
from waterclock.topics.topic import Topic

_LOOKS_AT_ONCE = 8
_READERS = "spark.sql.sources.useV1SourceList"
_COLUMNS = check_columns(None)
_PATTERNS = re.compile(r"[][{}*?\\]")
_ROOT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)?/")  # without a scheme it is a path on Spark's own filesystem
_SPARKS_SCHEMES = {"s3": "s3a"}
_READING = {
    # With the session's own settings Spark might skip missing files, and the answer would silently lack their messages.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    # Ledger files have a checksum for every page, which Spark's reader verifies only on request.
    "parquet.page.verify-checksum.enabled": "true",
}


def table(
    spark: SparkSession,
    url: str,
    topic: str,
    *,
    ledgers: str | None = None,
    files: str | None = None,
    since: Time | None = None,
    until: Time | None = None,
    by: By = "publish_time",
) -> DataFrame:
    """Return a topic as a DataFrame for SQL; Spark's own Parquet reader reads the sealed part.

    Parameters
    ----------
    spark
        The session.
    url, ledgers
        Of the database, as `waterclock.connect` takes them.
    topic
        Name of the topic.
    files
        The URL under which Spark finds the folder or bucket that Waterclock knows as ``ledgers``, if it differs from
        Spark's usual name for that place (``file://`` for a folder, ``s3a://`` for ``s3://``, or the same URL).
    since, until
        Begin at, and stop before, the first message at or after that time, as ``startingTimestamp`` and
        ``endingTimestamp`` of the format ``waterclock`` do. Ledgers outside are not opened.
    by
        The time to which these refer, as in `waterclock.topics.topic.Topic.find`.

    Returns
    -------
    DataFrame
        The columns of the format ``waterclock``, a row for each message, unordered: the messages that the topic had at
        the time of this call, even if ledgers are sealed while the DataFrame is used. A file that is replaced by a
        compaction or whose ledgers are deleted stays for an hour; after that a query ends with Spark's error, which
        names it. Create the DataFrame again then.

    Raises
    ------
    NotFoundError
        If there is no such topic.
    DamagedError
        If ledgers are missing from the catalogue, or a file has another length than was written.
    UnavailableError
        If Spark cannot open a file or leaves it out, or the file is gone; the text names it.

    Notes
    -----
    A damaged page, or a missing or truncated file, ends the query with Spark's error, which names the file. The format
    ``waterclock`` checks more: it compares every column with the checksum that the catalogue has, also the footers.
    """
    check_by(by)
    given = {"url": url, "topic": topic} | ({} if ledgers is None else {"ledgers": ledgers})
    options = TopicReadOptions.checked(given)
    with options.connect() as database:
        opened = database.topic(topic)
        slices = opened.plan(*_range(opened, since, until, by), max_messages=SLICE_MESSAGES)
        whole = whole_files(opened.storage, slices)
        root = _root(opened.storage.files) if files is None else _checked_root(files)
    rest = [part for part in slices if part.path not in whole]
    own = [path for path, held in whole.items() if len(held) == 1]
    shared = [path for path, held in whole.items() if len(held) > 1]
    frames: list[DataFrame] = []
    if own:
        _check_reader(spark)
        number = F.substring_index("_metadata.file_name", "-", 1).cast("bigint")
        frames.append(_scanned(spark, root, own, FILE_SCHEMA.names).withColumn("ledger", number))
    if shared:
        frames.append(_scanned(spark, root, shared, SHARED_SCHEMA.names))
    frames = [_laid_out(frame) for frame in frames]
    _check_lengths(opened.storage.files, {part.path: part.size for part in slices if part.path in whole})
    if rest or not frames:
        # Not a data source, since its slices were fixed when the snapshot was taken.
        parts = partitions_of(rest)
        pieces = spark.range(0, len(parts), 1, max(len(parts), 1))
        read = freezing_imports(_read, parts=parts, options=options)
        frames.append(pieces.mapInArrow(read, spark_schema(_COLUMNS)))
    return reduce(lambda one, other: one.union(other), frames)


def _range(topic: Topic, since: Time | None, until: Time | None, by: By) -> tuple[Position | None, Position | None]:
    storage = topic.storage
    start = None if since is None else find_start(storage, by, storage.time(since, "since")).position
    return start, None if until is None else find_first(storage, by, storage.time(until, "until")).position


def _scanned(spark: SparkSession, root: str, paths: Sequence[str], columns: Iterable[str]) -> DataFrame:
    # With a given schema, Spark opens no file to infer it.
    schema = spark_schema([*columns]).replace(" NOT NULL", "")
    # Spark treats paths as patterns.
    exactly = [_PATTERNS.sub(r"\\\g<0>", f"{root}/{path}") for path in paths]
    try:
        frame = spark.read.schema(schema).options(**_READING).parquet(*exactly)
        listed = frame.inputFiles()
    except (PySparkException, Py4JError) as error:
        why = str(error).replace("\\", "")
        if "[PATH_NOT_FOUND]" in why:
            raise LostFileError(f"Spark cannot find a ledger file: {_line(why)}") from error
        raise UnavailableError(
            f"Spark cannot open the ledger files, such as {root}/{paths[0]}: {_line(why)}. Add the library and"
            " the credentials for that URL to Spark, or pass another URL of the store as files="
        ) from error
    # Spark silently skips some files, such as those below a folder with the name of its streams' log.
    found = {posixpath.basename(file) for file in listed}
    for path in paths:
        if posixpath.basename(path) not in found:
            raise UnavailableError(
                f"Spark does not list the ledger file {root}/{path}. If a folder above this file is called"
                " _spark_metadata, rename that folder, or read the topic with the format waterclock"
            )
    return frame


def _check_lengths(files: LedgerFiles, sizes: Mapping[str, int]) -> None:
    """Check that files have their written length: Spark leaves out empty files, and would accept a replaced one."""
    with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="lengths") as pool:
        for path, found in zip(sizes, pool.map(files.size, sizes), strict=True):
            if found != sizes[path]:
                raise DamagedError(
                    f"the ledger file {files.name(path)} is corrupt: expected {sizes[path]} bytes, found {found}"
                )


def _check_reader(spark: SparkSession) -> None:
    """Check for Spark's reader that reports the file of a row."""
    readers = spark.conf.get(_READERS) or ""
    if "parquet" not in [name.strip().lower() for name in readers.split(",")]:
        raise InvalidArgumentError(
            f"{_READERS} must contain parquet, as by default, got {quoted(readers)}. Add parquet, or use the format"
            " waterclock"
        )


def _line(why: str) -> str:
    """Return the informative line: Java's errors follow a line about the caller."""
    lines = [line.strip() for line in why.splitlines()]
    return next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0])


def _laid_out(frame: DataFrame) -> DataFrame:
    times = {
        name: F.timestamp_micros(F.expr(f"`{time}` div {NS_PER_US}")).alias(name) for name, time in TIMESTAMPS.items()
    }
    return frame.select(*(times.get(name, F.col(name)) for name in _COLUMNS))


def _read(
    batches: Iterator[pa.RecordBatch], parts: Sequence[InputPartition], options: TopicReadOptions
) -> Iterator[pa.RecordBatch]:
    with plainly():
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from read_part(parts[number], options)


def _checked_root(files: str) -> str:
    if not isinstance(files, str) or not _ROOT.match(files):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without a type checker
        raise InvalidArgumentError(
            f"files must be a URL such as s3a://bucket/folder or file:///folder, got {quoted(files)}"
        )
    return files.rstrip("/")


def _root(files: LedgerFiles) -> str:
    """Return the location of a store of ledger files for Spark."""
    scheme, separator, rest = files.place.partition("://")
    if separator:
        return f"{_SPARKS_SCHEMES.get(scheme, scheme)}://{rest}"
    if files.is_local:
        return f"file://{files.place}"
    raise InvalidArgumentError(
        f"files is missing: the ledger store {files.place} was opened with its own filesystem. Pass files=, the URL of"
        " the store for Spark"
    )
