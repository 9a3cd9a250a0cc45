"""``waterclock token`` manages the tokens of ``waterclock serve``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from waterclock.cli.terminal.common import Common
from waterclock.time import format_time

app = App(name="token")

_Objects = Annotated[list[str] | None, Parameter(negative="")]


@app.command
def add(
    name: str,
    /,
    *,
    read: _Objects = None,
    append: _Objects = None,
    put: _Objects = None,
    receive: _Objects = None,
    manage: _Objects = None,
    expires: str | None = None,
    common: Common = Common(),
) -> None:
    """Create a token and print it. It is stored as a hash and cannot be shown again.

    Each right is topic:NAME, table:NAME, topic:* or table:*, and may be given several times. No right includes another.

    Parameters
    ----------
    name
        Its name, which the audit log shows.
    read
        Read messages, and the state of topics and message tables.
    append
        Append messages to a topic.
    put
        Put messages into a message table.
    receive
        Take messages of a table and ack them, or read a topic with subscriptions.
    manage
        Create, change and remove: options, pauses, retries, groups, schedules, seeks.
    expires
        When it expires, for example 90d or 2027-01-01T00:00:00Z; never unless given.
    """
    with common.connect() as database:
        from waterclock.server.rights import Right
        from waterclock.server.tokens import add_token

        given = {"read": read, "append": append, "put": put, "receive": receive, "manage": manage}
        rights = [Right.parse(verb, on) for verb, objects in given.items() for on in objects or ()]
        token = add_token(database.backend, name, rights, expires)
        common.output.rows([{"token": token}], ("token",))
        common.output.talk(f"created token {name}. Store the token now: it cannot be shown again")


@app.command
def ls(*, common: Common = Common()) -> None:
    """List the tokens with their rights, without their secrets."""
    with common.connect() as database:
        from waterclock.server.tokens import list_tokens

        now = database.backend.now()
        rows = [
            {
                "name": token.name,
                "rights": ", ".join(map(str, token.rights)),
                "created_at": format_time(token.created_at),
                "expires_at": None if token.expires_at is None else format_time(token.expires_at),
                "expired": token.expires_at is not None and token.expires_at <= now,
            }
            for token in list_tokens(database.backend)
        ]
        common.output.rows(rows, ("name", "rights", "created_at", "expires_at", "expired"))


@app.command
def rm(name: str, /, *, common: Common = Common()) -> None:
    """Remove a token. Servers refuse it within a second. Exit code 1 if it does not exist."""
    with common.connect() as database:
        from waterclock.server.tokens import remove_token

        remove_token(database.backend, name)
        common.output.talk(f"token {name} is removed")
