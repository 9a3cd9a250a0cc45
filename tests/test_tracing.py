"""Traces pass in headers from put and append to handlers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.support.imports import loaded_after

import waterclock as wc
from waterclock import tracing
from waterclock.testing import drain

Instrument = Callable[..., InMemorySpanExporter]

pytestmark = pytest.mark.one_database


@pytest.fixture
def instrument() -> Generator[Instrument]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def begin(**options: str) -> InMemorySpanExporter:
        tracing.instrument(provider, **options)  # pyright: ignore[reportArgumentType]
        return exporter

    yield begin
    tracing.uninstrument()


def named(exporter: InMemorySpanExporter, name: str) -> list[Any]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def test_a_handler_is_in_the_trace_of_the_put(database: wc.Database, instrument: Instrument) -> None:
    exporter = instrument()
    orders = database.create_table("orders", payload="json", groups="sequenced")
    current: list[trace.Span] = []
    orders.put({"press": 17}, group="ada", headers={"kind": "invoice"})
    drain(orders, lambda _: current.append(trace.get_current_span()))
    [put], [handled] = named(exporter, "put orders"), named(exporter, "process orders")
    assert (handled.parent.span_id, handled.context.trace_id) == (put.context.span_id, put.context.trace_id)
    assert (put.kind, handled.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(handled.attributes or {}) == {
        "messaging.system": "waterclock",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.message.id": "1",
        "waterclock.epoch": 1,
        "waterclock.group": "ada",
    }
    assert (put.attributes or {})["messaging.operation.type"] == "send"
    assert current[0].get_span_context() == handled.context


def test_an_asynchronous_handler_is_linked_if_asked(database: wc.Database, instrument: Instrument) -> None:
    exporter = instrument(join="link")
    orders = database.create_table("orders")
    orders.put_many([{"payload": b"1"}, {"payload": b"2"}])
    current: list[trace.Span] = []

    async def handle(delivery: wc.Delivery) -> None:
        current.append(trace.get_current_span())

    drain(orders, handle)
    [put], handled = named(exporter, "put orders"), named(exporter, "process orders")
    assert (put.attributes or {})["messaging.batch.message_count"] == 2
    assert [span.parent for span in handled] == [None, None]
    assert [link.context.span_id for span in handled for link in span.links] == [put.context.span_id] * 2
    assert [span.get_span_context() for span in current] == [span.context for span in handled]


def test_an_error_of_a_handler_is_recorded_and_its_wish_is_none(database: wc.Database, instrument: Instrument) -> None:
    exporter = instrument()
    orders = database.create_table("orders", payload="text", min_backoff="1h")
    for text in ("fails", "discards"):
        orders.put(text)

    def handle(delivery: wc.Delivery) -> None:
        raise ValueError("torn") if delivery.payload == "fails" else wc.Discard("not needed")

    with pytest.raises(ValueError, match="torn"):
        drain(orders, handle)
    drain(orders, handle)
    failed, discarded = named(exporter, "process orders")
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "torn")
    assert (failed.attributes or {})["error.type"] == "ValueError"
    assert discarded.status.status_code is StatusCode.UNSET
    with pytest.raises(wc.InvalidArgumentError, match="headers must be a dict of strings"):
        orders.put("x", headers=["traceparent"])  # pyright: ignore[reportArgumentType]
    assert named(exporter, "put orders")[-1].status.status_code is StatusCode.ERROR


def test_the_work_of_a_batch_is_linked_to_the_appends_of_its_messages(
    database: wc.Database, instrument: Instrument
) -> None:
    exporter = instrument()
    telemetry, batches = database.create_topic("telemetry"), database.create_table("batches")
    telemetry.append([wc.Message("press", stream, 1, receive_time=1, headers={"unit": "N"}) for stream in "ab"])
    telemetry.append(pa.table({"source": ["press"], "stream": ["c"], "event_time": [2], "receive_time": [2]}))
    messages = tuple(telemetry.read())
    assert (messages[0].headers or {})["unit"] == "N"
    batches.put(wc.Batch("press", 1, 2, 3, "timeout", messages).to_bytes(), headers={"kind": "batch"})
    drain(batches, lambda _: None)
    [handled], appended = named(exporter, "process batches"), named(exporter, "append telemetry")
    [put] = named(exporter, "put batches")
    spans = [put, *appended]
    assert [link.context.span_id for link in handled.links] == [span.context.span_id for span in spans]


def test_headers_of_a_numbered_append_are_kept_so_that_its_repeat_is_equal(
    database: wc.Database, instrument: Instrument
) -> None:
    instrument()
    telemetry = database.create_topic("telemetry")
    message = wc.Message("press", "load", 1, receive_time=1)
    assert not telemetry.append([message], producer="press", sequence=0).duplicate
    assert telemetry.append([message], producer="press", sequence=0).duplicate
    assert [one.headers for one in telemetry.read()] == [None]


def test_a_program_without_traces_does_not_import_opentelemetry() -> None:
    assert "opentelemetry" not in loaded_after("import waterclock.work.worker, waterclock.connection")


HEADED = {"source": ["press"], "stream": ["load"], "event_time": [1], "receive_time": [1]}


@pytest.mark.parametrize(
    "rows",
    [5, None, "ab", {"payload": "x"}, [5], [{}], [{"payload": "x", "headers": {1: "a"}}], [{"payload": "x", "no": 1}]],
    ids=repr,
)
def test_rows_that_a_put_refuses_are_refused_in_the_same_words(
    database: wc.Database, instrument: Instrument, rows: Any
) -> None:
    orders = database.create_table("orders", payload="text")
    with pytest.raises(wc.InvalidArgumentError) as plain:
        orders.put_many(rows)
    instrument()
    with pytest.raises(wc.InvalidArgumentError) as traced:
        orders.put_many(rows)
    assert str(traced.value) == str(plain.value)


@pytest.mark.parametrize(
    "headers",
    [pa.array(["x"]), pa.array([1]), pa.array([["a"]]), pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))],
    ids=lambda column: str(column.type),
)
def test_headers_that_an_append_refuses_are_refused_in_the_same_words(
    database: wc.Database, instrument: Instrument, headers: pa.Array
) -> None:
    topic, table = database.create_topic("telemetry"), pa.table({**HEADED, "headers": headers})
    with pytest.raises(wc.SchemaError) as plain:
        topic.append(table)
    instrument()
    with pytest.raises(wc.SchemaError) as traced:
        topic.append(table)
    assert str(traced.value) == str(plain.value)


def test_a_wrong_join_is_refused() -> None:
    with pytest.raises(wc.InvalidArgumentError, match="join must be one of 'parent', 'link', got 'child'"):
        tracing.instrument(join="child")  # pyright: ignore[reportArgumentType]
