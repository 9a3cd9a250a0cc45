"""What benchmarks share: things timed in turns, and figures written with the versions that they hold for."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


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
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            began = clock()
            run()
            taken[name].append(clock() - began)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def write_results(name: str, figures: Mapping[str, Any], packages: tuple[str, ...]) -> Path:
    """Write figures to ``benchmarks/results/NAME.json``, with the versions of Python and ``packages``."""
    versions = {"python": platform.python_version(), **{package: version(package) for package in packages}}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**figures, "versions": versions}, indent=2) + "\n", encoding="utf-8")
    return path
