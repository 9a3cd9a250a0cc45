"""Keeps long-running processes small by blocking imports of DataFrame libraries that they do not need."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Blocker:
    """A finder that reports some modules as missing. None in `sys.modules` fails: Cython's imports return it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  # of the protocol
        target: ModuleType | None = None,  # noqa: ARG002  # of the protocol
    ) -> ModuleSpec | None:
        if fullname == self._name:
            raise ModuleNotFoundError(f"module {fullname!r} is blocked in this process to save memory", name=fullname)
        return None


def keep_small() -> None:
    """Block pandas, whose import by pyarrow takes seconds and 60 MB, and switch Arrow to malloc.

    Arrow's own pool keeps memory for each thread: 18 MiB of an ingest from Kafka that catches up, as measured. Its
    choice has no effect once pyarrow is imported.
    """
    sys.meta_path.insert(0, _Blocker("pandas"))
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
