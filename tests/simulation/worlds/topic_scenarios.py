"""Small worlds of a topic: two to five actors each, and what may be done to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.simulation.worlds.topic_world import TopicWorld
from tests.simulation.worlds.world import POLL, SHORT, Scenario

from waterclock._support import moments

_SMALL: dict[str, Any] = {"roll_size": 200}  # bytes: about two entries a ledger
_HARMS = ("crash", "lose", "late", "stall", "jump")


def _names(process: str, count: int, each: int = 1) -> list[list[str]]:
    """Name the messages of some appends."""
    return [[f"{process}-{number * each + one}" for one in range(each)] for number in range(count)]


def _two_append(world: TopicWorld) -> None:
    """Two processes append, a third one rolls and seals, and a fourth reads all that is there."""
    world.add("x", world.appends("x", _names("x", 4)))
    world.add("y", world.appends("y", _names("y", 3, each=2)))
    world.add("sealer", world.seals("sealer", rounds=2))
    world.add("reader", world.reads_all("reader"))


def _threads_append(world: TopicWorld) -> None:
    """Three threads of a process share transactions, and another process appends beside them."""
    for number in range(3):
        world.add(f"x{number}", world.appends("x", _names(f"x{number}", 2)), "x")
    world.add("y", world.appends("y", _names("y", 3)))
    world.add("reader", world.reads_all("reader"))


def _two_of_one_producer(world: TopicWorld) -> None:
    """Two processes append the same messages with the same numbers."""
    for process in ("x", "y"):
        world.add(process, world.appends(process, _names("p", 4, each=2), producer="p"))
    world.add("z", world.appends("z", _names("z", 2)))
    world.add("reader", world.reads_all("reader"))


def _a_producer_returns(world: TopicWorld) -> None:
    """A producer dies, or is only slow, and is started again under its name: it goes on after what is stored."""
    world.add("x", world.sends("x", "p", 6))

    def again() -> None:
        moments.sleep(SHORT)
        world.sends("again", "p", 6)()

    world.add("again", again)
    world.add("sealer", world.seals("sealer", rounds=2))


def _two_seal(world: TopicWorld) -> None:
    """Two processes seal the same ledgers, while others append and read."""
    world.starts_with("a", "b", "c", "d")
    world.add("x", world.seals("x", rounds=3))
    world.add("y", world.seals("y", rounds=3))
    world.add("appender", world.appends("appender", _names("z", 2)))
    world.add("reader", world.reads_all("reader"))


def _two_compact(world: TopicWorld) -> None:
    """Two processes compact, one of them seals before, while others read and follow."""
    _sealed(world)
    world.has_subscription("s")
    world.add("x", world.compacts("x", rounds=2))
    world.add("y", world.compacts("y", rounds=2))
    world.add("sealer", world.seals("sealer", rounds=2))
    world.add("reader", world.reads_all("reader", rounds=3))
    world.add("follower", world.follows("follower", "s"))


def _sealed(world: TopicWorld) -> None:
    """Have three sealed ledgers."""
    for name in ("a", "b", "c"):
        world.starts_with(name, f"{name}2")
        world.topic("operator").roll()
    world.topic("operator").seal()


def _two_expire(world: TopicWorld) -> None:
    """Two processes let messages expire, as time passes over a topic that others append to and read."""
    world.has_subscription("s")
    world.starts_with("a", "b", "c")
    world.add("x", world.expires("x", rounds=4, every=POLL))
    world.add("y", world.expires("y", "s", rounds=4, every=POLL))
    world.add("appender", world.appends("appender", _names("z", 4), every=POLL))
    world.add("sealer", world.seals("sealer", rounds=3, every=POLL))
    world.add("follower", world.follows("follower", "s", limit=1, every=POLL / 2))


def _two_truncate(world: TopicWorld) -> None:
    """Two processes delete what subscriptions have read, of ledgers that are being sealed, read and compacted."""
    _sealed(world)
    world.starts_with("d", "e")
    world.has_subscription("s")
    world.has_subscription("t")
    world.add("x", world.truncates("x", every=POLL))
    world.add("y", world.truncates("y", every=POLL))
    world.add("sealer", world.seals("sealer", rounds=2))
    world.add("compactor", world.compacts("compactor", rounds=2))
    world.add("reader", world.reads_all("reader", rounds=3))
    world.add("follower", world.follows("follower", "s", limit=4))
    world.add("other", world.follows("other", "t", limit=4))


def _two_delete_at_once(world: TopicWorld) -> None:
    """Nothing keeps a topic from being emptied while it is appended to and sealed."""
    world.starts_with("a", "b", "c")
    world.add("x", world.truncates("x"))
    world.add("y", world.truncates("y"))
    world.add("sealer", world.seals("sealer", rounds=3))
    world.add("appender", world.appends("appender", _names("z", 4)))
    world.add("reader", world.reads_all("reader", rounds=3))


def _two_follow(world: TopicWorld) -> None:
    """Two processes follow one subscription: one at a time has it."""
    world.has_subscription("s")
    world.starts_with("a", "b", "c")
    world.add("x", world.follows("x", "s", rounds=6, every=POLL))
    world.add("y", world.follows("y", "s", every=POLL))
    world.add("appender", world.appends("appender", _names("z", 3), every=POLL))
    world.add("sealer", world.seals("sealer", rounds=2, every=POLL))


def _one_seeks(world: TopicWorld) -> None:
    """A subscription is moved back and forward while a process follows it, and messages expire."""
    world.has_subscription("s")
    world.starts_with("a", "b", "c", "d")
    world.add("x", world.follows("x", "s", limit=1))
    world.add("y", world.seeks("y", "s", ["earliest", "latest", "earliest"], every=2 * SHORT))
    world.add("appender", world.appends("appender", _names("z", 3)))
    world.add("sealer", world.seals("sealer", rounds=2))


def _a_late_expiry(world: TopicWorld) -> None:
    """A process lets messages expire while another one goes on past them."""
    world.has_subscription("s")
    world.starts_with("a", "b")

    def later(work: Callable[[], None]) -> Callable[[], None]:
        def wait_and_work() -> None:
            moments.sleep(3 * POLL)
            work()

        return wait_and_work

    world.add("x", later(world.expires("x", "s", rounds=2, every=POLL)))
    world.add("follower", later(world.follows("follower", "s", limit=4)))
    world.add("appender", world.appends("appender", _names("z", 3), every=POLL))


def _all_together(world: TopicWorld) -> None:
    """One of each."""
    world.has_subscription("s")
    world.starts_with("a", "b")
    world.add("x", world.appends("x", _names("x", 12), every=POLL))
    world.add("sealer", world.seals("sealer", every=POLL))
    world.add("compactor", world.compacts("compactor", every=2 * POLL))
    world.add("expirer", world.expires("expirer", every=2 * POLL))
    world.add("follower", world.follows("follower", "s", every=POLL))


_topic = partial(Scenario, options=_SMALL, world=TopicWorld)
_XY = ("x", "y")

SCENARIOS = {
    one.name: one
    for one in (
        _topic("two_append", _two_append, harms=_HARMS, victims=_XY, sometimes=("blocked", "sealed")),
        _topic("threads_append", _threads_append, harms=("crash", "lose", "late", "stall"), victims=_XY),
        _topic(
            "two_of_one_producer", _two_of_one_producer, harms=_HARMS, victims=_XY, sometimes=("blocked", "repeated")
        ),
        _topic("a_producer_returns", _a_producer_returns, harms=("crash", "lose", "late", "stall"), victims=("x",)),
        _topic("two_seal", _two_seal, harms=_HARMS, victims=_XY, sometimes=("sealed",)),
        _topic("two_compact", _two_compact, harms=_HARMS, victims=_XY, sometimes=("compacted",)),
        _topic("two_expire", _two_expire, harms=_HARMS, victims=_XY, sometimes=("expired", "turned away")),
        _topic("a_late_expiry", _a_late_expiry, harms=("stall", "crash"), victims=("x",), sometimes=("expired",)),
        _topic("two_truncate", _two_truncate, harms=_HARMS, victims=_XY, sometimes=("deleted", "sealed", "compacted")),
        _topic("two_delete_at_once", _two_delete_at_once, harms=_HARMS, victims=_XY, sometimes=("deleted",)),
        _topic("two_follow", _two_follow, harms=_HARMS, victims=_XY, sometimes=("turned away", "sent again")),
        _topic("one_seeks", _one_seeks, harms=_HARMS, victims=_XY, sometimes=("sought", "sent again", "lease lost")),
        _topic(
            "an_appender_freezes", _two_append, harms=("freeze",), victims=_XY, ending="frozen", sometimes=("frozen",)
        ),
        _topic("a_sealer_freezes", _two_seal, harms=("freeze",), victims=_XY, ending="frozen", sometimes=("frozen",)),
        _topic(
            "a_compactor_freezes", _two_compact, harms=("freeze",), victims=_XY, ending="frozen", sometimes=("frozen",)
        ),
        _topic(
            "an_expirer_freezes", _two_expire, harms=("freeze",), victims=_XY, ending="frozen", sometimes=("frozen",)
        ),
        _topic(
            "a_follower_freezes", _two_follow, harms=("freeze",), victims=_XY, ending="frozen", sometimes=("frozen",)
        ),
        _topic(
            "all_together",
            _all_together,
            harms=("stall", "lose", "late", "jump"),
            victims=("x", "sealer", "compactor", "expirer", "follower"),
            ending="living",
        ),
    )
}
