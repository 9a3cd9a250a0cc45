"""What tests of several parts share: the servers, and a fresh database on each of them."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Collection, Generator
from contextlib import ExitStack
from functools import _lru_cache_wrapper, cache
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pytest
from execnet import XSpec
from hypothesis import settings
from sqlalchemy.dialects.postgresql.base import PGDialect
from tests.support.catalogues import sqlite_with_catalogue
from tests.support.forked_workers import fork_workers
from tests.support.s3 import S3Server
from tests.support.services import Service, running_service
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

if TYPE_CHECKING:
    from waterclock.connection import Database
    from waterclock.time import Clock

# Times are not judged here; a machine that is busy, or compiles, must not fail a property.
settings.register_profile("test", deadline=None, max_examples=25)
settings.register_profile("soak", deadline=None, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))

SERVERS = ("postgresql", "mariadb")
DATABASES = ("sqlite", *SERVERS)
# What takes longest to run, longest first: files, or folders of them. All that share a Spark come with the first.
LONGEST = (
    "spark/pipeline/test_pipeline_process.py",
    "demo",
    "spark",
    "simulation",
    "topics/writing/test_killed_anywhere.py",
    "database/test_migrations.py",
    "tables/groups/test_group_order.py",
    "tables/groups/test_group_plans.py",
    "tables/test_plans.py",
    "test_testing.py",
    "project/test_wheel.py",
    "pages/test_docs.py",
    "project/test_services.py",
    "project/test_house.py",
    "pages/test_frameworks.py",
    "work",
    "backup",
    "tables",
    "topics",
    "cli",
)

GC_THRESHOLD = 20_000  # new objects before a collection; with Python's 700, tests of tables took 5 % longer

SHARES_SPARK = "spark: SparkSession"
"""How a test takes the Spark that all share."""

MEMORY = Path("/dev/shm")  # noqa: S108  # pytest makes a folder of the user's own in it
ENOUGH = 8 << 30  # bytes; all tests together write less than a tenth of that


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--databases",
        default=",".join(DATABASES),
        metavar="NAMES",
        help="run the tests that take a database on these only, comma between them (default: %(default)s)",
    )


def pytest_configure() -> None:
    # On a machine that never ran Spark, its making would take a minute of a core from all other tests.
    os.environ.setdefault("WATERCLOCK_CLASS_ARCHIVE", "off")
    # Databases in files wait for the disk at every commit, for what no test can see: a power cut.
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    # Shells start what is in the background without it, and tests send it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # Collecting tests makes a million objects, and all of them stay.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = str(config.getoption("--databases")).split(",")
    if unknown := [name for name in chosen if name not in DATABASES]:
        raise pytest.UsageError(f"--databases: {unknown[0]!r} is none; choose from {','.join(DATABASES)}")
    first = next(name for name in DATABASES if name in chosen)
    if set(chosen) == set(DATABASES):
        _mark_long_forms(items)
    deselected = [item for item in items if not _databases_of(item).issubset(_served(item, chosen, first))]
    config.hook.pytest_deselected(items=deselected)
    gone = set(deselected)
    # A long file that begins last would be waited for alone.
    items[:] = sorted((item for item in items if item not in gone), key=lambda item: _place(item.path))
    # Each worker to which one of them came would start a Java of its own, and nothing would say so.
    if apart := [
        item for item in items if "spark" in getattr(item, "fixturenames", ()) and not _shares_spark(item.path)
    ]:
        raise pytest.UsageError(f"{apart[0].nodeid}: write `{SHARES_SPARK}` in its file, by which its worker is found")


def pytest_collection_finish() -> None:
    # What was imported and collected stays to the end; to look through it again and again took a fifth of the time.
    # Looking for garbage in it once takes 0.7 s of each worker, and finds a few megabytes.
    gc.freeze()
    # Building a statement allocates thousands of objects, none of them garbage.
    gc.set_threshold(GC_THRESHOLD, 20, 20)


@pytest.hookimpl(trylast=True)  # after pytest has looked for garbage in all that the tests left
def pytest_unconfigure() -> None:
    # It looks once more when it ends, for another second.
    gc.freeze()


def pytest_xdist_auto_num_workers() -> int | None:
    """Two more than there are processors, since tests often wait: for servers, for leases, for streams."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else (os.cpu_count() or 1) + 2


def pytest_xdist_setupnodes(config: pytest.Config, specs: list[XSpec]) -> None:
    fork_workers(config, specs)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return _ByFile(config, log) if config.getoption("dist") == "loadscope" else None


