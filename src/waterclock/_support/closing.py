"""What is closed at the end of a ``with`` block."""

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

    A writer writes its last bytes when it is closed. On a full disk that fails as the write before it has failed, with
    an error that may name no reason.
    """
    try:
        yield writer
    except BaseException:
        with suppress(Exception):
            writer.close()
        raise
    writer.close()


class Closing(ABC):
    """Is itself in a ``with`` block, and closed after it."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds. A second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
