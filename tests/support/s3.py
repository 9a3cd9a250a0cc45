"""An S3 server in a process of its own, so that it can be stopped midway and started again with what it held."""

from __future__ import annotations

import logging
import multiprocessing
import socket
from multiprocessing.connection import Connection
from urllib.parse import quote

from pyarrow import fs

KEY, SECRET = "AKIAWATERCLOCK", "s3cr3t/of/the+store"


class S3Server:
    """moto's S3 server; what is in it is gone when its process ends.

    Attributes
    ----------
    port
        Where it listens, on this machine.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would take the threads of this process for its own
        self._near, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far,), daemon=True)
        self._process.start()
        self.port: int = self._near.recv()

    @property
    def filesystem(self) -> fs.S3FileSystem:
        """The server's objects, to look behind what is tested."""
        return fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            region="us-east-1",
            scheme="http",
            endpoint_override=f"127.0.0.1:{self.port}",
            allow_bucket_creation=True,
            allow_bucket_deletion=True,
        )

    def url(self, path: str, scheme: str = "s3") -> str:
        """Give the URL of a bucket or folder, with its secrets."""
        place = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"{scheme}://{KEY}:{quote(SECRET, safe='')}@{path}?{place}"

    def stop(self) -> None:
        """Take no more connections; what is there is kept."""
        self._ask("stop")

    def start(self) -> None:
        """Listen again."""
        self._ask("start")

    def close(self) -> None:
        """End it."""
        self._near.send("end")
        self._process.join(timeout=30)

    def _ask(self, command: str) -> None:
        self._near.send(command)
        self._near.recv()


def _serve(far: Connection) -> None:
    from moto.server import ThreadedMotoServer  # noqa: PLC0415  # only the process of the server needs it

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    far.send(port)
    while (command := far.recv()) != "end":
        if command == "stop":
            server.stop()
        else:
            server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
            server.start()
        far.send(command)
    server.stop()
