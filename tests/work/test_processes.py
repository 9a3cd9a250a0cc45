"""Handlers in child processes: what happens to a process happens to one message, and processes are replaced."""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import sqlalchemy as sa
from tests.support.forked import Forked
from tests.work import shop
from tests.work.conftest import running, until

import waterclock as wc
from waterclock.tables.message_table import MessageTable
from waterclock.work.running import forks, processes
from waterclock.work.running.grouped_process import GroupedProcess

MakeTable = Callable[..., MessageTable]


@pytest.mark.one_database
def test_a_process_that_dies_or_is_late_takes_no_other_message_along_and_is_replaced(
    make_table: MakeTable, tmp_path: Path, kept: WeakSet[Any]
) -> None:
    orders = make_table(max_attempts=2, dead_letter="dead", ack_wait="500ms", min_backoff="500ms")

    def put(does: str) -> Any:
        return orders.put({"does": does, "folder": str(tmp_path)})

    put("is killed")
    put("exits")
    ids = {does: put(does) for does in ("acks by itself", "returns")}
    waiting = put("waits to be cancelled")
    worker = wc.Worker(orders, shop.torture, processes=2, timeout="10m")
    with running(worker):
        until((tmp_path / "waits to be cancelled-1").exists)
        orders.cancel(waiting)
        until(lambda: len(orders.dead_letters()) == 2)
        until(lambda: not orders.stats().in_flight and not orders.peek())
        until(lambda: not kept)
    assert {each["last_error"] for each in orders.dead_letters()} == {
        "the handler's process died: SIGKILL",
        "the handler's process died: exit code 3",
    }
    assert all(each["epoch"] == 2 for each in orders.dead_letters())
    assert worker.counts.replaced == 4
    assert all("acked" in str(orders.explain(each)) for each in ids.values())
    assert not (tmp_path / "waits to be cancelled-2").exists()


@pytest.mark.one_database
def test_a_process_that_is_late_is_killed_and_at_the_end_none_is_left(make_table: MakeTable, tmp_path: Path) -> None:
    orders = make_table(min_backoff="1h", ack_wait="1h")
    orders.put({"does": "hangs", "folder": str(tmp_path)})
    worker = wc.Worker(orders, shop.torture, processes=1, timeout="100ms")
    with running(worker):
        until(lambda: worker.counts.timed_out == 1)
        late = int((tmp_path / "hangs-1").read_text())
        assert _is_gone(late)
        orders.put({"does": "waits to be cancelled", "folder": str(tmp_path), "until": "the end"})
        until((tmp_path / "waits to be cancelled-1").exists)
    last = int((tmp_path / "waits to be cancelled-1").read_text())
    until(lambda: _is_gone(last))
    assert worker.counts.failed == 2


@pytest.mark.one_database
def test_a_process_is_recycled_after_some_messages_and_leaves_its_context_managers(
    orders: MessageTable, tmp_path: Path
) -> None:
    ids = orders.put_many([{"payload": str(tmp_path), "headers": {"kind": "write"}} for _ in range(4)])
    orders.put("of another kind", headers={"kind": "read"})
    worker = wc.Worker(orders, shop.factory, processes=1, recycle_after=2)
    with running(worker):
        until(lambda: worker.counts.done == 4)
    pids = [int((tmp_path / str(each)).read_text()) for each in ids]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert all((tmp_path / f"ended-{pid}").exists() for pid in pids)
    assert orders.stats().sent in (4, 5)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_processes_that_take_too_much_memory_are_replaced_and_leave_no_connection_that_listens(
    make_table: MakeTable, tmp_path: Path
) -> None:
    orders, _ = make_table(), make_table("others")
    engine = orders.context.backend.engine

    def connections() -> list[str]:
        with engine.connect() as connection:
            return list(connection.scalars(sa.text(shop.OF_CHILDREN)))

    ids = orders.put_many([{"payload": str(tmp_path)} for _ in range(2)])
    worker = wc.Worker(orders, shop.listen, processes=1, recycle_above=1)
    with running(worker):
        until(lambda: worker.counts.done == 2)
        until(lambda: worker.facts()["slots"] == 1)  # the third
        until(lambda: not connections())
    seen = [(tmp_path / str(each)).read_text().splitlines() for each in ids]
    assert [each.count("listens") for each in seen] == [1, 1]
    assert orders.stats().sent == 2


@pytest.mark.one_database
@pytest.mark.parametrize("handler", [shop.fork, shop.fork_in_the_loop], ids=["def", "async def"])
@pytest.mark.parametrize("in_processes", [0, 1])
def test_a_fork_that_returns_from_a_handler_ends_and_answers_for_no_message(
    make_table: MakeTable, handler: Callable[..., object], in_processes: int
) -> None:
    orders = make_table(min_backoff="1h")
    orders.put_many([{"payload": each} for each in ("works", "fails", "works")])
    worker = wc.Worker(orders, handler, processes=in_processes)
    with running(worker):
        until(lambda: worker.counts.done + worker.counts.failed == 3)
    assert (worker.counts.done, worker.counts.failed, worker.counts.replaced) == (2, 1, 0)
    [failed] = orders.peek()
    assert (failed.payload, failed.epoch) == ("fails", 1)
    with orders.context.backend.engine.connect() as connection:
        [error] = connection.scalars(sa.text("SELECT last_error FROM orders WHERE last_error IS NOT NULL"))
    assert error.startswith("RuntimeError: the original (")
    assert error.endswith(" in fork)")


