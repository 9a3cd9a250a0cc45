"""When schedules tick: over changes of the clock, and what becomes of ticks that were missed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from waterclock.errors import InvalidArgumentError
from waterclock.tables.model.timing import cron as cron_rules
from waterclock.tables.model.timing.cron import MOST, check_cron, check_timezone, due_ticks, next_tick
from waterclock.time import format_time, to_duration, to_time

DAY, MINUTE = to_duration("1d"), to_duration("1m")


def ticks(cron: str, zone: str, begin: str, end: str) -> list[int]:
    found: list[int] = []
    at: int | None = to_time(begin)
    while (at := next_tick(cron, zone, at)) is not None and at < to_time(end):
        found.append(at)
    return found


def shown(at: int, zone: str) -> str:
    return datetime.fromtimestamp(at / 1e9, ZoneInfo(zone)).strftime("%d %H:%M")


def test_a_fixed_time_ticks_once_a_day_even_if_the_clock_changes() -> None:
    cases = {
        # The hour from two to three is left out, and comes twice.
        ("Europe/Berlin", "2026-03-27T12:00:00Z", "2026-03-30T12:00:00Z"): 3,
        ("Europe/Berlin", "2026-10-23T12:00:00Z", "2026-10-26T12:00:00Z"): 3,
        # Half an hour.
        ("Australia/Lord_Howe", "2026-04-03T12:00:00Z", "2026-04-06T12:00:00Z"): 3,
        ("Australia/Lord_Howe", "2026-10-02T12:00:00Z", "2026-10-05T12:00:00Z"): 3,
        # At midnight.
        ("America/Santiago", "2026-04-03T12:00:00Z", "2026-04-06T12:00:00Z"): 3,
        ("America/Santiago", "2026-09-04T12:00:00Z", "2026-09-07T12:00:00Z"): 3,
    }
    for (zone, begin, end), days in cases.items():
        for cron in ("30 2 * * *", "0 0 * * *", "15 0 * * *", "45 1 * * *"):
            found = ticks(cron, zone, begin, end)
            assert len(found) == days, (zone, cron, [shown(at, zone) for at in found])
            assert found == sorted(set(found))


@pytest.mark.parametrize(("cron", "minutes"), [("*/15 * * * *", 15), ("* * * * *", 1)])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "America/Santiago"])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-04-05", "2026-09-06", "2026-10-04", "2026-10-25"])
def test_a_wildcard_ticks_in_each_interval_and_always_continues(cron: str, minutes: int, zone: str, day: str) -> None:
    begin = to_time(f"{day}T00:00:00Z") - DAY // 2
    found = ticks(cron, zone, format_time(begin), format_time(begin + DAY))
    assert {later - earlier for earlier, later in pairwise(found)} == {minutes * MINUTE}


@cache
def odd_changes() -> list[tuple[str, datetime]]:
    """Return a moment shortly before each clock change, of any zone since 1973, that is not by whole hours.

    Until 1972 a zone had an offset of half a minute.
    """
    found: dict[tuple[datetime, timedelta, timedelta], str] = {}
    for name in sorted(available_timezones()):
        at, zone = datetime(1973, 1, 1, tzinfo=UTC), ZoneInfo(name)
        before = at.astimezone(zone).utcoffset() or timedelta()
        while at.year < 2030:
            at += timedelta(days=30)
            after = at.astimezone(zone).utcoffset() or timedelta()
            if (after - before) % timedelta(hours=1):
                found.setdefault((at, before, after), name)
            before = after
    return [
        (name, cron_rules._next_change(ZoneInfo(name), at - timedelta(days=30), at) or at)
        for (at, *_), name in found.items()
    ]


@given(
    st.deferred(lambda: st.sampled_from(odd_changes())),
    st.sampled_from(["*", "*/15", "*/7", "0", "30", "10,50"]),
    st.sampled_from(["*", "*/2", "*/3", "0", "1", "2", "3", "23"]),
)
@example(("Australia/Lord_Howe", datetime(2026, 4, 4, 15, 0, tzinfo=UTC)), "*/15", "3")
@example(("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)), "*/15", "3")
@example(("Australia/Lord_Howe", datetime(2026, 4, 4, 15, 0, tzinfo=UTC)), "0", "*/2")
@example(("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)), "0", "*/3")
def test_a_wildcard_ticks_at_every_minute_that_the_clock_shows(
    change: tuple[str, datetime], minutes: str, hours: str
) -> None:
    assume("*" in minutes + hours)
    zone, begin = ZoneInfo(change[0]), change[1].replace(second=0) - timedelta(hours=5)
    matching = [
        moment
        for number in range(1, 10 * 60)
        if shows(moment := begin + timedelta(minutes=number), zone, minutes, hours)
    ]
    cron = f"{minutes} {hours} * * *"
    end = begin + timedelta(hours=10)
    assert ticks(cron, change[0], begin.isoformat(), end.isoformat()) == [to_time(moment) for moment in matching]


def shows(moment: datetime, zone: ZoneInfo, minutes: str, hours: str) -> bool:
    clock = moment.astimezone(zone)
    return clock.second == 0 and names(minutes, clock.minute) and names(hours, clock.hour)


def names(field: str, number: int) -> bool:
    if field.startswith("*"):
        return number % int(field[2:] or 1) == 0
    return str(number) in field.split(",")


def test_names_are_those_that_cron_knows() -> None:
    assert check_cron("@daily") == "0 0 * * *"
    assert check_cron(" 0  3 * * MON-FRI ") == "0 3 * * MON-FRI"
    assert check_timezone("Europe/Berlin") == "Europe/Berlin"


@pytest.mark.parametrize(
    "cron", ["", "* * * *", "0 0 3 * * *", "@reboot", "61 * * * *", "0 0 30 2 *", "0 3 * * * x", 7]
)
def test_an_invalid_cron_rule_is_refused_with_a_remedy(cron: object) -> None:
    with pytest.raises(InvalidArgumentError, match="cron must "):
        check_cron(cron)


@pytest.mark.parametrize("zone", ["", "Europe/Atlantis", "../../etc/passwd", None, 7])
def test_an_invalid_time_zone_is_refused(zone: object) -> None:
    with pytest.raises(InvalidArgumentError, match="timezone must "):
        check_timezone(zone)


def test_missed_ticks_are_caught_up_as_the_schedule_says() -> None:
    now = to_time("2026-07-01T12:00:30Z")
    begin = now - 3 * DAY

    def due(cron: str, **rule: object) -> list[tuple[str, bool]]:
        found = due_ticks(cron, "UTC", begin, now, **rule)  # type: ignore[arg-type]
        assert found.following is not None
        assert found.following > now
        return [(format_time(one.at)[8:16], one.caught_up) for one in found.ticks]

    assert due("0 3 * * *") == []
    assert due("0 12 * * *") == [("01T12:00", False)]
    assert due("0 3 * * *", catch_up="one") == [("01T03:00", True)]
    assert due("0 12 * * *", catch_up="one") == [("01T12:00", False)]
    assert due("0 3 * * *", catch_up="all") == [("29T03:00", True), ("30T03:00", True), ("01T03:00", True)]
    assert due("0 3 * * *", catch_up="all", within=to_duration("1d")) == [("01T03:00", True)]
    assert due("0 3 * * *", catch_up="one", within=to_duration("1h")) == []


def test_very_many_missed_ticks_come_a_piece_at_a_time() -> None:
    now = to_time("2026-07-01T12:00:30Z")
    seen: list[int] = []
    after = now - 2 * DAY
    while True:
        found = due_ticks("* * * * *", "UTC", after, now, catch_up="all")
        assert len(found.ticks) <= MOST + 1
        seen += [one.at for one in found.ticks]
        if found.following is not None and found.following > now:
            break
        assert found.seen is not None
        after = found.seen
    assert len(seen) == len(set(seen)) == 2 * 24 * 60
    assert seen == sorted(seen)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize(
    ("cron", "before_last"),
    [
        ("* * * * *", "2026-07-01T11:58:00Z"),
        ("0 3 * * *", "2026-06-30T12:00:00Z"),
        ("*/20 * 1 1 *", "2026-01-01T20:00:00Z"),
        ("30 2 * * SUN", "2026-06-27T12:00:00Z"),
    ],
)
def test_after_years_away_what_counts_is_found_without_a_look_at_each_tick(
    monkeypatch: pytest.MonkeyPatch, cron: str, before_last: str, zone: str
) -> None:
    looked = 0

    def counted(*given: Any) -> Iterator[datetime]:
        nonlocal looked
        for one in all_ticks(*given):
            looked += 1
            yield one

    all_ticks = cron_rules._ticks
    monkeypatch.setattr(cron_rules, "_ticks", counted)
    now = to_time("2026-07-01T12:00:30Z")
    last_missed = ticks(cron, zone, before_last, format_time(now - MINUTE))[-1]
    looked = 0
    for catch_up, within in (("none", None), ("one", None), ("one", 10 * DAY), ("all", 2 * MINUTE)):
        due = due_ticks(cron, zone, now - 9 * 365 * DAY, now, catch_up=catch_up, within=within)  # type: ignore[arg-type]
        on_time = [one.at for one in due.ticks if not one.caught_up]
        assert on_time == ([now - now % MINUTE] if cron == "* * * * *" else [])
        if catch_up == "one" and not on_time:
            counts = within is None or last_missed >= now - within
            assert [one.at for one in due.ticks] == ([last_missed] if counts else [])
        assert due.following == next_tick(cron, zone, now)
    assert looked < 200


def test_looking_often_or_seldom_gives_the_same_ticks() -> None:
    chance = random.Random(7)  # noqa: S311  # no secret
    begin, end = to_time("2026-03-28T00:00:00Z"), to_time("2026-03-30T00:00:00Z")
    at_once = [one.at for one in due_ticks("*/20 1-3 * * *", "Europe/Berlin", begin, end, catch_up="all").ticks]
    seen: list[int] = []
    after = now = begin
    while now < end:
        now = min(end, now + chance.randrange(3 * 60) * MINUTE // 3)
        found = due_ticks("*/20 1-3 * * *", "Europe/Berlin", after, now, catch_up="all")
        seen += [one.at for one in found.ticks]
        after = after if found.seen is None else found.seen
    assert seen == at_once
    assert datetime.fromtimestamp(seen[0] / 1e9, UTC).minute % 20 == 0
