"""Reads slow metrics in one thread, once for many concurrent callers. Each caller waits only for a limited time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from waterclock._support import moments
from waterclock._support.quoting import in_a_line, said_of
from waterclock.errors import UnavailableError, WaterclockError

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class SharedCollection(Generic[_T]):
    """Runs a function in one thread at a time; all concurrent callers get the same result. Thread-safe.

    ``what`` is the name of the result, for errors. A caller waits for ``patience`` seconds. The thread may take longer;
    no second one is started meanwhile.
    """

    def __init__(self, what: str, collect: Callable[[], _T], patience: float) -> None:
        self._what = what
        self._collect = collect
        self._patience = patience
        self._lock = threading.Lock()
        self._running: _Collection[_T] | None = None

    def get(self) -> _T:
        """Return the result of the function, or raise its error.

        Raises `WaterclockError` if it raises one, or an UnavailableError if it takes longer than the patience.
        """
        with self._lock:
            run = self._running
            if run is None:
                run = _Collection()
                thread = threading.Thread(target=self._run, args=(run,), name="waterclock-collect", daemon=True)
                moments.start(thread)  # first: if the system has no more threads, the next caller tries again
                self._running = run
        if not moments.wait(run.ended, self._patience):
            raise UnavailableError(f"cannot read {self._what}: the database did not answer within {self._patience:g} s")
        if run.error is not None:
            raise run.error
        return run.results[0]

    def _run(self, run: _Collection[_T]) -> None:
        try:
            run.results.append(self._collect())
        except WaterclockError as error:
            run.error = error
        except Exception as error:  # noqa: BLE001  # an answer without it is better than none
            _log.exception("collecting %s failed", self._what)
            run.error = WaterclockError(f"cannot read {self._what}: {in_a_line(said_of(error))}")
        finally:
            with self._lock:
                self._running = None
            run.ended.set()


class _Collection(Generic[_T]):
    def __init__(self) -> None:
        self.ended = threading.Event()
        self.results: list[_T] = []
        self.error: WaterclockError | None = None