def test_a_fork_ends_although_a_lock_of_the_log_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_WRITES_WITHIN", 0.1)
    held, handler = threading.Lock(), logging.StreamHandler(io.StringIO())
    monkeypatch.setattr(handler, "emit", lambda _: held.acquire(timeout=10))
    logging.getLogger(forks.__name__).addHandler(handler)
    with held, forks.ending_forks("one"):
        copy = os.fork()
    logging.getLogger(forks.__name__).removeHandler(handler)
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == -signal.SIGALRM


@pytest.mark.one_database
def test_an_answer_for_another_message_or_of_another_process_is_dropped(make_table: MakeTable) -> None:
    orders = make_table(min_backoff="1h")
    orders.put(1)
    worker = wc.Worker(orders, shop.answer_for_another, processes=1)
    with running(worker):
        until(lambda: worker.counts.done + worker.counts.failed)
    assert (worker.counts.done, worker.counts.failed) == (0, 1)


@pytest.mark.one_database
def test_handlers_in_processes_may_start_processes_of_their_own(make_table: MakeTable) -> None:
    orders = make_table(max_attempts=1)
    orders.put_many([{"payload": each} for each in ("fork", "spawn")])
    worker = wc.Worker(orders, shop.start_processes, processes=1)
    with running(worker):
        until(lambda: worker.counts.done + worker.counts.failed == 2)
    assert worker.counts.done == 2


@pytest.mark.one_database
@pytest.mark.parametrize("does", ["is killed", "exits", "hangs"])
def test_processes_that_a_handler_started_end_with_its_process(
    make_table: MakeTable, tmp_path: Path, does: str
) -> None:
    orders = make_table(max_attempts=1)
    orders.put({"does": does, "folder": str(tmp_path)})
    worker = wc.Worker(orders, shop.leave_a_process, processes=1, timeout="500ms" if does == "hangs" else None)
    with running(worker):
        until(lambda: worker.counts.replaced == 1)
        started = int((tmp_path / does).read_text())
        until(lambda: _is_gone(started))


@pytest.mark.one_database
def test_processes_that_a_handler_started_end_after_the_grace(make_table: MakeTable, tmp_path: Path) -> None:
    orders = make_table()
    orders.put({"does": "hangs", "folder": str(tmp_path)})
    with running(wc.Worker(orders, shop.leave_a_process, processes=1, grace="1ms")):
        until((tmp_path / "hangs-1").exists)
    started = int((tmp_path / "hangs").read_text())
    until(lambda: _is_gone(started))


@pytest.mark.one_database
def test_a_process_that_ends_by_itself_leaves_processes_of_its_handlers(make_table: MakeTable, tmp_path: Path) -> None:
    orders = make_table()
    orders.put({"does": "returns", "folder": str(tmp_path)})
    worker = wc.Worker(orders, shop.leave_a_process, processes=1)
    with running(worker):
        until(lambda: worker.counts.done == 1)
    started = int((tmp_path / "returns").read_text())
    assert not _is_gone(started)
    os.kill(started, signal.SIGKILL)


@pytest.mark.one_database
def test_a_process_that_was_reaped_has_no_group_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = GroupedProcess(target=os._exit, args=(3,))
    process.start()
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    process.join()
    assert killed == [process.pid]  # while it kept its number
    process.kill()
    assert (killed, process.exitcode) == ([process.pid], 3)


@pytest.mark.one_database
def test_a_system_that_starts_no_process_is_asked_again_before_the_worker_ends(
    orders: MessageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[SpawnProcess] = []

    def fail(process: SpawnProcess) -> None:
        tries.append(process)
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(SpawnProcess, "start", fail)
    with pytest.raises(wc.UnavailableError, match=r"cannot start a handler process: .* temporarily unavailable"):
        wc.Worker(orders, shop.handle, processes=1).run()
    assert len(tries) == 3


@pytest.mark.one_database
def test_processes_that_cannot_be_started_end_the_worker_with_an_error(
    orders: MessageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_TRIES", 1)
    with pytest.raises(wc.UnavailableError, match="cannot start a handler process: RuntimeError: no model"):
        wc.Worker(orders, shop.breaking, processes=1).run()
    with pytest.raises(wc.InvalidArgumentError, match="must be defined in a module"):
        wc.Worker(orders, lambda _: None, processes=1).run()


@pytest.mark.one_database
def test_sigterm_while_processes_start_leaves_none(orders: MessageTable) -> None:
    words = ("work", "tests.work.shop:starting_for_ever", "--table", "orders", "--processes", "1")
    url = orders.context.backend.url.render_as_string(hide_password=False)
    with Forked("tests.work.shop", *words, "--url", url) as worker:
        starts, pid = worker.stdout.readline().split()
        assert starts == "starts"
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait() == 0
        assert _is_gone(int(pid))


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"processes": -1}, "processes"),
        ({"processes": 2, "concurrency": 3}, "Use processes=3"),
        ({"recycle_after": 3}, "recycle_after needs processes, got 3 without processes"),
        ({"processes": 1, "recycle_above": 0}, "recycle_above"),
    ],
)
def test_invalid_options_of_processes_are_refused(orders: MessageTable, arguments: dict[str, int], error: str) -> None:
    with pytest.raises(wc.InvalidArgumentError, match=error):
        wc.Worker(orders, shop.handle, **arguments)


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True
