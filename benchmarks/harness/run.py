"""Runs the public benchmark of job queues in PostgreSQL with Waterclock, on servers of its own and without Docker.

In a checkout of https://github.com/hardbyte/postgresql-job-queue-benchmarking, with Python 3.12 or newer::

    python -m venv .venv && .venv/bin/pip install .
    .venv/bin/python WATERCLOCK/benchmarks/harness/run.py run --systems waterclock,procrastinate,absurd \
        --producer-mode depth-target --target-depth 4000 --worker-count 16 \
        --phase warmup=warmup:30s --phase clean=clean:60s

The arguments are those of the benchmark's own command. Results go to its folder ``results``. Each system gets a new
server from ``scripts/services``. Of the benchmark's other systems, those with a Python adapter run, and awa, oban,
PgQueuer and dbos from their Python packages, each in a virtual environment in its own folder. pgmq's SQL comes from its
Python package. Absurd's and PgQue's do not: name absurd's in ``ABSURD_SQL_PATH``, and check out PgQue as a submodule.
Phases of type ``high-load`` need ``PRODUCER_PACING=adapter``, because the benchmark's own pacing ignores their rate.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
PYTHON_ADAPTERS = ("procrastinate", "absurd", "pgque")
"""Systems with an adapter in the benchmark that needs nothing but Python packages, and for some SQL."""

PEERS = {
    "pgqueuer": (["pgqueuer", "asyncpg"], ["public.pgqueuer", "public.pgqueuer_log"]),
    "oban": (["oban", "psycopg[binary,pool]"], ["public.oban_jobs"]),
    "dbos": (["dbos", "psycopg[binary]"], ["dbos.workflow_status"]),
    "pgmq": (["pgmq", "psycopg[binary,pool]"], ["pgmq.q_bench", "pgmq.a_bench"]),
}
"""The packages and the tables of systems that run with our adapters in `peer_adapters`."""


class Server:
    """The PostgreSQL server of the system that runs now."""

    def __init__(self) -> None:
        self._folder = self._url = ""

    def start(self, _image: str = "") -> None:
        if not self._folder:
            started = json.loads(_services("start", "--end-with", str(os.getpid()), "postgresql"))
            self._folder = started["folder"]
            self._url = started["servers"]["postgresql"]["url"].replace("+psycopg", "")

    def stop(self, _image: str = "") -> None:
        if self._folder:
            _services("stop", self._folder)
            self._folder = ""

    def halt(self, _image: str = "") -> None:
        _services("halt", self._folder, "postgresql")

    def restart(self, _image: str = "") -> None:
        _services("restart", self._folder, "postgresql")

    def url(self, database: str, _host: str = "") -> str:
        return f"{self._url.rsplit('/', 1)[0]}/{database}"


def main() -> int:
    """Replace what the benchmark does by Docker, and call its own command."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        adapters: Any = importlib.import_module("bench_harness.adapters")
        orchestrator: Any = importlib.import_module("bench_harness.orchestrator")
    except ModuleNotFoundError as error:
        print(f"cannot run the benchmark: {error}. Run this in a checkout of it, with its packages", file=sys.stderr)
        return 1
    server = Server()
    adapters.pg_url = orchestrator.pg_url = server.url
    orchestrator.start_postgres, orchestrator.stop_postgres = server.start, server.stop
    orchestrator._compose_stop_postgres, orchestrator._compose_start_postgres = server.halt, server.restart  # noqa: SLF001  # replaced
    python = PROJECT / ".venv" / "bin" / "python"
    command = [str(python), "-m", "benchmarks.harness.adapter"]
    adapters.ADAPTERS["waterclock"] = _entry(adapters, HERE, lambda _skip: None, command, {"PYTHONPATH": str(PROJECT)})
    for name in PYTHON_ADAPTERS:
        folder = adapters.SCRIPT_DIR / f"{name}-bench"
        command = [str(_environment(folder) / "bin" / "python"), "main.py"]
        adapters.ADAPTERS[name] = _entry(adapters, folder, lambda _skip, folder=folder: _install(folder), command, {})
    folder = adapters.SCRIPT_DIR / "awa-bench"
    command = [str(_environment(folder) / "bin" / "python"), str(HERE / "awa_adapter.py"), str(folder / "adapter.json")]
    adapters.ADAPTERS["awa"] = _entry(adapters, folder, partial(_built, folder, ["awa-pg"]), command, {})
    for name, (packages, tables) in PEERS.items():
        folder = adapters.SCRIPT_DIR / f"{name}-python-bench"
        folder.mkdir(exist_ok=True)
        described = {"system": name, "display_name": f"{name} (Python)", "db_name": f"{name}_bench"}
        manifest = folder / "adapter.json"
        manifest.write_text(json.dumps({**described, "event_tables": tables, "event_indexes": [], "extensions": []}))
        python = _environment(folder) / "bin" / "python"
        command = [str(python), str(HERE / "peer_adapters.py"), name, str(manifest)]
        builder = partial(_built, folder, packages)
        adapters.ADAPTERS[name] = _entry(adapters, folder, builder, command, {})
    try:
        return int(orchestrator.main())
    finally:
        server.stop()


def _entry(adapters: Any, folder: Path, builder: Any, command: list[str], extra: dict[str, str]) -> Any:
    def launch(manifest: Any, overrides: dict[str, str]) -> Any:
        environment = adapters._base_env(manifest, overrides)  # noqa: SLF001  # as the benchmark's own launchers do
        return adapters.LaunchSpec(argv=command, env={**environment, **extra}, cwd=str(folder))

    return adapters.AdapterEntry(bench_dir=folder, builder=builder, launcher=launch)


def _environment(folder: Path) -> Path:
    return folder / ".venv"


def _install(folder: Path, wanted: list[str] | None = None) -> None:
    where = _environment(folder)
    if not where.exists():
        if wanted is None:
            wanted = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
        subprocess.run([sys.executable, "-m", "venv", str(where)], check=True)
        subprocess.run([str(where / "bin" / "pip"), "install", "--quiet", *wanted], check=True)


def _built(folder: Path, packages: list[str], _skip: object) -> None:
    _install(folder, packages)


def _services(*arguments: str) -> str:
    command = [str(PROJECT / ".venv" / "bin" / "python"), str(PROJECT / "scripts" / "services"), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
