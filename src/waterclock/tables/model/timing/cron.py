"""Computes the ticks of a schedule from its cron expression, and finds missed ticks. Times are in ns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.time import MAX_NS, MIN_NS

CatchUp = Literal["none", "one", "all"]

_SECOND = 1_000_000_000
_FIELDS = 5

ON_TIME = 60 * _SECOND  # a tick seen later than this after its time was missed, ns
MOST = 100  # maximum number of missed ticks of a schedule that are put at once

_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, slots=True)
class Tick:
    """A time at which a schedule puts a message."""

    at: int  # its time, ns
    caught_up: bool  # whether it was missed and is caught up


@dataclass(frozen=True, slots=True)
class Due:
    """The due ticks of a schedule."""

    ticks: Sequence[Tick]  # the ticks for which a message is put, earliest first
    seen: int | None  # up to when ticks were processed, ns; None: unchanged
    following: int | None  # the next tick, ns; None: none


class Ticks:
    """When the schedules of a table must be checked."""

    def __init__(self) -> None:
        # The next check, initially at once, and the database's time of the last one, ns.
        self.due_at = self.looked_at = MIN_NS
        # Schedules with a warning about the clock, each with the time of its last processed tick.
        self.warned: set[tuple[str, int]] = set()

    @property
    def has_any(self) -> bool:
        """Return whether there are schedules, as far as the last check knows."""
        return self.due_at != MAX_NS

    def is_due(self, clock: Callable[[], int]) -> bool:
        """Return whether to check now: a tick is due, or the clock was set back since the last check.

        Without schedules the clock, which may be the database's, is not read.
        """
        if not self.has_any:
            return False
        now = clock()
        return self.due_at <= now or now < self.looked_at - ON_TIME


def check_cron(text: object) -> str:
    """Return an expression in five fields: minute, hour, day, month, weekday; InvalidArgumentError if invalid."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"cron must be a string such as '0 3 * * *', got {quoted(text)}")
    expression = _NAMES.get(text.strip().lower(), text)
    if expression.startswith("@"):
        raise InvalidArgumentError(f"cron must be five fields or one of {', '.join(_NAMES)}, got {quoted(text)}")
    fields = expression.split()
    if len(fields) != _FIELDS:
        raise InvalidArgumentError(
            f"cron must have five fields (minute, hour, day, month, weekday) and no seconds, got {len(fields)} in"
            f" {quoted(text)}"
        )
    from cronsim import CronSimError  # noqa: PLC0415  # only those who have schedules need it

    try:
        first = next(_ticks(expression, UTC, datetime(2020, 1, 1, tzinfo=UTC)), None)
    except CronSimError as error:
        raise InvalidArgumentError(f"cron must be a valid schedule, got {quoted(text)}: {error}") from None
    if first is None:
        raise InvalidArgumentError(f"cron must match at least one point in time, got {quoted(text)}")
    return " ".join(fields)


def check_timezone(name: object) -> str:
    """Return the name of a time zone; raise InvalidArgumentError if unknown."""
    try:
        if isinstance(name, str) and name:
            ZoneInfo(name)
            return name
    except (KeyError, ValueError, OSError):
        pass
    raise InvalidArgumentError(f"timezone must be a time zone such as 'Europe/Berlin', got {quoted(name)}")


def next_tick(cron: str, timezone: str, after: int) -> int | None:
    """Return the first tick after a time, ns; None if there is no later one."""
    return next(_after(cron, timezone, after), None)


def due_ticks(
    cron: str, timezone: str, after: int, now: int, *, catch_up: CatchUp = "none", within: int | None = None
) -> Due:
    """Return the ticks after one time, up to and including another, that must be put.

    ``catch_up`` is which missed ticks: none, the last one, or all. ``within`` is the maximum age of missed ticks, ns;
    None: any age.
    """
    begin = max(after, _counts_from(now, catch_up, within))
    if catch_up == "one":
        begin = _before_last(cron, timezone, begin, now - ON_TIME)
    missed: list[int] = []
    on_time: list[int] = []
    seen = begin if begin > after else None
    following: int | None = None
    for tick in _after(cron, timezone, begin):
        if tick > now or len(missed) == MOST:
            following = tick
            break
        seen = tick
        (on_time if tick > now - ON_TIME else missed).append(tick)
    if catch_up == "one" and on_time:
        missed = []
    return Due([*(Tick(at, True) for at in missed), *(Tick(at, False) for at in on_time)], seen, following)


def _counts_from(now: int, catch_up: CatchUp, within: int | None) -> int:
    """Return the time after which ticks count, ns: earlier ones are not examined one by one."""
    if catch_up == "none":
        return now - ON_TIME
    return MIN_NS if within is None else min(now - within - 1, now - ON_TIME)


def _before_last(cron: str, timezone: str, begin: int, end: int) -> int:
    """Return a time shortly before the last tick between two times; the first time without a tick.

    It bisects the interval, so that a year takes no longer than a day.
    """

    def ticks_after(at: int) -> bool:
        following = next_tick(cron, timezone, at)
        return following is not None and following <= end

    if not ticks_after(begin):
        return begin
    low, high = begin, end
    while high - low > _SECOND:
        middle = (low + high) // 2
        low, high = (middle, high) if ticks_after(middle) else (low, middle)
    return low


def _after(cron: str, timezone: str, after: int) -> Iterator[int]:
    zone = ZoneInfo(timezone)
    begin = datetime.fromtimestamp(after // _SECOND, UTC).astimezone(zone)
    last = after
    for tick in _ticks(cron, zone, begin):
        at = _ns(tick)
        if at > last:  # an hour that occurs twice must not set it back
            last = at
            yield at


def _ticks(cron: str, zone: Any, begin: datetime) -> Iterator[datetime]:
    from cronsim import CronSim  # noqa: PLC0415  # only those who have schedules need it

    minutes, hours = cron.split()[:2]
    if zone is not UTC and (minutes.startswith("*") or hours.startswith("*")):
        return _shown(cron, zone, begin)
    return iter(CronSim(cron, begin.astimezone(zone)))


def _shown(cron: str, zone: Any, begin: datetime) -> Iterator[datetime]:
    """Yield every time at which the zone's clock matches the expression.

    CronSim steps through a zone by whole hours, so it loses ticks if the clock changes by half an hour. Here it steps
    through local time only, between two changes of the zone's offset.
    """
    from cronsim import CronSim  # noqa: PLC0415  # only those who have schedules need it

    at = begin.astimezone(UTC)
    wall = at + _offset(zone, at)
    while True:
        offset = _offset(zone, at)
        change = None
        for tick in CronSim(cron, wall.replace(tzinfo=None)):
            moment = tick.replace(tzinfo=UTC) - offset
            change = _next_change(zone, at, moment)
            if change is not None:
                break
            yield moment
            at = moment
        if change is None:
            return
        at = change
        wall = at + _offset(zone, at) - timedelta(seconds=1)  # the moment of the change may itself be a tick


def _next_change(zone: Any, after: datetime, until: datetime) -> datetime | None:
    """Return when the zone's offset first changes, to the second; None if it stays. No zone changes twice in a day."""
    while after < until:
        end = min(after + timedelta(days=1), until)
        before = _offset(zone, after)
        if _offset(zone, end) != before:
            while end - after > timedelta(seconds=1):
                middle = after + timedelta(seconds=(end - after) // timedelta(seconds=2))
                after, end = (middle, end) if _offset(zone, middle) == before else (after, middle)
            return end
        after = end
    return None


def _offset(zone: Any, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def _ns(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1) * _SECOND
