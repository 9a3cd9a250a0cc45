"""A process that is forked from the test's own, with all that it has open."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


class Child:
    """A process that does something as soon as `go` lets it; to an error it answers with its text."""

    def __init__(self, work: Callable[[], str]) -> None:
        begin, self._go = os.pipe()
        self._answers, answer = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            try:
                os.read(begin, 1)
                said = work()
            except BaseException:  # noqa: BLE001  # the child must not go on as a second pytest
                said = traceback.format_exc()
            os.write(answer, said.encode()[-60_000:])
            os._exit(0)
        os.close(begin)
        os.close(answer)

    def go(self) -> str:
        """Let it work to its end; give its answer."""
        os.write(self._go, b"x")
        os.close(self._go)
        os.waitpid(self._process, 0)
        with os.fdopen(self._answers, "rb") as answers:
            return answers.read().decode()
