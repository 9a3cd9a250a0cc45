"""Handlers get what their parameters are annotated with, and put takes the same objects."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NewType, NotRequired, Required, TypedDict

import pydantic
import pytest
from tests.work.conftest import running, until

import waterclock as wc
from waterclock.tables.message_table import MessageTable
from waterclock.work.handlers import BoundHandler
from waterclock.work.payloads import MisfitError, read_payload

if TYPE_CHECKING:
    from fractions import Fraction

MakeTable = Callable[..., MessageTable]


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Line:
    article: str
    count: int = 1


@dataclass
class Order:
    id: uuid.UUID
    at: dt.datetime
    price: decimal.Decimal
    size: Size
    lines: list[Line]
    weight: float | None = None
    tags: tuple[str, ...] = ()
    by: dict[str, int] = field(default_factory=dict)
    kind: Literal["new", "old"] = "new"


class Mail(TypedDict):
    to: str
    lines: list[Line]


class Partly(TypedDict, total=False):
    a: Required[int]
    b: str


class Mostly(TypedDict):
    a: int
    b: NotRequired[str]


Press = NewType("Press", int)


class Place(NamedTuple):
    x: int


@dataclass
class Placed:
    at: Place


@dataclass
class Unresolved:
    of: Fraction


class Invoice(pydantic.BaseModel):
    number: int
    due: dt.date


@dataclass
class Range:
    first: int
    last: int

    def __post_init__(self) -> None:
        if self.first / self.last > 1:
            raise ValueError(f"{self.first} is after {self.last}")


@dataclass
class Tree:
    of: Tree | None = None


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"of": found}
    return found


ORDER = Order(
    uuid.UUID(int=17),
    dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC),
    decimal.Decimal("17.50"),
    Size.LARGE,
    [Line("bolt", 3), Line("nut")],
    2.0,
    ("a", "b"),
    {"press": 3},
)


def one_batch() -> wc.Batch:
    batcher = wc.EventTimeBatcher(window="1s", max_delay=0)
    batcher.add(wc.Message("press", "load", 10**18, b"1", receive_time=10**18))
    [batch] = batcher.flush()
    return batch


@pytest.mark.one_database
@pytest.mark.parametrize("payload", ["json", "text", "bytes"])
def test_what_is_put_is_what_the_handler_gets_and_what_does_not_fit_is_a_dead_letter(
    make_table: MakeTable, payload: str
) -> None:
    orders, invoices = (
        make_table("orders", payload=payload, dead_letter="dead"),
        make_table("invoices", payload=payload),
    )
    orders.put(ORDER)
    misfit = {"json": {"id": 3}, "text": "{}", "bytes": b"\xff"}[payload]
    orders.put(misfit)
    invoices.put(Invoice(number=3, due=dt.date(2026, 7, 1)))
    got: list[Any] = []

    def order(given: Order, delivery: wc.Delivery) -> None:
        got.append((given, delivery.epoch))

    async def invoice(given: Invoice) -> None:
        got.append(given)

    worker = wc.Worker({orders: order, invoices: invoice})
    with running(worker):
        until(lambda: worker.counts.done == 2 and worker.counts.dead == 1)
    assert (ORDER, 1) in got
    assert Invoice(number=3, due=dt.date(2026, 7, 1)) in got
    [dead] = orders.dead_letters()
    assert "order cannot take it: " in dead["dead_reason"]


@pytest.mark.one_database
def test_a_batch_is_put_as_it_is_and_handled_as_one(make_table: MakeTable) -> None:
    table = make_table(payload="bytes", dead_letter="dead")
    batch = one_batch()
    table.put(batch)
    table.put(b"no batch")
    got: list[wc.Batch] = []

    def handle(given: wc.Batch) -> None:
        got.append(given)

    worker = wc.Worker(table, handle)
    with running(worker):
        until(lambda: worker.counts.done + worker.counts.dead == 2)
    assert [each.id for each in got] == [batch.id]


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (Line, {}, "'article' of Line is missing"),
        (Line, {"article": "x", "count": "3"}, "count: '3' is no int"),
        (Line, {"article": "x", "count": True}, "count: True is no int"),
        (Line, [1], "is no object, as Line is"),
        (Mail, {"to": "a", "lines": [{"article": 1}]}, r"lines\[0\].article: 1 is no str"),
        (list[int], [1, "a"], r"\[1\]: 'a' is no int"),
        (tuple[int, str], [1], "has not 2 items"),
        (int | None, "x", "'x' is no"),
        (Literal["a", 1], "b", "'b' is no"),
        (Size, "m", "'m' is no Size"),
        (dt.datetime, "yesterday", "'yesterday' is no datetime"),
        (decimal.Decimal, "x", "'x' is no Decimal"),
        (Invoice, {"number": "x"}, "number"),
        (dict[str, int], {"a": "b"}, r"\['a'\]: 'b' is no int"),
        (Line, "no json", "'no json' is no Line, and no JSON"),
        (Range, {"first": 2, "last": 1}, "ValueError: 2 is after 1"),
        (list[Range], [{"first": 1, "last": 0}], r"\[0\]: ZeroDivisionError: division by zero"),
        (Partly, {"b": "x"}, "'a' of Partly is missing"),
        (Line, "[" * 100_000, "the payload is nested too deeply for Line"),
        (Tree, nested(2_000), "the payload is nested too deeply for Tree"),
    ],
)
def test_what_does_not_fit_says_where_and_why(kind: Any, value: Any, why: str) -> None:
    with pytest.raises(MisfitError, match=why):
        read_payload(kind, value)


def test_what_newer_programs_put_beside_what_is_known_is_no_misfit() -> None:
    assert read_payload(Line, {"article": "bolt", "colour": "red"}) == Line("bolt")
    assert read_payload(Mail, {"to": "a", "lines": [], "cc": "b"}) == {"to": "a", "lines": [], "cc": "b"}
    assert read_payload(Mostly, {"a": 1}) == {"a": 1}
    assert read_payload(dict[str, list[Press]], {"a": [1]}) == {"a": [1]}
    assert read_payload(float, 3) == 3.0
    assert read_payload(str, "plain text") == "plain text"


def not_imported(given: Fraction) -> None: ...


def returns_what_is_not_imported(given: Line) -> Fraction: ...


def of_a_named_tuple(given: list[Placed]) -> None: ...


def by_number(given: dict[int, int]) -> None: ...


def unresolved(given: Unresolved) -> None: ...


def too_many(a: Line, b: Mail, c: wc.Delivery) -> None: ...


def of_no_known_type(given: threading_like) -> None: ...  # noqa: F821  # pyright: ignore


class Called:
    def __call__(self, line: Line) -> None: ...


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (not_imported, "takes 'Fraction', which its module does not import"),
        (too_many, "takes 3 arguments"),
        (of_no_known_type, "does not import"),
        (of_a_named_tuple, r"takes list\[.*Placed\]; give a dataclass"),
        (by_number, "give a dataclass"),
        (unresolved, "of which name 'Fraction' is not defined"),
    ],
)
def test_a_handler_that_cannot_be_called_so_is_refused(handler: Any, why: str) -> None:
    with pytest.raises(wc.InvalidArgumentError, match=why):
        BoundHandler(handler)


def test_objects_methods_and_functions_that_are_built_in_are_handlers() -> None:
    for each in (Called(), print, [].append, returns_what_is_not_imported):
        BoundHandler(each)


@pytest.mark.one_database
@pytest.mark.parametrize("payload", ["json", "text"])
def test_lists_and_mappings_of_objects_are_put_as_handlers_take_them(make_table: MakeTable, payload: str) -> None:
    table = make_table(payload=payload)
    given: list[tuple[Any, Any]] = [
        (list[Line], [Line("bolt", 3)]),
        (dict[str, Size], {"a": Size.SMALL}),
        (Size, Size.LARGE),
    ]
    for kind, value in given:
        table.put(value)
        [delivery] = table.receive()
        assert read_payload(kind, delivery.payload) == value
        delivery.ack()
