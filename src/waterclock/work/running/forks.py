"""Ends a child process that a handler forked, when the child returns from the handler."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

_FAILED = 1  # exit code

_WRITES_WITHIN = 5.0
"""Seconds within which the copy must have written its message. Then SIGALRM ends it: another thread may have held the
lock of a stream or of a log handler at the fork, and has no copy that releases it."""

_log = logging.getLogger(__name__)


@contextmanager
def ending_forks(message_id: Any) -> Generator[None]:
    """End the process at the end of the block if it is not the one that entered it.

    A handler that calls ``os.fork`` and lets the copy return would otherwise leave a second worker, which acks the
    message, takes others that its parent handles, and writes to its parent's pipe.
    """
    process = os.getpid()
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        if os.getpid() != process:
            _end(message_id, error)


def _end(message_id: Any, error: BaseException | None) -> None:
    """Exit without any cleanup: connections, locks and temporary files belong to the parent."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, _WRITES_WITHIN)
    code = error.code if isinstance(error, SystemExit) else _FAILED
    if not isinstance(error, SystemExit):
        _log.error(
            "the handler of message %r forked, and the forked process returned from the handler, so that process was"
            " ended. End forks with os._exit, or use multiprocessing",
            message_id,
            exc_info=error,
        )
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0 if code is None else code if isinstance(code, int) else _FAILED)
