"""What benchmarks share: things timed in turns, and figures written with the versions that they hold for."""

from __future__ import annotations

import json
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_used: dict[int, int] = {}
"""The processor time of each process of ours that was ever seen, in ticks."""


def in_turns(
    runs: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Time things against each other: each once a round, so that what disturbs the machine disturbs all of them.

    Every run is done once before, unmeasured. By default the seconds are those of the processor, since other processes
    share the machine; give ``time.perf_counter`` where the work is done by others, or waits.

    Returns
    -------
    dict
        The median seconds of each.
    """
    return by_several_clocks(runs, rounds, {"": clock})[""]


def by_several_clocks(
    runs: Mapping[str, Callable[[], object]], rounds: int, clocks: Mapping[str, Callable[[], float]]
) -> dict[str, dict[str, float]]:
    """Time things against each other as `in_turns` does, by each of the clocks at once."""
    taken: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in runs} for clock in clocks}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            began = {clock: now() for clock, now in clocks.items()}
            run()
            for clock, now in clocks.items():
                taken[clock][name].append(now() - began[clock])
    return {
        clock: {name: statistics.median(seconds) for name, seconds in each.items()} for clock, each in taken.items()
    }


def cpu_seconds() -> float:
    """Add up the processor time of this process and all that it started: the JVM and its Python workers.

    A worker that has ended counts with what it had used when this was last called: Spark ends those that were idle for
    a minute, and its daemon does not wait for them, so the system adds their time to no other process.
    """
    _used.update(_family())
    return sum(_used.values()) / TICKS_PER_S


def descendants() -> list[int]:
    """Give the numbers of the processes that this one started, and of those that they did."""
    return [process for process in _family() if process != os.getpid()]


def _family() -> dict[int, int]:
    """Give this process and all that it started, with the processor time of each in ticks."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        process = int(stat.parent.name)
        parents[process] = int(fields[1])
        ticks[process] = sum(map(int, fields[11:15]))  # also of children that have ended
    return {process: used for process, used in ticks.items() if _is_ours(process, parents)}


def _is_ours(process: int, parents: dict[int, int]) -> bool:
    while process in parents:
        if process == os.getpid():
            return True
        process = parents[process]
    return False


def is_python_of_spark(process: int) -> bool:
    """Say whether a process runs Python for Spark: a task, or a plan."""
    command = (Path("/proc") / str(process) / "cmdline").read_bytes()
    return any(name in command for name in (b"pyspark.worker", b"fork_server"))


class PeakMemory:
    """Watches how much memory each Python worker of this process's Spark has ever held."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            for process in descendants():
                with suppress(OSError):
                    folder = Path("/proc") / str(process)
                    if is_python_of_spark(process):
                        held = [line for line in (folder / "status").read_text().splitlines() if "VmHWM" in line]
                        self.bytes = max(self.bytes, int(held[0].split()[1]) << 10)


BY_ALL_OF_SPARK = {"by_the_clock": time.perf_counter, "by_processor_time": cpu_seconds}
"""The clocks for what Spark does."""


def write_results(name: str, figures: Mapping[str, Any], packages: tuple[str, ...]) -> Path:
    """Write figures to ``benchmarks/results/NAME.json``, with the versions of Python and ``packages``."""
    versions = {"python": platform.python_version(), **{package: version(package) for package in packages}}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**figures, "versions": versions}, indent=2) + "\n", encoding="utf-8")
    return path
