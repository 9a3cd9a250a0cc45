"""scripts/services and the fixtures on top of it, against the real servers."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from tests.conftest import DATABASES
from tests.support.services import SCRIPT, Service

PATIENCE = 60
SERVERS = ("postgresql", "mariadb", "mosquitto")
DATABASE_SERVERS = ("postgresql", "mariadb")

Start = Callable[..., dict[str, Any]]


@pytest.fixture
def place() -> Generator[Path]:
    # Not tmp_path: as root the servers run as another account, which has to pass through. In memory for speed.
    memory = "/dev/shm"  # noqa: S108  # a folder made by TemporaryDirectory goes into it
    roomy = Path(memory).is_dir() and shutil.disk_usage(memory).free > 2 << 30
    with tempfile.TemporaryDirectory(prefix="wc-", dir=memory if roomy else None) as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path


@pytest.fixture
def start(place: Path) -> Generator[Start]:
    """Start servers in ``place``; what a test leaves running is stopped."""
    folders: list[str] = []

    def started(*arguments: str) -> dict[str, Any]:
        facts = json.loads(services(place, "start", *arguments).stdout)
        folders.append(facts["folder"])
        return facts

    yield started
    for folder in folders:
        if Path(folder).exists():
            services(place, "stop", folder)


def services(place: Path, *arguments: str, exit_code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        env=os.environ | {"TMPDIR": str(place)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == exit_code, done.stderr
    return done


def family(pid: int) -> list[int]:
    """Open a process and everything below it: what is opened tells when it ends, and is never mistaken for another.

    A database server starts and ends helpers all the time: one that has gone meanwhile is no family any more.
    """
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = [pid]
    for member in found:
        found += [child for child, parent in parents.items() if parent == member]
    opened: list[int] = []
    for member in found:
        with suppress(ProcessLookupError):
            opened.append(os.pidfd_open(member))
    return opened


def all_end(processes: Iterable[int]) -> bool:
    return all(select.select([process], [], [], PATIENCE)[0] for process in processes)


def answers(server: dict[str, Any]) -> bool:
    if server["url"].startswith("mqtt://"):
        with socket.create_connection(("127.0.0.1", server["port"]), timeout=PATIENCE):
            return True
    with sa.create_engine(server["url"], poolclass=sa.NullPool).connect() as connection:
        return connection.scalar(sa.text("SELECT 1")) == 1


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_was_stopped_leaves_no_process_and_no_file(name: str, start: Start, place: Path) -> None:
    facts = start(name)
    assert answers(facts["servers"][name])
    processes = family(facts["pid"])
    assert len(processes) >= 2

    services(place, "stop", facts["folder"])

    assert all_end(processes)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", DATABASE_SERVERS)
def test_a_database_server_asks_for_its_password(name: str, request: pytest.FixtureRequest) -> None:
    server: Service = request.getfixturevalue(f"{name}_server")
    guess = sa.make_url(server.url).set(password=secrets.token_hex(16))
    with pytest.raises(exc.OperationalError, match=r"password authentication failed|Access denied"):
        sa.create_engine(guess).connect()


def test_the_database_servers_are_as_durable_as_in_production(
    postgresql_server: Service, mariadb_server: Service
) -> None:
    with sa.create_engine(postgresql_server.url, poolclass=sa.NullPool).connect() as connection:
        settings = [connection.scalar(sa.text(f"SHOW {name}")) for name in ("fsync", "synchronous_commit")]
        assert settings == ["on", "on"]
    with sa.create_engine(mariadb_server.url, poolclass=sa.NullPool).connect() as connection:
        assert connection.scalar(sa.text("SELECT @@innodb_flush_log_at_trx_commit")) == 1


def test_the_temporary_tables_of_a_server_lie_where_no_other_server_removes_them(mariadb_server: Service) -> None:
    engine = sa.create_engine(mariadb_server.url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        temporary, data = connection.execute(sa.text("SELECT @@tmpdir, @@datadir")).one()
    assert Path(temporary) == Path(data).parent


def test_a_broker_asks_for_its_password(mosquitto_server: Service) -> None:
    with socket.create_connection(("127.0.0.1", sa.make_url(mosquitto_server.url).port), timeout=PATIENCE) as peer:
        peer.sendall(b"\x10\x0d\0\4MQTT\4\2\0\5\0\1x")  # CONNECT without user and password
        assert peer.recv(4) == b"\x20\2\0\5"  # CONNACK: not authorised


def test_servers_end_with_their_owner_even_if_it_is_killed(start: Start, place: Path) -> None:
    with subprocess.Popen(["sleep", "infinity"]) as owner:
        facts = start("postgresql", "mosquitto", "--end-with", str(owner.pid))
        processes = family(facts["pid"])
        owner.kill()

    assert all_end(processes)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", SERVERS)
def test_servers_end_with_their_keeper_even_if_it_is_killed(name: str, start: Start, place: Path) -> None:
    facts = start(name)
    processes = family(facts["pid"])
    os.kill(facts["pid"], signal.SIGKILL)

    assert all_end(processes)
    assert f"left behind; remove it: scripts/services stop {facts['folder']}" in services(place, "status").stdout
    services(place, "stop", facts["folder"])
    assert list(place.iterdir()) == []


def test_files_of_a_killed_run_are_removed_when_the_next_one_starts(start: Start, place: Path) -> None:
    with subprocess.Popen(["sleep", "infinity"]) as owner:
        left = start("mosquitto", "--end-with", str(owner.pid))
        kept = start("mosquitto")
        for facts in (left, kept):
            processes = family(facts["pid"])
            os.kill(facts["pid"], signal.SIGKILL)
            assert all_end(processes)
        start("mosquitto")
        assert Path(left["folder"]).exists()  # its owner may look at it
        owner.kill()
    start("mosquitto")
    assert not Path(left["folder"]).exists()
    assert Path(kept["folder"]).exists()  # it has no owner


def test_two_runs_at_the_same_time_do_not_disturb_each_other(place: Path) -> None:
    command = [sys.executable, SCRIPT, "start", *DATABASE_SERVERS]
    environment = os.environ | {"TMPDIR": str(place)}
    runs = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(2)]
    first, second = (json.loads(run.communicate()[0]) for run in runs)

    services(place, "stop", first["folder"])

    assert all(answers(server) for server in second["servers"].values())
    services(place, "stop", second["folder"])
    assert list(place.iterdir()) == []


def test_a_restarted_broker_answers_at_the_same_url(start: Start, place: Path) -> None:
    facts = start("mosquitto")
    again = json.loads(services(place, "restart", facts["folder"], "mosquitto", "--immediate").stdout)
    assert again["servers"]["mosquitto"]["url"] == facts["servers"]["mosquitto"]["url"]
    assert again["servers"]["mosquitto"]["pid"] != facts["servers"]["mosquitto"]["pid"]
    assert answers(again["servers"]["mosquitto"])


def test_a_restart_of_a_server_that_is_not_there_is_refused(start: Start, place: Path) -> None:
    facts = start("mosquitto")
    refused = services(place, "restart", facts["folder"], "mariadb", exit_code=1)
    assert "has no server 'mariadb', only mosquitto" in refused.stderr
    assert answers(facts["servers"]["mosquitto"])


def test_run_gives_its_command_the_urls_and_returns_its_exit_code(place: Path) -> None:
    show = "import json, os, sys; json.dump(dict(os.environ), sys.stdout); sys.exit(7)"
    command = ["--only", "postgresql", "--only", "mosquitto", "--", sys.executable, "-c", show]
    shown = json.loads(services(place, "run", *command, exit_code=7).stdout)
    assert shown["WATERCLOCK_TEST_POSTGRESQL_URL"].startswith("postgresql+psycopg://waterclock:")
    assert shown["WATERCLOCK_TEST_MOSQUITTO_URL"].startswith("mqtt://waterclock:")
    assert shown["WATERCLOCK_TEST_SERVICES"].startswith(str(place))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_run_leaves_nothing_for_any_signal_that_ends_it(sent: signal.Signals, place: Path) -> None:
    show = 'cat "$WATERCLOCK_TEST_SERVICES/servers.json"; echo; exec sleep infinity'
    command = [sys.executable, SCRIPT, "run", "--only", "mosquitto", "--", "sh", "-c", show]
    environment = os.environ | {"TMPDIR": str(place)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        processes = family(json.loads(run.stdout.readline())["pid"])
        run.send_signal(sent)

    assert run.returncode == -sent
    assert all_end(processes)
    assert list(place.iterdir()) == []


def test_a_missing_server_is_exit_code_3_with_what_to_do(place: Path) -> None:
    failed = services(place, "start", "mariadb", exit_code=3, WATERCLOCK_SERVER_PATH=str(place))
    assert (
        f"MariaDB 10.6 or newer was not found: no mariadbd, mariadb-install-db, my_print_defaults, mariadb in {place}"
        in (failed.stderr)
    )
    assert "apt-get install mariadb-server-core mariadb-client-core" in failed.stderr
    assert failed.stdout == ""


def test_a_server_that_is_too_old_is_missing(place: Path) -> None:
    _write_mosquitto(place, "echo mosquitto version 1.6.9")
    failed = services(place, "start", "mosquitto", exit_code=3, WATERCLOCK_SERVER_PATH=str(place))
    assert "Mosquitto 2.0 or newer was not found" in failed.stderr


def test_a_server_that_does_not_start_shows_its_log_and_leaves_nothing(place: Path) -> None:
    programs = place / "programs"
    programs.mkdir()
    _write_mosquitto(
        programs, '[ "$1" = -h ] && echo mosquitto version 2.0.0 && exit; echo the disk is on fire; exit 9'
    )
    failed = services(place, "start", "mosquitto", exit_code=1, WATERCLOCK_SERVER_PATH=str(programs))
    assert "Mosquitto ended with exit code 9 instead of starting" in failed.stderr
    assert "the disk is on fire" in failed.stderr
    assert list(place.iterdir()) == [programs]


def _write_mosquitto(folder: Path, script: str) -> None:
    for name, text in {"mosquitto": script, "mosquitto_passwd": "true"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


def test_only_a_folder_of_ours_is_ever_removed(place: Path) -> None:
    precious = place / "precious"
    precious.touch()
    failed = services(place, "stop", str(place), exit_code=1)
    assert f"{place} is no folder of running servers" in failed.stderr
    assert precious.exists()


@pytest.mark.parametrize("is_migrated", [False])
@pytest.mark.parametrize("turn", [1, 2, 3, 4])  # two are left of them on each server where slow tests are left out
def test_every_test_gets_an_empty_database(turn: int, database_url: str) -> None:
    engine = sa.create_engine(database_url)
    assert sa.inspect(engine).get_table_names() == []
    sa.Table("crumbs", sa.MetaData(), sa.Column("turn", sa.Integer)).create(engine)
    engine.dispose()


@pytest.mark.parametrize("name", DATABASE_SERVERS)
def test_a_database_goes_away_while_a_client_still_holds_it(name: str, request: pytest.FixtureRequest) -> None:
    server: Service = request.getfixturevalue(f"{name}_server")
    held = sa.Table("held", sa.MetaData(), sa.Column("number", sa.Integer))
    with server.new_database() as url:
        holder = sa.create_engine(url)
        held.create(holder)
        connection = holder.connect()
        connection.execute(held.insert(), {"number": 1})

    with pytest.raises(exc.OperationalError):
        sa.create_engine(url).connect()
    connection.invalidate()
    holder.dispose()


@pytest.mark.parametrize("immediate", [False, True], ids=["orderly", "killed"])
@pytest.mark.parametrize("name", DATABASE_SERVERS)
def test_a_restart_keeps_what_was_committed_and_nothing_else(
    name: str, immediate: bool, request: pytest.FixtureRequest
) -> None:
    server: Service = request.getfixturevalue(f"{name}_server")
    kept = sa.Table("kept", sa.MetaData(), sa.Column("number", sa.Integer))
    with server.new_database() as url:
        engine = sa.create_engine(url, pool_pre_ping=True)
        kept.create(engine)
        uncommitted = engine.connect()
        uncommitted.execute(kept.insert(), {"number": 1})
        with engine.begin() as connection:
            connection.execute(kept.insert(), {"number": 2})

        server.restart(immediate=immediate)

        with engine.connect() as connection:
            assert connection.scalars(sa.select(kept.c.number)).all() == [2]
        with pytest.raises(exc.OperationalError):
            uncommitted.commit()
        engine.dispose()


def run_pytest(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # Not the servers of the run that this test is part of.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WATERCLOCK_TEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__, "-k", "empty_database", *arguments],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_databases_option_narrows_the_tests() -> None:
    listed = run_pytest("--collect-only", "-q", "--databases", "sqlite,mariadb").stdout
    assert "test_every_test_gets_an_empty_database[sqlite-1-False]" in listed
    assert "test_every_test_gets_an_empty_database[mariadb-2-False]" in listed
    assert "postgresql" not in listed
    refused = run_pytest("--databases", "oracle")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--databases: 'oracle' is none; choose from sqlite,postgresql,mariadb" in refused.stderr


def test_without_slow_tests_each_combination_of_parameters_runs_on_one_database_and_each_gets_some() -> None:
    def of_each_database(*arguments: str) -> list[set[str]]:
        listed = run_pytest("--collect-only", "-q", "-m", "not slow", *arguments).stdout.splitlines()
        return [{line.replace(name, "") for line in listed if f"[{name}-" in line} for name in DATABASES]

    on_each = of_each_database()
    assert sorted(map(len, on_each)) == [1, 1, 2]
    assert len(set.union(*on_each)) == 4
    assert of_each_database("--databases", "sqlite,mariadb") == [set.union(*on_each), set(), set.union(*on_each)]


def test_without_a_server_its_tests_fail_and_none_is_skipped(place: Path) -> None:
    failed = run_pytest("--databases", "sqlite,postgresql", WATERCLOCK_SERVER_PATH=str(place))
    assert failed.returncode == pytest.ExitCode.TESTS_FAILED
    assert "4 passed" in failed.stdout
    assert "4 errors" in failed.stdout
    assert "skipped" not in failed.stdout
    assert "apt-get install postgresql" in failed.stdout
