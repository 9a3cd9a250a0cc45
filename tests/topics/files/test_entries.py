"""Entries: the same messages come back in any form, and any other bytes are damage."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waterclock.arrow import MESSAGE_SCHEMA, from_arrow, to_arrow, to_ipc
from waterclock.checksum import FRAME_BYTES, framed
from waterclock.errors import DamagedError, InvalidArgumentError, WaterclockError
from waterclock.message import Message
from waterclock.topics.format import packed_entries
from waterclock.topics.format.content_checksum import checksum_of_columns, checksum_of_messages
from waterclock.topics.format.entries import PLACED_SCHEMA, decode_entries, encode_entry

times = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
messages = st.builds(
    Message,
    names,
    names,
    times,
    st.binary(max_size=40),
    publish_time=st.none() | times,
    receive_time=st.none() | times,
    headers=st.none() | st.dictionaries(texts, texts, max_size=3),
)
ALL = MESSAGE_SCHEMA.names


def one(number: int = 0) -> Message:
    value = b'{"value": %d, "unit": "kN", "status": "ok"}' % number
    return Message("press", "load", number, value, publish_time=number, receive_time=number, headers={"k": "ä"})


def no_clock() -> int:
    raise AssertionError("the clock is not needed")


def in_columns(some: Sequence[Message]) -> bytes:
    return framed(b"WCA1", to_ipc(to_arrow(some)))


def decoded(rows: Sequence[tuple[int, bytes]], columns: Sequence[str] = ALL) -> pa.RecordBatch:
    return decode_entries(7, rows, columns).batch


def filled(message: Message, time: int) -> Message:
    publish = time if message.publish_time is None else message.publish_time
    receive = time if message.receive_time is None else message.receive_time
    return message.replace(publish_time=publish, receive_time=receive)


@given(st.lists(st.lists(messages, min_size=1, max_size=4), min_size=1, max_size=4))
def test_messages_come_back_as_they_were_with_their_times_filled_in(appends: list[list[Message]]) -> None:
    entries = [encode_entry(each, lambda: 5) for each in appends]
    batch = decoded([(number, entry.data) for number, entry in enumerate(entries)])
    assert batch.schema == PLACED_SCHEMA
    batch.validate(full=True)
    assert from_arrow(batch.select(ALL)) == [filled(message, 5) for each in appends for message in each]
    assert [entry.messages for entry in entries] == [len(each) for each in appends]
    places = list(zip(batch["entry"].to_pylist(), batch["index"].to_pylist(), strict=True))
    assert places == [(number, index) for number, each in enumerate(appends) for index in range(len(each))]


@given(st.lists(messages, min_size=1, max_size=5), st.sets(st.sampled_from(ALL)))
def test_the_columns_that_are_asked_for_are_those_of_columns_in_both_forms(
    some: list[Message], wanted: set[str]
) -> None:
    some = [filled(message, 1) for message in some]
    data = packed_entries.pack(some)
    assert data is not None
    rows = [(3, data), (4, in_columns(some)), (5, data)]
    batch = decoded(rows, list(wanted))
    assert batch.schema.names == [name for name in PLACED_SCHEMA.names if name in {*wanted, "entry", "index"}]
    expected = decoded([(entry, in_columns(some)) for entry, _ in rows], list(wanted))
    assert batch.equals(expected)


@given(st.lists(messages, min_size=1, max_size=5))
def test_bounds_of_a_few_messages_are_those_of_their_columns(some: list[Message]) -> None:
    entry = encode_entry(some, lambda: 5)
    many = encode_entry(some * 20, lambda: 5)
    assert entry.bounds == many.bounds


def test_a_packed_message_is_smaller_than_a_tenth_of_its_columns() -> None:
    assert len(encode_entry([one()], no_clock).data) < len(in_columns([one()])) / 10


@pytest.mark.parametrize("count", [1, 5, 20, 30, 64, 65, 300])
def test_the_smaller_form_is_taken(count: int) -> None:
    some = [one(number) for number in range(count)]
    packed = packed_entries.pack(some)
    data = encode_entry(some, no_clock).data
    assert len(data) == min(len(in_columns(some)), 10**9 if packed is None else len(packed))


def test_a_table_and_messages_make_the_same_bytes() -> None:
    for count in (1, 30, 64, 65):
        some = [one(number) for number in range(count)]
        data = encode_entry(some, no_clock).data
        assert encode_entry(to_arrow(some), no_clock).data == data
        assert encode_entry(pa.table(to_arrow([one(), *some])).slice(1), no_clock).data == data


def test_headers_of_a_table_that_no_message_can_have_are_kept() -> None:
    columns = to_arrow([one()]).to_pydict() | {"headers": [[("k", "1"), ("k", "2")]]}
    table = pa.table(columns, schema=MESSAGE_SCHEMA)
    batch = decoded([(0, encode_entry(table, no_clock).data)])
    assert batch["headers"].to_pylist() == [[("k", "1"), ("k", "2")]]


@pytest.mark.parametrize("count", [1, 100])
def test_a_text_without_utf8_is_refused(count: int) -> None:
    with pytest.raises(InvalidArgumentError, match="surrogate"):
        encode_entry([Message("\ud800", "s", 1)] * count, lambda: 0)


@pytest.mark.parametrize("size", [4_000, 60_000, 70_000])
def test_entries_too_large_to_pack_are_columns(size: int) -> None:
    for message in (
        Message("a", "b", 1, b"x" * size),
        Message("a" * size, "b", 1),
        Message("a", "b" * size, 1),
        Message("a", "b", 1, headers={"k" * size: ""}),
        Message("a", "b", 1, headers={"k": "v" * size}),
        Message("a", "b", 1, headers={str(number): "" for number in range(size // 10)}),
    ):
        data = encode_entry([message], lambda: 2).data
        assert from_arrow(decoded([(0, data)]).select(ALL)) == [filled(message, 2)]


def test_an_entry_that_is_recorded_as_lost_has_no_messages() -> None:
    lost = framed(b"WCL1", b"")
    data = encode_entry([one()], no_clock).data
    assert decoded([(0, lost)]).num_rows == 0
    assert decoded([(0, lost)]).schema == PLACED_SCHEMA
    assert decoded([(0, data), (1, lost), (2, data)])["entry"].to_pylist() == [0, 2]
    assert decoded([]).schema == PLACED_SCHEMA


@pytest.mark.parametrize("form", ["packed", "columns", "lost"])
def test_each_bit_that_is_flipped_is_damage_that_names_its_entry(form: str) -> None:
    data = {
        "packed": packed_entries.pack([one(), one(2)]),
        "columns": in_columns([one()]),
        "lost": framed(b"WCL1", b""),
    }
    right = data[form]
    assert right is not None
    good = encode_entry([one()], no_clock).data
    places = range(len(right)) if form != "columns" else [*range(40), *range(40, len(right), 37)]
    for place, bit in itertools.product(places, (0, 7)):
        wrong = bytearray(right)
        wrong[place] ^= 1 << bit
        with pytest.raises(DamagedError) as damaged:
            decoded([(0, good), (1, bytes(wrong)), (2, good)])
        assert (damaged.value.ledger, damaged.value.entry) == (7, 1)
    for size in [*range(0, len(right), 11), len(right) - 1]:
        with pytest.raises(DamagedError) as damaged:
            decoded([(0, good), (5, right[:size])])
        assert damaged.value.entry == 5


def _check_messages_or_damage(rows: Sequence[tuple[int, bytes]]) -> None:
    """Decode entries of which number 1 may be damaged."""
    where = (7, 1)
    try:
        batch = decoded(rows)
    except DamagedError as damaged:
        where = (damaged.ledger, damaged.entry)
    else:
        batch.validate(full=True)
        assert batch.num_rows >= len(rows)
    assert where == (7, 1)


def _check_hostile_bytes(form: bytes, body: bytes, dice: random.Random, tries: int) -> None:
    """Change bytes and compute the checksum anew, as no disk would: what is read is messages, or it is damage."""
    good = encode_entry([one()], no_clock).data
    for _ in range(tries):
        wrong = bytearray(body)
        for _ in range(dice.randint(1, 3)):
            wrong[dice.randrange(len(wrong))] = dice.choice((0, 1, 127, 128, 255, dice.randrange(256)))
        if dice.random() < 0.2:
            del wrong[dice.randrange(len(wrong)) :]
        _check_messages_or_damage([(0, good), (1, framed(form, bytes(wrong)))])


@pytest.mark.parametrize("tries", [500, pytest.param(50_000, marks=pytest.mark.slow)])
def test_packed_bytes_that_lie_about_where_things_are_never_lead_out_of_their_entry(tries: int) -> None:
    packed = packed_entries.pack([one(), one(2), Message("ä", "b", 1, publish_time=1, receive_time=1)])
    assert packed is not None
    _check_hostile_bytes(packed_entries.FORM, packed[FRAME_BYTES:], random.Random(1), tries)  # noqa: S311


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_in_a_packed_frame_are_messages_or_damage(body: bytes) -> None:
    _check_messages_or_damage([(1, framed(packed_entries.FORM, body))])


@pytest.mark.parametrize(
    "other", [pa.record_batch({"source": [1]}), pa.record_batch({"other": ["a"]}), to_arrow([one()]).select([6, 2])]
)
def test_columns_of_something_else_are_damage(other: pa.RecordBatch) -> None:
    for columns in (ALL, ["event_time"], []):
        with pytest.raises(DamagedError, match="entry 1 of ledger 7"):
            decoded([(1, framed(b"WCA1", to_ipc(other)))], columns)


@given(st.lists(messages, min_size=1, max_size=6))
def test_the_checksum_of_messages_is_that_of_their_columns(some: list[Message]) -> None:
    batch = to_arrow([one(9), *some]).slice(1)
    assert checksum_of_messages(some) == checksum_of_columns(batch) == checksum_of_columns(to_arrow(some))


@given(st.lists(messages, min_size=1, max_size=3), st.lists(messages, min_size=1, max_size=3))
def test_other_contents_have_another_checksum(some: list[Message], others: list[Message]) -> None:
    def contents(given: list[Message]) -> list[object]:
        headers = [None if m.headers is None else list(m.headers.items()) for m in given]
        return [(m.source, m.stream, m.event_time, m.payload, own) for m, own in zip(given, headers, strict=True)]

    assert (checksum_of_messages(some) == checksum_of_messages(others)) == (contents(some) == contents(others))


@pytest.mark.parametrize(("count", "expected"), [(1, 313_814_020), (100, 158_482_086)])
def test_the_checksum_ignores_send_times_and_never_changes(count: int, expected: int) -> None:
    some = [Message("press", "load", number, b"x", headers={"k": "v"}) for number in range(count)]
    early, late = (encode_entry(some, lambda now=now: now, with_checksum=True) for now in (1, 2))
    assert early.data != late.data
    assert early.checksum == late.checksum == expected
    assert encode_entry(some, lambda: 3).checksum == 0


def test_the_packed_form_never_changes() -> None:
    message = Message("ab", "c", 1, b"xyz", publish_time=2, receive_time=-1, headers={"k": "vw"})
    body = (
        bytes.fromhex("0100 0100")
        + bytes.fromhex("0100000000000000 0200000000000000 ffffffffffffffff 0200 0100 0300 0100")
        + bytes.fromhex("0100 0200")
        + b"abcxyzkvw"
    )
    assert encode_entry([message], no_clock).data == framed(b"WCR1", body)


def test_damage_names_the_error_of_the_library_that_met_it_as_its_cause() -> None:
    with pytest.raises(DamagedError, match="not an Arrow IPC stream of messages") as damaged:
        decoded([(1, framed(b"WCA1", b"no Arrow"))])
    assert isinstance(damaged.value.__cause__, pa.ArrowException)


_TABLE = pa.table({"source": ["secret"], "stream": ["secret"], "event_time": ["secret"]})


@pytest.mark.parametrize(
    "appended",
    [_TABLE, [_TABLE], [{"source": "secret"}], {"secret": 1}, "secret", ["secret"], _TABLE.to_reader()],
    ids=lambda appended: type(appended).__name__,
)
def test_errors_about_appends_do_not_print_data(appended: Any) -> None:
    with pytest.raises(WaterclockError) as raised:
        encode_entry(appended, lambda: 0)
    assert "secret" not in str(raised.value)
