"""Routes that create, show, pause, run and remove the schedules of message tables."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field, StrictInt, StrictStr

from waterclock.server.access import ManageTable, ReadTable
from waterclock.server.api.formats import shapes
from waterclock.server.api.formats.bodies import Body, DurationValue
from waterclock.server.api.formats.payloads import payload_of
from waterclock.tables.messages.putting.scheduling import unknown_schedule

router = APIRouter(tags=["schedules"], prefix="/tables/{table:name}/schedules")


class ScheduleBody(Body):
    """A schedule, as in `MessageTable.schedule`. In a table of bytes, the payload is ``payload_base64``."""

    cron: StrictStr = Field(max_length=1_000)
    payload: Any = None
    payload_base64: StrictStr | None = None
    timezone: StrictStr = Field("UTC", max_length=255)
    catch_up: Literal["none", "one", "all"] = "none"
    within: DurationValue | None = None
    overlap: Literal["run", "skip"] = "run"
    group: StrictStr | None = None
    headers: dict[str, StrictStr] | None = None
    priority: StrictInt = 0


@router.get("")
def list_schedules(act: ReadTable) -> list[dict[str, Any]]:
    """List the schedules of a table."""
    table = act.table()
    return [shapes.schedule(table.options.payload, one) for one in table.schedules()]


@router.put("/{schedule:name}")
def set_schedule(act: ManageTable, schedule: str, body: ScheduleBody) -> dict[str, Any]:
    """Create a schedule, or change it."""
    table = act.table()
    rule = body.given()
    rule["payload"] = payload_of(rule)
    act.details = {"schedule": schedule, "cron": body.cron, "timezone": body.timezone}
    table.schedule(schedule, **rule)
    found = next(one for one in table.schedules() if one.name == schedule)
    return shapes.schedule(table.options.payload, found)


@router.delete("/{schedule:name}")
def remove_schedule(act: ManageTable, schedule: str) -> dict[str, Any]:
    """Remove a schedule; messages it has put stay."""
    table = act.table()
    if not table.unschedule(schedule):
        raise unknown_schedule(act.name, schedule, [one.name for one in table.schedules()])
    act.rows = 1
    return {"removed": schedule}


@router.post("/{schedule:name}/run")
def run(act: ManageTable, schedule: str) -> dict[str, Any]:
    """Put the schedule's message now."""
    message_id = act.table().schedules.run(schedule)
    act.rows = 1
    return {"id": str(message_id)}


@router.post("/{schedule:name}/{command}")
def command(act: ManageTable, schedule: str, command: Literal["pause", "resume", "reset"]) -> dict[str, Any]:
    """Pause a schedule, resume it with its next tick, or reset it after the clock was ahead."""
    schedules = act.table().schedules
    {"pause": schedules.pause, "resume": schedules.resume, "reset": schedules.reset}[command](schedule)
    act.rows = 1
    return {"done": command}
