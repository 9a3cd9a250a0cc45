"""A world of one topic: who appends, seals, compacts, expires, deletes and reads, and what must be true of that."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest.mock import patch

import sqlalchemy as sa
from tests.simulation.scheduler import SECOND, Scheduler
from tests.simulation.worlds.world import LEASE, POLL, SHORT, Stage

from waterclock._support import moments
from waterclock.database.schema.topic_catalogue import ledgers, subscriptions, topics
from waterclock.errors import LeaseLostError, ProducerFencedError, UnavailableError, WaterclockError
from waterclock.message import Message, Position
from waterclock.topics import subscription
from waterclock.topics.catalogue import running_max
from waterclock.topics.reading import contiguity
from waterclock.topics.store.ledger_files import LedgerFiles, LostFileError
from waterclock.topics.subscription import Subscription
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import retention, sweeping
from waterclock.topics.verifying.faults import HARMLESS
from waterclock.topics.writing.appending import Appended

_T = TypeVar("_T")

GRACE = 2 * SECOND
"""How long a former file stays, ns: so short that a reader meets what is gone."""

TTL = 5 * SECOND
"""How old a message may become where some expire, ns."""

_FIRST = Position(0, 0, 0)


@dataclass
class Read:
    """What a reader got: from where on, what it must have got, and which was the first ledger left when it ended."""

    process: str
    start: Position
    known: set[Position]
    found: list[Position]
    first_ledger: int


@dataclass
class Held:
    """A subscription's reader, as far as the others know: its epoch, and until when at the least it has it, ns."""

    process: str
    epoch: int
    until: int


@dataclass
class Sought:
    """Where a subscription was moved to, and how many steps had been made before the move and after it."""

    to: Position
    began: int
    ended: int | None = None


