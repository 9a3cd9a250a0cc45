"""``waterclock serve`` serves topics and message tables over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from waterclock.cli.terminal.common import Common, log_to_stderr
from waterclock.cli.terminal.log_format import LogOptions

if TYPE_CHECKING:
    from waterclock.server.access import Policy

_TIMEOUT = "5s"


def serve(
    *,
    listen: str = "127.0.0.1:8040",
    read_only: Annotated[bool, Parameter(negative="")] = False,
    require_token: Annotated[bool, Parameter(negative="")] = False,
    rate_limit: int | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    log: LogOptions = LogOptions(),
    common: Common = Common(),
) -> None:
    """Serve topics and message tables over HTTP.

    On a loopback address, programs on this machine need no token. On any other address, every request needs a token;
    see 'waterclock token'. The log on stderr records each change and its author. SIGTERM and SIGINT end the server; a
    second signal ends the server immediately.

    Parameters
    ----------
    listen
        HOST:PORT; port 0 takes a free one.
    read_only
        Refuse every change.
    require_token
        Also ask programs on this machine for a token, for example behind a proxy.
    rate_limit
        Maximum requests per second of each token, 500 by default; further requests get status 429.
    certificate
        File with a TLS certificate, in PEM.
    key
        File with the certificate's private key, in PEM.
    """
    from waterclock.connection import connect
    from waterclock.server.serving import serve as serve_database
    from waterclock.server.tokens import list_tokens

    output = log.output(common)

    def say(url: str, policy: Policy) -> None:
        output.talk(f"serving {database.backend.name} at {url}")
        if policy.on_loopback:
            return
        if not url.startswith("https:"):
            output.talk("warning: tokens travel unencrypted. Use --certificate and --key, or a proxy with TLS")
        if not list_tokens(database.backend):
            output.talk("no token exists yet. Create one: waterclock token add NAME --read topic:NAME")

    with connect(common.database_url, common.ledgers, create=False, timeout=_TIMEOUT) as database:
        log_to_stderr(as_json=common.json or output.logs)
        serve_database(
            database,
            listen,
            require_token=require_token,
            read_only=read_only,
            rate_limit=rate_limit,
            certificate=certificate,
            key=key,
            started=say,
        )
