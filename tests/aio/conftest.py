from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from waterclock import aio


class Run(Protocol):
    def __call__(self, use: Callable[[aio.Database], Awaitable[Any]], *, threads: int = 4) -> Any: ...


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Run:
    """Run a coroutine with a database of its loop."""

    def run(use: Callable[[aio.Database], Awaitable[Any]], *, threads: int = 4) -> Any:
        async def main() -> Any:
            async with await aio.connect(database_url, tmp_path / "ledgers", threads=threads) as database:
                return await use(database)

        return asyncio.run(main())

    return run
