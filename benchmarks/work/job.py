"""What handlers call in `benchmarks.work.workers`: it counts, where the process that measures can see it.

It needs the standard library alone, so that a worker with another Python can use it.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_COUNT = struct.Struct("<q")
_TIME = struct.Struct("<d")
KEPT = 65_536
"""Of so many first messages the times are kept."""

_FIRST, _LAST, _TIMES = 8, 16, 24
_SIZE = _TIMES + KEPT * _TIME.size


class Job:
    """The handler's work.

    Parameters
    ----------
    path
        A file for what is counted.
    pause
        How long the handler takes, s.
    """

    def __init__(self, path: Path, pause: float = 0.0) -> None:
        if not path.exists():
            path.write_bytes(bytes(_SIZE))
        self._path = path
        self._pause = pause
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _SIZE)
        self._lock = threading.Lock()

    def arguments(self) -> Sequence[str]:
        return str(self._path), str(self._pause)

    def handle(self) -> None:
        if self._pause:
            time.sleep(self._pause)
        self._note()

    async def handle_async(self) -> None:
        if self._pause:
            await asyncio.sleep(self._pause)
        self._note()

    def _note(self) -> None:
        at = time.time()
        with self._lock:
            count = self.count
            if count == 0:
                _TIME.pack_into(self._shared, _FIRST, at)
            if count < KEPT:
                _TIME.pack_into(self._shared, _TIMES + count * _TIME.size, at)
            _TIME.pack_into(self._shared, _LAST, at)
            _COUNT.pack_into(self._shared, 0, count + 1)

    @property
    def count(self) -> int:
        return _COUNT.unpack_from(self._shared, 0)[0]

    def times(self) -> list[float]:
        return [_TIME.unpack_from(self._shared, _TIMES + n * _TIME.size)[0] for n in range(min(self.count, KEPT))]

    @property
    def seconds(self) -> float:
        """From the end of the first message to that of the last one."""
        first, last = (_TIME.unpack_from(self._shared, at)[0] for at in (_FIRST, _LAST))
        return last - first
