"""Runs every benchmark, or those named: ``python -m benchmarks [NAME …]``. Results go to benchmarks/results/."""

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
    chosen = sys.argv[1:] or names()
    for name in chosen:
        if name not in names():
            sys.exit(f"there is no benchmark {name!r}; choose from {', '.join(names())}")
    for name in chosen:
        print(f"== {name}", flush=True)
        sys.argv = [name]
        importlib.import_module(f"benchmarks.{name}").main()  # by its own name, so that its processes find it


if __name__ == "__main__":
    main()
