"""What waits for its append is bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from waterclock.ingest.inbox import MOST_AT_ONCE, Inbox
from waterclock.ingest.mapping.format_rule import Published
from waterclock.ingest.storing.received import Received


class Line:
    session, number, session_present = "gateway@broker", 1, True

    def ack(self, packet_ids: Iterable[int]) -> None:
        raise AssertionError(packet_ids)


def received(size: int = 1, qos: int = 1) -> Received:
    return Received(Published("t", b"x" * (size - 1)), Line(), 1, qos)


def test_it_takes_no_more_than_so_many_messages() -> None:
    inbox = Inbox(most_waiting=2)
    assert [inbox.put(received()) for _ in range(3)] == [True, True, False]
    assert len(inbox.take()) == 2
    assert inbox.put(received())


def test_it_takes_no_more_than_so_many_bytes_but_one_message_of_any_size() -> None:
    inbox = Inbox(most_bytes=10)
    assert inbox.put(received(100))
    assert not inbox.put(received())
    inbox.take()
    assert inbox.bytes == 0
    assert [inbox.put(received(4)) for _ in range(3)] == [True, True, False]


def test_messages_at_qos_0_leave_room_for_others() -> None:
    inbox = Inbox(most_waiting=4)
    assert [inbox.put(received(qos=0)) for _ in range(3)] == [True, True, False]
    assert [inbox.put(received()) for _ in range(3)] == [True, True, False]


def test_messages_are_taken_in_order_and_some_at_a_time() -> None:
    inbox = Inbox()
    given = [received() for _ in range(MOST_AT_ONCE + 1)]
    assert all(inbox.put(each) for each in given)
    first = inbox.take()
    assert len(first) == MOST_AT_ONCE
    assert [*first, *inbox.take()] == given


def test_a_closed_inbox_returns_its_messages_and_then_none() -> None:
    inbox = Inbox()
    inbox.put(received())
    inbox.close()
    assert len(inbox.take()) == 1
    assert inbox.take() == []


def test_close_wakes_waiting_threads() -> None:
    inbox = Inbox()
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(inbox.take()))
    thread.start()
    inbox.close()
    thread.join(10)
    assert taken == [[]]
