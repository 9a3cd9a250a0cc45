"""Checks that a pipeline's topics and message tables exist and have the right options, before the pipeline starts."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from waterclock._support.quoting import quoted
from waterclock.connection import Database, connect
from waterclock.errors import InvalidArgumentError, NotFoundError, UnavailableError
from waterclock.spark.pipeline.definition import Pipeline, PipelineOutput, PipelineSource


def check_places(pipeline: Pipeline) -> None:
    """Check that each topic and table exists and that each output accepts the pipeline's writes.

    Raises `NotFoundError` if a topic or message table is missing; the error names it. Raises `InvalidArgumentError` if
    a message table does not hold bytes under text ids; if rejected messages go to a topic that refuses some of them, or
    to the topic that is read, which would reject them again and again.
    """
    with _opened(f"{pipeline.name}, source", pipeline.source) as database:
        read = database.topic(pipeline.source.topic).storage.origin
    for output in pipeline.outputs:
        if output.kind == "parquet":
            continue
        with _opened(f"{pipeline.name}, output {quoted(output.name)}", output) as database:
            if output.kind == "table":
                if output.target not in database.tables():
                    raise NotFoundError(
                        f"no message table named {quoted(output.target)} in {database.backend.name}. Run 'waterclock"
                        f" table add {output.target} --id-type text --groups sequenced'"
                    )
                options = database.table(output.target).options
                if options.payload != "bytes":
                    raise InvalidArgumentError(
                        f'table {quoted(output.target)} must have payload="bytes" to hold batches, got'
                        f" {options.payload}"
                    )
                if (ids := options.id_type) != "text":
                    raise InvalidArgumentError(
                        f'table {quoted(output.target)} must have id_type="text" to hold batches, got {ids}'
                    )
                continue
            topic = database.topic(output.target)
            if (info := topic.info).max_ahead is not None and info.on_ahead == "reject":
                raise InvalidArgumentError(
                    f"cannot write rejected messages to topic {quoted(output.target)}: its option max_ahead may"
                    ' refuse them. Choose a topic without max_ahead, or with on_ahead="keep"'
                )
            if topic.storage.origin == read:
                raise InvalidArgumentError(
                    f"cannot write rejected messages to topic {quoted(output.target)}: the pipeline would read"
                    " them again. Choose another topic"
                )


@contextmanager
def _opened(what: str, place: PipelineSource | PipelineOutput) -> Generator[Database]:
    """Open an existing database, and add the place in the file to errors."""
    try:
        with connect(place.url, place.ledgers, create=False) as database:
            yield database
    except (InvalidArgumentError, NotFoundError, UnavailableError) as error:
        raise type(error)(f"{what}: {' '.join(str(error).split())}") from error
