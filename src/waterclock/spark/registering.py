"""Registers the format ``waterclock`` with Spark, for reading and writing topics and message tables."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from waterclock.columnar.packing import CLOCKED_SCHEMA
from waterclock.errors import UnavailableError
from waterclock.spark.buckets import bucketed_schema, numbered_schema
from waterclock.spark.options import plainly
from waterclock.spark.reading.columns import spark_schema
from waterclock.spark.reading.source import TopicReader
from waterclock.spark.reading.table_read_options import TableReadOptions, refuse_batch_read
from waterclock.spark.reading.topic_read_options import TopicReadOptions, refuse_expired, refuse_stream_options
from waterclock.spark.reading.topic_stream import TopicStreamReader


class WaterclockSource(DataSource):
    """The format ``waterclock``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.options = options

    @property
    def _reads_a_table(self) -> bool:
        return "table" in self.options and "topic" not in self.options

    @classmethod
    def name(cls) -> str:
        """Return the name after ``format``."""
        return "waterclock"

    def schema(self) -> str | StructType:
        """Check the options of a read, since ``load`` calls this, and return its columns."""
        with plainly():
            if self._reads_a_table:
                return TableReadOptions.checked(self.options).schema()
            options = TopicReadOptions.checked(self.options)
            with options.connect() as database:
                topic = database.topic(options.topic)
                if options.fail_on_data_loss:
                    refuse_expired(topic, options.start)
            if options.buckets is not None:
                return bucketed_schema(options.buckets, options.id_of, adapts=options.length_file is not None)
            if options.id_of is not None:
                return numbered_schema(options.id_of)
            return CLOCKED_SCHEMA if options.packed else spark_schema(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # called by keyword
        """Prepare a read."""
        with plainly():
            if self._reads_a_table:
                refuse_batch_read()
            refuse_stream_options(self.options)
            return TopicReader(TopicReadOptions.checked(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # Spark's name and keyword
        """Prepare a stream."""
        with plainly():
            if self._reads_a_table:
                from waterclock.spark.reading.table_stream import TableStreamReader  # noqa: PLC0415  # as in `writer`

                return TableStreamReader(TableReadOptions.checked(self.options))
            return TopicStreamReader(TopicReadOptions.checked(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Check the options and prepare a write."""
        # Spark starts a Python for each stream to plan its reads: that one imports neither writers nor message tables,
        # which would be a fifth of its work.
        from waterclock.spark.writing.sink import make_writer  # noqa: PLC0415  # as above
        from waterclock.spark.writing.write_options import WriteOptions  # noqa: PLC0415  # as above

        with plainly():
            return make_writer(WriteOptions.checked(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802  # Spark's
        """Check the options and prepare the writes of a stream."""
        from waterclock.spark.writing.sink import make_writer  # noqa: PLC0415  # as above
        from waterclock.spark.writing.write_options import WriteOptions  # noqa: PLC0415  # as above

        with plainly():
            return make_writer(WriteOptions.checked(self.options), schema, overwrite=overwrite, streaming=True)


def register(spark: SparkSession) -> None:
    """Register the format ``waterclock`` with ``spark``; a second call changes nothing.

    It also enables Spark to pass filters to data sources in Python, which it does not do by default.

    Raises
    ------
    UnavailableError
        If Waterclock itself is in a zip file, as ``--py-files`` brings it.
    """
    _refuse_zip()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(portable_source())


def portable_source() -> type[DataSource]:
    """Build the class for Spark's processes: they can load it without Waterclock, and report that it is missing.

    A class within a function is pickled with its code, others as the place to import them from.
    """

    class PortableSource(DataSource):
        def __new__(cls, options: MutableMapping[str, str]) -> DataSource:  # pyright: ignore[reportInconsistentConstructor]  # of another class
            # Of its own code, nothing around it comes along.
            import importlib  # noqa: PLC0415  # as above
            import os  # noqa: PLC0415  # as above
            import platform  # noqa: PLC0415  # as above
            import sys  # noqa: PLC0415  # as above

            try:
                source = importlib.import_module("waterclock.spark.registering").WaterclockSource
            except ImportError as error:
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"
                raise ImportError(
                    f"cannot use the format waterclock: {error} in {sys.executable} on {platform.node()}."
                    " On that machine, install the driver's version of waterclock[spark], or point PYSPARK_PYTHON to a"
                    " Python that has this version"
                ) from None
            return source(options)

        @classmethod
        def name(cls) -> str:
            return "waterclock"

    return PortableSource


def _refuse_zip() -> None:
    """Check that Waterclock is installed: the process in which Spark plans a stream sees no ``--py-files``.

    Nor do migrations of the catalogue and Java's settings come out of a zip. The check is here, so that the mistake
    shows before a query that works in replays fails as a stream.
    """
    if not Path(__file__).is_file():
        raise UnavailableError(
            f"cannot stream: waterclock was imported from {str(Path(__file__).parents[2])!r}, where --py-files"
            " placed it. Install waterclock in the Python of the driver and of all executors, or pack an"
            " environment for --archives; see the page 'Run on a cluster'"
        )
