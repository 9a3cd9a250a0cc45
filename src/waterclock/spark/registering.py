"""Makes Spark know the format ``waterclock``: topics to read, message tables and topics to write."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader
from pyspark.sql.types import StructType

from waterclock.spark.sink import WriteOptions, make_writer
from waterclock.spark.source import ReadOptions, TopicReader, check_columns, spark_schema


class WaterclockSource(DataSource):
    """The format ``waterclock``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.options = options

    @classmethod
    def name(cls) -> str:
        """Give the name after ``format``."""
        return "waterclock"

    def schema(self) -> str:
        """Give the columns that a read was asked for."""
        return spark_schema(check_columns(self.options.get("columns")))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # called by keyword
        """Check the options and prepare a read."""
        return TopicReader(ReadOptions.checked(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Check the options and prepare a write."""
        return make_writer(WriteOptions.checked(self.options), schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Make ``spark`` know the format ``waterclock``; doing it twice changes nothing."""
    spark.dataSource.register(WaterclockSource)
