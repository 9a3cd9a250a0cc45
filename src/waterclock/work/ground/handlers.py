"""Finds a worker's handlers: functions for messages of one kind, or for all messages.

A message's kind is its header ``kind``. The parameters of a handler decide its arguments.
"""

from __future__ import annotations

import asyncio
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack, suppress
from typing import Any

from waterclock import tracing
from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue.selection import KIND
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.payloads.reading import MisfitError, read_payload
from waterclock.tables.payloads.supported import why_unreadable
from waterclock.work.ground.outcomes import DeadLetter, HandlerSays

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Handler = Callable[..., Any]
Given = Handler | Mapping[str, Handler]
Entered = AbstractContextManager[Given] | AbstractAsyncContextManager[Given]


class BoundHandler:
    """A function and the arguments that it takes."""

    def __init__(self, function: Handler) -> None:
        if not callable(function):
            raise InvalidArgumentError(f"handler must be a function, got {quoted(function)}")
        self.name: str = getattr(function, "__qualname__", None) or type(function).__name__  # its name in logs
        self.is_async = _is_async(function)  # whether calling it returns a coroutine
        self._function = function
        self._wants = _wants(function, self.name)

    def __call__(self, delivery: Delivery) -> Any:
        """Call the function; an asynchronous one returns a coroutine.

        Raises `DeadLetter` if the payload is not of the type that the function takes.
        """
        try:
            given = [delivery if kind is Delivery else read_payload(kind, delivery.payload) for kind in self._wants]
        except MisfitError as error:
            raise DeadLetter(f"handler {self.name} cannot take the payload: {error}") from None
        if tracing.active is None:
            return self._function(*given)
        return self._traced(tracing.active, delivery, given)

    def _traced(self, active: tracing.Tracing, delivery: Delivery, given: list[Any]) -> Any:
        async def awaited() -> None:
            with active.handling(delivery.context.name, delivery, HandlerSays):
                await self._function(*given)

        if self.is_async:
            return awaited()
        with active.handling(delivery.context.name, delivery, HandlerSays):
            return self._function(*given)


class Handlers:
    """The handlers of one table."""

    def __init__(self, given: Given) -> None:
        if isinstance(given, Mapping):
            if not given or not all(isinstance(kind, str) for kind in given):
                raise InvalidArgumentError(f"handler must be a dict of functions by kind, got {quoted(given)}")
            self._every, self._by_kind = None, {kind: BoundHandler(each) for kind, each in given.items()}
        else:
            self._every, self._by_kind = BoundHandler(given), {}
        # The kinds that they handle, in order; None: all messages.
        self.kinds = None if self._every is not None else tuple(sorted(self._by_kind))

    @property
    def all(self) -> list[BoundHandler]:
        """Return every handler."""
        return [*self._by_kind.values(), *([] if self._every is None else [self._every])]

    def find(self, delivery: Delivery) -> BoundHandler | None:
        """Return the handler for a message; None if its kind is unknown."""
        if self._every is not None:
            return self._every
        return self._by_kind.get(delivery.headers.get(KIND, ""))


def is_factory(given: object) -> bool:
    """Return whether an object is a factory of handlers: a context manager, or a function decorated as one."""
    if isinstance(given, AbstractContextManager | AbstractAsyncContextManager):
        return True
    inner = inspect.unwrap(given) if callable(given) else given
    return inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)


def entered(factory: Any) -> Entered:
    """Return the context manager of a factory.

    Raises `InvalidArgumentError` if it is not one: a generator that takes a message, or that is not decorated.
    """
    if isinstance(factory, AbstractContextManager | AbstractAsyncContextManager):
        return factory
    name = getattr(factory, "__qualname__", "it")
    remedy = "a handler returns; a factory yields, has no arguments and is a contextlib.contextmanager"
    if any(
        each.default is each.empty and each.kind in _BY_PLACE for each in inspect.signature(factory).parameters.values()
    ):
        raise InvalidArgumentError(f"handler {name} must not both yield and take arguments: {remedy}")
    made = factory()
    if not isinstance(made, AbstractContextManager | AbstractAsyncContextManager):
        raise InvalidArgumentError(f"handler {name} must be a context manager if it yields: {remedy}")
    return made


def handlers_of(given: Any, loop: asyncio.Runner, stack: ExitStack) -> Handlers:
    """Return handlers; a factory is entered until the stack is closed, in the loop if it is async."""
    if not is_factory(given):
        return Handlers(given)
    manager = entered(given)
    if not isinstance(manager, AbstractAsyncContextManager):
        return Handlers(stack.enter_context(manager))
    asynchronous = AsyncExitStack()
    stack.callback(lambda: loop.run(asynchronous.aclose()))
    return Handlers(loop.run(asynchronous.enter_async_context(manager)))


def _wants(function: Handler, name: str) -> list[Any]:
    """Return the parameters that a function takes: the delivery, the payload as some type, or both."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have no signature
        return [Delivery]
    needed = [each for each in parameters if each.kind in _BY_PLACE and each.default is each.empty]
    hints = _hints(function)
    if not any(each.kind in (*_BY_PLACE, inspect.Parameter.VAR_POSITIONAL) for each in parameters):
        raise InvalidArgumentError(
            f"handler {name} must take the delivery or the payload, got a function without arguments"
        )
    wants = [_want(hints.get(each.name, each.annotation), name) for each in needed] or [Delivery]
    if len(wants) > 2 or wants.count(Delivery) == 2:  # noqa: PLR2004  # the delivery and the payload
        raise InvalidArgumentError(
            f"handler {name} must take the delivery, the payload as a type, or both, got {len(wants)} arguments"
        )
    return wants


def _want(annotation: Any, name: str) -> Any:
    if annotation in (inspect.Parameter.empty, Any, object, Delivery):
        return Delivery
    if isinstance(annotation, str):  # its name does not exist at run time
        if annotation.rpartition(".")[2] == "Delivery":
            return Delivery
        raise InvalidArgumentError(
            f"handler {name} has a parameter of type {quoted(annotation)}, which its module does not import"
        )
    try:
        why = why_unreadable(annotation)
    except NameError as error:
        raise InvalidArgumentError(f"handler {name} cannot take {quoted(annotation)}: {error}") from None
    except TypeError:  # such as a list of types
        raise InvalidArgumentError(f"handler {name} cannot take {quoted(annotation)}: it is not a type") from None
    if why is not None:
        raise InvalidArgumentError(f"handler {name} cannot take {quoted(annotation)}: {why}")
    return annotation


def _hints(function: Handler) -> dict[str, Any]:
    """Return the annotations of parameters whose names exist at run time."""
    inner: Any = function
    while hasattr(inner, "func"):  # a functools.partial
        inner = inner.func
    if not inspect.isroutine(inner):
        inner = getattr(inner, "__call__", inner)  # noqa: B004  # an object may be called, too
    known = getattr(inspect.unwrap(inner), "__globals__", {})
    found: dict[str, Any] = {}
    for name, annotation in getattr(inner, "__annotations__", {}).items():
        # One by one: a missing name, such as that of the return type, must not hide the others.
        one = types.SimpleNamespace(__annotations__={name: annotation}, __globals__=known)
        with suppress(NameError, TypeError):
            found |= typing.get_type_hints(one)  # without the additions of Annotated, which may be unhashable
    return found


def _is_async(function: Handler) -> bool:
    while hasattr(function, "func"):  # a functools.partial
        function = function.func  # pyright: ignore[reportFunctionMemberAccess]  # hasattr says so
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # an object may be called, too
    )
