"""Closes objects at the end of a ``with`` block, even after an error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Protocol, Self, TypeVar


class _Closable(Protocol):
    def close(self) -> object: ...


_W = TypeVar("_W", bound=_Closable)


@contextmanager
def closing_writer(writer: _W) -> Generator[_W]:
    """Close a writer after the block; its close never hides an error of the block.

    Closing a writer writes its last bytes. On a full disk that fails like the write before it, with an error that may
    name no reason.
    """
    try:
        yield writer
    except BaseException:
        with suppress(Exception):
            writer.close()
        raise
    writer.close()


class Closing(ABC):
    """Usable in a ``with`` block, which closes it."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
