"""Loads kernels, which are functions over arrays. A kernel is a file or a package, and runs in one of three forms.

A wheel ships each kernel as a compiled library, which loads in milliseconds (`kernel_library`). Without that library,
as in a source checkout, a kernel runs interpreted for few rows, and compiled with Numba for many rows. Numba takes 40 s
to compile after an installation. Each process then spends 0.7 to 2 s on loading the compiled code, mostly on importing
Numba. The interpreted form handles `INTERPRETED_ROWS` rows in less time (docs/adr/0025).

The files of a kernel's package import one another relatively. So an interpreted file imports interpreted files, and a
file compiled with Numba imports compiled files.
"""

from __future__ import annotations

import sys
from functools import cached_property
from importlib import import_module
from importlib.abc import SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, cast

import numpy as np

from waterclock.batching.kernel_library import TYPES, Signature, check_seal, fingerprint, load_library
from waterclock.errors import UnavailableError

KERNELS = (
    "waterclock.batching.event_time.kernel",
    "waterclock.batching.rate.by_column.kernel",
    "waterclock.batching.rate.clock_alignment",
    "waterclock.columnar.batch_bytes_kernel",
    "waterclock.columnar.packing_kernel",
)
"""All kernels, by the names of their modules."""

INTERPRETED_ROWS = 50_000
"""Rows that a process handles interpreted, per kernel. Measured: 5 to 13 µs per row nearly in order."""

_INTERPRETED = "_interpreted"


PAUSE_ROWS = 500
"""Rows that a pause of a follower makes up for: interpreted, they take a twentieth of the 0.2 s that it lasts."""

_kernels: list[Kernel] = []


class _Interpreting:
    """Takes the place of ``njit`` in the interpreted form: returns each function as it is, and notes its signature."""

    def __init__(self) -> None:
        self.signatures: dict[str, Signature] = {}

    def __call__(self, *given: Any, **_options: Any) -> Any:
        if given and not isinstance(given[0], Signature):
            return given[0]

        def note(function: Any) -> Any:
            if given:
                self.signatures[function.__name__] = given[0]
            return function

        return note


def is_interpreted(module: str) -> bool:
    """Return whether a module of a kernel is loaded in the interpreted form."""
    return _INTERPRETED in module


def note_pause() -> None:
    """Note that this process pauses for lack of messages, and so has time to run more rows interpreted."""
    for kernel in _kernels:
        kernel.rows = max(kernel.rows - PAUSE_ROWS, 0)


def load_compiled() -> None:
    """Load the compiled form of every imported kernel, so that forked processes share it."""
    for kernel in _kernels:
        kernel.compiled  # noqa: B018  # loads it


def numba_for(module: str) -> tuple[Any, Any]:
    """Return ``njit`` and ``types`` for a module of a kernel, whose name says in which form it is loaded."""
    if is_interpreted(module):
        return _Interpreting(), TYPES
    kernel = next(name for name in KERNELS if module == name or module.startswith(f"{name}."))
    return _caching_njit(Kernel(kernel)), import_module("numba").types


def _caching_njit(kernel: Kernel) -> Any:
    """Return Numba's ``njit``, whose cache on disk then notices a change of any file and number of the kernel.

    Numba's own cache only compares the file of the cached function.
    """
    numba = import_module("numba")

    def njit(*given: Any, cache: bool = False, **options: Any) -> Any:
        if not cache or numba.config.DISABLE_JIT:
            return numba.njit(*given, **options)

        def compiled(function: Any) -> Any:
            dispatcher = numba.njit(**options)(function)
            dispatcher.enable_caching()
            dispatcher._cache._cache_file._source_stamp = kernel.fingerprint  # noqa: SLF001  # no option sets it
            dispatcher.compile(*given)
            dispatcher.disable_compile()
            return dispatcher

        return compiled

    return njit


class Kernel:
    """A kernel in all its forms.

    Parameters
    ----------
    name
        The full name of its module, which gets ``njit`` and ``types`` from `numba_for`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0  # rows that it ran interpreted, less those that pauses made up for
        _kernels.append(self)

    @property
    def interpreted(self) -> Any:
        """The module without Numba; also for its constants."""
        return self._modules[0]

    @cached_property
    def _modules(self) -> list[Any]:
        """The module without Numba, and those of its package that it imports."""
        loader, path = self._file
        code = loader.get_code(self.name)
        assert code is not None  # noqa: S101  # it has a source file
        spec = ModuleSpec(self.name + _INTERPRETED, None, origin=path)
        spec.submodule_search_locations = self._spec.submodule_search_locations
        module = module_from_spec(spec)
        sys.modules[spec.name] = module  # where its relative imports look for it
        exec(code, module.__dict__)  # noqa: S102  # this package's own file, as an import would execute it
        others = {name: each for name, each in sys.modules.items() if name.startswith(f"{spec.name}.")}
        return [module, *(others[name] for name in sorted(others))]

    @property
    def _spec(self) -> ModuleSpec:
        spec = find_spec(self.name)
        assert spec is not None  # noqa: S101  # a module of this package
        return spec

    @property
    def _file(self) -> tuple[SourceLoader, str]:
        spec = self._spec
        assert spec.origin is not None  # noqa: S101  # it has a source file
        return cast("SourceLoader", spec.loader), spec.origin

    @property
    def library(self) -> str:
        """The path of its library, which may be missing."""
        folder, _, file = self._file[1].removesuffix("/__init__.py").rpartition("/")
        return f"{folder}/lib{file.removesuffix('.py')}.so"

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its source."""
        loader, path = self._file
        source = b"".join(loader.get_data(each) for each in (path, *(other.__file__ for other in self._modules[1:])))
        imported = [each for module in self._modules for each in vars(module).values() if isinstance(each, ModuleType)]
        package = self.name.partition(".")[0]
        modules = [*self._modules, *(each for each in imported if each.__name__.partition(".")[0] == package)]
        numbers = {f"{each.__name__}.{name}": value for each in modules for name, value in vars(each).items()}
        return fingerprint(source, numbers)

    @cached_property
    def shipped(self) -> Any:
        """The module with the functions of its library; None without a library that belongs to its source."""
        try:
            return self.load_shipped()
        except (FileNotFoundError, UnavailableError):
            return None

    def load_shipped(self) -> ModuleType:
        """Load the library of the kernel.

        Raises
        ------
        FileNotFoundError
            The kernel has no library.
        UnavailableError
            The library is damaged or unreadable, or belongs to another source, architecture or NumPy.
        """
        try:
            content = self._file[0].get_data(self.library)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UnavailableError(f"cannot read the compiled library: {error}") from error
        check_seal(content, self.fingerprint)
        return load_library(self.library, self.interpreted, self.interpreted.njit.signatures)

    @property
    def compiled(self) -> Any:
        """The module with the functions of its library, or with Numba, which compiles it at its first use.

        Raises `UnavailableError` if Numba finds no folder that can be written, in which to keep the compiled code.
        """
        if self.shipped is not None:
            return self.shipped
        try:
            return import_module(self.name)
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
        if self.shipped is not None or self.name in sys.modules or self.rows + rows > INTERPRETED_ROWS:
            return getattr(self.compiled, function)(*arguments)
        self.rows += rows
        with np.errstate(all="ignore"):  # compiled arithmetic wraps around without a warning, too
            return getattr(self.interpreted, function)(*arguments)
