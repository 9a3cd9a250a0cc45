"""Sequenced groups against a plain model of their rules: random puts, claims, acks, nacks and lapses of leases."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from waterclock.connection import Database, connect
from waterclock.errors import LeaseLostError, OrderError
from waterclock.tables.delivery import Delivery

SECOND = 1_000_000_000
GROUPS = ("a", "b", "c")


class SequencedGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = time.time_ns()
        self.folder = tempfile.TemporaryDirectory()
        self.database: Database = connect(f"sqlite:///{Path(self.folder.name) / 'model.db'}", clock=lambda: self.now)
        self.table = self.database.create_table(
            "orders", payload="text", groups="sequenced", jitter=0, ack_wait="10s", max_backoff="40s"
        )
        # Each group's messages that are not acked, in order: their due time, the lease they are out under, and epoch.
        self.model: dict[str, list[dict[str, int]]] = {group: [] for group in GROUPS}
        self.out: list[Delivery] = []

    def teardown(self) -> None:
        self.database.close()
        self.folder.cleanup()

    def entry(self, delivery: Delivery) -> dict[str, int] | None:
        """Find the message in the model, where it is out under this very delivery."""
        for entry in self.model[delivery.group or ""]:
            if entry["id"] == delivery.id and entry["lease"] == delivery.held.lease:
                return entry
        return None

    @rule(groups=st.lists(st.sampled_from(GROUPS), min_size=1, max_size=6), delay=st.sampled_from([0, 0, 0, 5]))
    def put(self, groups: list[str], delay: int) -> None:
        at = self.now + delay * SECOND
        ids = self.table.put_many([{"payload": "x", "group": group, "at": at} for group in groups])
        for group, message_id in zip(groups, ids, strict=True):
            self.model[group].append({"id": int(str(message_id)), "due": at, "lease": 0, "epoch": 0})

    @rule(limit=st.integers(1, 4))
    def receive(self, limit: int) -> None:
        deliveries = self.table.receive(limit)
        by_group: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            by_group.setdefault(delivery.group or "", []).append(delivery)
        free = {group for group, entries in self.model.items() if entries and entries[0]["due"] <= self.now}
        assert set(by_group) <= free
        if len(deliveries) < limit:
            assert set(by_group) == free
        for group, taken in by_group.items():
            entries = self.model[group]
            assert [delivery.id for delivery in taken] == [entry["id"] for entry in entries[: len(taken)]]
            assert all(entry["due"] <= self.now for entry in entries[: len(taken)])
            more = len(entries) > len(taken) and entries[len(taken)]["due"] <= self.now
            assert not more or len(taken) == limit or len(deliveries) == limit
            epoch = max(entry["epoch"] for entry in entries[: len(taken)])
            until = self.now + min(10 * 2**epoch, 40) * SECOND
            for entry in entries:
                entry["lease"] = 0
            for delivery, entry in zip(taken, entries, strict=False):
                entry.update(due=until, lease=delivery.held.lease, epoch=entry["epoch"] + 1)
                assert (delivery.lease_until, delivery.epoch) == (until, entry["epoch"])
        self.out += deliveries

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        delivery = data.draw(st.sampled_from(self.out))
        entry = self.entry(delivery)
        entries = self.model[delivery.group or ""]
        if entry is None:
            with pytest.raises(LeaseLostError):
                delivery.ack()
        elif entry is not entries[0]:
            with pytest.raises(OrderError) as refused:
                delivery.ack()
            assert refused.value.blocking_id == entries[0]["id"]
            return
        else:
            delivery.ack()
            entries.remove(entry)
        self.out.remove(delivery)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), delay=st.sampled_from([0, 3]))
    def nack(self, data: st.DataObject, delay: int) -> None:
        delivery = data.draw(st.sampled_from(self.out))
        entry = self.entry(delivery)
        self.out.remove(delivery)
        if entry is None:
            with pytest.raises(LeaseLostError):
                delivery.nack(delay * SECOND)
            return
        delivery.nack(delay * SECOND)
        entries = self.model[delivery.group or ""]
        place = entries.index(entry)
        lease = entry["lease"]
        entry.update(due=self.now + delay * SECOND, lease=0)
        for later in entries[place + 1 :]:
            if later["lease"] == lease:
                later.update(due=self.now, lease=0, epoch=later["epoch"] - 1)

    @rule(seconds=st.sampled_from([1, 5, 10, 40]))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @invariant()
    def those_that_are_out_are_the_first_of_their_group(self) -> None:
        for entries in self.model.values():
            leased = [bool(entry["lease"]) for entry in entries]
            assert leased == sorted(leased, reverse=True)

    @invariant()
    def the_counts_agree(self) -> None:
        assert self.table.stats().ready == sum(
            entry["due"] <= self.now for entries in self.model.values() for entry in entries
        )


TestSequencedGroups = SequencedGroups.TestCase
TestSequencedGroups.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
