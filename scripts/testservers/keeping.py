"""The keeper: a background process that owns the servers of one folder, until a request stops it or its owner ends."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from testservers.finding import Found
from testservers.servers import SERVERS, Server, ServerError

_PREFIX = "waterclock-servers-"
_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder made by mkdtemp goes into it
_ROOM = 2 << 30  # bytes; PostgreSQL alone may keep 1 GiB of log before it writes a checkpoint
_FACTS = "servers.json"
_CONTROL = "control"
_OWNER = "owner"  # the process with which the servers end; locked for as long as there is a keeper


class NotRunningError(ServerError):
    """No keeper answers in this folder."""


def start(found: Sequence[Found], owner: int | None, *, in_memory: bool) -> dict[str, Any]:
    """Start servers in a new folder and leave a keeper with them.

    Parameters
    ----------
    found
        What to start.
    owner
        Id of the process with which the servers end; None: they stay until `stop`.
    in_memory
        Keep the data in /dev/shm, or on disk where that has no room.

    Returns
    -------
    dict
        ``folder``, ``pid`` of the keeper, and ``servers``: name to ``url``, ``port``, ``pid``.

    Raises
    ------
    ServerError
        Where a server does not start, or the owner is no process; then nothing is left running.
    """
    try:
        watched = None if owner is None else os.pidfd_open(owner)
    except ProcessLookupError:
        raise ServerError(f"there is no process {owner} for the servers to end with") from None
    _remove_what_killed_runs_left()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_place(in_memory)))
    # The servers' own account has to pass through to its folder, and to see nothing else.
    folder.chmod(0o711)
    locked = _lock(folder, owner)
    answer, report = os.pipe()
    if os.fork() == 0:
        # Born twice, so that a process that waits for its own children never meets a keeper among them.
        os.setsid()
        try:
            if os.fork() == 0:
                _keep(folder, found, watched, report)
        finally:
            os._exit(0)
    os.close(report)
    os.close(locked)
    os.wait()
    if watched is not None:
        os.close(watched)
    with os.fdopen(answer) as pipe:
        text = pipe.read()
    facts = json.loads(text or '{"error": "the keeper of the servers was killed"}')
    if "error" in facts:
        raise ServerError(facts["error"])
    return facts


def ask(folder: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Have the keeper of a folder do something, and return what it says when it is done.

    Raises
    ------
    NotRunningError
        Where the folder has no keeper.
    ServerError
        Where the keeper could not do it.
    """
    with socket.socket(socket.AF_UNIX) as peer:
        try:
            peer.connect(str(folder / _CONTROL))
        except OSError as error:
            raise NotRunningError(f"no server runs in {folder}: {error.strerror}") from error
        with peer.makefile("rw") as talk:
            talk.write(json.dumps(request) + "\n")
            talk.flush()
            answer = json.loads(talk.readline() or '{"error": "the keeper of the servers ended meanwhile"}')
    if "error" in answer:
        raise ServerError(answer["error"])
    return answer


def stop(folder: Path) -> None:
    """Stop the servers of a folder and remove it; also where its keeper was killed and left it behind.

    Raises
    ------
    ServerError
        Where the folder is none of ours.
    """
    if not (folder / _FACTS).is_file():
        raise ServerError(f"{folder} is no folder of running servers: it has no {_FACTS}")
    try:
        ask(folder, {"do": "stop"})
    except NotRunningError:
        shutil.rmtree(folder)


def running() -> list[tuple[dict[str, Any], bool]]:
    """List this account's folders of servers: their facts, and whether a keeper is still with them."""
    return [(json.loads(path.read_text()), _has_keeper(path.parent)) for path in _files(_FACTS)]


def _files(name: str) -> list[Path]:
    """List what is called so in this account's folders of servers."""
    places = (_MEMORY, Path(tempfile.gettempdir()))
    mine: list[Path] = []
    for path in (path for place in places for path in sorted(place.glob(f"{_PREFIX}*/{name}"))):
        with suppress(FileNotFoundError):  # removed meanwhile
            mine += [path] if path.stat().st_uid == os.geteuid() else []
    return mine


