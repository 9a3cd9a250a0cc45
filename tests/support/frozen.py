"""Who is frozen in the middle of something, as a process that is stopped, or a machine that is cut off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def frozen(work: Callable[[Callable[[], None]], object]) -> Generator[None]:
    """Have something under way in another thread; where it calls its argument, it stands still while the block runs."""
    begun, go_on = threading.Event(), threading.Event()

    def freeze() -> None:
        begun.set()
        go_on.wait()

    thread = threading.Thread(target=work, args=(freeze,))
    thread.start()
    try:
        assert begun.wait(30)
        yield
    finally:
        go_on.set()
        thread.join(60)
        assert not thread.is_alive()
