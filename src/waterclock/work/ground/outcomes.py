"""What becomes of a message once its handler has ended: what a handler can raise, and what a worker makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from waterclock._support.quoting import quoted, said_of
from waterclock.time import Duration, to_duration
from waterclock.work.ground.tracebacks import frames_of, traceback_of


def _text_of(why: object) -> str:
    """Give a reason as a text; often it is the exception that a handler caught."""
    if isinstance(why, str):
        return why
    return said_of(why) if isinstance(why, BaseException) else quoted(why)


class HandlerSays(Exception):  # noqa: N818  # none of them is an error: a handler says what is to become of its message
    """Base of what a handler raises to say what is to become of its message."""


class Retry(HandlerSays):
    """Send the message again after a while; by default after its back-off. It counts as an attempt.

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
    """Send the message again after ``delay``, as if it had not been sent now: neither attempts nor back-off move."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = to_duration(delay, "delay")


class DeadLetter(HandlerSays):
    """Move the message to the table's dead-letter table, for the reason ``why``. Where it has none, it backs off."""

    def __init__(self, why: object) -> None:
        super().__init__(why)
        self.why = _text_of(why)


class Discard(HandlerSays):
    """Ack the message though it was not handled; ``why`` goes into the log."""

    def __init__(self, why: object) -> None:
        super().__init__(why)
        self.why = _text_of(why)


Verb = Literal["ack", "back_off", "snooze", "dead_letter", "discard", "give_back", "skip"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to become of a message.

    Attributes
    ----------
    verb
        What is done.
    delay
        After how long it is sent again, ns; None: by the table's back-off.
    why
        What is said of it: an error, or a reason.
    frames, traceback
        Where the handler failed: the last frames, and the whole traceback; None if it did not.
    """

    verb: Verb
    delay: int | None = None
    why: str | None = None
    frames: str | None = None
    traceback: str | None = None

    @property
    def last_error(self) -> str | None:
        """The text for the message's row."""
        return self.why if self.frames is None else f"{self.why} ({self.frames})"


ACK = Outcome("ack")
"""The handler returned."""

SKIP = Outcome("skip")
"""It was not handled, since it is not ours any more."""

GIVE_BACK = Outcome("give_back")
"""The handler was asked to end, so it is no fault of its own, and no attempt."""


def outcome_of(error: BaseException) -> Outcome:
    """Give what a handler's exception means."""
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
