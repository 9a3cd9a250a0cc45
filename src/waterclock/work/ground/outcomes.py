"""The outcomes of messages: the exceptions that a handler can raise, and how a worker reacts to each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from waterclock._support.quoting import quoted, said_of
from waterclock.time import Duration, to_duration
from waterclock.work.ground.tracebacks import frames_of, traceback_of


def _text_of(why: object) -> str:
    """Return a reason as text; often it is an exception that a handler caught."""
    if isinstance(why, str):
        return why
    return said_of(why) if isinstance(why, BaseException) else quoted(why)


class HandlerSays(Exception):  # noqa: N818  # not errors: a handler decides the outcome of its message
    """Base of the exceptions by which a handler decides its message's outcome."""


class Retry(HandlerSays):
    """Send the message again later, by default after its back-off. Counts an attempt.

    Parameters
    ----------
    after
        How long to wait.
    why
        Kept in the column ``last_error``.
    """

    def __init__(self, after: Duration | None = None, why: object = None) -> None:
        super().__init__(after, why)
        self.after = None if after is None else to_duration(after, "after")
        self.why = None if why is None else _text_of(why)


class Snooze(HandlerSays):
    """Send the message again after ``delay`` without counting an attempt; its back-off does not change."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = to_duration(delay, "delay")


class DeadLetter(HandlerSays):
    """Move the message to the table's dead-letter table, for the reason ``why``. Without that table, it backs off."""

    def __init__(self, why: object) -> None:
        super().__init__(why)
        self.why = _text_of(why)


class Discard(HandlerSays):
    """Ack the message without handling it; ``why`` is logged."""

    def __init__(self, why: object) -> None:
        super().__init__(why)
        self.why = _text_of(why)


Verb = Literal["ack", "back_off", "snooze", "dead_letter", "discard", "give_back", "skip", "skip_group"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a message."""

    verb: Verb  # the operation
    delay: int | None = None  # after how long it is sent again, ns; None: the table's back-off
    why: str | None = None  # the error or reason
    # If the handler failed, the last frames, and the whole traceback; otherwise None.
    frames: str | None = None
    traceback: str | None = None

    @property
    def last_error(self) -> str | None:
        """Return the text for the message's row."""
        return self.why if self.frames is None else f"{self.why} ({self.frames})"


ACK = Outcome("ack")
"""The handler returned."""

SKIP = Outcome("skip")
"""It was not handled, because its lease is lost."""

SKIP_GROUP = Outcome("skip_group")
"""As `SKIP`, but the message is not acked, so those behind it in its group must not be handled before it."""

GIVE_BACK = Outcome("give_back")
"""The handler was asked to stop, so it has not failed, and no attempt counts."""


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome for a handler's exception."""
    match error:
        case Retry():
            return Outcome("back_off", error.after, error.why or "the handler asked for another try")
        case Snooze():
            return Outcome("snooze", error.delay)
        case DeadLetter():
            return Outcome("dead_letter", why=error.why)
        case Discard():
            return Outcome("discard", why=error.why)
        case _:
            return Outcome("back_off", why=said_of(error), frames=frames_of(error), traceback=traceback_of(error))
