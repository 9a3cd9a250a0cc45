"""Loads kernels (functions over arrays) that were compiled when the wheel was built, and calls them without Numba.

``scripts/compile-kernels`` compiles those functions of a kernel that have a signature, and links them into one shared
library next to the kernel's file. A library depends on the processor's architecture and the C library, but not on the
versions of Python and Numba. Its file ends with a digest of its content and its source.
"""

from __future__ import annotations

import ctypes
import hashlib
import pickle
from collections.abc import Callable, Mapping
from importlib.abc import SourceLoader
from struct import Struct
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from waterclock.errors import UnavailableError

_SOURCE = cast("SourceLoader", __loader__).get_data(__file__)


class Scalar(NamedTuple):
    """A type of numbers; ``dtype`` is None for functions that return nothing."""

    dtype: np.dtype[Any] | None

    def __call__(self, *arguments: Scalar | Array) -> Signature:
        return Signature(self, arguments)


class Array(NamedTuple):
    """A type of arrays, contiguous in C's order."""

    item: Scalar
    dimensions: int
    layout: str
    readonly: bool = False


class Signature(NamedTuple):
    """The types of a function's result and of its arguments."""

    result: Scalar
    arguments: tuple[Scalar | Array, ...]


TYPES = SimpleNamespace(
    Array=Array,
    boolean=Scalar(np.dtype(np.bool_)),
    int32=Scalar(np.dtype(np.int32)),
    int64=Scalar(np.dtype(np.int64)),
    uint8=Scalar(np.dtype(np.uint8)),
    uint32=Scalar(np.dtype(np.uint32)),
    void=Scalar(None),
)
"""Takes the place of ``numba.types`` for the types that kernels use."""


def fingerprint(source: bytes, constants: Mapping[str, Any]) -> str:
    """Return a hash of a kernel's files, the numbers that they import, and this file: a library depends on no more."""
    found = hashlib.sha256(source + _SOURCE)
    for name, value in sorted(constants.items()):
        if isinstance(value, (int, float, np.generic, np.ndarray)):
            found.update(f"{name} {np.asarray(value).dtype} {np.asarray(value).tolist()}\n".encode())
    return found.hexdigest()


def seal(code: bytes, source: str) -> bytes:
    """Return the content of a library's file: the linked code, and a digest of it and its source's fingerprint."""
    return code + hashlib.sha256(source.encode() + code).digest()


def check_seal(content: bytes, source: str) -> None:
    """Raise `UnavailableError` if a library's file is damaged, which could kill the process that loads it, or older."""
    if content != seal(content[: -hashlib.sha256().digest_size], source):
        raise UnavailableError("the compiled library is damaged, or was compiled from another version of the kernel")


def load_library(path: str, kernel: ModuleType, signatures: Mapping[str, Signature]) -> ModuleType:
    """Return a copy of an interpreted kernel whose functions with a signature are those of its library.

    Raises `UnavailableError` if the library cannot be loaded.
    """
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise UnavailableError(f"cannot load the compiled library: {error}") from error
    if not library.runs_here():
        raise UnavailableError("the compiled library needs AVX2, which this processor lacks")
    _check_layout()
    loaded = ModuleType(kernel.__name__)
    loaded.__dict__.update(kernel.__dict__)
    for name, signature in signatures.items():
        setattr(loaded, name, _LibraryFunction(name, library, signature))
    return loaded


def _check_layout() -> None:
    """Check that arrays are laid out as the functions of libraries read them, which no later NumPy need keep."""
    probe = np.zeros((2, 3), np.int64)
    fields = (ctypes.c_int64 * 4).from_address(id(probe) + object.__basicsize__)
    shape, strides = ((ctypes.c_int64 * 2).from_address(fields[place]) for place in (2, 3))
    if fields[0] != probe.ctypes.data or (*shape, *strides) != (*probe.shape, *probe.strides):
        raise UnavailableError(f"the compiled library does not support NumPy {np.__version__}")


class _LibraryFunction:
    """A function of a library. Calls check arguments as Numba does, and release the GIL."""

    def __init__(self, name: str, library: ctypes.CDLL, signature: Signature) -> None:
        self._name = name
        self._call = getattr(library, name)
        self._pack = Struct(f"={len(signature.arguments) + 1}q").pack
        self._arrays = [(place, kind) for place, kind in enumerate(signature.arguments) if isinstance(kind, Array)]
        dtype = signature.result.dtype
        self._result: Callable[[int], Any] = (lambda _: None) if dtype is None else bool if dtype == np.bool_ else int

    def __call__(self, *arguments: Any) -> Any:
        numbers = list(arguments)
        for place, kind in self._arrays:
            array = arguments[place]
            if not _fits(array, kind):
                raise TypeError(f"{self._name}: argument {place} must be {kind}, got {array!r}")
            numbers[place] = id(array)
        result, error = ctypes.c_int64(), ctypes.c_void_p()
        numbers = self._pack(object.__basicsize__, *numbers)
        if self._call(numbers, ctypes.byref(result), ctypes.byref(error)):
            raise _exception_at(error.value)
        return self._result(result.value)


def _fits(array: Any, kind: Array) -> bool:
    if not isinstance(array, np.ndarray) or array.dtype != kind.item.dtype or array.ndim != kind.dimensions:
        return False
    flags = array.flags
    return flags.carray or (kind.readonly and flags.c_contiguous and flags.aligned)


class _Raised(ctypes.Structure):
    """How compiled code describes an exception: the bytes of a pickled class, arguments and place."""

    _fields_ = (("pickled", ctypes.c_void_p), ("size", ctypes.c_int32))


def _exception_at(address: int | None) -> BaseException:
    assert address  # noqa: S101  # compiled code that does not hold the GIL fails in no other way
    raised = _Raised.from_address(address)
    kind, arguments, _ = pickle.loads(ctypes.string_at(raised.pickled, raised.size))  # noqa: S301  # of our own library
    return kind(*arguments)
