"""A consumer that is frozen in the middle of a claim holds up others for a bounded time only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.support.frozen import frozen
from tests.tables.consumers.consuming import claim

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable

with_a_server = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)


def taken(table: MessageTable, count: int) -> set[str]:
    """Receive until so many messages have come."""
    found: set[str] = set()
    until = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < until
        found |= {one.payload for one in table.receive(wait="1s", consumer="y")}
    return found


@with_a_server
@pytest.mark.usefixtures("short_silence")
@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
def test_the_server_ends_the_claim_of_a_client_that_says_nothing(connect: Callable[..., Database], groups: str) -> None:
    table = connect().create_table("orders", payload="text", groups=groups)
    table.put("a1", group="a")
    frozen_table = connect().table("orders")
    with frozen(lambda freeze: claim(frozen_table, freeze)):
        table.put("b1", group="b")
        assert taken(table, 2) == {"a1", "b1"}


@with_a_server
@pytest.mark.usefixtures("short_silence")
def test_a_transaction_of_a_caller_may_be_silent_for_as_long_as_it_likes(connect: Callable[..., Database]) -> None:
    database = connect()
    table = database.create_table("orders", payload="text")
    with database.backend.engine.begin() as callers:
        table.put("x", connection=callers)
        time.sleep(1.5)
    database.backend.transact(lambda own: own.execute(sa.select(sa.literal(1))))
    assert [one.payload for one in table.receive()] == ["x"]


PROGRAM = """
import os, signal, sys
import waterclock as wc
from tests.tables.consumers.consuming import claim
claim(wc.connect(sys.argv[1], sys.argv[2]).table("orders"), lambda: os.kill(os.getpid(), signal.SIGSTOP))
"""


@pytest.mark.slow
@with_a_server
def test_new_messages_flow_soon_after_a_consumer_was_stopped(
    connect: Callable[..., Database], database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = connect().create_table("orders", payload="text", groups="sequenced")
    table.put("a1", group="a")
    ledgers = str(tmp_path_factory.mktemp("ledgers"))
    stopped = subprocess.Popen([sys.executable, "-c", PROGRAM, database_url, ledgers])
    try:
        assert os.WIFSTOPPED(os.waitpid(stopped.pid, os.WUNTRACED)[1])
        began = time.monotonic()
        table.put("b1", group="b")
        assert taken(table, 2) == {"a1", "b1"}
        print(f"{time.monotonic() - began:.1f} s")  # the measure
    finally:
        os.kill(stopped.pid, signal.SIGKILL)
        stopped.wait()
