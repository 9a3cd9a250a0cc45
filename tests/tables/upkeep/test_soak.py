"""Processes killed at random, and the server with them: nothing is lost, nothing is out twice, nothing is stuck.

In the short run, another connection holds a snapshot all the time.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest
from benchmarks.tables.pressure import snapshot_held
from tests.support.forked import Forked
from tests.support.services import Service

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable

chance = random.Random()  # noqa: S311  # no secret
ROLES = ("produce", "produce", "consume", "consume", "consume")


class Deed(NamedTuple):
    time: int
    verb: str
    message_id: str
    lease_until: int


class Worker:
    """A process of `tests.tables.upkeep.soak`, which is started again after it was killed."""

    def __init__(self, url: str, role: str, log: Path) -> None:
        self.command = (url, role, log)
        self.log = log
        log.touch()
        self.start()

    def start(self) -> None:
        self.written = self.log.stat().st_size
        self.process = Forked("tests.tables.upkeep.soak", *self.command)

    def is_working(self) -> bool:
        assert self.process.poll() is None, "it ended by itself"
        return self.log.stat().st_size > self.written

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def disturb(url: str, folder: Path, seconds: float, restart: Callable[[], None] | None) -> None:
    """Run producers and consumers for a while; kill one of them now and then, and the server halfway."""
    workers = [Worker(url, role, folder / f"{number}.log") for number, role in enumerate(ROLES)]
    while not all(worker.is_working() for worker in workers):
        time.sleep(0.1)
    end = time.monotonic() + seconds
    restart_at = end - seconds / 2
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.1, 0.6))
        victim = chance.choice(workers)
        if victim.is_working():
            victim.kill()
            victim.start()
        if restart is not None and time.monotonic() > restart_at:
            restart()
            restart = None
    for worker in workers:
        worker.kill()


def drain(table: MessageTable) -> list[Deed]:
    deeds: list[Deed] = []
    while (stats := table.stats()).ready + stats.in_flight + stats.delayed:  # of one moment: a lease may lapse
        for delivery in table.receive(1000, wait="1s"):
            deeds.append(Deed(time.time_ns(), "took", str(delivery.id), delivery.lease_until))
            delivery.ack()
    return deeds


def read_deeds(folder: Path) -> list[Deed]:
    deeds: list[Deed] = []
    for path in folder.glob("*.log"):
        for line in path.read_text(encoding="utf-8").splitlines():
            moment, verb, message_id, *lease_until = line.split(" ")
            deeds.append(Deed(int(moment), verb, message_id, int(lease_until[0] or 0)))
    return sorted(deeds)


def check(deeds: Iterable[Deed]) -> None:
    histories: dict[str, list[Deed]] = defaultdict(list)
    for deed in deeds:
        histories[deed.message_id].append(deed)
    histories.pop("-", None)
    for message_id, history in histories.items():
        lease_until = 0
        acked = False
        for deed in history:
            if deed.verb == "took":
                assert not acked, f"{message_id} was delivered after its ack: {history}"
                assert deed.time >= lease_until, f"{message_id} was out twice: {history}"
                lease_until = deed.lease_until
            elif deed.verb == "releasing":
                lease_until = 0
            acked |= deed.verb == "acked"
    assert histories


def soak(
    connect: Callable[..., Database],
    url: str,
    folder: Path,
    seconds: float,
    groups: str | None,
    service: Service | None,
) -> None:
    table = connect().create_table(
        "orders", payload="text", id_type="text", ack_wait="2s", max_backoff="4s", groups=groups
    )
    disturb(url, folder, seconds, None if service is None else lambda: service.restart(immediate=True))
    deeds = sorted(read_deeds(folder) + drain(table))
    check(deeds)
    put = {deed.message_id for deed in deeds if deed.verb == "put"}
    taken = {deed.message_id for deed in deeds if deed.verb == "took"}
    assert put <= taken
    assert len(put) > 10
    stats = table.stats()
    assert (stats.ready, stats.in_flight, stats.delayed, stats.scheduled) == (0, 0, 0, 0)
    assert stats.acked >= len(put)


def service_of(request: pytest.FixtureRequest, url: str) -> Service | None:
    for name, scheme in (("postgresql", "postgresql"), ("mariadb", "mysql")):
        if url.startswith(scheme):
            return request.getfixturevalue(f"{name}_server")
    return None


@pytest.mark.parametrize("groups", [None, "sequenced"])
@pytest.mark.both_servers
def test_when_anything_dies_every_message_is_handled_and_none_is_out_twice(
    connect: Callable[..., Database], database_url: str, tmp_path: Path, groups: str | None
) -> None:
    with nullcontext() if database_url.startswith("sqlite") else snapshot_held(connect()):
        soak(connect, database_url, tmp_path, 2.5, groups, None)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [None, "sequenced"])
def test_when_anything_dies_for_a_minute_the_server_included_nothing_is_lost(
    connect: Callable[..., Database],
    database_url: str,
    tmp_path: Path,
    groups: str | None,
    request: pytest.FixtureRequest,
) -> None:
    soak(connect, database_url, tmp_path, 60, groups, service_of(request, database_url))
