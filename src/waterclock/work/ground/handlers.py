"""Handlers: functions that a worker calls with messages, each for the messages of a kind or for all of them.

A kind is what the header ``kind`` of a message says. The parameters of a handler say what it gets.
"""

from __future__ import annotations

import asyncio
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack, suppress
from typing import Any

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue.selection import KIND
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.payloads.reading import MisfitError, read_payload
from waterclock.tables.payloads.supported import why_unreadable
from waterclock.work.ground.outcomes import DeadLetter

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Handler = Callable[..., Any]
Given = Handler | Mapping[str, Handler]
Entered = AbstractContextManager[Given] | AbstractAsyncContextManager[Given]


class BoundHandler:
    """A function with what it wants of a delivery.

    Attributes
    ----------
    name
        How logs call it.
    is_async
        Whether calling it gives a coroutine.
    """

    def __init__(self, function: Handler) -> None:
        if not callable(function):
            raise InvalidArgumentError(f"handler: {quoted(function)} cannot be called; give a function")
        self.name: str = getattr(function, "__qualname__", None) or type(function).__name__
        self.is_async = _is_async(function)
        self._function = function
        self._wants = _wants(function, self.name)

    def __call__(self, delivery: Delivery) -> Any:
        """Call the function; of an asynchronous one this gives the coroutine.

        Raises
        ------
        DeadLetter
            Where the payload is not of the type that the function takes.
        """
        try:
            given = [delivery if kind is Delivery else read_payload(kind, delivery.payload) for kind in self._wants]
        except MisfitError as error:
            raise DeadLetter(f"{self.name} cannot take it: {error}") from None
        return self._function(*given)


class Handlers:
    """The handlers of one table.

    Attributes
    ----------
    kinds
        The kinds that they know, in order; None: all messages.
    """

    def __init__(self, given: Given) -> None:
        if isinstance(given, Mapping):
            if not given or not all(isinstance(kind, str) for kind in given):
                raise InvalidArgumentError(f"handler: {quoted(given)} is no dict of functions by kind; name the kinds")
            self._every, self._by_kind = None, {kind: BoundHandler(each) for kind, each in given.items()}
        else:
            self._every, self._by_kind = BoundHandler(given), {}
        self.kinds = None if self._every is not None else tuple(sorted(self._by_kind))

    @property
    def all(self) -> list[BoundHandler]:
        """Every one of them."""
        return [*self._by_kind.values(), *([] if self._every is None else [self._every])]

    def find(self, delivery: Delivery) -> BoundHandler | None:
        """Give the handler for a message; None where its kind is not known."""
        if self._every is not None:
            return self._every
        return self._by_kind.get(delivery.headers.get(KIND, ""))


def is_factory(given: object) -> bool:
    """Say whether something gives handlers for a while: a context manager, or a function decorated as one."""
    if isinstance(given, AbstractContextManager | AbstractAsyncContextManager):
        return True
    inner = inspect.unwrap(given) if callable(given) else given
    return inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)


def entered(factory: Any) -> Entered:
    """Give the context manager of a factory.

    Raises
    ------
    InvalidArgumentError
        Where it is none: a generator that takes a message, or that is not decorated.
    """
    if isinstance(factory, AbstractContextManager | AbstractAsyncContextManager):
        return factory
    name = getattr(factory, "__qualname__", "it")
    remedy = "a handler returns; what yields handlers takes no arguments and has contextlib's decorator contextmanager"
    if any(
        each.default is each.empty and each.kind in _BY_PLACE for each in inspect.signature(factory).parameters.values()
    ):
        raise InvalidArgumentError(f"handler: {name} yields, and takes arguments; {remedy}")
    made = factory()
    if not isinstance(made, AbstractContextManager | AbstractAsyncContextManager):
        raise InvalidArgumentError(f"handler: {name} yields, and is no context manager; {remedy}")
    return made


def handlers_of(given: Any, loop: asyncio.Runner, stack: ExitStack) -> Handlers:
    """Give handlers, also those of a factory, which is entered until the stack is left; in a loop where it is async."""
    if not is_factory(given):
        return Handlers(given)
    manager = entered(given)
    if not isinstance(manager, AbstractAsyncContextManager):
        return Handlers(stack.enter_context(manager))
    asynchronous = AsyncExitStack()
    stack.callback(lambda: loop.run(asynchronous.aclose()))
    return Handlers(loop.run(asynchronous.enter_async_context(manager)))


def _wants(function: Handler, name: str) -> list[Any]:
    """Read from a function's parameters what it takes: the delivery, the payload as some type, or both."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some that are built in do not say
        return [Delivery]
    needed = [each for each in parameters if each.kind in _BY_PLACE and each.default is each.empty]
    hints = _hints(function)
    if not any(each.kind in (*_BY_PLACE, inspect.Parameter.VAR_POSITIONAL) for each in parameters):
        raise InvalidArgumentError(f"handler: {name} takes no argument; give it one, the delivery")
    wants = [_want(hints.get(each.name, each.annotation), name) for each in needed] or [Delivery]
    if len(wants) > 2 or wants.count(Delivery) == 2:  # noqa: PLR2004  # the delivery and the payload
        raise InvalidArgumentError(
            f"handler: {name} takes {len(wants)} arguments; give it the delivery, the payload as a type, or both"
        )
    return wants


def _want(annotation: Any, name: str) -> Any:
    if annotation in (inspect.Parameter.empty, Any, object, Delivery):
        return Delivery
    if isinstance(annotation, str):  # its name is not there at run time
        if annotation.rpartition(".")[2] == "Delivery":
            return Delivery
        raise InvalidArgumentError(f"handler: {name} takes {quoted(annotation)}, which its module does not import")
    try:
        why = why_unreadable(annotation)
    except NameError as error:
        raise InvalidArgumentError(f"handler: {name} takes {quoted(annotation)}, of which {error}") from None
    except TypeError:  # such as a list of types
        raise InvalidArgumentError(f"handler: {name} takes {quoted(annotation)}, which is no type") from None
    if why is not None:
        raise InvalidArgumentError(f"handler: {name} takes {quoted(annotation)}; {why}")
    return annotation


def _hints(function: Handler) -> dict[str, Any]:
    """Read what the parameters are annotated with, as far as their names are there at run time."""
    inner: Any = function
    while hasattr(inner, "func"):  # a functools.partial
        inner = inner.func
    if not inspect.isroutine(inner):
        inner = getattr(inner, "__call__", inner)  # noqa: B004  # an object may be called, too
    known = getattr(inspect.unwrap(inner), "__globals__", {})
    found: dict[str, Any] = {}
    for name, annotation in getattr(inner, "__annotations__", {}).items():
        # One by one: a name that is missing, as of what it returns, is no reason to know none of the others.
        one = types.SimpleNamespace(__annotations__={name: annotation}, __globals__=known)
        with suppress(NameError, TypeError):
            found |= typing.get_type_hints(one)  # without what Annotated adds, which may not be hashable
    return found


def _is_async(function: Handler) -> bool:
    while hasattr(function, "func"):  # a functools.partial
        function = function.func  # pyright: ignore[reportFunctionMemberAccess]
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # an object may be called, too
    )
