"""Deliberate faults: the simulator is only worth what it finds of them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.simulation.gate import Rewrite

from waterclock.tables.groups import consumers, routing
from waterclock.tables.messages import healing

_SKIPS, _LOCKS = " FOR UPDATE SKIP LOCKED", " FOR UPDATE"


@dataclass(frozen=True)
class Mutation:
    """A fault that is made on purpose.

    Attributes
    ----------
    name, scenario
        Its own, and that of the world in which it shows.
    rewrite
        Changes statements.
    replaced
        What stands in for functions: module, name, and the other one.
    """

    name: str
    scenario: str
    rewrite: Rewrite = str
    replaced: tuple[tuple[Any, str, Callable[..., Any]], ...] = ()

    @contextmanager
    def made(self) -> Generator[None]:
        """Have the fault until the block ends."""
        with ExitStack() as patched:
            for module, name, other in self.replaced:
                patched.enter_context(patch.object(module, name, other))
            yield


def _without(lock: str, table: str) -> Rewrite:
    def rewrite(text: str) -> str:
        is_meant = table in text and (lock == _SKIPS) == ("SKIP LOCKED" in text)
        return text.replace(lock, "") if is_meant else text

    return rewrite


_window = routing._route_window


def _forget_passed(context: Any, connection: Any, after: int, upto: int, _passed: set[str]) -> bool:
    return _window(context, connection, after, upto, set())


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for what is to be done."""


def _end_at_once(context: Any, connection: Any, name: str, now: int) -> bool:
    consumers._release_some(context, connection, name, now)
    return True


_NO_SWEEP = (healing, "release_ownerless", _nothing)

MUTATIONS = {
    one.name: one
    for one in (
        Mutation("passed_windows_are_forgotten", "a_hot_group", replaced=((routing, "_route_window", _forget_passed),)),
        Mutation("claims_lock_no_group", "two_receive", _without(_SKIPS, "waterclock_groups")),
        Mutation("no_turn_of_routing", "a_hot_group", _without(_SKIPS, "waterclock_message_tables")),
        Mutation(
            "the_dead_keep_their_groups", "one_dies", replaced=((consumers, "release_lapsed", _nothing), _NO_SWEEP)
        ),
        Mutation(
            "one_that_left_keeps_locked_groups", "one_leaves", replaced=((consumers, "_end", _end_at_once), _NO_SWEEP)
        ),
    )
}
