"""Controls access: finds the sender and the rights of each request, and refuses requests from other hosts and sites."""

from __future__ import annotations

import ipaddress
import logging
import re
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock._support.quoting import in_a_line, quoted
from waterclock.connection import Database
from waterclock.errors import WaterclockError
from waterclock.server.errors import error_response, http_error
from waterclock.server.limits import MAX_REQUESTS, RequestRates, WrongTokens
from waterclock.server.opened_tables import OpenedTables
from waterclock.server.rights import Client, Kind, Verb
from waterclock.server.tokens import find_token, is_token
from waterclock.tables.message_table import MessageTable
from waterclock.topics.topic import Topic

OPEN_PATHS = frozenset({"/livez", "/readyz", "/login", "/logout"})
"""Paths for probes and sign-in, which need no token and show no other data."""

_STATIC = "/static/"
_API = "/api/"

COOKIE = "waterclock"
"""The cookie with the token of a signed-in browser.

Only pages accept it: their forms have a separate token against CSRF.
"""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITE = frozenset({"same-origin", "none"})
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+)(?::[0-9]*)?")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_LOCAL = Client("local", None)
NOBODY = Client("-", frozenset())
"""The sender of requests to paths that need no token."""

_CACHED_FOR = 1.0
"""Seconds for which a token's look-up is cached. It needs a thread, and takes longer than many requests."""

_MOST_CACHED = 1_000
_SIGNED_OUT = 401

_audit = logging.getLogger("waterclock.server.audit")


@dataclass(frozen=True, slots=True)
class Policy:
    """What a server allows."""

    on_loopback: bool = True  # whether it listens on a loopback address, where callers are on this machine
    require_token: bool = False  # whether callers on this machine need a token, too
    read_only: bool = False  # whether it refuses all changes
    rate_limit: int = MAX_REQUESTS  # maximum requests per second of each token


@dataclass(slots=True)
class Act:
    """One request on a topic or table, for its handler and the audit log."""

    caller: Client
    database: Database
    tables: OpenedTables
    verb: Verb
    kind: Kind
    name: str
    rows: int | None = None  # how many messages or other objects it changed; None: not counted
    details: dict[str, Any] = field(default_factory=dict[str, Any])  # the arguments that its path does not show

    def topic(self) -> Topic:
        """Open the topic."""
        return self.database.topic(self.name)

    def table(self) -> MessageTable:
        """Open the message table."""
        return self.tables.table(self.name)

    def require(self, verb: Verb, kind: Kind, name: str) -> None:
        """Refuse the request unless its caller has another right, too."""
        if not self.caller.may(verb, kind, name):
            raise HTTPException(403, f"token {quoted(self.caller.name)} may not {verb} {kind} {quoted(name)}")


def _begin(request: Request, verb: Verb, kind: Kind, name: str) -> Act:
    state = request.app.state
    act = Act(request.state.caller, state.database, state.tables, verb, kind, name)
    if verb != "read":
        request.state.act = act
        if state.policy.read_only:
            raise HTTPException(403, "this server is read-only")
        if request.state.is_foreign:  # also a GET: a page that shows a stream as an image would take messages
            raise _foreign()
    act.require(verb, kind, name)
    return act


def _on_topic(verb: Verb) -> Any:
    async def begin(request: Request, topic: str) -> Act:
        return _begin(request, verb, "topic", topic)

    return Depends(begin)


def _on_table(verb: Verb) -> Any:
    async def begin(request: Request, table: str) -> Act:
        return _begin(request, verb, "table", table)

    return Depends(begin)


ReadTopic = Annotated[Act, _on_topic("read")]
AppendTopic = Annotated[Act, _on_topic("append")]
ReceiveTopic = Annotated[Act, _on_topic("receive")]
ManageTopic = Annotated[Act, _on_topic("manage")]
ReadTable = Annotated[Act, _on_table("read")]
PutTable = Annotated[Act, _on_table("put")]
ReceiveTable = Annotated[Act, _on_table("receive")]
ManageTable = Annotated[Act, _on_table("manage")]


async def _caller(request: Request) -> Client:
    return request.state.caller


AnyClient = Annotated[Client, Depends(_caller)]
"""For lists that show only objects that the caller may read."""


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def asks_for_page(path: str, headers: Headers) -> bool:
    """Return whether a browser shows the response as a page."""
    return "text/html" in headers.get("accept", "") and not path.startswith(_API)


