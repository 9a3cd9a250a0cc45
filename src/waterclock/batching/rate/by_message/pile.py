"""The messages of one stream that wait for later windows, in order of event time."""

from __future__ import annotations

from bisect import bisect_left, insort_right
from operator import attrgetter

from waterclock.message import Message

_event_time = attrgetter("event_time")


class Pile:
    """Waiting messages by event time, equal ones in order of arrival.

    The cost of taking a window from the front depends on its messages, not on those that wait behind it. So the time to
    catch up is linear.
    """

    __slots__ = ("_first", "_messages")

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._first = 0  # the items before it are taken; removing them each time would move all others

    def __len__(self) -> int:
        return len(self._messages) - self._first

    @property
    def oldest(self) -> int:
        """Smallest waiting event time, ns."""
        return self._messages[self._first].event_time

    @property
    def newest(self) -> int:
        """Greatest waiting event time, ns."""
        return self._messages[-1].event_time

    def push(self, message: Message) -> None:
        """Add a waiting message."""
        messages = self._messages
        if not messages or message.event_time >= messages[-1].event_time:
            messages.append(message)
        else:
            insort_right(messages, message, lo=self._first, key=_event_time)

    def has_between(self, first: int, stop: int) -> bool:
        """Return whether a message waits whose event time is at or after ``first`` and before ``stop``, ns."""
        place = bisect_left(self._messages, first, lo=self._first, key=_event_time)
        return place < len(self._messages) and self._messages[place].event_time < stop

    def take_before(self, event_time: int) -> list[Message]:
        """Remove and return messages older than ``event_time`` (ns)."""
        until = bisect_left(self._messages, event_time, lo=self._first, key=_event_time)
        taken = self._messages[self._first : until]
        self._first = until
        if 2 * until > len(self._messages):
            del self._messages[:until]
            self._first = 0
        return taken

    def take_from(self, event_time: int) -> list[Message]:
        """Remove and return messages not older than ``event_time`` (ns)."""
        after = bisect_left(self._messages, event_time, lo=self._first, key=_event_time)
        taken = self._messages[after:]
        del self._messages[after:]
        return taken

    def messages(self) -> list[Message]:
        """List the waiting messages."""
        return self._messages[self._first :]
