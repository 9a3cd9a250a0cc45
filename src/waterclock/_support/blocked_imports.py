"""Keeps a module out of a process, as if it were not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Blocker:
    """A finder that finds some modules missing. None in `sys.modules` does not do: Cython's imports return it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  # of the protocol
        target: ModuleType | None = None,  # noqa: ARG002  # of the protocol
    ) -> ModuleSpec | None:
        if fullname == self._name:
            raise ModuleNotFoundError(f"module {fullname!r} is blocked in this process", name=fullname)
        return None


def block_import(name: str) -> None:
    """Block imports of a module from now on, unless it is imported already."""
    sys.meta_path.insert(0, _Blocker(name))
