"""Renders pages. A page's function returns plain JSON data, which is rendered as HTML or sent as it is.

A page is ``page(request, "its.html", data)``. ``data`` contains only JSON values, so the page and its JSON version
cannot differ. Templates print every value through `_shown` and the escaping of HTML, so no stored text becomes markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from waterclock.server.access import NOBODY, asks_for_page
from waterclock.server.pages.form_tokens import form_token
from waterclock.server.pages.static_files import static_url
from waterclock.server.pages.topics.pictures import batches_figure, glyph_symbol, topic_figure
from waterclock.server.rights import Client, Kind, Verb
from waterclock.time import to_time

NAVIGATION = (
    ("/", "Overview"),
    ("/tables", "Tables"),
    ("/topics", "Topics"),
    ("/ingest", "Ingest"),
    ("/pipelines", "Pipelines"),
    ("/workers", "Workers"),
    ("/schedules", "Schedules"),
    ("/system", "System"),
)

_SIZES = (("d", 86_400), ("h", 3_600), ("min", 60))
_NO_BREAK = "\N{NO-BREAK SPACE}"
_UNREACHABLE = 503


class PageFrame:
    """The data of a page's frame, in addition to the page's own."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.caller: Client = getattr(request.state, "caller", NOBODY)
        self.navigation = NAVIGATION
        self.path = request.url.path
        self.read_only: bool = request.app.state.policy.read_only
        self.query = request.query_params
        self.signed_in = getattr(request.state, "credential", None) is not None

    @property
    def known(self) -> bool:
        """Whether the caller may see anything."""
        return self.caller is not NOBODY

    @property
    def token(self) -> str:
        """The token that every form sends back."""
        return form_token(self._request)

    def here(self, path: str) -> bool:
        """Return whether a part of the navigation holds this page."""
        return self.path == path or (path != "/" and self.path.startswith(f"{path}/"))

    def url(self, **changes: str | int | None) -> str:
        """Return this page's URL with other values of its query; None removes one."""
        query: dict[str, Any] = {**self._request.query_params, **changes}
        for name in ("done", "rows"):
            query.pop(name, None)
        return f"?{urlencode({name: value for name, value in query.items() if value is not None})}"

    def selection(self, chosen: Mapping[str, str | None]) -> str:
        """Return the query of the given parts of a selection."""
        return urlencode({name: value for name, value in chosen.items() if value is not None})

    def done(self) -> tuple[str, str] | None:
        """Return which form led here and how many objects it changed, for a sentence about it."""
        query = self._request.query_params
        rows = query.get("rows", "")
        return (query["done"], rows) if "done" in query and rows.isdecimal() and rows.isascii() else None

    def may(self, verb: Verb, kind: Kind, name: str) -> bool:
        """Return whether the caller may do something here, to leave out forms that would be refused."""
        return (verb == "read" or not self.read_only) and self.caller.may(verb, kind, name)


def page(request: Request, template: str, data: Mapping[str, Any], status: int = 200) -> Response:
    """Return a page, or its data as JSON if the request asks for that.

    Parameters
    ----------
    template
        A file of ``templates``, which gets the data's items as names, and the `PageFrame` as ``frame``.
    data
        Any value that JSON can hold.
    """
    accepted = request.headers.get("accept", "")
    if _asks_for_json(request) or ("application/json" in accepted and "text/html" not in accepted):
        return JSONResponse(data, status)
    return HTMLResponse(_templates.get_template(template).render(data, data=data, frame=PageFrame(request)), status)


def see_other(path: str, **query: str | int) -> Response:
    """Return the redirection to the page that shows the outcome of a form."""
    return RedirectResponse(f"{path}?{urlencode(query)}" if query else path, 303)


def error_page(request: Request, response: JSONResponse) -> Response:
    """Return an error's response as a page if a page was asked for."""
    if _asks_for_json(request) or not asks_for_page(request.scope["path"], request.headers):
        return response
    shown = {"status": response.status_code, **json.loads(bytes(response.body))}
    shown["tries_again"] = response.status_code == _UNREACHABLE
    html = page(request, "error.html", shown, response.status_code)
    html.headers.update({name: value for name, value in response.headers.items() if name == "retry-after"})
    return html


def _asks_for_json(request: Request) -> bool:
    return request.query_params.get("format") == "json"


def name_url(name: str) -> str:
    """Encode a name as one part of a path."""
    return quote(name, safe="")


def _shown(value: object) -> object:
    """Return what a template prints: control characters as escapes, and a dash for a missing value."""
    if value is None:
        return "\N{EN DASH}"
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(
        each if each.isprintable() or each in ("\n", _NO_BREAK) else each.encode("unicode_escape").decode()
        for each in value
    )


def _time(value: str | None) -> object:
    """Return a time as an element that the page's script shows in the reader's zone."""
    if value is None or value == "never":
        return value
    ns = to_time(value)
    text = f"{value[:19].replace('T', ' ')} UTC"
    return Markup('<time datetime="{}" title="{} · {} ns">{}</time>').format(value, value, ns, text)


def _age(seconds: float | None) -> str | None:
    """Return a length of time in its two largest units; no line ends between a number and its unit."""
    if seconds is None:
        return None
    if seconds < _SIZES[-1][1]:
        short = f"{seconds:.0f} s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:.0f} ms"
        return short.replace(" ", _NO_BREAK)
    parts: list[str] = []
    left = int(seconds)
    for unit, size in (*_SIZES, ("s", 1)):
        if left >= size or parts:
            parts.append(f"{left // size}{_NO_BREAK}{unit}")
            left %= size
    return " ".join(parts[:2])


def _number(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _counted(found: Mapping[str, Any]) -> str:
    """Return a count that stops at a limit: ``{"count": 1000, "more": true}``."""
    return f"{'more than ' if found['more'] else ''}{found['count']:,}"


def _sentence(clause: str) -> str:
    """Return a clause, which errors and commands join to others, as a sentence of its own."""
    return f"{clause[:1].upper()}{clause[1:]}." if clause else ""


def _made() -> Environment:
    made = Environment(
        loader=PackageLoader("waterclock.server.pages"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = made.filters
    filters.update(time=_time, age=_age, number=_number, counted=_counted, name=name_url, sentence=_sentence)
    filters.update(topic_figure=topic_figure, batches_figure=batches_figure, glyph_symbol=glyph_symbol)
    names: dict[str, Any] = made.globals
    names["static"] = static_url
    return made


_templates = _made()
