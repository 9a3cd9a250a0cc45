"""Traces messages with OpenTelemetry: handling a message joins, or links to, the trace in which it was put or appended.

OpenTelemetry is not imported before `instrument` is called.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol

from waterclock._support.quoting import in_a_line, quoted
from waterclock.errors import InvalidArgumentError, UnavailableError, WaterclockError

if TYPE_CHECKING:
    import pyarrow as pa
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, TracerProvider

_MOST_LINKS = 128
"""Links of one span: OpenTelemetry's default limit."""

_ARROW = b"\xff\xff\xff\xff"
"""The first bytes of a batch, as of all Arrow streams."""

active: Tracing | None = None
"""Creates spans; None: tracing is off, and OpenTelemetry is not imported."""


class _Handled(Protocol):
    """The facts of a delivery that go into its span."""

    @property
    def id(self) -> object: ...
    @property
    def epoch(self) -> int: ...
    @property
    def group(self) -> str | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def payload(self) -> object: ...


def instrument(tracer_provider: TracerProvider | None = None, *, join: Literal["parent", "link"] = "parent") -> None:
    """Record spans of `put`, `append` and the handlers of workers in this process, and pass traces on in headers.

    Parameters
    ----------
    tracer_provider
        OpenTelemetry's; None: the global one.
    join
        ``"parent"``: a handler's span is a child of the span in which its message was put, in the same trace.
        ``"link"``: it begins a trace of its own, with a link to that span. Spans of batches whose messages come from
        several traces are always linked.

    Raises
    ------
    InvalidArgumentError
        If ``join`` is something else.
    UnavailableError
        If OpenTelemetry is not installed.
    """
    global active  # noqa: PLW0603  # one for the process, as OpenTelemetry's own
    if join not in ("parent", "link"):
        raise InvalidArgumentError(f"join must be one of 'parent', 'link', got {quoted(join)}")
    try:
        active = Tracing(tracer_provider, join)
    except ImportError:
        raise UnavailableError("traces need OpenTelemetry. Install waterclock[otel]") from None


def uninstrument() -> None:
    """Record no more spans."""
    global active  # noqa: PLW0603  # as above
    active = None


class Tracing:
    """Records spans, and reads and writes the headers that pass traces on."""

    def __init__(self, provider: TracerProvider | None, join: Literal["parent", "link"]) -> None:
        from opentelemetry import propagate, trace

        self._tracer = trace.get_tracer("waterclock", tracer_provider=provider)
        self._trace = trace
        self._propagate = propagate
        self._join = join

    @contextmanager
    def putting(self, table: str, rows: Any) -> Generator[Iterable[Mapping[str, Any]]]:
        """Record a span of a put; yield the rows with the headers that pass it on. Invalid rows stay unchanged."""
        given = list(rows) if isinstance(rows, Iterable) and not isinstance(rows, str | bytes | Mapping) else []
        is_valid = bool(given) and all(isinstance(row, Mapping) for row in given)
        ids = [row["id"] for row in given if row.get("id") is not None] if is_valid else []
        with self._sending("put", table, len(given), ids) as headers:
            yield [_with_headers(row, headers) for row in given] if is_valid else given or rows

    @contextmanager
    def appending(self, topic: str, messages: Any) -> Generator[Any]:
        """Record a span of an append; yield the messages with the headers that pass it on."""
        import pyarrow as pa

        from waterclock.arrow import as_message_columns
        from waterclock.frames import as_messages

        given = as_messages(messages)
        if isinstance(given, pa.Table):
            given = as_message_columns(given)
        with self._sending("append", topic, len(given)) as headers:
            if isinstance(given, pa.Table):
                yield _table_with_headers(given, headers)
            else:
                yield [one.replace(headers={**headers, **(one.headers or {})}) for one in given]

    @contextmanager
    def handling(self, table: str, delivery: _Handled, expected: type[BaseException]) -> Generator[None]:
        """Record a span of a handler; exceptions of the expected type do not count as errors."""
        contexts = self._contexts(delivery)
        parent = contexts[0] if self._join == "parent" and len(contexts) == 1 else None
        links = [] if parent is not None else [self._link(each) for each in contexts[:_MOST_LINKS]]
        facts: dict[str, Any] = {"messaging.message.id": str(delivery.id), "waterclock.epoch": delivery.epoch}
        if delivery.group is not None:
            facts["waterclock.group"] = delivery.group
        kind = self._trace.SpanKind.CONSUMER
        with self._span("process", "process", table, kind, facts, parent, links) as span:
            try:
                yield
            except BaseException as error:
                if not isinstance(error, expected):
                    self._note_error(span, error)
                raise

    @contextmanager
    def _sending(self, operation: str, place: str, count: int, ids: Sequence[Any] = ()) -> Generator[dict[str, str]]:
        facts: dict[str, Any] = {"messaging.batch.message_count": count} if count > 1 else {}
        if count == 1 and ids:
            facts["messaging.message.id"] = str(ids[0])
        headers: dict[str, str] = {}
        with self._span(operation, "send", place, self._trace.SpanKind.PRODUCER, facts) as span:
            self._propagate.inject(headers)
            try:
                yield headers
            except BaseException as error:
                self._note_error(span, error)
                raise

    @contextmanager
    def _span(
        self,
        operation: str,
        kind_of_operation: str,
        place: str,
        kind: SpanKind,
        facts: Mapping[str, Any],
        parent: Context | None = None,
        links: list[Link] | None = None,
    ) -> Generator[Span]:
        with self._tracer.start_as_current_span(
            f"{operation} {place}",
            context=parent,
            kind=kind,
            attributes={
                "messaging.system": "waterclock",
                "messaging.operation.name": operation,
                "messaging.operation.type": kind_of_operation,
                "messaging.destination.name": place,
                **facts,
            },
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield span

    def _note_error(self, span: Span, error: BaseException) -> None:
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, in_a_line(str(error))))

    def _contexts(self, delivery: _Handled) -> list[Context]:
        """Return the contexts in which a delivery was put; of a batch, those in which its messages were appended."""
        carriers = [delivery.headers]
        payload = delivery.payload
        if isinstance(payload, bytes) and payload.startswith(_ARROW):
            from waterclock.batching.batch import Batch

            with suppress(WaterclockError):  # not a batch, or a corrupt one, which the handler will report
                carriers += [one.headers or {} for one in Batch.from_bytes(payload).messages]
        found: dict[str, Context] = {}
        for carrier in carriers:
            if (key := carrier.get("traceparent")) is not None and key not in found:
                found[key] = self._propagate.extract(carrier)
        return [each for each in found.values() if self._context(each).is_valid]

    def _context(self, context: Context) -> Any:
        return self._trace.get_current_span(context).get_span_context()

    def _link(self, context: Context) -> Link:
        return self._trace.Link(self._context(context))


def _with_headers(row: Mapping[str, Any], headers: Mapping[str, str]) -> Mapping[str, Any]:
    given = row.get("headers")
    if (given is not None and not (isinstance(given, Mapping) and _are_strings(given))) or "payload" not in row:
        return row  # the put refuses it
    return {**row, "headers": {**headers, **(given or {})}}


def _are_strings(headers: Mapping[Any, Any]) -> bool:
    return all(isinstance(each, str) for pair in headers.items() for each in pair)


def _table_with_headers(table: pa.Table, headers: Mapping[str, str]) -> pa.Table:
    import pyarrow as pa

    place = table.schema.get_field_index("headers")
    given = table.column(place).to_pylist()
    column = pa.array([[*({**headers, **dict(each or [])}).items()] for each in given], table.schema.field(place).type)
    return table.set_column(place, "headers", column)
