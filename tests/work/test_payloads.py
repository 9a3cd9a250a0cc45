"""Handlers get what their parameters are annotated with, and put takes the same objects."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import functools
import json
import uuid
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Required, TypedDict

import pydantic
import pytest
from tests.work.conftest import running, until

import waterclock as wc
from waterclock.tables.message_table import MessageTable
from waterclock.tables.payloads.comparing import is_same
from waterclock.tables.payloads.reading import MisfitError, read_payload
from waterclock.tables.payloads.writing import write_payload
from waterclock.work.ground.handlers import BoundHandler

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


@dataclass
class Cancel:
    order: int


@dataclass
class Refund:
    order: int
    amount: int


@dataclass
class Shipped:
    order: int
    kind: Literal["shipped"] = "shipped"
    parcel: Cancelled | Shipped | None = None


@dataclass
class Cancelled:
    order: int
    kind: Literal["cancelled"] = "cancelled"
    parcel: Cancelled | Shipped | None = None


@dataclass
class Noted:
    order: int
    note: str


@dataclass
class Priced:
    order: int
    price: float


@dataclass
class Changes:
    all: list[Cancel | Refund]


@dataclass
class Data:
    content: bytes


class Changed(TypedDict):
    by: Cancel | Refund


class Numbered(pydantic.BaseModel):
    order: int


class Named(pydantic.BaseModel):
    order: int
    name: str = ""


class Shape(enum.Enum):
    ROUND = "s"


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
def test_a_handler_gets_the_object_that_was_put_and_a_misfit_is_a_dead_letter(
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
    assert "order cannot take the payload: " in dead["dead_reason"]


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
        (Line, {"article": "x", "count": "3"}, "count: must be int, got '3'"),
        (Line, {"article": "x", "count": True}, "count: must be int, got True"),
        (Line, [1], "must be an object for Line"),
        (Mail, {"to": "a", "lines": [{"article": 1}]}, r"lines\[0\].article: must be str, got 1"),
        (list[int], [1, "a"], r"\[1\]: must be int, got 'a'"),
        (tuple[int, str], [1], "must have 2 items"),
        (int | None, "x", "got 'x'"),
        (Literal["a", 1], "b", "must be Literal or its JSON, got 'b'"),
        (Size, "m", "must be Size or its JSON, got 'm'"),
        (dt.datetime, "yesterday", "must be datetime or its JSON, got 'yesterday'"),
        (decimal.Decimal, "x", "must be Decimal or its JSON, got 'x'"),
        (Invoice, {"number": "x"}, "number"),
        (dict[str, int], {"a": "b"}, r"\['a'\]: must be int, got 'b'"),
        (Line, "no json", "must be Line or its JSON, got 'no json'"),
        (Range, {"first": 2, "last": 1}, "ValueError: 2 is after 1"),
        (list[Range], [{"first": 1, "last": 0}], r"\[0\]: ZeroDivisionError: division by zero"),
        (Partly, {"b": "x"}, "'a' of Partly is missing"),
        (Line, "[" * 100_000, "the payload is nested too deeply for Line"),
        (Tree, nested(2_000), "the payload is nested too deeply for Tree"),
    ],
)
def test_a_misfit_says_where_and_why(kind: Any, value: Any, why: str) -> None:
    with pytest.raises(MisfitError, match=why):
        read_payload(kind, value)


def test_unknown_fields_of_newer_programs_are_not_a_misfit() -> None:
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
        (not_imported, "has a parameter of type 'Fraction', which its module does not import"),
        (too_many, "got 3 arguments"),
        (of_no_known_type, "does not import"),
        (
            of_a_named_tuple,
            r"cannot take list\[.*Placed\]: Placed\.\w+: no payload can be read as Place; use a dataclass",
        ),
        (by_number, "use a dataclass"),
        (unresolved, ": name 'Fraction' is not defined"),
    ],
)
def test_a_handler_that_cannot_be_called_so_is_refused(handler: Any, why: str) -> None:
    with pytest.raises(wc.InvalidArgumentError, match=why):
        BoundHandler(handler)


@pytest.mark.parametrize("kind", [Line, list[Line], dict[str, Line], Line | None])
def test_a_parameter_may_be_annotated_with_what_cannot_be_hashed(kind: Any) -> None:
    def handle(line: Any) -> None: ...

    handle.__annotations__["line"] = Annotated[kind, {"unit": "mm"}]
    BoundHandler(handle)
    handle.__annotations__["line"] = list[Annotated[kind, []]]
    BoundHandler(handle)


def test_a_parameter_annotated_with_no_type_is_refused() -> None:
    def handle(line: Any) -> None: ...

    handle.__annotations__["line"] = [Line]
    with pytest.raises(wc.InvalidArgumentError, match="it is not a type"):
        BoundHandler(handle)


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


def takes(kind: Any) -> Callable[..., None]:
    def handle(given: Any) -> None: ...

    handle.__annotations__["given"] = kind
    return handle


@pytest.mark.parametrize(
    "kind",
    [
        Cancel | Refund,
        Refund | Cancel,
        Changes,
        Changed,
        list[Cancel | Refund],
        dict[str, Cancel | Refund],
        tuple[int, Cancel | Refund | None],
        list[Cancel] | list[Refund],
        Numbered | Named,
        Cancel | dict[str, int],
        Cancel | Any,
        float | Any,
        str | dt.datetime,
        dt.date | dt.datetime,
        str | Size,
        Size | Shape,
        list[int] | set[int],
    ],
)
def test_a_handler_of_a_union_whose_members_look_alike_is_refused(kind: Any) -> None:
    with pytest.raises(wc.InvalidArgumentError, match=r"same payload could be .* or .* Give each a field of its own"):
        BoundHandler(takes(kind))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Cancelled | Shipped, [Cancelled(1), Shipped(1, parcel=Cancelled(2))]),
        (Noted | Priced, [Noted(1, "x"), Priced(1, 2.5)]),
        (int | float | str | None, [3, 3.0, "3", None, 2**53 + 1]),
        (float | int, [3, 3.0]),
        (Literal["now"] | dt.date, ["now", dt.date(2026, 7, 1)]),
        (list[int] | dict[str, int], [[1], {"a": 1}]),
        (list[int] | list[str], [[1], ["a"], []]),
        (tuple[int, int] | tuple[int], [(1, 2), (1,)]),
        (Size | int | None, [Size.SMALL, 1, None]),
        (Any | None, [None, 1, "a", [1]]),
        (str | object, ["a", 1, None]),
    ],
)
def test_members_of_a_union_that_differ_are_read_as_what_they_were(kind: Any, values: list[Any]) -> None:
    BoundHandler(takes(kind))
    for value in values:
        written = value if isinstance(value, str | int | float | None) else json.loads(json.dumps(plain(value)))
        read = read_payload(kind, written)
        assert (type(read), read) == (type(value), value)


def plain(value: Any) -> Any:
    return json.loads(write_payload({"value": value, "typed": Size.SMALL}, "text"))["value"]


def test_a_payload_without_the_field_that_tells_members_apart_is_a_misfit() -> None:
    with pytest.raises(MisfitError, match="could be Cancelled or Shipped"):
        read_payload(Cancelled | Shipped, {"order": 1})


def test_a_union_within_a_union_is_read_once_for_each_of_its_members() -> None:
    value: Cancelled | Shipped = Cancelled(0)
    for at in range(60):  # read as both members at each depth this would never end
        value = (Cancelled, Shipped)[at % 2](at, parcel=value)
    assert read_payload(Cancelled | Shipped, write_payload(value, "json")) == value


@pytest.mark.parametrize("kind", [Data, list[bytes], wc.Batch | None, list[wc.Batch]])
def test_bytes_and_batches_as_a_part_of_a_payload_are_refused(kind: Any) -> None:
    with pytest.raises(wc.InvalidArgumentError, match="not part of one in JSON"):
        BoundHandler(takes(kind))


class Aliased(pydantic.BaseModel):
    number: int = pydantic.Field(alias="orderNumber")
    note: str | None = pydantic.Field(default=None, alias="orderNote")


class Computing(pydantic.BaseModel, extra="forbid"):
    a: int

    @pydantic.computed_field
    @property
    def twice(self) -> int:
        return 2 * self.a


class Embedding(pydantic.BaseModel):
    inner: pydantic.Json[list[int]]


class Binary(pydantic.BaseModel, ser_json_bytes="base64", val_json_bytes="base64", strict=True):
    content: bytes
    due: dt.date
    after: dt.timedelta


class Private(pydantic.BaseModel):
    a: int
    _seen: list[int] = pydantic.PrivateAttr(default_factory=list[int])


@dataclass
class Mixed:
    items: list[Aliased]
    chosen: Cancelled | Shipped
    compared: int = field(default=0, compare=False)


@pytest.mark.parametrize(
    "value",
    [
        Aliased(orderNumber=1, orderNote="x"),
        Computing(a=1),
        Embedding(inner="[1, 2]"),
        Binary(content=b"\xff\x00", due=dt.date(2026, 7, 1), after=dt.timedelta(seconds=1.5)),
        Mixed([Aliased(orderNumber=1)], Shipped(3), 7),
        dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_object_that_is_put_comes_back_the_same(value: Any) -> None:
    holder = value if not isinstance(value, dt.datetime) else Occurred(value)
    assert is_same(read_payload(type(holder), write_payload(holder, "text")), holder)


@dataclass
class Occurred:
    at: dt.datetime


def test_private_attributes_are_no_part_of_a_payload() -> None:
    value = Private(a=1)
    value._seen.append(1)  # pyright: ignore[reportPrivateUsage]
    assert read_payload(Private, write_payload(value, "text")).a == 1


@dataclass
class Caching:
    a: int

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.a


def test_cached_properties_of_a_dataclass_are_not_part_of_a_payload() -> None:
    value = Caching(a=1)
    assert value.twice == 2
    assert write_payload(value, "json") == {"a": 1}


class Secret(pydantic.BaseModel):
    password: pydantic.SecretStr


class Excluding(pydantic.BaseModel):
    a: int = pydantic.Field(default=0, exclude=True)


class OneWay(pydantic.BaseModel):
    a: int = pydantic.Field(default=0, serialization_alias="A")


class Bytes(pydantic.BaseModel):
    content: bytes


class Corner(enum.Enum):
    TOP = (0, 1)


@dataclass
class Waiting:
    time: dt.timedelta


@dataclass
class Numbers:
    by: dict[int, str]


@dataclass
class Setting:
    value: float


@dataclass
class LongCancel(Cancel):
    reason: str = "none"


@dataclass
class Holding:
    change: Cancel


@dataclass
class Rounded:
    value: int

    def __post_init__(self) -> None:
        self.value = self.value // 10 * 10


def with_an_attribute_that_is_no_field() -> Line:
    value: Any = Line("tea")
    value.cuont = 2
    return value


def changed_after_it_was_made() -> Rounded:
    value = Rounded(10)
    value.value = 17
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Secret(password=pydantic.SecretStr("s3cret")), r"Secret.password is SecretStr"),
        (Excluding(a=3), "Excluding.a is 3 and would be read as 0"),
        (OneWay(a=3), "OneWay.a is 3 and would be read as 0"),
        (Bytes(content=b"\xff"), "invalid utf-8"),
        (Corner.TOP, "no handler would be able to read"),
        (Waiting(dt.timedelta(seconds=1)), "Waiting.time: no payload can be read as timedelta"),
        (Data(b"x"), "bytes can be a whole payload, but not part of one in JSON"),
        (Numbers({}), r"Numbers.by: the keys of an object in JSON are text, got dict\[int, str\]; use str"),
        (Setting(float("nan")), "not JSON compliant"),
        (Setting(2**53 + 1), r"Setting.value is 9007199254740993 and would be read as 9007199254740992.0"),
        (Holding(LongCancel(1, "late")), "Holding.change is LongCancel"),
        (Changes([Refund(1, 250)]), "could be Cancel or Refund"),
        (Placed(Place(1)), "no handler would be able to read"),
        (Unresolved(3), "name 'Fraction' is not defined"),  # pyright: ignore[reportArgumentType]
        (with_an_attribute_that_is_no_field(), "Line.cuont is 2 and would be read as None"),
        (changed_after_it_was_made(), "Rounded.value is 17 and would be read as 10"),
        ([1, {"a": Excluding(a=3)}], "Excluding.a is 3 and would be read as 0"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_object_that_would_come_back_different_is_refused(value: Any, why: str) -> None:
    for payload in ("json", "text", "bytes"):
        with pytest.raises(wc.InvalidArgumentError, match=f"cannot put (?s:.*){why}.*Convert it to a dict") as refused:
            write_payload(value, payload)
        assert "s3cret" not in str(refused.value)


def test_an_int_in_a_field_of_floats_is_read_as_the_equal_float() -> None:
    for payload in ("json", "text", "bytes"):
        assert repr(read_payload(Setting, write_payload(Setting(2), payload))) == "Setting(value=2.0)"


def test_writing_reads_each_object_back_once() -> None:
    read: list[int] = []

    class Counted(pydantic.BaseModel):
        a: int

        @pydantic.field_validator("a")
        @classmethod
        def count(cls, value: int) -> int:
            read.append(value)
            return value

    values = [Counted(a=each) for each in range(10)]
    read.clear()
    write_payload(values, "json")
    assert read == list(range(10))


@pytest.mark.one_database
def test_put_refuses_what_a_handler_would_get_different_and_writes_nothing(make_table: MakeTable) -> None:
    table = make_table(payload="json")
    with pytest.raises(wc.InvalidArgumentError, match=r"Secret\.password is SecretStr"):
        table.put(Secret(password=pydantic.SecretStr("s3cret")))
    with pytest.raises(wc.InvalidArgumentError, match=r"Excluding\.a is 3"):
        table.put_many([{"payload": Excluding()}, {"payload": Excluding(a=3)}])
    assert table.stats().ready == 0


@pytest.mark.one_database
def test_each_member_of_a_union_that_is_put_reaches_its_handler(make_table: MakeTable) -> None:
    table = make_table(payload="json")
    changes = [Shipped(1), Cancelled(2, parcel=Shipped(1))]
    table.put_many([{"payload": each} for each in changes])
    got: list[Cancelled | Shipped] = []

    def handle(change: Cancelled | Shipped) -> None:
        got.append(change)

    worker = wc.Worker(table, handle)
    with running(worker):
        until(lambda: worker.counts.done == 2)
    assert sorted(got, key=lambda each: each.order) == changes
