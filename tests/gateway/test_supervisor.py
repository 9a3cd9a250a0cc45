"""Parts run as processes, and are stopped in order: by a signal, by the end of one of them, or all at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.ingest.running import until

from waterclock.gateway.part import Part
from waterclock.gateway.supervisor import PartFailedError, Supervisor

WAITS = "trap 'echo stopped; exit 0' TERM; echo started $$; while :; do sleep 0.05; done"
DEAF = "trap '' TERM; echo started $$; exec sleep 60"
RELOADS = """
echo started; exec python -c '
import signal, sys, time
from pathlib import Path
while not Path(sys.argv[1]).exists(): time.sleep(0.02)
signal.signal(signal.SIGHUP, lambda *_: print("reloaded", flush=True))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
while True: time.sleep(0.02)
' %s
"""


def part(name: str, script: str, **options: bool) -> Part:
    return Part(name, (script,), 30.0, **options)


class Watched:
    """A supervisor in a thread, and what its parts print."""

    def __init__(self, *parts: Part) -> None:
        self.lines: list[tuple[str, str]] = []
        self.supervisor = Supervisor(parts, ["sh", "-c"], os.environ, lambda *line: self.lines.append(line))
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.supervisor.run()
        except BaseException as error:  # noqa: BLE001  # for the test to look at
            self.failure = error

    def named(self, text: str) -> list[str]:
        return [name for name, line in list(self.lines) if line.startswith(text)]

    def end(self) -> None:
        self.thread.join(30)
        assert not self.thread.is_alive()
        if self.failure is not None:
            raise self.failure


@contextmanager
def watched(*parts: Part) -> Generator[Watched]:
    own = Watched(*parts)
    own.thread.start()
    try:
        yield own
    finally:
        own.supervisor.stop()
        own.supervisor.stop()
        own.thread.join(30)


def test_parts_stop_in_order() -> None:
    with watched(part("ingest", WAITS), part("batch", WAITS), part("work", WAITS)) as own:
        until(lambda: len(own.named("started")) == 3)
        own.supervisor.stop()
        own.end()
    assert own.named("stopped") == ["ingest", "batch", "work"]


@pytest.mark.parametrize(
    ("script", "ending"), [("exit 3", "ended with exit code 3"), ("kill -9 $$", "was ended by SIGKILL")]
)
def test_one_that_ends_stops_the_others_and_is_named(script: str, ending: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    batch = part("batch", f"until [ -e {go} ]; do sleep 0.02; done; {script}")
    with watched(part("ingest", WAITS), batch, part("work", WAITS)) as own:
        until(lambda: len(own.named("started")) == 2)
        go.touch()
        with pytest.raises(PartFailedError, match=f"^batch {ending}; all parts stop$"):
            own.end()
    assert own.named("stopped") == ["ingest", "work"]


def test_one_that_ends_without_an_error_is_a_failure_too() -> None:
    with watched(part("batch", "exit 0")) as own, pytest.raises(PartFailedError, match="batch ended with exit code 0"):
        own.end()


def test_a_second_stop_kills() -> None:
    with watched(part("ingest", DEAF), part("work", DEAF)) as own:
        until(lambda: len(own.named("started")) == 2)
        own.supervisor.stop()
        own.supervisor.stop()
        with pytest.raises(KeyboardInterrupt):
            own.end()
    for _, line in own.lines:
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.split()[1]), 0)


def test_output_that_cannot_be_told_stops_the_parts() -> None:
    def fail(*_: str) -> None:
        raise BrokenPipeError("no one reads the output")

    loud = part("loud", "trap 'exit 0' TERM; while :; do echo started; done")
    with pytest.raises(BrokenPipeError):
        Supervisor([loud], ["sh", "-c"], os.environ, fail).run()


def test_one_that_does_not_stop_is_killed_and_named() -> None:
    with watched(Part("ingest", (DEAF,), 0.0), part("work", WAITS)) as own:
        until(lambda: len(own.named("started")) == 2)
        own.supervisor.stop()
        with pytest.raises(PartFailedError, match="ingest did not end within 0 s and was killed"):
            own.end()
    assert own.named("stopped") == ["work"]


def test_a_reload_goes_to_those_that_read_their_file_again_as_soon_as_they_can(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with watched(part("ingest", RELOADS % go, reloads=True), part("work", WAITS)) as own:
        until(lambda: len(own.named("started")) == 2)
        own.supervisor.reload()
        until(lambda: not own.supervisor._wishes_reload)
        go.touch()
        until(lambda: own.named("reloaded") == ["ingest"])
