"""Weighs what starting costs: `import waterclock`, and commands, against importing SQLAlchemy, pyarrow and cyclopts.

Each runs in a process of its own, in turns, and its processor time counts.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.measure import in_turns, write_results

ROUNDS = 5
LIBRARIES = "import sqlalchemy, pyarrow, cyclopts"
COMMANDS = {
    "waterclock --help": ["--help"],
    "waterclock doctor": ["doctor"],
    "waterclock topic ls": ["topic", "ls"],
    "waterclock topic append": ["topic", "append", "telemetry", os.devnull],
    "waterclock topic read": ["topic", "read", "telemetry"],
    "waterclock table ls": ["table", "ls"],
    "waterclock table info": ["table", "info", "orders"],
    "waterclock batch": ["batch", "telemetry", "--window", "1s", "--max-delay", "1s"],
}


def children_s() -> float:
    """Processor seconds of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "WATERCLOCK_URL": f"sqlite:///{Path(folder) / 'factory.db'}"}
        run = partial(subprocess.run, env=environment, check=True, capture_output=True)
        waterclock = [sys.executable, "-m", "waterclock"]
        for words in (["topic", "add", "telemetry"], ["table", "add", "orders"]):
            run([*waterclock, *words])
        runs = {"the libraries": partial(run, [sys.executable, "-c", LIBRARIES])}
        runs["import waterclock"] = partial(run, [sys.executable, "-c", "import waterclock"])
        for name, words in COMMANDS.items():
            runs[name] = partial(run, [*waterclock, *words])
        seconds = in_turns(runs, ROUNDS, children_s)
    base = seconds["the libraries"]
    figures = {name: {"seconds": round(s, 3), "times_the_libraries": round(s / base, 2)} for name, s in seconds.items()}
    for name, each in figures.items():
        print(f"{name:<26} {each['seconds']:6.3f} s  {each['times_the_libraries']:5.2f}")
    print(f"wrote {write_results('start', figures, ('waterclock', 'sqlalchemy', 'pyarrow', 'cyclopts'))}")


if __name__ == "__main__":
    main()
