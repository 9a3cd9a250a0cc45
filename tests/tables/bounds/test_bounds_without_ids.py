"""A search of uncommitted messages and one of committed messages after it prove a bound together."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from waterclock.tables.model.claims.bounds import BoundedSearch, ProvenBound, Snapshot

WRITTEN_WITHIN = 2
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ticks", "puts", "writes", "acks", "commits", "rolls back", "reads all", "reads committed"]),
        st.integers(0, 3),
    ),
    max_size=60,
)
FIND = [("reads all", 0), ("reads committed", 0)]
# The transaction that acks is open during the first search, and rolls back before the second one.
ACK_ROLLED_BACK = [("puts", 0), ("writes", 0), ("commits", 0), *[("ticks", 0)] * 4, ("acks", 0)]
ROLLED_BACK_BETWEEN = [*ACK_ROLLED_BACK, FIND[0], ("rolls back", 0), FIND[1]]
ROLLED_BACK_AFTER = [*ACK_ROLLED_BACK, *FIND, ("rolls back", 0)]
COMMITTED_LATE = [("puts", 0), ("writes", 0), *[("ticks", 0)] * 4, *FIND]
WRITTEN_BETWEEN = [("puts", 0), ("ticks", 0), ("ticks", 0), FIND[0], ("writes", 0), FIND[1]]


@dataclass
class WrittenMessage:
    """One message, and the transaction that puts or acks it, if that is open."""

    due: int
    is_written: bool = False
    is_committed: bool = False
    is_being_acked: bool = False


@dataclass
class ServerWithoutIds:
    """A server without ids of transactions, whose messages are due when they are put."""

    now: int = 10
    messages: list[WrittenMessage] = field(default_factory=list[WrittenMessage])
    searches: list[tuple[BoundedSearch, int, int]] = field(default_factory=list[tuple[BoundedSearch, int, int]])
    bound: ProvenBound = field(default_factory=lambda: ProvenBound(0))

    def act(self, step: str, which: int) -> None:
        chosen = self.messages[which % len(self.messages)] if self.messages else None
        if step == "ticks":
            behind = self.now + 1 - WRITTEN_WITHIN
            self.now += all(one.is_written or one.due >= behind for one in self.messages)
        elif step == "puts":
            self.messages.append(WrittenMessage(self.now))
        elif step == "reads all":
            self.searches.append((self.bound.begin(), self._first(committed=False), self.now))
        elif step == "reads committed" and self.searches:
            search, first, now = self.searches.pop(which % len(self.searches))
            end = min(first, self._first(committed=True), now - WRITTEN_WITHIN)
            self.bound.found_nothing(search, end, Snapshot(now, None, None))
        elif chosen is not None:
            self._change(step, chosen)

    def _change(self, step: str, one: WrittenMessage) -> None:
        if step == "writes":
            one.is_written = True
        elif step == "acks":
            one.is_being_acked = one.is_committed
        elif one.is_written and (one.is_being_acked if one.is_committed else True):
            if (step == "commits") == one.is_committed:  # acked, or never put
                self.messages.remove(one)
            else:
                one.is_committed, one.is_being_acked = True, False

    def _first(self, *, committed: bool) -> int:
        seen = [one for one in self.messages if one.is_written]
        seen = [one for one in seen if (one.is_committed if committed else not one.is_being_acked)]
        return min((one.due for one in seen), default=self.now)


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
@example(steps=ROLLED_BACK_BETWEEN)
@example(steps=ROLLED_BACK_AFTER)
@example(steps=COMMITTED_LATE)
@example(steps=WRITTEN_BETWEEN)
def test_a_bound_never_passes_a_message(steps: list[tuple[str, int]]) -> None:
    server = ServerWithoutIds()
    for step, which in steps:
        server.act(step, which)
        assert server.bound.value <= min((one.due for one in server.messages), default=server.bound.value)


def test_a_bound_follows_the_clock_without_messages() -> None:
    server = ServerWithoutIds()
    for step, which in [*[("ticks", 0)] * 5, *FIND]:
        server.act(step, which)
    assert server.bound.value == server.now - WRITTEN_WITHIN
