"""Draws the states of messages and groups for the documentation: ``python -m tests.tables.states.drawings``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.figures.state_diagram import Arrow, Box, state_diagram
from tests.tables.states.meanings import GROUPS, HOLDS, MESSAGES, Meaning
from tests.tables.states.steps import GROUP_STEPS, MESSAGE_STEPS, Step

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "states.md"

Places = Mapping[str, tuple[float, float]]
Courses = Mapping[tuple[str, str], dict[str, Any]]

# Where the states stand in the pictures; "absent" is two dots, where lives begin and where they end.
_MESSAGE_PLACES: Places = {
    "scheduled": (0.8, 0),
    "ready": (0.8, 1),
    "blocked": (0.8, 2),
    "backing_off": (2.1, 0),
    "leased": (2.1, 1),
    "exhausted": (2.1, 2),
    "dead": (3.4, 0),
    "acked": (3.4, 1),
    "ack_held_back": (3.4, 2),
    "expired": (0.8, 3),
    "cancelled": (2.1, 4),
}
_MESSAGE_COURSES: Courses = {
    ("ready", "leased"): {"shift": -9},
    ("leased", "ready"): {"shift": -9},
    ("blocked", "leased"): {"shift": -9, "at": 0.36},
    ("leased", "blocked"): {"shift": -9, "at": 0.36},
    ("exhausted", "ready"): {"at": 0.2},
    ("expired", "absent"): {"via": [(4.4, 3)], "at": 0.5},
    ("cancelled", "absent"): {"via": [(4.4, 4)], "at": 0.5},
}
_GROUP_PLACES: Places = {
    "unrouted": (0.7, 1),
    "due_later": (1.9, 0),
    "ready": (1.9, 1),
    "paused": (1.9, 2),
    "exhausted": (3.2, 0),
    "leased": (3.2, 1),
    "draining": (3.2, 2),
    "idle": (4.4, 2),
}
_GROUP_COURSES: Courses = {
    ("ready", "leased"): {"shift": -9},
    ("leased", "ready"): {"shift": -9},
    ("ready", "draining"): {"shift": -9, "at": 0.36},
    ("draining", "ready"): {"shift": -9, "at": 0.36},
    ("exhausted", "ready"): {"at": 0.25},
    ("leased", "due_later"): {"at": 0.25},
    ("ready", "paused"): {"shift": -26},
    ("paused", "ready"): {"shift": -26},
    ("idle", "unrouted"): {"via": [(4.4, 2.6), (0.7, 2.6)], "at": 0.5},
}
_BEGIN, _END = "begin", "end"


def _picture(
    meanings: Iterable[str],
    steps: Sequence[Step[Any]],
    places: Places,
    courses: Courses,
    ends: tuple[tuple[float, float], tuple[float, float]],
    title: str,
) -> str:
    boxes = {state: Box(_words(state), *places[state]) for state in meanings if state != "absent"}
    boxes |= {_BEGIN: Box("", *ends[0]), _END: Box("", *ends[1])}
    arrows = [
        Arrow(
            _BEGIN if step.source == "absent" else step.source,
            _END if step.target == "absent" else step.target,
            ", ".join(map(_words, step.usual)),
            **courses.get((step.source, step.target), {}),
        )
        for step in steps
        if step.usual
    ]
    return state_diagram(boxes, arrows, title=title)


def pictures() -> dict[Path, str]:
    """Draw all, each with the file that holds it."""
    folder = DOCS / "images" / "states"
    ends = ((0.0, 1.0), (4.4, 1.0))
    return {
        folder / "message.svg": _picture(
            MESSAGES,
            MESSAGE_STEPS,
            _MESSAGE_PLACES,
            _MESSAGE_COURSES,
            ((0, 1), (4.2, 1)),
            "The usual life of a message",
        ),
        folder / "group.svg": _picture(
            GROUPS, GROUP_STEPS, _GROUP_PLACES, _GROUP_COURSES, ends, "The usual life of a group"
        ),
    }


def _words(name: str) -> str:
    return name.replace("_", " ").removeprefix("groups.")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _meanings(meanings: Mapping[Any, Meaning]) -> str:
    rows = ((f"`{name}`", meaning.words, meaning.shown_by) for name, meaning in meanings.items())
    return _table(("State", "Meaning", "Condition on the rows"), rows)


def _steps(steps: Sequence[Step[Any]]) -> str:
    rows = ((f"`{step.source}`", f"`{step.target}`", ", ".join(f"`{verb}`" for verb in step.verbs)) for step in steps)
    return _table(("From", "To", "Operations"), rows)


def page() -> str:
    """Write the reference page of states."""
    return f"""# States

This page lists the states of messages and groups, and the operations that change them. A state is not a column. It
follows from a message's columns, from the messages before it in its group, and from the database's clock. If a message
or a group meets several conditions in a table below, its state is the first of them.

An operation is a method of the message table, of a delivery or a subscription, or of the table's `groups`. An operation
on one message may also change the state of other messages in its group: when a message is acked, the next message
changes from `blocked` to `ready`. `close` closes a subscription. Two operations are not methods: `time` is the passing
of time, and `route` places new messages in their groups.

Each claim and each command on groups calls `route` first. If this changes the state of a group, the page lists two
transitions: the transition by `route`, and the transition by the operation itself.

Plain SQL may cause any transition. The SQL statements documented for `put`, `ack` and `reschedule` cause the same
transitions as these methods.

`python -m tests.tables.states.drawings` generates this page. Tests call every operation, and check that exactly the
transitions listed here occur.

## Messages

![The usual states of a message](images/states/message.svg)

{_meanings(MESSAGES)}
A message that is `ready` may still have to wait. Then `explain` returns one of these reasons instead of `ready`:

{_meanings(HOLDS).replace("| State |", "| Reason |", 1)}
{_steps(MESSAGE_STEPS)}
## Groups

![The usual states of a group](images/states/group.svg)

{_meanings(GROUPS)}
{_steps(GROUP_STEPS)}"""


def files() -> dict[Path, str]:
    """Return the generated files of the documentation by path."""
    return {**pictures(), PAGE: page()}


if __name__ == "__main__":
    for kept, text in files().items():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(text, "utf-8")
