"""``waterclock run FILE`` runs the ingest, batching and work of a gateway in separate processes.

The command stops these processes in order.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waterclock.cli.terminal.common import Common
from waterclock.cli.terminal.log_format import LoggedOutput, LogOptions
from waterclock.cli.terminal.output import Output
from waterclock.work.running.signals import raise_if_interrupted

if TYPE_CHECKING:
    from waterclock.gateway.supervisor import Supervisor


def run(file: Path, /, *, log: LogOptions = LogOptions(), common: Common = Common()) -> None:
    """Ingest, batch and handle messages as a file describes, until stopped.

    SIGTERM and SIGINT stop the ingest, then the batching, then the worker; a second signal kills all three. If one part
    ends, all parts are stopped, and the exit code is 1. After SIGHUP, the ingest reads the file again.

    Parameters
    ----------
    file
        A TOML file with the tables of an ingest, [[batch]] and [work].
    """
    from waterclock.gateway.gateway_file import GatewayFile
    from waterclock.gateway.supervisor import Supervisor, current_environment

    output = log.output(common)
    read = GatewayFile.read(file)
    url = common.database_url if read.url is None else read.url
    ledgers = common.ledgers if read.url is None else read.ledgers
    chosen = {"--json": common.json, "-q": common.quiet, "-v": common.verbose, "--log-format=json": output.logs}
    flags = [word for word, given in chosen.items() if given]
    program = [sys.executable, "-m", "waterclock.cli.gateway.part", str(os.getpid())]
    parts = [replace(part, words=(*part.words, *flags)) for part in read.parts]
    supervisor = Supervisor(parts, program, current_environment(url, ledgers), _teller(output))
    output.talk(f"running {', '.join(part.name for part in parts)}")
    with _signals(supervisor):
        supervisor.run()


def _teller(output: Output) -> Callable[[str, str], None]:
    lock = threading.Lock()

    def tell(name: str, line: str) -> None:
        with lock:
            facts: Any = None
            if output.as_json or output.logs:
                with suppress(ValueError):
                    facts = json.loads(line)
            if isinstance(output, LoggedOutput):
                output.relay_log(name, facts, line)
            elif isinstance(facts, dict):
                output.facts({"part": name, **facts})
                sys.stdout.flush()
            else:
                output.relay(f"{name}: {line}")

    return tell


@contextmanager
def _signals(supervisor: Supervisor) -> Generator[None]:
    handlers = {signal.SIGINT: supervisor.stop, signal.SIGTERM: supervisor.stop, signal.SIGHUP: supervisor.reload}
    before: dict[Any, Any] = {
        number: signal.signal(number, lambda *_, act=act: act()) for number, act in handlers.items()
    }
    try:
        raise_if_interrupted()
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
