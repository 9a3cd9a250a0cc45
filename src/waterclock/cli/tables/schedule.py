"""``waterclock schedule`` manages messages that are put repeatedly, at the times of a cron expression."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from waterclock.cli.tables.payloads import headers_of, payload_of
from waterclock.cli.terminal.common import Common, TableName
from waterclock.cli.terminal.output import span
from waterclock.time import format_duration, format_time

if TYPE_CHECKING:
    from waterclock.tables.messages.putting.scheduling import Schedule

app = App(name="schedule")

_COLUMNS = (
    "table",
    "name",
    "cron",
    "timezone",
    "catch_up",
    "within",
    "overlap",
    "paused",
    "last_tick",
    "next_tick",
    "ahead",
    "payload",
)


@app.command
def add(
    table: TableName,
    name: str,
    payload: str,
    /,
    *,
    cron: str,
    timezone: str = "UTC",
    catch_up: Literal["none", "one", "all"] = "none",
    within: str | None = None,
    overlap: Literal["run", "skip"] = "run",
    group: str | None = None,
    header: Annotated[list[str] | None, Parameter(name="--header", negative="")] = None,
    priority: int = 0,
    common: Common = Common(),
) -> None:
    """Create or change a schedule; it begins with the next tick.

    Parameters
    ----------
    name
        The schedule's name.
    payload
        The payload to put, in a table of JSON as JSON; @FILE takes a file's content, @- standard input.
    cron
        When: minute, hour, day, month and weekday, for example "0 3 * * *", or @daily.
    timezone
        Time zone of these times, for example Europe/Berlin.
    catch_up
        Which missed ticks are put later: none, the last one, or all.
    within
        Skip ticks missed longer ago than this, for example 2d.
    overlap
        skip: nothing is put while the previous message is not acked.
    group
        The messages' group.
    header
        name=text; may be given several times.
    priority
        Higher priorities are sent first.
    """
    with common.connect() as database:
        opened = database.table(table)
        opened.schedule(
            name,
            cron=cron,
            payload=payload_of(opened, payload),
            timezone=timezone,
            catch_up=catch_up,
            within=within,
            overlap=overlap,
            group=group,
            headers=headers_of(header),
            priority=priority,
        )
        common.output.talk(f"created or updated schedule {name} of {table}")


@app.command
def ls(table: str | None = None, /, *, common: Common = Common()) -> None:
    """List the schedules of a table, or of all."""
    with common.connect() as database:
        names = database.tables() if table is None else [table]
        found = [(name, one) for name in names for one in database.table(name).schedules()]
        common.output.rows([_shown(name, one) for name, one in found], _COLUMNS)
        for name, one in found:
            if one.ahead is not None and not one.paused:
                common.output.talk(
                    f"schedule {one.name} of {name} puts nothing for {span(one.ahead)}: the database's clock was ahead"
                    f" at its last tick. Run 'waterclock schedule reset {name} {one.name}'"
                )


@app.command
def pause(table: str, name: str, /, *, common: Common = Common()) -> None:
    """Put nothing until the schedule is resumed."""
    with common.connect() as database:
        database.table(table).schedules.pause(name)
        common.output.talk(f"schedule {name} is paused")


@app.command
def resume(table: str, name: str, /, *, common: Common = Common()) -> None:
    """Resume a schedule with its next tick."""
    with common.connect() as database:
        database.table(table).schedules.resume(name)
        common.output.talk(f"schedule {name} is resumed")


@app.command
def reset(table: str, name: str, /, *, common: Common = Common()) -> None:
    """Restart with the next tick, after the database's clock was ahead and was set back."""
    with common.connect() as database:
        database.table(table).schedules.reset(name)
        common.output.talk(f"schedule {name} starts with its next tick")


@app.command
def run(table: str, name: str, /, *, common: Common = Common()) -> None:
    """Put the schedule's message now, and print its id."""
    with common.connect() as database:
        common.output.rows([{"id": str(database.table(table).schedules.run(name))}], ("id",))


@app.command
def rm(table: str, name: str, /, *, common: Common = Common()) -> None:
    """Remove a schedule; its messages stay. Exit code 1 if it does not exist."""
    with common.connect() as database:
        from waterclock.tables.messages.putting.scheduling import unknown_schedule

        opened = database.table(table)
        if not opened.unschedule(name):
            raise unknown_schedule(table, name, [one.name for one in opened.schedules()])
        common.output.talk(f"schedule {name} is removed")


def _shown(table: str, one: Schedule) -> dict[str, Any]:
    times = {
        name: None if (at := getattr(one, name)) is None else format_time(at) for name in ("last_tick", "next_tick")
    }
    within = None if one.within is None else format_duration(one.within)
    return {"table": table, **asdict(one), **times, "within": within, "ahead": span(one.ahead)}
