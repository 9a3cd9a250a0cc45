"""The web application: its routes, and the middleware that handles every request."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from waterclock.aio.database import Database as AsyncDatabase
from waterclock.aio.threads import CallThreads
from waterclock.connection import Database
from waterclock.errors import WaterclockError
from waterclock.monitoring.database_facts import FactsReader
from waterclock.monitoring.shared_collection import SharedCollection
from waterclock.server.access import Access, KnownTokens, Policy
from waterclock.server.api import (
    account,
    deliveries,
    groups,
    messages,
    schedules,
    subscriptions,
    tables,
    topic_messages,
    topics,
)
from waterclock.server.api.delivery_streams import DeliveryStreams
from waterclock.server.api.readers import Readers
from waterclock.server.errors import error_response, http_error, validation_error
from waterclock.server.limits import MAX_THREADS, LimitedBodies, PacedResponses, StreamLimit
from waterclock.server.names import RawPaths
from waterclock.server.opened_tables import OpenedTables
from waterclock.server.pages import ingest, live, overview, pipelines, sign_in, static_files, system, workers
from waterclock.server.pages import schedules as schedule_pages
from waterclock.server.pages.frame import error_page
from waterclock.server.pages.tables import actions, message, table, table_list
from waterclock.server.pages.tables import groups as group_pages
from waterclock.server.pages.topics import batches, topic
from waterclock.server.security_headers import SecurityHeaders
from waterclock.server.shared_reads import SharedReads, shared_paths

_RECEIVING_THREADS = 3
_LARGE_READS = 3
_READY_WITHIN = 2.0  # s
_FACTS_WITHIN = 5.0  # s

_ROUTERS = (account, topics, topic_messages, subscriptions, tables, messages, deliveries, groups, schedules)
_PAGES = (
    static_files,
    sign_in,
    live,
    overview,
    table_list,
    table,
    message,
    actions,
    group_pages,
    topic,
    batches,
    ingest,
    pipelines,
    workers,
    schedule_pages,
    system,
)


class _Application(FastAPI):
    def build_middleware_stack(self) -> ASGIApp:
        """Put these two layers around everything, including the handler of unexpected errors."""
        return SecurityHeaders(RawPaths(super().build_middleware_stack()))


def create_app(database: Database, policy: Policy) -> FastAPI:
    """Build the application of a database, which stays open when the application ends."""
    threads = CallThreads(_RECEIVING_THREADS)
    opened = AsyncDatabase(database, threads)
    readers = Readers()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        quick = MAX_THREADS - _RECEIVING_THREADS - _LARGE_READS
        anyio.to_thread.current_default_thread_limiter().total_tokens = quick
        app.state.large_reads = anyio.CapacityLimiter(_LARGE_READS)
        yield
        for close in (readers.close, opened.waiting.close, threads.close):
            await run_in_threadpool(close)

    app = _Application(
        title="Waterclock",
        version=version("waterclock"),
        description="Topics and message tables over HTTP. Times are ISO 8601 with offset, or ints of nanoseconds.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the host of the request
        lifespan=lifespan,
    )
    app.state.database = database
    app.state.asynchronous = opened
    app.state.tables = OpenedTables(database)
    app.state.policy = policy
    app.state.stream_limit = StreamLimit()
    app.state.delivery_streams = DeliveryStreams()
    app.state.readers = readers
    app.state.facts = SharedCollection("the state of the database", FactsReader(database.backend).read, _FACTS_WITHIN)
    app.state.form_key = secrets.token_hex(32)
    app.add_middleware(LimitedBodies)
    app.add_middleware(PacedResponses)
    shared_routers = [(module.router, "/api") for module in _ROUTERS] + [(module.router, "") for module in _PAGES]
    app.add_middleware(SharedReads, paths=shared_paths(shared_routers))
    app.state.known_tokens = KnownTokens(database)
    app.add_middleware(Access, database=database, policy=policy, known=app.state.known_tokens)
    _handle_errors(app, database)
    _add_probes(app, database)
    for module in _ROUTERS:
        app.include_router(module.router, prefix="/api")
    for module in _PAGES:
        app.include_router(module.router)
    return app


def _handle_errors(app: FastAPI, database: Database) -> None:
    async def on_error(request: Request, error: Exception) -> Response:
        caller = getattr(request.state, "caller", None)
        suggests = caller is not None and caller.rights is None
        return error_page(request, error_response(error, database.backend, suggests=suggests))

    async def on_http_error(request: Request, error: Any) -> Response:
        return error_page(request, http_error(error))

    async def on_validation_error(request: Request, error: Any) -> Response:
        return error_page(request, validation_error(error))

    app.add_exception_handler(WaterclockError, on_error)
    app.add_exception_handler(Exception, on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)


def _add_probes(app: FastAPI, database: Database) -> None:
    @app.get("/livez", tags=["probes"])
    async def livez() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]  # a route
        """Answer that the process runs."""
        return {"status": "live"}

    @app.get("/readyz", tags=["probes"])
    def readyz() -> Response:  # pyright: ignore[reportUnusedFunction]  # a route
        """Answer whether the database can be read."""
        try:
            with database.backend.patience(_READY_WITHIN):
                database.backend.has_catalogue()
                database.backend.now()
        except WaterclockError:
            return JSONResponse({"status": "the database cannot be reached"}, 503)
        return JSONResponse({"status": "ready"})
