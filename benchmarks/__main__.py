"""Runs every benchmark, or those named, or one with options: ``python -m benchmarks [NAME …] [--OPTION …]``.

A name is that of a file, with its folder: ``start``, ``tables.groups``. Results go to benchmarks/results/.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the names of all files with a function ``main``, except the harness that others start."""
    files = (path for path in FOLDER.rglob("*.py") if "\ndef main(" in path.read_text(encoding="utf-8"))
    found = {".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in files}
    return sorted(found - {"__main__", "harness.run"})


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
