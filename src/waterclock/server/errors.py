"""Converts errors to responses. A caller's mistake returns our error text; other failures reveal no internals."""

from __future__ import annotations

import logging
import secrets
from typing import Any

from fastapi.exceptions import RequestValidationError
from sqlalchemy import exc
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from waterclock._support.log_events import event
from waterclock._support.quoting import cut, in_a_line, said_of
from waterclock.database.backend import Backend
from waterclock.errors import (
    AlreadyExistsError,
    ConstraintError,
    DamagedError,
    InvalidArgumentError,
    LeaseLostError,
    NotFoundError,
    OrderError,
    ProducerFencedError,
    SchemaError,
    UnavailableError,
    WaterclockError,
)

_KINDS: dict[type[Exception], tuple[int, str, str]] = {
    NotFoundError: (404, "not_found", "it was not found"),
    AlreadyExistsError: (409, "already_exists", "it exists already"),
    InvalidArgumentError: (400, "invalid", "the database does not accept this value"),
    SchemaError: (400, "invalid_schema", "the columns differ from the required columns"),
    LeaseLostError: (409, "lease_lost", "the lease was lost"),
    OrderError: (409, "out_of_order", "an earlier message of the group is not acked"),
    ProducerFencedError: (409, "producer_fenced", "a newer instance of the producer has taken over"),
    ConstraintError: (409, "constraint", "the database refused the change because of a constraint"),
    DamagedError: (500, "damaged", "stored messages are corrupt. Run 'waterclock topic verify' on the server"),
    UnavailableError: (503, "unavailable", "the database or a store cannot be reached now. Try again"),
    WaterclockError: (500, "refused", "the database refused the statement"),
    Exception: (500, "internal", "the server failed"),
}
"""Status, code, and the text that is sent if the error's own text may contain a driver's text, a path or an address."""

_FAILED = 500
_GENERAL = {"Not Found": "no page or route has this path", "Method Not Allowed": "this path does not take this method"}
"""The text that is sent instead of each detail of the framework's own."""

_STATUS_CODES = {401: "signed_out", 403: "forbidden", 404: "not_found", 413: "too_large", 429: "too_many"}

_log = logging.getLogger(__name__)


def error_response(error: Exception, backend: Backend, *, suggests: bool) -> JSONResponse:
    """Return the response to an error.

    Parameters
    ----------
    suggests
        Whether a text may suggest names that the request does not contain.
    """
    status, code, general = next(_KINDS[kind] for kind in type(error).__mro__ if kind in _KINDS)
    text = general if _shows_inside(error, status) else str(error).replace(backend.name, "the database")
    if not suggests:
        text = text.partition("; did you mean")[0]
    content: dict[str, Any] = {"error": code, "message": cut(text)}
    if status >= _FAILED:
        content["reference"] = secrets.token_hex(4)
        trace = error if status == _FAILED else None
        _log.error(
            "request failed, reference %s: %s",
            content["reference"],
            in_a_line(said_of(error)),
            exc_info=trace,
            extra=event("request_failed", reference=content["reference"], status=status),
        )
    if isinstance(error, OrderError) and error.blocking_id is not None:
        content["blocking_id"] = str(error.blocking_id)
    return JSONResponse(content, status)


def _shows_inside(error: Exception, status: int) -> bool:
    """Return whether an error's text may contain more than the request and the catalogue."""
    return status >= _FAILED or isinstance(error.__cause__ or error.__context__, exc.SQLAlchemyError)


def http_error(error: HTTPException) -> JSONResponse:
    """Return the response to an error that has a status."""
    code = _STATUS_CODES.get(error.status_code, "refused")
    text = _GENERAL.get(error.detail, error.detail)
    return JSONResponse({"error": code, "message": text}, error.status_code, error.headers)


def validation_error(error: RequestValidationError) -> JSONResponse:
    """Return the response to a request of another form; without its values, which may be large or secret."""
    problems = [{"where": cut(".".join(map(str, one["loc"]))), "problem": one["msg"]} for one in error.errors()[:20]]
    text = "the request has an invalid form; see problems"
    return JSONResponse({"error": "invalid", "message": text, "problems": problems}, 422)
