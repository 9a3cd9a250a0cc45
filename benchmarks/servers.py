"""The database servers of benchmarks, which write to the disk as in production, and the folder for everything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SERVICES = Path(__file__).resolve().parent.parent / "scripts" / "services"
SCRATCH = Path(__file__).parent / "scratch"


@contextmanager
def running(*names: str) -> Generator[dict[str, Any]]:
    """Start servers and stop them at the end; yields what ``scripts/services start`` prints."""
    SCRATCH.mkdir(exist_ok=True)
    start = [sys.executable, str(SERVICES), "start", *names, "--end-with", str(os.getpid())]
    facts = json.loads(subprocess.run(start, check=True, capture_output=True, text=True).stdout)
    yield facts
    subprocess.run([sys.executable, str(SERVICES), "stop", facts["folder"]], check=True)


@contextmanager
def databases() -> Generator[dict[str, str]]:
    """Yield the URL of an empty database of each kind."""
    with running("postgresql", "mariadb") as facts, tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        urls = {name: server["url"] for name, server in facts["servers"].items()}
        yield {"sqlite": f"sqlite:///{folder}/topics.db", **urls}
