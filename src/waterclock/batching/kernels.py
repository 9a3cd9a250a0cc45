"""Kernels: modules of functions over arrays that run interpreted for few rows and compiled with Numba for many.

Both forms come from one file, so neither can be older than the other. Compiling takes 15 s or more after an
installation, and loading compiled code takes 0.7 to 2 s in each process, most of it to import Numba. The interpreted
form handles `INTERPRETED_ROWS` in less time (docs/adr/0025).
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import InspectLoader
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

import numpy as np

from waterclock.errors import UnavailableError

INTERPRETED_ROWS = 50_000
"""Rows that a process handles interpreted, per kernel. Measured: 5 to 13 µs per row nearly in order."""

_INTERPRETED = "_interpreted"


PAUSE_ROWS = 500
"""Rows that a pause of a follower makes up for: interpreted, they take a twentieth of the 0.2 s that it lasts."""

_kernels: list[Kernel] = []


class _Interpreted:
    """Takes the place of Numba in the interpreted form: its decorators return the function, and types do nothing."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *given: Any, **options: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) and not options else self


def is_interpreted(module: str) -> bool:
    """Return whether a kernel's module is loaded in the interpreted form."""
    return module.endswith(_INTERPRETED)


def note_pause() -> None:
    """Note that this process pauses for lack of messages, and so has time to run more rows interpreted."""
    for kernel in _kernels:
        kernel.rows = max(kernel.rows - PAUSE_ROWS, 0)


def numba_for(module: str) -> tuple[Any, Any]:
    """Return ``njit`` and ``types`` for a kernel's module, whose name says in which form it is loaded."""
    if is_interpreted(module):
        return _Interpreted(), _Interpreted()
    numba = import_module("numba")
    return numba.njit, numba.types


class Kernel:
    """A kernel in both forms.

    Parameters
    ----------
    name
        The full name of its module, which gets ``njit`` and ``types`` from `numba_for`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._interpreted: ModuleType | None = None
        self.rows = 0  # rows that it ran interpreted, less those that pauses made up for
        _kernels.append(self)

    @property
    def interpreted(self) -> Any:
        """The module without Numba; also for its constants."""
        if self._interpreted is None:
            spec = find_spec(self._name)
            assert spec is not None  # noqa: S101  # a module of this package
            code = cast("InspectLoader", spec.loader).get_code(self._name)
            assert code is not None  # noqa: S101  # it has a source file
            module = ModuleType(self._name + _INTERPRETED)
            exec(code, module.__dict__)  # noqa: S102  # this package's own file, as an import would execute it
            self._interpreted = module
        return self._interpreted

    @property
    def compiled(self) -> Any:
        """The module with Numba, which compiles it at its first use after an installation.

        Raises `UnavailableError` if no folder can be written in which Numba could keep the compiled code.
        """
        try:
            return import_module(self._name)
        except RuntimeError as error:
            raise UnavailableError(
                f"Numba cannot store its compiled code: {error}. Set NUMBA_CACHE_DIR to a writable folder"
            ) from error

    def call(self, function: str, rows: int, *arguments: Any) -> Any:
        """Call a function that does work for this many rows, in the form that answers sooner.

        Raises
        ------
        UnavailableError
            As `compiled`.
        """
        if self._name in sys.modules or self.rows + rows > INTERPRETED_ROWS:
            return getattr(self.compiled, function)(*arguments)
        self.rows += rows
        with np.errstate(all="ignore"):  # compiled arithmetic wraps around without a warning, too
            return getattr(self.interpreted, function)(*arguments)