class _ByFile(LoadScopeScheduling):
    """Gives a worker a file's tests of a database, and one of them all that share a Spark, so that one Java starts.

    A worker that has started a server gets the tests that take it, as long as there are some: starting a server takes
    seconds, and so does building the statements that the library keeps. The others help when nothing else is left.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._started: dict[WorkerController, set[str]] = defaultdict(set)

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if _shares_spark(self.config.rootpath / file):
            return "spark"
        return " ".join([file, *(name for name in DATABASES if name in test.partition("[")[2])])

    def _assign_work_unit(self, node: WorkerController) -> None:
        mine = self._started[node]
        of_others = set[str]().union(*self._started.values()) - mine
        own = (scope for scope in self.workqueue if mine.intersection(scope.split()))
        free = (scope for scope in self.workqueue if not of_others.intersection(scope.split()))
        chosen = next(own, None) or next(free, None) or next(iter(self.workqueue))
        mine.update(name for name in SERVERS if name in chosen.split())
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)


@cache
def _shares_spark(file: Path) -> bool:
    return SHARES_SPARK in file.read_text("utf-8")


@cache
def _place(file: Path) -> int:
    path = file.relative_to(Path(__file__).parent)
    names = {str(path), path.parts[0]}
    return next((place for place, name in enumerate(LONGEST) if name in names), len(LONGEST))


def _served(item: pytest.Item, chosen: list[str], first: str) -> list[str]:
    return [first] if item.get_closest_marker("one_database") else chosen


def _mark_long_forms(items: list[pytest.Item]) -> None:
    """Mark as slow what `make soak` runs alone, since another test shows the same on another database.

    The combinations of a test's parameters are spread over the databases, each on one of them, and a test without
    parameters is one combination. A test with the mark `both_servers` runs on SQLite and on both servers, and with
    parameters each combination on one server, and every third one on SQLite, too. A checksum shuffles the combinations,
    or a parameter of two values would have each value on one server alone.
    """
    where: dict[str, dict[str, dict[str, pytest.Item]]] = defaultdict(lambda: defaultdict(dict))
    for item in items:
        database = _parameter(item)
        if database is not None and not any(map(item.get_closest_marker, ("one_database", "slow"))):
            function, _, parameters = item.nodeid.partition("[")
            names = parameters.removesuffix("]").split("-")
            if database in names:  # and not in the name of a test's own parameter that chooses the database
                names.remove(database)
                where[function]["-".join(names)][database] = item
    for function, combinations in where.items():
        on_both = [key for key, tests in combinations.items() if tests.keys() >= set(SERVERS)]
        if not on_both:
            continue
        on_both.sort(key=lambda key: crc32((function + key).encode()))
        first = crc32(function.encode())
        short = _short_forms(len(on_both), first, both_servers=_needs_both_servers(combinations.values()))
        for place, key in enumerate(on_both):
            for database, item in combinations[key].items():
                if (place, database) not in short:
                    item.add_marker("slow")


def _short_forms(count: int, first: int, *, both_servers: bool) -> set[tuple[int, str]]:
    """Return which of ``count`` combinations run on which database in `make test`."""
    if both_servers and count == 1:
        return {(0, name) for name in DATABASES}
    if both_servers:
        on_servers = {(place, SERVERS[(place + first) % len(SERVERS)]) for place in range(count)}
        return on_servers | {(place, "sqlite") for place in range(first % min(count, 3), count, 3)}
    if count == 1:
        return {(0, "sqlite" if first % 3 == 0 else SERVERS[first % 2])}
    return {(place, DATABASES[(place + first) % 3]) for place in range(count)}


def _needs_both_servers(combinations: Collection[dict[str, pytest.Item]]) -> bool:
    """Return whether a test is marked so, or is about servers, as it does not run on SQLite."""
    tests = [item for each in combinations for item in each.values()]
    marked = any(item.get_closest_marker("both_servers") for item in tests)
    return marked or not any("sqlite" in each for each in combinations)


def _databases_of(item: pytest.Item) -> set[str]:
    needed = {name for name in DATABASES if f"{name}_server" in getattr(item, "fixturenames", ())}
    database = _parameter(item)
    return needed if database is None else needed | {database}


def _parameter(item: pytest.Item) -> str | None:
    """Return the database on which a test runs because of a parameter; None if it has no such parameter."""
    has_one = isinstance(item, pytest.Function) and hasattr(item, "callspec") and "database_url" in item.callspec.params
    return str(item.callspec.params["database_url"]) if has_one else None


@pytest.fixture(scope="session", autouse=True)
def _keep_built_statements() -> None:
    """Keep the statements of closed databases: tests' tables are alike, and building theirs again takes long."""
    from waterclock.database import per_database_cache  # noqa: PLC0415  # as below

    per_database_cache.CLOSED_AT_MOST = 1_000


