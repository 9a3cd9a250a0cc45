"""Routes that show and manage the groups of message tables. Every command has a ``dry_run``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from pydantic import Field, StrictStr

from waterclock.server.access import Act, ManageTable, ReadTable
from waterclock.server.api.formats import shapes
from waterclock.server.api.formats.bodies import Body, Limit, TimeValue
from waterclock.server.shared_reads import shared
from waterclock.tables.message_groups import MessageGroups
from waterclock.tables.messages.group_admin.group_commands import GroupChange

router = APIRouter(tags=["groups"], prefix="/tables/{table:name}/groups")


class GroupBody(Body):
    """A group; null: the group of messages without one."""

    group: StrictStr | None
    dry_run: bool = Field(False, description="Only return what the command would change")


class ForceBody(GroupBody):
    """A group whose messages in flight may be included."""

    force: bool = False


class SomeBody(ForceBody):
    """A group, or its first messages."""

    count: int | None = Field(None, ge=1)


class MoveBody(SomeBody):
    """Where to move messages: the name of a table, or of a group."""

    to: StrictStr


class PauseGroupBody(GroupBody):
    """Until when nothing of the group is sent; null: until it is resumed."""

    until: TimeValue | None = None


class PinBody(GroupBody):
    """The consumer to assign the group to."""

    consumer: StrictStr


class RebalanceBody(Body):
    """Whether to only return what would change."""

    dry_run: bool = False


@router.get("")
@shared
def list_groups(act: ReadTable, limit: Limit = 100) -> list[dict[str, Any]]:
    """List the first groups by name."""
    return [shapes.group(info) for info in act.table().groups.list(limit)]


@router.get("/one")
@shared
def show_group(act: ReadTable, group: str | None = None) -> dict[str, Any]:
    """Describe a group."""
    return shapes.group(act.table().groups.info(group))


@router.post("/purge")
def purge(act: ManageTable, body: SomeBody) -> dict[str, Any]:
    """Delete unacked messages of a group."""
    return _run(act, body, MessageGroups.purge)


@router.post("/move")
def move(act: ManageTable, body: MoveBody) -> dict[str, Any]:
    """Move messages of a group to another table."""
    act.require("manage", "table", body.to)
    return _run(act, body, MessageGroups.move)


@router.post("/reroute")
def reroute(act: ManageTable, body: MoveBody) -> dict[str, Any]:
    """Append messages of a group to another group."""
    return _run(act, body, MessageGroups.reroute)


@router.post("/pause")
def pause(act: ManageTable, body: PauseGroupBody) -> dict[str, Any]:
    """Send no messages of a group until a time, or until it is resumed."""
    return _run(act, body, MessageGroups.pause)


@router.post("/resume")
def resume(act: ManageTable, body: GroupBody) -> dict[str, Any]:
    """End a group's pause."""
    return _run(act, body, MessageGroups.resume)


@router.post("/close")
def close(act: ManageTable, body: GroupBody) -> dict[str, Any]:
    """Release an exclusive group once none of its messages is in flight."""
    return _run(act, body, MessageGroups.close)


@router.post("/release")
def release(act: ManageTable, body: ForceBody) -> dict[str, Any]:
    """Release a group from its consumer now."""
    return _run(act, body, MessageGroups.release)


@router.post("/pin")
def pin(act: ManageTable, body: PinBody) -> dict[str, Any]:
    """Assign a group to one consumer."""
    return _run(act, body, MessageGroups.pin)


@router.post("/unpin")
def unpin(act: ManageTable, body: GroupBody) -> dict[str, Any]:
    """Unpin a group: any consumer may have it again."""
    return _run(act, body, MessageGroups.unpin)


@router.post("/skip-head")
def skip_head(act: ManageTable, body: ForceBody) -> dict[str, Any]:
    """Ack a group's first message without handling it."""
    return _run(act, body, MessageGroups.skip_head)


@router.post("/rebalance")
def rebalance(act: ManageTable, body: RebalanceBody) -> dict[str, Any]:
    """Share exclusive groups evenly among the live consumers."""
    return _run(act, body, MessageGroups.rebalance)


def _run(act: Act, body: Body, command: Callable[..., GroupChange]) -> dict[str, Any]:
    """Call a command, whose parameters have the names of the body's fields."""
    act.details = body.given()
    change = command(act.table().groups, **dict(body))
    act.rows = 0 if act.details.get("dry_run") else change.done
    return {"done": change.done, "skipped": change.skipped}