class TopicWorld:
    """One run: what its callers did and saw."""

    @staticmethod
    def prepare(stage: Stage, options: dict[str, Any]) -> None:
        """Empty what the last run has left."""
        for module, name, limit in (
            (contiguity, "CHUNK_ENTRIES", 2),
            (sweeping, "_CHUNK", 1),
            (running_max, "_LEDGERS_AT_ONCE", 2),
            (retention, "_LEDGERS_AT_ONCE", 2),
            (retention, "GRACE", GRACE),
            (subscription, "_PIECE", 2),
        ):
            stage.limit(module, name, limit)
        stage.reset_topic(**options)

    def __init__(self, stage: Stage, scheduler: Scheduler, options: dict[str, Any]) -> None:
        self.stage, self.scheduler = stage, scheduler
        self.options = options
        self.closing = self.ending = self.altered = False
        self.callers: set[str] = set()
        self.faults: list[str] = []
        self.goals: set[str] = set()  # what must be done in the end
        self.done: set[str] = set()
        self.tried: dict[str, int] = {}  # messages, and when their append began
        self.places: dict[str, Position] = {}  # of messages of which a caller or a reader knows
        self.truth: dict[Position, str] = {}
        self.answered: set[Position] = set()
        self.reads: list[Read] = []
        self.expired_before = 0
        self.may_delete = False
        self._held: dict[str, Held] = {}
        self._delivered: dict[str, dict[Position, int]] = defaultdict(dict)
        self._sought: dict[str, list[Sought]] = defaultdict(list)
        self._stood: dict[str, tuple[Position, int]] = {}
        self._open = ExitStack()
        for verb in ("create", "open", "delete"):
            original: Any = getattr(LedgerFiles, verb)
            self.enter(patch.object(LedgerFiles, verb, self._gated(verb, original)))

    def _gated(self, verb: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def gated(ledger_files: LedgerFiles, path: str) -> Any:
            self.scheduler.gate(f"{verb} file")
            return original(ledger_files, path)

        return gated

    def enter(self, kept: AbstractContextManager[_T]) -> _T:
        """Keep something open until the run has ended."""
        return self._open.enter_context(kept)

    def give_up_locks(self) -> None:
        """Roll back nothing: callers have no transactions of their own."""

    def give_up(self) -> None:
        """Close what is open still."""
        self._open.close()

    @property
    def now(self) -> int:
        return self.scheduler.now

    def topic(self, process: str) -> Topic:
        return self.stage.topic(process)

    def add(self, name: str, work: Callable[[], object], process: str | None = None) -> None:
        """Add an actor, in a process of its own where none is named."""
        self.topic(process or name)  # opened before the run, not in it
        self.scheduler.add(name, process or name, work)

    def has_subscription(self, name: str) -> None:
        """Have a subscription before the run begins, at the topic's start."""
        self.topic("operator").subscribe(name)
        self.goals.add(f"read {name}")

    def starts_with(self, *names: str) -> None:
        """Have messages before the run begins, each in an entry of its own."""
        for name in names:
            self.appends("operator", [[name]])()

    # What actors do

    def appends(
        self, process: str, batches: Sequence[Sequence[str]], *, producer: str | None = None, every: float = 0
    ) -> Callable[[], None]:
        """Append messages, each list as one entry; with a producer's name they are numbered from 0 on."""

        def work() -> None:
            number = 0
            for names in batches:
                if every:
                    moments.sleep(every)
                self._append(process, names, producer, number)
                number += len(names)
            if self.ending:
                self.done.add("append")

        return work

    def _append(self, process: str, names: Sequence[str], producer: str | None, number: int) -> None:
        # What is appended again under the same numbers must be the same.
        facts = (process, "s", self.now) if producer is None else (producer, "s", number)
        messages = [Message(*facts, name.encode()) for name in names]
        for name in names:
            self.tried.setdefault(name, self.now)
        while True:
            try:
                answer = self.topic(process).append(
                    messages, producer=producer, sequence=None if producer is None else number
                )
            except UnavailableError:
                self.scheduler.seen["no answer"] += 1
                if producer is not None:
                    continue  # it is harmless to repeat
            else:
                self.note_appended(process, answer, names)
            return

    def note_appended(self, process: str, answer: Appended, names: Sequence[str]) -> None:
        """Note where messages stand, as the topic says."""
        self.scheduler.seen["repeated"] += answer.duplicate
        if answer.first is None or answer.count != len(names):
            self.faults.append(f"{process} was answered {answer}")
            return
        for index, name in enumerate(names):
            place = answer.first._replace(index=index)
            self._note_place(place, name)
            self.answered.add(place)

    def _note_place(self, place: Position, name: str) -> None:
        if self.truth.setdefault(place, name) != name:
            self.faults.append(f"{name} stands at the place of {self.truth[place]}: {tuple(place)}")
        if self.places.setdefault(name, place) != place:
            self.faults.append(f"{name} was appended twice, at {tuple(place)} and {tuple(self.places[name])}")

    def sends(self, process: str, producer: str, count: int) -> Callable[[], None]:
        """Send messages one by one through a producer, after those that are stored; another instance may fence it."""

        def work() -> None:
            with suppress(ProducerFencedError), self.topic(process).producer(producer) as opened:
                first = 0 if opened.last_sequence is None else opened.last_sequence + 1
                for number in range(first, count):
                    name = f"{producer}-{number}"
                    self.tried.setdefault(name, self.now)
                    opened.send(Message(process, "s", self.now, name.encode()), number)
                    if number % 2:
                        opened.flush()

        return work

    def seals(self, process: str, *, rounds: int | None = None, every: float = SHORT) -> Callable[[], None]:
        """Roll and seal, until the world closes or for some rounds."""

        def work(_: int) -> None:
            topic = self.topic(process)
            topic.roll()
            if topic.seal():
                self.scheduler.seen["sealed"] += 1
            if self.ending and not self._unsealed():
                self.done.add("seal")

        return self._again_and_again(work, rounds, every)

    def _again_and_again(self, work: Callable[[int], object], rounds: int | None, every: float) -> Callable[[], None]:
        def run() -> None:
            done = 0
            while not self.closing and done != rounds:
                try:
                    work(done)
                except LostFileError:
                    raise
                except UnavailableError:
                    self.scheduler.seen["no answer"] += 1
                done += 1
                moments.sleep(POLL if self.ending else every)

        return run

    def _unsealed(self) -> int:
        with self.scheduler.apart(), self.stage.database.backend.engine.connect() as connection:
            return connection.scalar(sa.select(sa.func.count()).where(ledgers.c.state == "closed")) or 0

    def compacts(self, process: str, *, rounds: int | None = None, every: float = SHORT) -> Callable[[], None]:
        """Compact, until the world closes or for some rounds."""

        def work(_: int) -> None:
            self.scheduler.seen["compacted"] += self.topic(process).compact() > 0

        return self._again_and_again(work, rounds, every)

    def expires(
        self, process: str, name: str | None = None, *, rounds: int | None = None, every: float = SHORT
    ) -> Callable[[], None]:
        """Let messages expire, of the topic or for a subscription, until the world closes or for some rounds."""
        self.goals.add("expire")

        def work(_: int) -> None:
            topic = self.topic(process)
            try:
                expired = (topic if name is None else Subscription(topic.storage, name, LEASE)).expire(TTL)
            except UnavailableError as error:
                if "another expiry is running" in str(error):
                    self.scheduler.seen["turned away"] += 1
                raise
            cutoff = self.now - TTL
            self.expired_before = max(self.expired_before, cutoff)
            early = [self.truth[one] for one in self.truth if one < expired.position and not self._may_expire(one)]
            if early and name is None:  # a subscription may be there because its reader is
                self.faults.append(f"some expired too early: {early}")
            self.scheduler.seen["expired"] += expired.messages > 0
            if self.ending:
                self.done.add("expire")

        return self._again_and_again(work, rounds, every)

    def _may_expire(self, place: Position) -> bool:
        return self.tried.get(self.truth[place], 0) < self.expired_before

    def truncates(self, process: str, *, rounds: int = 3, every: float = SHORT) -> Callable[[], None]:
        """Delete the ledgers that lie before what is the end then, as far as subscriptions have read them."""
        self.may_delete = True

        def work(_: int) -> None:
            topic = self.topic(process)
            self.scheduler.seen["deleted"] += topic.truncate(topic.head)

        return self._again_and_again(work, rounds, every)

    def reads_all(self, process: str, *, rounds: int = 2) -> Callable[[], None]:
        """Read the topic from its start."""

        def work() -> None:
            for _ in range(rounds):
                known, found = set(self.answered), []
                for message in self.topic(process).read():
                    found.append(message.position)
                    self._note_place(message.position, message.payload.decode())
                self.reads.append(Read(process, _FIRST, known, found, self._first_ledger()))
                moments.sleep(SHORT)

        return work

    def _first_ledger(self) -> int:
        with self.scheduler.apart(), self.stage.database.backend.engine.connect() as connection:
            return connection.execute(sa.select(topics.c.first_ledger)).scalar_one()

    def follows(
        self, process: str, name: str, *, limit: int = 2, rounds: int | None = None, every: float = SHORT
    ) -> Callable[[], None]:
        """Read a subscription, handle what comes and commit it, until the world closes or for some rounds."""

        def work() -> None:
            done, stands = 0, (-1, _FIRST)
            opened = Subscription(self.topic(process).storage, name, LEASE)
            while not self.closing and done != rounds:
                done += 1
                try:
                    stands = self._follow(process, opened, limit, stands)
                except UnavailableError as error:
                    if "being read by" not in str(error) and not self.scheduler.seen["answer lost"]:
                        raise
                    self.scheduler.seen["turned away"] += 1
                except LeaseLostError:
                    self.scheduler.seen["lease lost"] += 1
                self.note_standing(name)
                moments.sleep(POLL if self.ending else every)
            opened.close()
            if name in self._held and self._held[name].process == process:
                del self._held[name]

        return work

    def _follow(
        self, process: str, opened: Subscription, limit: int, stands: tuple[int, Position]
    ) -> tuple[int, Position]:
        """Read and commit once; give the reader's epoch, and behind which message it stands now."""
        name, asked_at = opened.name, self.now
        messages = opened.read(limit)
        other = self._held.get(name)
        epoch, last = opened._reader_epoch, stands[1] if opened._reader_epoch == stands[0] else _FIRST
        # A reader of an earlier epoch stood still while it read, past its lease: what it got it cannot commit.
        if other is None or epoch >= other.epoch:
            if other is not None and other.process != process and self.now < other.until:
                self.faults.append(f"{process} read {name} while {other.process} had it")
            self._held[name] = Held(process, epoch, asked_at + LEASE)
        for message in messages:
            place = message.position
            if place <= last and last != _FIRST:
                self.faults.append(f"{process} got {tuple(place)} of {name} behind {tuple(last)}")
            last = place
            self._note_place(place, message.payload.decode())
            if place in self._delivered[name]:
                self.scheduler.seen["sent again"] += 1
            self._delivered[name][place] = len(self.scheduler.history)
        self.scheduler.gate("handle")
        opened.commit()
        if not messages and self.ending:
            self.done.add(f"read {name}")
        return epoch, last

    def note_standing(self, name: str) -> None:
        """Check that a subscription does not go back by itself."""
        moves = len(self._sought[name])
        place = self._place_of(name)
        before, moved = self._stood.get(name, (_FIRST, 0))
        if place < before and moved == moves and all(one.ended for one in self._sought[name]):
            self.faults.append(f"{name} went back from {tuple(before)} to {tuple(place)}")
        open_moves = any(one.ended is None for one in self._sought[name])
        self._stood[name] = (_FIRST if open_moves else place, moves)

    def _place_of(self, name: str) -> Position:
        columns = (subscriptions.c.ledger, subscriptions.c.entry, subscriptions.c.index)
        with self.scheduler.apart(), self.stage.database.backend.engine.connect() as connection:
            return Position(*connection.execute(sa.select(*columns).where(subscriptions.c.name == name)).one())

    def seeks(self, process: str, name: str, to: Sequence[str], *, every: float = SHORT) -> Callable[[], None]:
        """Move a subscription to ``"earliest"`` or ``"latest"``, one after the other."""

        def work() -> None:
            opened = Subscription(self.topic(process).storage, name, LEASE)
            for target in to:
                moments.sleep(every)
                move = Sought(_FIRST, len(self.scheduler.history))
                self._sought[name].append(move)
                try:
                    move.to = opened.seek(target)
                except UnavailableError:
                    if not self.scheduler.seen["answer lost"]:
                        raise
                    continue  # it is not known whether it was moved
                move.ended = len(self.scheduler.history)
                self.scheduler.seen["sought"] += 1

        return work

    # What is to be done in the end

    def close(self) -> None:
        """Let the others end."""
        self.closing = True

    def is_quiet(self) -> bool:
        """Whether all is done that is to be done."""
        return all(one.state == "over" or one.dead or one.frozen for one in self.scheduler.actors)

    def missing(self) -> list[str]:
        """Name what must be done in the end, and is not."""
        return sorted((self.goals | {"append", "seal"}) - self.done)

    def reasons(self) -> list[str]:
        return self.missing()

    def look_for_dead(self) -> None:
        """Look for nothing: a topic loses no message."""

    def refresh(self) -> None:
        """Add those who do in the end what is to be done, and to whom no harm was done."""
        for goal in sorted(self.goals):
            verb, _, name = goal.partition(" ")
            if verb == "read":
                self.add(f"fresh reader of {name}", self.follows("fresh", name, limit=10), "fresh")
            elif verb == "expire":
                self.add("fresh expirer", self.expires("fresh"), "fresh")
        self.add("fresh appender", self.appends("fresh", [["fresh"]]), "fresh")
        self.add("fresh sealer", self.seals("fresh"), "fresh")

    # What must be true in the end

    def judge(self) -> None:
        """Check what remains against what callers saw."""
        try:
            self._judge()
        except WaterclockError as error:
            self.faults.append(f"what remains cannot be read: {error!r}")

    def _judge(self) -> None:
        topic = self.topic("operator")
        first = self._first_ledger()
        left = list(topic.read())
        for message in left:
            self._note_place(message.position, message.payload.decode())
        self._judge_left([message.position for message in left], first)
        for each in self.reads:
            self._judge_read(each)
        for goal in sorted(self.goals):
            verb, _, name = goal.partition(" ")
            if verb == "read":
                self._judge_subscription(name)
        self._judge_catalogue(topic)

    def _judge_left(self, left: list[Position], first: int) -> None:
        if left != sorted(set(left)):
            self.faults.append(f"is read twice or in disorder: {list(map(tuple, left))}")
        gone = [tuple(one) for one in sorted(self.truth.keys() - set(left)) if one.ledger >= first]
        if gone:
            self.faults.append(f"some of it is gone: {gone}")
        if first and not (self.may_delete or "expire" in self.goals):
            self.faults.append("ledgers were deleted, though it was not asked for: is gone")
        for one in left:
            follows = one.index == 0 or one._replace(index=one.index - 1) in self.truth
            follows &= one.entry == 0 or one._replace(entry=one.entry - 1, index=0) in self.truth
            if not follows:
                self.faults.append(f"the topic has holes before {tuple(one)}")

    def _judge_read(self, read: Read) -> None:
        if read.found != sorted(set(read.found)):
            self.faults.append(f"{read.process} read twice or in disorder: {list(map(tuple, read.found))}")
        last = read.found[-1] if read.found else read.start
        # What stands between two that it read was there, too: positions are those of commits.
        expected = read.known | {one for one in self.truth if read.start <= one < last}
        passed = [tuple(one) for one in sorted(expected - set(read.found)) if one.ledger >= read.first_ledger]
        if passed:
            self.faults.append(f"{read.process} passed over some: {passed}")

    def _judge_subscription(self, name: str) -> None:
        moves, delivered, place = self._sought[name], self._delivered[name], self._place_of(name)
        skipped = max((one.to for one in moves), default=_FIRST)
        if any(one.ended is None for one in moves):
            skipped = place
        begun = moves[-1].began if moves and moves[-1].ended else 0
        start = moves[-1].to if moves and moves[-1].ended else skipped
        for one in sorted(self.truth):
            if one >= place or self._may_expire(one):
                continue
            if one >= skipped and one not in delivered:
                self.faults.append(f"{name} passed over what is at {tuple(one)}")
            elif one >= start and delivered.get(one, 0) < begun and one.ledger >= self._first_ledger():
                self.faults.append(f"a seek of {name} is undone: it did not read again what is at {tuple(one)}")

    def _judge_catalogue(self, topic: Topic) -> None:
        verified = topic.verify(deep=True)
        harmed = any(is_harm for _, _, is_harm in self.scheduler.decisions)
        for fault in verified.faults:
            if fault.kind not in HARMLESS or (fault.kind == "orphan" and not harmed):
                self.faults.append(f"verify: {fault.kind}: {fault.text}".split(": [", maxsplit=1)[0])
        names = Counter(self.truth.values())
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            self.faults.append(f"some was appended twice: {twice}")
        with self.stage.database.backend.engine.connect() as connection:
            appended = connection.execute(sa.select(topics.c.ordinal)).scalar_one()
        known = len(self.truth)
        if not known <= appended <= len(self.tried):
            self.faults.append(f"{appended} messages count as appended, but {known} are")