@pytest.fixture(scope="session", autouse=True)
def _build_catalogue_queries_once() -> None:
    """Share the queries by which SQLAlchemy reads PostgreSQL's catalogue: each engine built its own, for 9 ms."""

    def shared(build: Callable[..., object]) -> Callable[..., object]:
        known: dict[tuple[object, ...], object] = {}

        def query(dialect: PGDialect, *arguments: object) -> object:
            key = (type(dialect), dialect.server_version_info, *arguments)
            if key not in known:
                known[key] = build(dialect, *arguments)
            return known[key]

        return query

    for name, method in list(vars(PGDialect).items()):
        if isinstance(method, _lru_cache_wrapper):
            setattr(PGDialect, name, shared(method.__wrapped__))


@pytest.fixture(scope="session", autouse=True)
def _compile_kernels() -> None:
    """Run kernels compiled, as for many rows; tests/batching/test_kernels.py compares the interpreted form with it."""
    from waterclock.batching import kernels  # noqa: PLC0415  # as above

    kernels.INTERPRETED_ROWS = 0


@pytest.fixture(scope="session", autouse=True)
def _check_arguments_without_pydantic() -> None:
    """Let commands check their arguments as for users: without pydantic, which tests of the server have imported."""
    from cyclopts.argument import _argument  # noqa: PLC0415  # as above

    _argument.parse_version = lambda _: (0,)  # with pydantic 2 or newer, Cyclopts makes a validator of each argument


@pytest.fixture
def young_heap() -> None:
    """Exclude all that exists from later garbage collections, which otherwise take seconds in a full test run."""
    gc.freeze()


@pytest.fixture(scope="session")
def postgresql_server() -> Generator[Service]:
    with running_service("postgresql") as service, service.with_template() as ready:
        yield ready


@pytest.fixture(scope="session")
def mariadb_server() -> Generator[Service]:
    with running_service("mariadb") as service, service.with_template() as ready:
        yield ready


@pytest.fixture(scope="session")
def mosquitto_server() -> Generator[Service]:
    with running_service("mosquitto") as service:
        yield service


@pytest.fixture(scope="session")
def s3_server() -> Generator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def is_migrated() -> bool:
    """Whether a test's databases have the catalogue already; tests that migrate have a fixture of their own."""
    return True


@pytest.fixture
def sqlite_url(tmp_path: Path, is_migrated: bool) -> str:
    path = tmp_path / "waterclock.db"
    return sqlite_with_catalogue(path) if is_migrated else f"sqlite:///{path}"


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, is_migrated: bool) -> Generator[str]:
    """Give the URL of a database without anything of ours but the catalogue, on each kind of database in turn."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_url")
        return
    server: Service = request.getfixturevalue(f"{request.param}_server")
    with server.new_database(empty=not is_migrated) as url:
        yield url


@pytest.fixture
def connect(database_url: str, tmp_path: Path) -> Generator[Callable[..., Database]]:
    """Give a `waterclock.connect` to the test's own database and ledgers; what it opens is closed in the end."""
    # Imported here, so that a mistake below `connect` fails the tests that need it and not the collection of all.
    from waterclock.connection import connect as connect_to  # noqa: PLC0415

    with ExitStack() as opened:

        def open_database(
            url: str = database_url, *, clock: Clock | None = None, create: bool | None = None
        ) -> Database:
            return opened.enter_context(connect_to(url, tmp_path / "ledgers", clock=clock, create=create))

        yield open_database


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers wait a second, and not longer, for a client that has a transaction open and says nothing."""
    from waterclock.database.engines import engine_dialect, mariadb, postgresql  # noqa: PLC0415

    monkeypatch.setattr(mariadb, "_SILENCE", mariadb._SILENCE.replace(str(engine_dialect.LONGEST_SILENCE), "1"))
    monkeypatch.setitem(postgresql._PATIENCE, "idle_in_transaction_session_timeout", "'1s'")


@pytest.fixture
def database(connect: Callable[..., Database]) -> Database:
    return connect()
