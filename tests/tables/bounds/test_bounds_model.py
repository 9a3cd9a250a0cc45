"""Whatever the order in which transactions begin, draw numbers and end, a bound never passes a message."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from waterclock.tables.model.claims.bounds import BoundedSearch, ProvenBound, Snapshot

NEW, ROUTED = 0, 1
SEARCHES = ("starts", "looks", "notes", "searches")
STEPS = st.tuples(
    st.sampled_from(["begin", "draw", "commit", "abort", "turn", "route", *SEARCHES, "searches"]), st.integers(0, 3)
)
# The messages that a search sees are routed by an older transaction. So no transaction has ended that began after the
# one that is still open, and the snapshot ends before the id of that one.
BEHIND_THE_SNAPSHOT = [("turn", 0), ("begin", 0), ("begin", 0), ("draw", 1), ("draw", 0), ("commit", 0), ("route", 0)]
# A search's transaction gets its id before it looks, as if it had locked something. In between another one begins.
BEFORE_THE_LOOK = [
    *[("starts", 0), ("begin", 0), ("draw", 0), ("begin", 0), ("draw", 1), ("commit", 1), ("route", 0)],
    *[("looks", 0), ("notes", 0), *[("searches", 0)] * 3],
]


class Server:
    """PostgreSQL's rules for ids of transactions, snapshots and sequences."""

    def __init__(self) -> None:
        self.next_id, self.completed, self.next_seq = 1, 0, 1
        self.open: dict[int, list[int]] = {}
        self.messages: dict[int, int] = {}
        self.router: int | None = None

    def begin(self) -> int:
        self.next_id += 1
        self.open[self.next_id - 1] = []
        return self.next_id - 1

    def draw(self, one: int) -> None:
        self.open[one].append(self.next_seq)
        self.next_seq += 1

    def end(self, one: int, *, commits: bool) -> None:
        drawn = self.open.pop(one)
        self.completed = max(self.completed, one)
        if commits:
            self.messages |= dict.fromkeys(drawn, NEW)

    def route(self) -> None:
        """Route all visible messages; the transaction may have begun earlier."""
        one = self.begin() if self.router is None else self.router
        self.router = None
        self.messages = dict.fromkeys(self.messages, ROUTED)
        self.end(one, commits=True)


class Process:
    """A process whose threads search at the same time."""

    def __init__(self, server: Server, bound: ProvenBound) -> None:
        self._server, self._bound = server, bound
        self._started: list[tuple[BoundedSearch, int]] = []
        self._looked: list[tuple[BoundedSearch, int, Snapshot]] = []

    @property
    def ids(self) -> list[int]:
        return [one for _, one in self._started]

    def act(self, step: str, which: int) -> None:
        if step == "searches":
            for part in ("starts", "looks", "notes"):
                self.act(part, -1)
        elif step == "starts":
            self._started.append((self._bound.begin(), self._server.begin()))
        elif step == "looks" and self._started:
            self._looked.append(self._look(*self._started.pop(min(which, len(self._started) - 1))))
        elif step == "notes" and self._looked:
            self._bound.found_nothing(*self._looked.pop(min(which, len(self._looked) - 1)))

    def _look(self, search: BoundedSearch, one: int) -> tuple[BoundedSearch, int, Snapshot]:
        server = self._server
        behind = server.completed + 1
        oldest = min([other for other in server.open if other < behind], default=behind)
        new = [seq for seq, routed in server.messages.items() if routed == NEW and seq >= search.low]
        end = min(new, default=max(server.messages, default=0) + 1)
        server.end(one, commits=True)
        return search, end, Snapshot(0, oldest, one)


@settings(max_examples=300, deadline=None)
@given(steps=st.lists(STEPS, max_size=60))
@example(steps=[*BEHIND_THE_SNAPSHOT, *[("searches", 0)] * 3])
@example(steps=BEFORE_THE_LOOK)
def test_a_bound_never_passes_a_message_that_is_not_routed(steps: list[tuple[str, int]]) -> None:
    server, bound = Server(), ProvenBound(0)
    process = Process(server, bound)
    for step, which in steps:
        writers = [one for one in server.open if one != server.router and one not in process.ids]
        if step == "begin":
            server.begin()
        elif step == "turn" and server.router is None:
            server.router = server.begin()
        elif step == "route":
            server.route()
        elif step in SEARCHES:
            process.act(step, which)
        elif writers:
            one = writers[which % len(writers)]
            if step == "draw":
                server.draw(one)
            else:
                server.end(one, commits=step == "commit")
        waiting = [seq for drawn in server.open.values() for seq in drawn]
        waiting += [seq for seq, routed in server.messages.items() if routed == NEW]
        assert bound.value <= min(waiting, default=bound.value)


def test_a_bound_advances_while_messages_flow() -> None:
    server, bound = Server(), ProvenBound(0)
    for _ in range(9):
        one = server.begin()
        server.draw(one)
        server.end(one, commits=True)
        server.route()
        Process(server, bound).act("searches", 0)
    assert bound.value > 3
