"""Runs the parts of a gateway as processes. When one of them ends, stops all others in order."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from waterclock._support import moments
from waterclock.errors import WaterclockError
from waterclock.gateway.part import Part

_LOOK_EVERY = 0.1
"""Seconds between two checks of signals and processes, and so the maximum delay of a stop."""

_DRAINED_WITHIN = 2.0
"""Seconds in which the last output of an ended process is read; one of its children may keep the pipe open."""

Tell = Callable[[str, str], None]
"""Called with the name of a part and a line that it printed, from any thread."""


class PartFailedError(WaterclockError):
    """A part ended by itself, or did not end when stopped."""


@dataclass
class _Running:
    part: Part
    process: subprocess.Popen[str]
    readers: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def is_running(self) -> bool:
        return self.process.poll() is None


class Supervisor:
    """Runs parts until it is stopped, or until one of them ends.

    Parameters
    ----------
    parts
        The parts, in the order in which they are stopped. They are started in the opposite order, so that consumers
        run before producers.
    program
        The words before those of a part.
    environment
        The environment of each process.
    tell
        Receives the output of the parts.
    """

    def __init__(
        self, parts: Sequence[Part], program: Sequence[str], environment: Mapping[str, str], tell: Tell
    ) -> None:
        self._parts = parts
        self._program = program
        self._environment = environment
        self._tell = tell
        self._running: list[_Running] = []
        self._stops = 0
        self._wishes_reload = False
        self._failures: list[str] = []
        self._untold: Exception | None = None

    def stop(self) -> None:
        """Stop the parts in order; a second call kills them. Safe in a signal handler."""
        self._stops += 1

    def reload(self) -> None:
        """Ask the parts that support it to read their file again. Safe in a signal handler."""
        self._wishes_reload = True

    def run(self) -> None:
        """Run until it is stopped.

        Raises
        ------
        PartFailedError
            If a part ended by itself, or had to be killed.
        Exception
            An error that ``tell`` raised, such as BrokenPipeError if no one reads the output any more.
        KeyboardInterrupt
            If it was stopped twice.
        """
        try:
            for part in reversed(self._parts):
                if self._stops:
                    break
                self._running.insert(0, self._started(part))
            self._watch()
            for running in self._running:
                self._end(running)
        finally:
            for running in self._running:
                self._kill(running)
        if self._is_killed():
            raise KeyboardInterrupt
        if self._untold is not None:
            raise self._untold
        if self._failures:
            raise PartFailedError("; ".join(self._failures))

    def _started(self, part: Part) -> _Running:
        # The part unblocks the signal when it can reload: until then, the signal would end it.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP} if part.reloads else ())
        try:
            process = subprocess.Popen(
                [*self._program, *part.words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self._environment},
                text=True,
                errors="backslashreplace",
                process_group=0,  # Ctrl-C on a terminal reaches only this process, which then stops the parts in order
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        running = _Running(part, process)
        for stream in (process.stdout, process.stderr):
            assert stream is not None  # noqa: S101  # a pipe, as asked for
            reader = threading.Thread(target=self._read, args=(part.name, stream), daemon=True)
            moments.start(reader)
            running.readers.append(reader)
        return running

    def _read(self, name: str, stream: IO[str]) -> None:
        for line in stream:
            if self._untold is not None:
                continue  # a part whose output is not read could not end
            try:
                self._tell(name, line.rstrip("\n"))
            except Exception as error:  # noqa: BLE001  # a thread has no caller to raise to: `run` raises it
                self._untold = error

    def _watch(self) -> None:
        while not self._stops and self._untold is None:
            ended = [running for running in self._running if not running.is_running()]
            self._failures += [f"{each.part.name} {_ending(each.process.returncode)}; all parts stop" for each in ended]
            if ended:
                return
            if self._wishes_reload:
                self._wishes_reload = False
                for running in self._running:
                    if running.part.reloads:
                        running.process.send_signal(signal.SIGHUP)
            moments.sleep(_LOOK_EVERY)

    def _end(self, running: _Running) -> None:
        """Ask a part to end, and wait for it; kill it if it takes too long, or if this is stopped again."""
        name, process = running.part.name, running.process
        if running.is_running():
            process.terminate()
            give_up = moments.monotonic() + running.part.stops_within
            while running.is_running() and not self._is_killed() and moments.monotonic() < give_up:
                moments.sleep(_LOOK_EVERY)
            if running.is_running():
                self._kill(running)
                self._failures.append(f"{name} did not end within {running.part.stops_within:g} s and was killed")
            elif process.returncode not in (0, -signal.SIGTERM):
                self._failures.append(f"{name} {_ending(process.returncode)} when stopped")
        for reader in running.readers:
            moments.join(reader, _DRAINED_WITHIN)

    def _is_killed(self) -> bool:
        return self._stops > 1

    def _kill(self, running: _Running) -> None:
        if running.is_running():
            running.process.kill()
            running.process.wait()


def _ending(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def current_environment(url: str, ledgers: str | None) -> dict[str, str]:
    """Return the environment of the parts. It holds the secrets, because every user can list command lines."""
    environment = {**os.environ, "WATERCLOCK_URL": url, "PYTHONUNBUFFERED": "1"}
    if ledgers is not None:
        environment["WATERCLOCK_LEDGERS"] = ledgers
    return environment
