"""When a schedule ticks: the rules of cron, and what becomes of ticks that were missed. Pure: takes the time, in ns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

ON_TIME = 60 * _SECOND
"""A tick that is seen later than this after its time was missed, ns."""

MOST = 100
"""Missed ticks of a schedule that are put at once."""

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
    """A moment at which a schedule puts a message.

    Attributes
    ----------
    at
        ns.
    caught_up
        Whether it was missed, and is put later.
    """

    at: int
    caught_up: bool


@dataclass(frozen=True, slots=True)
class Due:
    """What is due of a schedule.

    Attributes
    ----------
    ticks
        Those for which a message is put, the earliest first.
    seen
        Up to when ticks were looked at, ns; None: as far as before.
    following
        The next one, ns; None: there is none.
    """

    ticks: Sequence[Tick]
    seen: int | None
    following: int | None


class Ticks:
    """When the schedules of a table are to be looked at.

    Attributes
    ----------
    due_at
        ns; as long as no consumer has looked, at once.
    looked_at
        What the database's clock showed when a consumer looked last, ns.
    warned
        The schedules, each with up to when its ticks were dealt with, for which there was a warning about the clock.
    """

    def __init__(self) -> None:
        self.due_at = self.looked_at = MIN_NS
        self.warned: set[tuple[str, int]] = set()

    def is_due(self, now: int) -> bool:
        """Return whether to look at a time: a tick is due, or the clock was set back since the last look."""
        return self.due_at < MAX_NS and (self.due_at <= now or now < self.looked_at - ON_TIME)


def check_cron(text: object) -> str:
    """Return an expression in five fields: minute, hour, day, month, weekday; InvalidArgumentError where it is none."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"cron: {quoted(text)} is a {type(text).__name__}; give a text such as '0 3 * * *'")
    expression = _NAMES.get(text.strip().lower(), text)
    if expression.startswith("@"):
        raise InvalidArgumentError(f"cron: {quoted(text)} is no name of a schedule; give one of {', '.join(_NAMES)}")
    fields = expression.split()
    if len(fields) != _FIELDS:
        raise InvalidArgumentError(
            f"cron: {quoted(text)} has {len(fields)} fields; give five, minute, hour, day, month and weekday: seconds"
            " are none of them"
        )
    from cronsim import CronSimError  # noqa: PLC0415  # only those who have schedules need it

    try:
        first = next(_ticks(expression, UTC, datetime(2020, 1, 1, tzinfo=UTC)), None)
    except CronSimError as error:
        raise InvalidArgumentError(f"cron: {quoted(text)} is no schedule: {error}") from None
    if first is None:
        raise InvalidArgumentError(f"cron: {quoted(text)} never ticks")
    return " ".join(fields)


def check_timezone(name: object) -> str:
    """Return the name of a time zone; InvalidArgumentError where there is none of this name."""
    try:
        if isinstance(name, str) and name:
            ZoneInfo(name)
            return name
    except (KeyError, ValueError, OSError):
        pass
    raise InvalidArgumentError(f"timezone: {quoted(name)} names no time zone; give one such as 'Europe/Berlin'")


def next_tick(cron: str, timezone: str, after: int) -> int | None:
    """Give the first tick after a time, ns; None where there is none."""
    return next(_after(cron, timezone, after), None)


def due_ticks(
    cron: str, timezone: str, after: int, now: int, *, catch_up: CatchUp = "none", within: int | None = None
) -> Due:
    """Say which ticks after one time, up to and including another one, are to be put.

    Parameters
    ----------
    catch_up
        Which of those that were missed: none, the last one, or all.
    within
        Those that were missed longer ago than this are not put in any case, ns; None: they are.
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
    """Say after which time ticks count, ns: those up to then are not looked at one by one, however many they are."""
    if catch_up == "none":
        return now - ON_TIME
    return MIN_NS if within is None else min(now - within - 1, now - ON_TIME)


def _before_last(cron: str, timezone: str, begin: int, end: int) -> int:
    """Give a time shortly before the last tick after one time and up to another; the first time where there is none.

    It halves what lies between, so that a year takes no longer than the ticks of a day would.
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
        if at > last:  # an hour that comes twice does not take it back
            last = at
            yield at


def _ticks(cron: str, zone: Any, begin: datetime) -> Iterator[datetime]:
    from cronsim import CronSim  # noqa: PLC0415  # only those who have schedules need it

    minutes, hours = cron.split()[:2]
    if zone is not UTC and (minutes.startswith("*") or hours.startswith("*")):
        return _shown(cron, zone, begin)
    return iter(CronSim(cron, begin.astimezone(zone)))


def _shown(cron: str, zone: Any, begin: datetime) -> Iterator[datetime]:
    """Yield every moment at which the zone's clock shows a time of the rule.

    CronSim steps whole hours through a zone, so it loses ticks where the clock changes by half an hour. Here it only
    steps through the time of day, from one change of the zone's offset to the next.
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
