"""A plain model of the rules of groups, and what random steps on it and on a message table must agree in."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.tables.conftest import MovableClock

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import consumers, groups
from waterclock.errors import LeaseLostError, OrderError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.time import MAX_NS

SECOND = 1_000_000_000
GROUPS = ("a", "b", "c")
CONSUMERS = ("x", "y", "z")
MAX_ATTEMPTS = 3
IDLE = 20  # s


class Entry:
    """A message that is not acked: its due time, which is the end of its lease while it is out."""

    def __init__(self, message_id: int, due: int) -> None:
        self.id, self.due = message_id, due
        self.claim_id = self.epoch = 0
        self.held = False

    def release(self, now: int, *, counted: bool) -> None:
        if self.claim_id:
            self.due, self.claim_id = now, 0
            self.epoch -= not counted


class GroupRules(RuleBasedStateMachine):
    policy: ClassVar[str]
    ack_order: ClassVar[str]
    database: ClassVar[Database]
    """One for all examples: opening it takes as long as dozens of steps."""
    clock: ClassVar[MovableClock]

    def __init__(self) -> None:
        super().__init__()
        if "orders" in self.database.tables():
            self.database.table("orders").drop()
        self.table = self.database.create_table(
            "orders",
            payload="text",
            groups=self.policy,  # pyright: ignore[reportArgumentType]
            ack_order=self.ack_order,  # pyright: ignore[reportArgumentType]
            jitter=0,
            ack_wait="10s",
            max_backoff="40s",
            max_attempts=MAX_ATTEMPTS,
            on_exhausted="block",
            group_idle=f"{IDLE}s" if self.exclusive else None,
        )
        self.model: dict[str, list[Entry]] = {group: [] for group in GROUPS}
        self.paused: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self.empty_since: dict[str, int] = {}
        self.out: list[tuple[str, Delivery]] = []

    @property
    def now(self) -> int:
        return self.clock.now

    # What the model knows

    @property
    def exclusive(self) -> bool:
        return self.policy == "exclusive"

    def entry(self, delivery: Delivery) -> tuple[str, Entry] | None:
        """Find the message in the model, where it is out under this very delivery."""
        for group, entries in self.model.items():
            for entry in entries:
                if entry.id == delivery.id and entry.claim_id == delivery.leased.claim_id:
                    return group, entry
        return None

    def lapse(self, group: str) -> None:
        """Begin an exclusive group anew whose first message was not acked in time."""
        entries = self.model[group]
        if entries and entries[0].claim_id and entries[0].due <= self.now:
            for index, entry in enumerate(entries):
                if entry.claim_id and (index or entry.due > self.now):
                    entry.release(min(entry.due, self.now), counted=False)
                entry.claim_id = 0

    def take_back(self, group: str) -> None:
        """Take from a consumer what it has of a group: all but the first message have not been begun."""
        for index, entry in enumerate(self.model[group]):
            entry.release(self.now, counted=index == 0)

    def available(self, group: str) -> list[Entry]:
        """Give the messages of a group that may go out now, in order."""
        entries = [entry for entry in self.model[group] if not entry.held]
        if self.paused[group] > self.now:
            return []
        if not self.exclusive and entries and entries[0].claim_id and entries[0].due > self.now:
            return []
        if self.exclusive:
            entries = [entry for entry in entries if not entry.claim_id]
        for index, entry in enumerate(entries):
            if entry.due > self.now or self.attempts(entry, is_first=index == 0) >= MAX_ATTEMPTS:
                return entries[:index]
        return entries

    def attempts(self, entry: Entry, *, is_first: bool) -> int:
        """Count the attempts before the next claim: a message that went out behind another has not been begun."""
        return entry.epoch - (not self.exclusive and not is_first and bool(entry.claim_id))

    def from_exhausted(self, entries: list[Entry]) -> list[Entry]:
        """Give what waits of a group from the first message on that has used up its attempts."""
        waiting = [entry for entry in entries if not entry.held and (not entry.claim_id or entry.due <= self.now)]
        spent = [entry.epoch >= MAX_ATTEMPTS for entry in waiting]
        return waiting[spent.index(True) :] if True in spent else []

    def apply_held(self, group: str) -> None:
        entries = self.model[group]
        while entries and entries[0].held:
            entries.pop(0)

    def owners(self) -> dict[str, str | None]:
        owner = {info.group: info.owner for info in self.table.groups.list()} if self.exclusive else {}
        return {group: owner.get(group) for group in GROUPS}

    def draining(self) -> set[str]:
        """Name the groups that are to move as soon as nothing of them is out: until then they give nothing."""
        with self.database.backend.snapshot() as connection:
            return set(connection.scalars(sa.select(groups.c.group_id).where(groups.c.drain_to.is_not(None))))

    def living(self) -> set[str]:
        with self.database.backend.snapshot() as connection:
            statement = sa.select(consumers.c.name).where(consumers.c.lease_until > self.now)
            return set(connection.scalars(statement))

    # What happens

    @initialize()
    def begin_with_messages(self) -> None:
        self.put(["a", "b", "a", "a", "c", "b", "a"], 0)

    @rule(groups=st.lists(st.sampled_from(GROUPS), min_size=1, max_size=6), delay=st.sampled_from([0, 0, 0, 5]))
    def put(self, groups: list[str], delay: int) -> None:
        at = self.now + delay * SECOND
        ids = self.table.put_many([{"payload": "x", "group": group, "at": at} for group in groups])
        for group, message_id in zip(groups, ids, strict=True):
            self.model[group].append(Entry(int(str(message_id)), at))

    @rule(
        limit=st.sampled_from([5, 3, 2, 4, 1]),
        consumer=st.sampled_from(CONSUMERS),
        most=st.sampled_from([None, None, 1, 2]),
    )
    def receive(self, limit: int, consumer: str, most: int | None) -> None:
        before, living, draining = self.owners(), self.living(), self.draining()
        deliveries = self.table.receive(limit, consumer=consumer, max_groups=most if self.exclusive else None)
        after = self.owners()
        # Room is what there is when the claim begins: a group that moves on in it makes some for the next one.
        had = sum(owner == consumer and not self.is_idle(group) for group, owner in before.items())
        has = list(after.values()).count(consumer)
        assert most is None or has <= max(had, most)
        has_room = most is None or max(had, has) < most
        by_group: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            by_group.setdefault(delivery.group or "", []).append(delivery)
        free: list[str] = []
        for group in GROUPS:
            owner = before[group]
            if self.exclusive and owner in living and owner != consumer:
                assert group not in by_group
                assert after[group] == (None if self.is_idle(group) else owner)
                continue
            if self.exclusive:
                self.lapse(group) if self.may_take(group) or group in by_group else None
            available = self.available(group)
            taken = by_group.get(group, [])
            assert [delivery.id for delivery in taken] == [entry.id for entry in available[: len(taken)]]
            # One claim need not get all of a group that has gaps, but a consumer that may have the group gets some of
            # it.
            if self.exclusive and owner != consumer:
                free += [group] if available else []
            else:
                assert taken or not available or len(deliveries) == limit or group in draining
            if taken:
                self.go_out(group, available[: len(taken)], taken)
                assert not self.exclusive or after[group] == consumer
        # Those that no consumer has are shared with the others, who may all wait for one.
        share = -(-len(free) // (1 + len(living - {consumer})))
        assert len(by_group.keys() & free) >= share or len(deliveries) == limit or not has_room
        self.out += [(delivery.group or "", delivery) for delivery in deliveries]

    def is_idle(self, group: str) -> bool:
        """Say whether an exclusive group has been without messages for so long that its owner loses it."""
        return group in self.empty_since and self.now - self.empty_since[group] >= IDLE * SECOND

    def may_take(self, group: str) -> bool:
        """Say whether a lapse was noticed: only who may have the group looks at it, and only with room left."""
        with self.database.backend.snapshot() as connection:
            rows = self.database.table("orders")._context.rows
            head = self.model[group][0].id if self.model[group] else 0
            claim = connection.execute(sa.select(rows.c.claim_id).where(rows.c.id == head)).scalar()
        return bool(self.model[group]) and claim != self.model[group][0].claim_id

    def go_out(self, group: str, entries: list[Entry], taken: list[Delivery]) -> None:
        if not self.exclusive:
            for index, entry in enumerate(self.model[group]):
                entry.epoch, entry.claim_id = self.attempts(entry, is_first=index == 0), 0
        until = self.now + min(10 * 2 ** max(entry.epoch for entry in entries), 40) * SECOND
        if self.exclusive:
            until = max([until, *(entry.due for entry in self.model[group] if entry.claim_id)])
        for delivery, entry in zip(taken, entries, strict=True):
            entry.due, entry.claim_id, entry.epoch = until, delivery.leased.claim_id, entry.epoch + 1
            assert (delivery.lease_until, delivery.epoch) == (until, entry.epoch)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.out))
        delivery = one[1]
        found = self.entry(delivery)
        if found is None:
            with pytest.raises(LeaseLostError):
                delivery.ack()
            self.out.remove(one)
            return
        group, entry = found
        entries = self.model[group]
        if entry is not entries[0] and self.ack_order == "strict":
            with pytest.raises(OrderError) as refused:
                delivery.ack()
            assert refused.value.blocking_id == entries[0].id
            return
        delivery.ack()
        self.out.remove(one)
        if self.ack_order == "hold":
            entry.held, entry.claim_id = True, 0
            self.apply_held(group)
        else:
            entries.remove(entry)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), delay=st.sampled_from([0, 3]))
    def nack(self, data: st.DataObject, delay: int) -> None:
        one = data.draw(st.sampled_from(self.out))
        self.out.remove(one)
        found = self.entry(one[1])
        if found is None:
            with pytest.raises(LeaseLostError):
                one[1].nack(delay * SECOND)
            return
        one[1].nack(delay * SECOND)
        group, entry = found
        for later in self.model[group][self.model[group].index(entry) + 1 :]:
            later.release(self.now, counted=False)
        entry.due, entry.claim_id = self.now + delay * SECOND, 0

    @rule(seconds=st.sampled_from([1, 5, 10, 40]))
    def pass_time(self, seconds: int) -> None:
        self.clock.move(f"{seconds}s")

    # Twice as likely as what people do by hand, of which there are many kinds.
    put_more, receive_more, ack_more, nack_more, pass_more_time = put, receive, ack, nack, pass_time

    # What people do by hand

    def in_flight(self, group: str) -> list[Entry]:
        return [entry for entry in self.model[group] if entry.claim_id and entry.due > self.now]

    def changeable(self, group: str) -> list[Entry]:
        flying = self.in_flight(group)
        return [entry for entry in self.model[group] if entry not in flying and not entry.held]

    @rule(group=st.sampled_from(GROUPS), count=st.sampled_from([1, 2, None]), dry_run=st.booleans())
    def purge(self, group: str, count: int | None, dry_run: bool) -> None:
        gone = self.changeable(group)[:count]
        done = self.table.groups.purge(group, count=count, dry_run=dry_run)
        assert (done.done, done.skipped) == (len(gone), len(self.in_flight(group)))
        if not dry_run:
            self.model[group] = [entry for entry in self.model[group] if entry not in gone]
            self.apply_held(group)

    @rule(group=st.sampled_from(GROUPS), to=st.sampled_from(GROUPS), count=st.sampled_from([1, None]))
    def reroute(self, group: str, to: str, count: int | None) -> None:
        if group == to:
            return
        moved = self.changeable(group)[:count]
        assert self.table.groups.reroute(group, to, count=count).done == len(moved)
        for entry in moved:
            if entry.claim_id:
                entry.due, entry.claim_id = self.now, 0
            self.model[group].remove(entry)
        self.model[to] += moved
        self.apply_held(group)

    @rule(group=st.sampled_from(GROUPS), seconds=st.sampled_from([3, None]))
    def pause(self, group: str, seconds: int | None) -> None:
        until = MAX_NS if seconds is None else self.now + seconds * SECOND
        self.table.groups.pause(group, until)
        self.paused[group] = until

    @rule(group=st.sampled_from(GROUPS))
    def resume(self, group: str) -> None:
        self.table.groups.resume(group)
        self.paused[group] = 0

    @rule(group=st.sampled_from(GROUPS))
    def skip_head(self, group: str) -> None:
        entries = self.model[group]
        done = self.table.groups.skip_head(group)
        if entries and not self.in_flight(group):
            assert done.done == 1
            entries.pop(0)
            self.apply_held(group)
        else:
            assert done.done == 0

    @rule(group=st.sampled_from(GROUPS), force=st.booleans())
    def release(self, group: str, force: bool) -> None:
        flying = self.in_flight(group)
        done = self.table.groups.release(group, force=force)
        assert done.done == (len(flying) if force else 0)
        if force or not flying:
            begun = True
            for entry in self.model[group]:
                entry.release(self.now, counted=begun)
                begun = begun and entry is not next(iter(flying), None)
            assert self.owners()[group] is None

    @rule(group=st.sampled_from(GROUPS))
    def reschedule_a_head_that_has_used_up_its_attempts(self, group: str) -> None:
        entries = self.model[group]
        if entries and not entries[0].claim_id and entries[0].epoch >= MAX_ATTEMPTS:
            assert "has used up its attempts" in (self.table.groups.info(group).blocked_by or "") or self.paused[group]
            self.table.reschedule(entries[0].id, self.now, epoch=0)
            entries[0].due, entries[0].epoch = self.now, 0

    @rule(consumer=st.sampled_from(CONSUMERS))
    def leave(self, consumer: str) -> None:
        if self.exclusive:
            left = [group for group, owner in self.owners().items() if owner == consumer]
            with self.table.subscribe(consumer):
                pass
            for group in left:
                self.take_back(group)
            assert consumer not in self.living()
            assert consumer not in self.owners().values()

    @rule()
    def rebalance(self) -> None:
        if self.exclusive:
            self.table.groups.rebalance()

    # What always holds

    @invariant()
    def time_counts_for_groups_without_messages(self) -> None:
        empty = [group for group, entries in self.model.items() if not entries]
        self.empty_since = {group: self.empty_since.get(group, self.now) for group in empty}

    @invariant()
    def those_that_are_out_are_the_first_of_their_group(self) -> None:
        for entries in self.model.values():
            if self.ack_order != "hold":
                leased = [bool(entry.claim_id) for entry in entries]
                assert leased == sorted(leased, reverse=True)

    @rule()  # now and then: at each step it would take more time than all else
    def the_counts_agree(self) -> None:
        every = [entry for entries in self.model.values() for entry in entries]
        stats = self.table.stats()
        assert stats.held == sum(entry.held for entry in every)
        stuck = [self.from_exhausted(entries) for entries in self.model.values()]
        ready = sum(entry.due <= self.now and not entry.held for entry in every)
        assert stats.exhausted == sum(map(bool, stuck))
        assert stats.blocked == sum(map(len, stuck)) - stats.exhausted
        assert stats.ready == ready - sum(entry.due <= self.now for entries in stuck for entry in entries)
        states = [one.state for one in self.table.peek(1_000)]
        for state in ("ready", "exhausted", "blocked"):
            assert states.count(state) == getattr(stats, state)

    @rule()
    def the_first_of_the_list_are_those_of_all(self) -> None:
        assert self.table.groups.list(2) == self.table.groups.list()[:2]

    @invariant()
    def the_list_agrees(self) -> None:
        infos = {info.group: info for info in self.table.groups.list()}
        for group, entries in self.model.items():
            info: Any = infos.get(group)
            if info is None:
                assert not entries
                continue
            assert info.in_flight == len(self.in_flight(group))
            assert info.waiting + info.in_flight + info.held == len(entries)
