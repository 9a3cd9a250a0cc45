"""Signs users in with a token, which is then stored in a cookie, and signs them out."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.server.access import COOKIE, address_of, is_forwarded
from waterclock.server.pages.form_tokens import Form
from waterclock.server.pages.frame import page, see_other

_KEPT_FOR = 12 * 3600  # s: a shift

router = APIRouter(include_in_schema=False)


@router.get("/login")
async def show_form(request: Request) -> Response:
    return page(request, "login.html", {"refused": False})


@router.post("/login")
async def sign_in(request: Request, form: Form) -> Response:
    """Keep a valid token in a cookie that no script can read and no other site can send."""
    text = form.get("token", "").strip()
    if await request.app.state.known_tokens.find(text, address_of(request.scope)) is None:
        return page(request, "login.html", {"refused": True}, 401)
    answer = see_other(_own_path(request.query_params.get("next", "")))
    answer.set_cookie(COOKIE, text, max_age=_KEPT_FOR, httponly=True, samesite="strict", secure=_is_secure(request))
    return answer


@router.post("/logout")
async def sign_out(request: Request, form: Form) -> Response:  # noqa: ARG001  # checks the form's token
    answer = see_other("/login")
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=_is_secure(request))
    return answer


def _is_secure(request: Request) -> bool:
    """Return whether the cookie must only be sent encrypted: everywhere except on this machine."""
    return request.url.scheme == "https" or not request.app.state.policy.on_loopback or is_forwarded(request.headers)


def _own_path(wanted: str) -> str:
    r"""Return the path to go to next; ``//host`` and ``/\host`` would lead to another site."""
    return wanted if wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable() else "/"
