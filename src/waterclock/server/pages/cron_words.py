"""Describes the usual cron expressions in words. Does no I/O."""

from __future__ import annotations

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SHORT = {name[:3].lower(): name for name in _DAYS}
_WEEKDAYS = {"1-5": "every weekday", "mon-fri": "every weekday", "0,6": "every weekend day", "6,0": "every weekend day"}
_SHORTEST_MONTH = 28
_NAMED = {
    "@hourly": "every hour",
    "@daily": "every day at 00:00",
    "@midnight": "every day at 00:00",
    "@weekly": "every Sunday at 00:00",
    "@monthly": "on day 1 of every month at 00:00",
    "@yearly": "every year on 1 January at 00:00",
    "@annually": "every year on 1 January at 00:00",
}


def in_words(cron: str) -> str | None:
    """Describe an expression; None if it is too complex for a few words."""
    text = cron.strip().lower()
    if text in _NAMED:
        return _NAMED[text]
    fields = text.split()
    if len(fields) != 5:  # noqa: PLR2004  # minute, hour, day, month, weekday
        return None
    minute, hour, day, month, weekday = fields
    if month != "*":
        return None
    when = _time(minute, hour)
    which = _days(day, weekday)
    if when is None or which is None:
        return None
    if when.startswith("at"):
        return f"{which} {when}"
    return when if which == "every day" else f"{when}, {which}"


def _time(minute: str, hour: str) -> str | None:
    if hour == "*":
        if minute == "*":
            return "every minute"
        return f"every hour at minute {int(minute)}" if minute.isdecimal() else _every(minute, 60, "minute")
    if minute.isdecimal() and hour.isdecimal():
        return f"at {int(hour):02}:{int(minute):02}"
    return _every(hour, 24, "hour") if minute == "0" else None


def _every(text: str, size: int, unit: str) -> str | None:
    """Describe a step such as ``*/5``; None if the last interval in ``size`` is shorter than the others."""
    start, slash, step = text.partition("/")
    if start != "*" or not slash or not step.isdecimal() or not int(step) or size % int(step):
        return None
    return f"every {unit}" if int(step) == 1 else f"every {int(step)} {unit}s"


def _days(day: str, weekday: str) -> str | None:
    if day == "*" and weekday == "*":
        return "every day"
    if day == "*":
        return _WEEKDAYS.get(weekday) or _weekday(weekday)
    in_every_month = day.isdecimal() and int(day) <= _SHORTEST_MONTH
    return f"on day {int(day)} of every month" if in_every_month and weekday == "*" else None


def _weekday(text: str) -> str | None:
    if text.isdecimal() and int(text) < len(_DAYS):
        return f"every {_DAYS[int(text)]}"
    return f"every {_SHORT[text]}" if text in _SHORT else None
