"""The base class of the writers of DataFrames and streams."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage


class Writer(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Writes idempotently in its tasks, so there is nothing to commit or to abort."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: ARG002, N803  # Spark's names
        """Tidy up after a write, on the driver."""
        self.finish()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: ARG002, N803  # Spark's names
        """Tidy up after a write that failed, on the driver; its messages stay, and later tries recognize them."""
        self.finish()

    def finish(self) -> None:
        """Tidy up; a subclass may override this."""