class Access:
    """Identifies the sender of a request, and writes the audit log.

    On a loopback address, every caller has all rights, because other programs on this machine could read the database
    anyway. Web pages must not have these rights: their requests name another host (DNS rebinding) or come from another
    origin (CSRF).
    """

    def __init__(self, app: ASGIApp, database: Database, policy: Policy, known: KnownTokens) -> None:
        self._app = app
        self._backend = database.backend
        self._policy = policy
        self._known = known
        self._rates = RequestRates(policy.rate_limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, address = Headers(scope=scope), address_of(scope)
        try:
            _check_length(headers)
            is_foreign = self._check_origin(scope, headers)
            caller, credential = await self._find_caller(scope["path"], headers, address)
            if caller.rights:  # callers of this machine need no token
                self._rates.check(caller.name, moments.monotonic())
        except HTTPException as error:
            await _refusal(error, scope, headers)(scope, receive, send)
            return
        except WaterclockError as error:
            await error_response(error, self._backend, suggests=False)(scope, receive, send)
            return
        again = partial(self._find_caller, scope["path"], headers, address)
        facts = {"caller": caller, "credential": credential, "is_foreign": is_foreign, "find_caller_again": again}
        state: dict[str, Any] = {**scope.get("state", {}), **facts}
        status = 0

        async def send_noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app({**scope, "state": state}, receive, send_noting)
        finally:
            if "act" in state:
                _note(state["act"], scope, status)

    def _check_origin(self, scope: Scope, headers: Headers) -> bool:
        """Return whether another site sent it; if so, refuse it unless it only reads."""
        host = headers.get("host", "")
        parts = _HOST.fullmatch(host)
        if self._policy.on_loopback and not (parts and is_loopback(parts[1])):
            raise HTTPException(403, "the header Host must name localhost or a loopback address")
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        is_foreign = site not in _OWN_SITE if site is not None else origin is not None and not _is_at(origin, host)
        if is_foreign and scope["method"] not in _SAFE:
            raise _foreign()
        return is_foreign

    async def _find_caller(self, path: str, headers: Headers, address: str) -> tuple[Client, str | None]:
        """Return the sender, and its cookie's token if it signed in with one."""
        policy = self._policy
        given = headers.get("authorization")
        cookie = None if path.startswith(_API) else cookie_parser(headers.get("cookie", "")).get(COOKIE)
        is_open = policy.on_loopback and not policy.require_token and not is_forwarded(headers)
        if given is None and is_open:
            return _LOCAL, None
        scheme, _, text = (given or "").partition(" ")
        if scheme.lower() == "bearer" and (caller := await self._known.find(text.strip(), address)) is not None:
            return caller, None
        if given is None and cookie and (caller := await self._known.find(cookie, address)) is not None:
            return caller, cookie
        if path in OPEN_PATHS or path.startswith(_STATIC):
            return NOBODY, None
        raise HTTPException(
            401, "a valid token is missing. Send the header Authorization: Bearer …", {"WWW-Authenticate": "Bearer"}
        )


def _refusal(error: HTTPException, scope: Scope, headers: Headers) -> Response:
    """Return the response to a refused request: a browser without a token gets the form to sign in."""
    if error.status_code == _SIGNED_OUT and scope["method"] == "GET" and asks_for_page(scope["path"], headers):
        query = scope["query_string"].decode("ascii", "replace")
        wanted = f"{scope['path']}?{query}" if query else scope["path"]
        return RedirectResponse(f"/login?next={quote(wanted, safe='')}", 303)
    return http_error(error)


def _check_length(headers: Headers) -> None:
    """Refuse a body of two lengths, and close its connection: a proxy may see another request after it."""
    if "content-length" in headers and "transfer-encoding" in headers:
        text = "the request must have one of Content-Length and Transfer-Encoding, got both"
        raise HTTPException(400, text, {"Connection": "close"})


def _foreign() -> HTTPException:
    return HTTPException(403, "requests from other sites are refused")


def _is_at(origin: str, host: str) -> bool:
    _, colon, place = origin.partition("://")
    return bool(colon) and place.lower() == host.lower()


def address_of(scope: Scope) -> str:
    """Return the address of a request's sender, or of the proxy before it."""
    return scope["client"][0] if scope.get("client") else ""


def is_forwarded(headers: Headers) -> bool:
    """Return whether a proxy on this machine sent it, whose clients may be anywhere."""
    return any(name in headers for name in _FORWARDED)


def _note(act: Act, scope: Scope, status: int) -> None:
    """Write an act to the audit log, also one that was refused."""
    asked = {name: value for name, value in act.details.items() if value is not None}
    _audit.info(
        "%s %s %s:%s, %s %s%s: status %d, %s",
        in_a_line(act.caller.name),
        act.verb,
        act.kind,
        in_a_line(act.name),
        scope["method"],
        in_a_line(scope["path"]),
        f" {in_a_line(quoted(asked))}" if asked else "",
        status,
        "rows not counted" if act.rows is None else f"{act.rows} rows",
        extra=event(
            "request",
            caller=act.caller.name,
            verb=act.verb,
            kind=act.kind,
            name=act.name,
            details=asked,
            status=status,
            rows=act.rows,
        ),
    )


class KnownTokens:
    """The callers of tokens, each looked up at most once a second, and wrong tokens up to a limit."""

    def __init__(self, database: Database) -> None:
        self._backend = database.backend
        self._lock = threading.Lock()
        self._callers: dict[str, tuple[float, Client]] = {}
        self._wrong = WrongTokens()

    async def find(self, text: str, address: str) -> Client | None:
        """Return the caller of a token; None if the token is invalid."""
        if not is_token(text):
            return None
        now = moments.monotonic()
        with self._lock:
            until, caller = self._callers.get(text, (now, NOBODY))
        if until > now:
            return caller
        if self._wrong.is_known(address, text, now):
            return None
        if caller is NOBODY:  # a token that was valid lately is looked up whatever others behind the proxy send
            self._wrong.check(address, now)
        token = await run_in_threadpool(find_token, self._backend, text)
        if token is None:
            self._wrong.note(address, text, now)
            return None
        caller = Client(token.name, frozenset(token.rights))
        with self._lock:
            if len(self._callers) >= _MOST_CACHED:
                self._callers.clear()
            self._callers[text] = now + _CACHED_FOR, caller
        return caller