def _lock(folder: Path, owner: int | None) -> int:
    """Write down the owner, and lock that for this process and its children, but not for programs that they run."""
    file = os.open(folder / _OWNER, os.O_WRONLY | os.O_CREAT, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    os.write(file, b"" if owner is None else str(owner).encode())
    return file


def _remove_what_killed_runs_left() -> None:
    """Remove the folders whose keeper and owner were killed; servers without an owner are for `stop` to remove."""
    for path in _files(_OWNER):
        # Their keeper may be about to remove them, and so may another start.
        with suppress(FileNotFoundError, BlockingIOError), path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            owner = file.read()
            if owner and not Path("/proc", owner).exists():
                shutil.rmtree(path.parent, ignore_errors=True)


def _place(in_memory: bool) -> Path | None:
    if not in_memory:
        return None
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM:
        return _MEMORY
    print(f"{_MEMORY} has less than {_ROOM >> 30} GiB free, so the data goes to disk.", file=sys.stderr)
    return None


def _has_keeper(folder: Path) -> bool:
    try:
        ask(folder, {"do": "nothing"})
    except NotRunningError:
        return False
    return True


def _keep(folder: Path, found: Sequence[Found], owner: int | None, report: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    os.umask(0o077)
    _let_go_of_the_terminal(folder / "keeper.log")
    servers: dict[str, Server] = {}
    asker: socket.socket | None = None
    try:
        with socket.socket(socket.AF_UNIX) as control, os.fdopen(report, "w") as pipe:
            control.bind(str(folder / _CONTROL))
            control.listen()
            answer = _start_all(folder, found, servers)
            if "error" in answer:
                _end(folder, servers)  # before the answer: nothing is left once it is known
            json.dump(answer, pipe)
            pipe.close()
            if "error" not in answer:
                asker = _serve(folder, servers, control, owner)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        answer = _end(folder, servers) if folder.exists() else {}
        if asker:
            _answer(asker, answer)


def _start_all(folder: Path, found: Sequence[Found], servers: dict[str, Server]) -> dict[str, Any]:
    try:
        for it in found:
            server = servers[it.product.name] = SERVERS[it.product.name](it, folder)
            server.set_up()
            server.start()
    except (ServerError, OSError) as error:
        return {"error": str(error)}
    return _write_facts(folder, servers)


def _serve(
    folder: Path, servers: Mapping[str, Server], control: socket.socket, owner: int | None
) -> socket.socket | None:
    """Do what is asked until the owner ends, or a request says to stop: then return who waits for an answer to that."""
    watched = [control] if owner is None else [control, owner]
    while True:
        if owner in select.select(watched, [], [])[0]:
            return None
        peer = control.accept()[0]
        request = _request(peer)
        if request.get("do") == "stop":
            return peer
        _answer(peer, _change(folder, servers, request) if request.get("do") in ("restart", "halt") else {})


def _change(folder: Path, servers: Mapping[str, Server], request: Mapping[str, Any]) -> dict[str, Any]:
    server = servers.get(request["name"])
    if server is None:
        return {"error": f"{folder} has no server {request['name']!r}, only {', '.join(servers)}"}
    try:
        if request["immediate"]:
            server.kill()
        else:
            server.stop()
        if request["do"] == "restart":
            server.start()
    except ServerError as error:
        return {"error": str(error)}
    return _write_facts(folder, servers)


def _end(folder: Path, servers: Mapping[str, Server]) -> dict[str, Any]:
    errors: list[str] = []
    for server in servers.values():
        try:
            server.stop()
        except ServerError as error:
            errors.append(str(error))
    shutil.rmtree(folder)
    return {"error": "\n".join(errors)} if errors else {}


def _write_facts(folder: Path, servers: Mapping[str, Server]) -> dict[str, Any]:
    facts = {
        "folder": str(folder),
        "pid": os.getpid(),
        "servers": {
            name: {"url": server.url, "port": server.port, "pid": server.pid} for name, server in servers.items()
        },
    }
    path = folder / _FACTS
    path.touch(mode=0o600)
    path.write_text(json.dumps(facts))
    return facts


def _request(peer: socket.socket) -> dict[str, Any]:
    with peer.makefile() as talk:
        return json.loads(talk.readline() or "{}")


def _answer(peer: socket.socket, answer: Mapping[str, Any]) -> None:
    # Who asked may have been interrupted, and does not want the answer any more.
    with peer, suppress(BrokenPipeError):
        peer.sendall(json.dumps(answer).encode() + b"\n")


def _let_go_of_the_terminal(log: Path) -> None:
    os.chdir("/")
    with Path(os.devnull).open("rb") as nothing, log.open("wb") as words:
        os.dup2(nothing.fileno(), 0)
        os.dup2(words.fileno(), 1)
        os.dup2(words.fileno(), 2)
