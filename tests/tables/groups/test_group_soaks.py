"""The soaks of Qpid's message groups, and receivers killed at random: order and exclusivity hold."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.forked import Forked

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable

chance = random.Random()  # noqa: S311  # no secret


@dataclass(frozen=True)
class Soak:
    messages: int
    longest: int
    senders: tuple[int, ...]
    """How many groups each has under way at a time."""
    receivers: tuple[tuple[int, int], ...]
    """Prefetch, and how many are acked at a time."""

    def sizes(self) -> list[list[int]]:
        """Share the messages among the senders, in groups of random sizes."""
        shares = [self.messages // len(self.senders)] * len(self.senders)
        shares[0] += self.messages - sum(shares)
        groups: list[list[int]] = []
        for share in shares:
            sizes: list[int] = []
            while sum(sizes) < share:
                sizes.append(min(chance.randint(1, self.longest), share - sum(sizes)))
            groups.append(sizes)
        return groups


SOAKS = {
    "103 messages in groups of up to 13": Soak(103, 13, (3, 5, 3), ((3, 7), (7, 3))),
    "59 messages in groups of up to 5": Soak(59, 5, (5, 3), ((1, 3), (1, 1))),
    "211 messages in groups of up to 13": Soak(211, 13, (53,), ((47, 79), (47, 79))),
}


WITH_KILLS = Soak(20, 5, (5, 3), ((1, 3), (1, 1)))


def run(role: str, *words: object) -> Forked:
    return Forked("tests.tables.groups.group_soak", role, *words)


def soak(table: MessageTable, url: str, folder: Path, plan: Soak, *, kill: bool) -> None:
    senders = [
        run("send", url, number, ",".join(map(str, sizes)), interleave)
        for number, (sizes, interleave) in enumerate(zip(plan.sizes(), plan.senders, strict=True))
    ]
    commands = [(url, folder / f"{number}.log", *numbers) for number, numbers in enumerate(plan.receivers)]
    receivers = [run("receive", *command) for command in commands]
    for sender in senders:
        assert sender.wait() == 0
    while table.stats().acked < plan.messages:
        time.sleep(0.3)
        if kill:
            victim = chance.randrange(len(receivers))
            receivers[victim].kill()
            receivers[victim].wait()
            receivers[victim] = run("receive", *commands[victim])
            time.sleep(1.5)
        assert all(receiver.poll() is None for receiver in receivers), "a receiver ended by itself"
    for receiver in receivers:
        receiver.kill()
        receiver.wait()
    check(folder, plan.messages)


def check(folder: Path, messages: int) -> None:
    """Check that acks of a group came in order, and that no two receivers had it at a time."""
    acked: dict[str, list[int]] = defaultdict(list)
    refused: set[tuple[str, str]] = set()
    out: dict[str, dict[tuple[str, str], int]] = defaultdict(dict)
    deeds: list[tuple[int, str, str, str, int]] = []
    for path in folder.glob("*.log"):
        for line in path.read_text(encoding="utf-8").splitlines():
            moment, verb, message, lease_until = line.split(" ")
            deeds.append((int(moment), path.name, verb, message, int(lease_until)))
            if verb == "refused":
                refused.add((path.name, message))
    for moment, receiver, verb, message, lease_until in sorted(deeds):
        group, _, number = message.partition("/")
        if verb == "took":
            for (holder, held), until in out[group].items():
                assert holder == receiver or until <= moment, f"{message} went to {receiver} while {holder} had {held}"
            out[group][receiver, message] = lease_until
        elif verb == "acking":
            out[group].pop((receiver, message), None)
            if (receiver, message) not in refused and int(number) not in acked[group]:
                acked[group].append(int(number))
    for group, numbers in acked.items():
        assert numbers == sorted(numbers), f"group {group} was acked in the order {numbers}"
    assert messages - len(refused) <= sum(map(len, acked.values())) <= messages


@pytest.mark.parametrize("name", SOAKS)
def test_groups_keep_their_order_among_processes(
    connect: Callable[..., Database], database_url: str, tmp_path: Path, name: str
) -> None:
    policy = "exclusive" if name.startswith("59") else "sequenced"
    table = connect().create_table("orders", payload="text", groups=policy, ack_wait="5s")
    soak(table, database_url, tmp_path, SOAKS[name], kill=False)


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
@pytest.mark.both_servers
def test_groups_keep_their_order_when_any_process_is_killed(
    connect: Callable[..., Database], database_url: str, tmp_path: Path, policy: str
) -> None:
    table = connect().create_table("orders", payload="text", groups=policy, ack_wait="1s", max_backoff="1s")
    soak(table, database_url, tmp_path, WITH_KILLS, kill=True)


def test_ten_thousand_groups_of_one_message_are_there_before_five_receivers_come(
    connect: Callable[..., Database], database_url: str, tmp_path: Path
) -> None:
    many_groups(connect().create_table("orders", payload="text", groups="sequenced"), database_url, tmp_path, 1_000)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_ten_thousand_groups_at_full_length(
    connect: Callable[..., Database], database_url: str, tmp_path: Path, policy: str
) -> None:
    many_groups(connect().create_table("orders", payload="text", groups=policy), database_url, tmp_path, 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
@pytest.mark.parametrize("name", SOAKS)
def test_groups_keep_their_order_when_any_process_is_killed_at_full_length(
    connect: Callable[..., Database], database_url: str, tmp_path: Path, name: str, policy: str
) -> None:
    table = connect().create_table("orders", payload="text", groups=policy, ack_wait="2s", max_backoff="2s")
    soak(table, database_url, tmp_path, SOAKS[name], kill=True)


def many_groups(table: MessageTable, url: str, folder: Path, count: int) -> None:
    table.put_many([{"payload": f"g{number}/0", "group": f"g{number}"} for number in range(count)])
    receivers = [run("receive", url, folder / f"{number}.log", 50, 50) for number in range(5)]
    while table.stats().acked < count:
        assert all(receiver.poll() is None for receiver in receivers), "a receiver ended by itself"
        time.sleep(0.3)
    for receiver in receivers:
        receiver.kill()
        receiver.wait()
    check(folder, count)
