"""Runs every benchmark, or those named, or one with options: ``python -m benchmarks [NAME …] [--OPTION …]``.

Results go to benchmarks/results/.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

NOT_BENCHMARKS = {
    "__main__",
    "measure",
    "peers",
    "slow_wire",
    "spark_messages",
    "work_job",
    "work_oban",
    "work_peers",
}


def names() -> list[str]:
    found = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    return sorted(name for name in found if name not in NOT_BENCHMARKS)


def main() -> None:
    given = sys.argv[1:]
    first_option = next((at for at, word in enumerate(given) if word.startswith("-")), len(given))
    chosen, options = given[:first_option] or names(), given[first_option:]
    for name in chosen:
        if name not in names():
            sys.exit(f"no benchmark named {name!r}; choose from {', '.join(names())}")
    if options and len(chosen) != 1:
        sys.exit(f"options must follow the name of one benchmark, got {' '.join(given)}")
    for name in chosen:
        print(f"== {name}", flush=True)
        sys.argv = [name, *options]
        importlib.import_module(f"benchmarks.{name}").main()  # by its own name, so that its processes find it


if __name__ == "__main__":
    main()
