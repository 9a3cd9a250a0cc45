"""The Python of a page, run as a script in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType


def main(folder: str, script: str, errors: str) -> None:
    """Run a script in a folder, as ``python SCRIPT`` would; what it writes to stderr goes to a file."""
    with Path(errors).open("w") as stderr:
        os.dup2(stderr.fileno(), 2)
    os.chdir(folder)
    page = ModuleType("__main__")
    sys.modules["__main__"] = page
    exec(compile(Path(script).read_text("utf-8"), script, "exec"), page.__dict__)  # noqa: S102  # the page's own
