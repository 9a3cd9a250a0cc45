"""Calls a synchronous object from an event loop.

Each asynchronous class wraps a synchronous class. The descriptors of this module define its methods, and copy their
names, parameters and types from the synchronous class.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial, update_wrapper
from itertools import islice
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from waterclock._support.closing import Closing
from waterclock._support.quoting import quoted
from waterclock.aio.threads import CallThreads
from waterclock.errors import InvalidArgumentError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S")
_Sync = TypeVar("_Sync")
_Closing = TypeVar("_Closing", bound=Closing)

_ITEMS_A_CALL = 500  # items that an iterator fetches from its thread at once: a call takes 50 µs, a message 2 µs


class Facade(Generic[_Sync]):
    """An asynchronous object that wraps a synchronous one."""

    def __init__(self, sync: _Sync, threads: CallThreads) -> None:
        self.sync = sync  # its methods block
        self.threads = threads  # which call its methods

    def __repr__(self) -> str:
        return f"<aio {self.sync!r}>"

    async def call(
        self,
        method: Callable[..., _R],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        undo: Callable[[_R], object] | None = None,
    ) -> _R:
        """Call a method with its object, in a thread; with ``connection=`` in the caller's transaction, in the loop.

        Raises `InvalidArgumentError` if ``connection`` is not one of SQLAlchemy's asynchronous ones.
        """
        connection = kwargs.get("connection")
        if connection is None:
            return await self.threads.call(partial(method, self.sync, *args, **kwargs), undo)
        run_sync = getattr(connection, "run_sync", None)
        if run_sync is None or isinstance(connection, type):
            kind = connection if isinstance(connection, type) else type(connection)
            raise InvalidArgumentError(
                "connection must be an AsyncConnection or AsyncSession of SQLAlchemy,"
                f" got {quoted(f'{kind.__module__}.{kind.__qualname__}')}"
            )
        return await run_sync(lambda own: method(self.sync, *args, **(kwargs | {"connection": own})))


class ClosedAtExit(Facade[_Closing]):
    """A facade that is closed at the end of its ``async with``."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.threads.call(self.sync.close, is_owed=True)


class FacadeMethod(Generic[_P, _R]):
    """A method with the name and the parameters of a synchronous one; ``bind`` builds it for an object."""

    def __init__(self, method: Callable[..., Any], bind: Callable[[Any], Callable[_P, _R]]) -> None:
        self._method = method
        self._bind = bind
        update_wrapper(self, method)  # type: ignore[arg-type]  # this object is called like the method, through __get__

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...
    @overload
    def __get__(self, facade: Facade[Any], owner: type) -> Callable[_P, _R]: ...

    def __get__(self, facade: Facade[Any] | None, owner: type) -> Self | Callable[_P, _R]:
        return self if facade is None else update_wrapper(self._bind(facade), self._method)


def awaited(method: Callable[Concatenate[Any, _P], _R]) -> FacadeMethod[_P, Coroutine[Any, Any, _R]]:
    """Build a method that is awaited."""
    return awaited_as(method, lambda _, found: found)


def awaited_as(
    method: Callable[Concatenate[Any, _P], _R],
    wrap: Callable[[Any, _R], _S],
    undo: Callable[[_R], object] | None = None,
) -> FacadeMethod[_P, Coroutine[Any, Any, _S]]:
    """Build a method that is awaited, and whose result is wrapped in an asynchronous object."""

    def bind(facade: Facade[Any]) -> Callable[_P, Coroutine[Any, Any, _S]]:
        async def call(*args: _P.args, **kwargs: _P.kwargs) -> _S:
            return wrap(facade, await facade.call(method, args, kwargs, undo))

        return call

    return FacadeMethod(method, bind)


class AwaitedProperty(Generic[_Sync, _R]):
    """A property that queries the database: ``await topic.head``."""

    def __init__(self, read: Callable[[_Sync], _R]) -> None:
        self._read = read

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...
    @overload
    def __get__(self, facade: Facade[Any], owner: type) -> Coroutine[Any, Any, _R]: ...

    def __get__(self, facade: Facade[Any] | None, owner: type) -> Self | Coroutine[Any, Any, _R]:
        return self if facade is None else facade.call(self._read, (), {})


class Plain(Generic[_Sync, _R]):
    """A property that is known without a query."""

    def __init__(self, read: Callable[[_Sync], _R]) -> None:
        self._read = read

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...
    @overload
    def __get__(self, facade: Facade[Any], owner: type) -> _R: ...

    def __get__(self, facade: Facade[Any] | None, owner: type) -> Self | _R:
        return self if facade is None else self._read(facade.sync)


def iterated(
    method: Callable[Concatenate[Any, _P], Iterator[_R]], items_a_call: int = _ITEMS_A_CALL
) -> FacadeMethod[_P, AsyncIterator[_R]]:
    """Build a method whose iterator is iterated with ``async for``."""

    def bind(facade: Facade[Any]) -> Callable[_P, AsyncIterator[_R]]:
        async def iterate(*args: _P.args, **kwargs: _P.kwargs) -> AsyncIterator[_R]:
            threads = facade.threads
            items: Iterator[_R] = await threads.call(partial(method, facade.sync, *args, **kwargs))
            running = threading.Lock()  # a call continues in its thread after its await was cancelled

            def some() -> list[_R]:
                with running:
                    return list(islice(items, items_a_call))

            def close() -> None:
                with running:
                    items.close()  # type: ignore[attr-defined]  # reads are generators

            try:
                while found := await threads.call(some):
                    for item in found:
                        yield item
            finally:
                threads.submit(close)

        return iterate

    return FacadeMethod(method, bind)
