"""Finds the programs of PostgreSQL, MariaDB and Mosquitto, and installs what is missing where apt and root allow it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SEARCH_VARIABLE = "WATERCLOCK_SERVER_PATH"
"""Names the folders to look in, colon between them, instead of PATH and the usual ones."""

_USUAL_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/usr/libexec")
_POLICY = Path("/usr/sbin/policy-rc.d")
_POLICY_TEXT = (
    "#!/bin/sh\n# Written by scripts/services while it installs packages; remove it if it is still here.\nexit 101\n"
)
_PACKAGES = Path("/var/lib/dpkg")


class MissingError(Exception):
    """A server is not on this machine and could not be installed; the text says what to do."""


@dataclass(frozen=True)
class Product:
    """What to look for, the server itself first, and which packages of Debian and Ubuntu have it."""

    name: str
    title: str
    minimum: tuple[int, int]
    programs: tuple[str, ...]
    version_flag: str
    packages: tuple[str, ...]


PRODUCTS = {
    product.name: product
    for product in (
        Product(
            "postgresql",
            "PostgreSQL",
            (14, 0),
            ("postgres", "initdb", "psql", "createdb", "pg_dump", "pg_restore"),
            "--version",
            ("postgresql", "postgresql-client"),
        ),
        Product(
            "mariadb",
            "MariaDB",
            (10, 6),
            # my_print_defaults is what mariadb-install-db calls.
            ("mariadbd", "mariadb-install-db", "my_print_defaults", "mariadb"),
            "--version",
            # The core packages have the programs alone: no service, no account, no data folder.
            ("mariadb-server-core", "mariadb-client-core"),
        ),
        Product("mosquitto", "Mosquitto", (2, 0), ("mosquitto", "mosquitto_passwd"), "-h", ("mosquitto",)),
    )
}
"""The servers."""

_ALONE = (
    Product("sqlite", "SQLite's shell", (3, 35), ("sqlite3",), "--version", ("sqlite3",)),
    # Debian has it in a package that nothing else of MariaDB needs; it counts its versions by itself.
    Product("mariadb-dump", "MariaDB's dump", (10, 6), ("mariadb-dump",), "--version", ("mariadb-client",)),
    Product("chromium", "Chromium", (100, 0), ("chromium",), "--version", ("chromium",)),
    Product("pgbouncer", "PgBouncer", (1, 12), ("pgbouncer",), "--version", ("pgbouncer",)),
    # Its plugin for MQTT is in the core package, and the library that the plugin loads is not.
    Product("collectd", "collectd", (5, 8), ("collectd",), "-h", ("collectd-core", "libmosquitto1")),
)

WITH_PROGRAMS = PRODUCTS | {product.name: product for product in _ALONE}
"""The servers, and what is a program alone."""


@dataclass(frozen=True)
class Found:
    """A server's programs on this machine, by name, and its version."""

    product: Product
    version: str
    programs: dict[str, Path]


def find(product: Product) -> Found | None:
    """Find the first installation that is complete and new enough; of several PostgreSQLs the newest."""
    folders = _search_folders()
    for folder in folders:
        server = _executable(folder / product.programs[0])
        if server is None:
            continue
        # A link on PATH may lead into a folder of its own, with the rest of the installation beside the target.
        near = [server.parent, folder, *folders]
        programs = {name: path for name in product.programs if (path := _first_executable(name, near))}
        version = _version(product, server)
        if len(programs) == len(product.programs) and version is not None:
            return Found(product, version, programs)
    return None


def find_all(names: Sequence[str]) -> list[Found]:
    """Find these servers, or programs. As root, install with apt what is missing.

    Raises
    ------
    MissingError
        Where one is neither here nor to be installed.
    """
    products = [WITH_PROGRAMS[name] for name in names]
    missing = [product for product in products if find(product) is None]
    # Packages do not go into the folders that the caller has named to look in.
    if missing and SEARCH_VARIABLE not in os.environ and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(missing)
    found = [(product, find(product)) for product in products]
    if lacking := [product for product, it in found if it is None]:
        raise MissingError("\n".join(_remedy(product) for product in lacking))
    return [it for _, it in found if it is not None]


def _remedy(product: Product) -> str:
    major, minor = product.minimum
    where = os.environ.get(SEARCH_VARIABLE) or "PATH, /usr/sbin and the like"
    return (
        f"{product.title} {major}.{minor} or newer was not found: no {', '.join(product.programs)} in {where}."
        f" Install it (Debian, Ubuntu: sudo apt-get install {' '.join(product.packages)}),"
        f" or name the folders of its programs: {SEARCH_VARIABLE}=/…/bin"
    )


def _search_folders() -> list[Path]:
    chosen = os.environ.get(SEARCH_VARIABLE)
    if chosen is not None:
        return [Path(part) for part in chosen.split(":") if part]
    versions = sorted(
        Path("/usr/lib/postgresql").glob("[0-9]*/bin"), key=lambda folder: int(folder.parent.name), reverse=True
    )
    on_path = [Path(part) for part in os.environ.get("PATH", "").split(":") if part]
    # Ordinary users have no sbin on their PATH, and Debian keeps PostgreSQL's programs off every PATH.
    return list(dict.fromkeys([*versions, *on_path, *map(Path, _USUAL_FOLDERS)]))


def _executable(path: Path) -> Path | None:
    try:
        return path.resolve() if path.is_file() and os.access(path, os.X_OK) else None
    except PermissionError:
        return None


def _first_executable(name: str, folders: Sequence[Path]) -> Path | None:
    return next((path for folder in folders if (path := _executable(folder / name))), None)


def _version(product: Product, server: Path) -> str | None:
    # Mosquitto shows its version in its help, which it counts as a failure.
    shown = subprocess.run([server, product.version_flag], capture_output=True, text=True, check=False).stdout
    number = re.search(r"(\d+)\.(\d+)[.\d]*", shown)
    if number is None or (int(number[1]), int(number[2])) < product.minimum:
        return None
    return number[0]


def _install(products: Sequence[Product]) -> None:
    with _turn():
        # The process that had the turn before may have installed it.
        packages = [package for product in products if find(product) is None for package in product.packages]
        if not packages:
            return
        print(f"Installing {', '.join(packages)} …", file=sys.stderr, flush=True)
        with _no_service_starts():
            update = _apt_get("update")
            install = _apt_get("install", "--yes", "--no-install-recommends", *packages)
        if install.returncode != 0:
            # An update that failed says why what was to be installed could not be found.
            raise MissingError(
                f"{update.stdout}{install.stdout}apt-get could not install {', '.join(packages)}; see above."
                " Mend that, or install them by hand"
            )


def _apt_get(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *arguments]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@contextmanager
def _turn() -> Generator[None]:
    folder = os.open(_PACKAGES, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def _no_service_starts() -> Generator[None]:
    """Keep packages from starting their services; a machine that has a policy of its own keeps that one."""
    ours = not _POLICY.exists() or _POLICY.read_text() == _POLICY_TEXT
    if ours:
        _POLICY.write_text(_POLICY_TEXT)
        _POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            _POLICY.unlink(missing_ok=True)
