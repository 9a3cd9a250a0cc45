"""A PgBouncer before a PostgreSQL, which gives each transaction another session."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa
from tests.support.services import program
from tests.work.conftest import until

_OWNS_NOTHING = 65534  # the account that Linux has for it
_CONFIGURATION = """
[databases]
* = host={host} port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 500
"""


@contextmanager
def pooling(url: str, *, sessions: int) -> Generator[str]:
    """Give the URL at which clients share so many sessions of a server, and what a pooler needs in it."""
    server = sa.make_url(url)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        users, configuration = folder / "users.txt", folder / "pgbouncer.ini"
        users.write_text(f'"{server.username}" "{server.password}"\n')
        configuration.write_text(
            _CONFIGURATION.format(host=server.host, server=server.port, port=port, users=users, sessions=sessions)
        )
        account = pwd.getpwuid(_OWNS_NOTHING) if os.geteuid() == 0 else None  # it refuses to run as root
        if account is not None:
            for each in (folder, users, configuration):
                os.chown(each, account.pw_uid, account.pw_gid)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [program("pgbouncer", "pgbouncer"), "-q", configuration],
                stdout=log,
                stderr=log,
                user=None if account is None else account.pw_uid,
            )
        try:
            until(lambda: process.poll() is not None or _answers(port))
            assert process.poll() is None, (folder / "log").read_text()
            here = server.set(host="127.0.0.1", port=port).update_query_dict({"prepare_threshold": "none"})
            yield here.render_as_string(hide_password=False)
        finally:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
