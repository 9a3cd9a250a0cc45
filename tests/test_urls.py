"""Secrets in URLs are never shown: not in errors, not in reprs, not in what drivers say, not by commands."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Callable, Generator, Iterator
from functools import cache
from inspect import signature
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

import waterclock as wc
from waterclock._support.urls import redacted, shown
from waterclock.cli.app import run
from waterclock.cli.operations import doctor
from waterclock.cli.terminal.common import Common
from waterclock.database.backend import Backend
from waterclock.database.engines.database_url import parse_url
from waterclock.spark.options import Opening
from waterclock.spark.pipeline.definition import PipelineSource
from waterclock.spark.reading.table_read_options import TableReadOptions
from waterclock.spark.reading.topic_read_options import TopicReadOptions
from waterclock.spark.writing.write_options import WriteOptions
from waterclock.topics.reading.planning import plan_slices

SECRET = "hunter2.S3CRET"  # noqa: S105  # of nothing
ROOT = f"s3://key:{SECRET}@bucket/x?token={SECRET}"
NOWHERE = "127.0.0.1:1"
"""Nothing listens on port 1."""


@pytest.fixture(autouse=True)
def _without_handlers_of_commands() -> Generator[None]:
    """Take away the handler of a command that logs: its stream is closed when the test ends."""
    yield
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if handler.__class__.__module__.startswith(("logging", "waterclock")):
            root.removeHandler(handler)
    root.setLevel(logging.WARNING)


SHAPES = [
    f"postgres://u:{SECRET}@{NOWHERE}/d",
    f"postgresql://u:{SECRET}@{NOWHERE}/d",
    f"postgresql+psycopg://u:{SECRET}@{NOWHERE}/d",
    f"postgresql+asyncpg9://u:{SECRET}@{NOWHERE}/d",
    f"postgresql://u:{SECRET}@{NOWHERE}/d?sslmode=disable&bogus={SECRET}",
    f"postgresql://{NOWHERE}/d?user=u&password={SECRET}",
    f"postgresql://u:{SECRET}@host:{SECRET}/d",
    f"postgresql://u:{SECRET}",
    f"postgresql://u:p@{SECRET}@{NOWHERE}/d",
    f"postgresql://u:p/{SECRET}@{NOWHERE}/d",
    f"postgresql://u:p?{SECRET}@{NOWHERE}/d",
    f"postgresql://u:p#{SECRET}@{NOWHERE}/d",
    f"postgresql://u:%40{SECRET}@{NOWHERE}/d",
    f"postgresql://u:x@y/{SECRET}@{NOWHERE}/d",
    f"postgresql:u:{SECRET}@{NOWHERE}/d",
    f"postgresql:/u:{SECRET}@{NOWHERE}/d",
    f"u:{SECRET}@{NOWHERE}/d",
    f"host=localhost user=u password={SECRET} dbname=d",
    f"mysql://u:{SECRET}@{NOWHERE}/d",
    f"mysql+mysqldb://u:{SECRET}@{NOWHERE}/d",
    f"mysql+pymysql://u:{SECRET}@{NOWHERE}/d?passwd={SECRET}",
    f"mysql://u:{SECRET}@{NOWHERE}/d?unknown_option={SECRET}",
    f"mariadb://u:{SECRET}@{NOWHERE}/d?ssl_key={SECRET}",
    f"mariadb+nonsense://u:{SECRET}@{NOWHERE}/d",
    f"oracle://u:{SECRET}@{NOWHERE}/d",
    f"mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3D{SECRET}",
    f"jdbc:postgresql://{NOWHERE}/d?user=u&password={SECRET}",
    f"sqlite:///:memory:?password={SECRET}",
    f"sqlite:///no/such/folder/d.db?token={SECRET}",
    f"sqlite+pysqlcipher://:{SECRET}@/d.db",
    f"sqlite://{SECRET}@h/d.db",
    f"SQLite+pysqlite://{SECRET}@h/d.db",
]


find_java_once = cache(doctor.find_java)
"""Knows the Java that `doctor` asks for its version twice for each URL."""


def ways(url: str) -> Iterator[Callable[[], object]]:
    """Every way in which a URL may get into an error, apart from commands."""
    yield lambda: wc.connect(url, "ledgers")
    yield lambda: wc.connect(url)
    yield lambda: wc.connect(shards={"-80": url, "80-": url})
    yield lambda: wc.connect(shards={"-80": url, "80-": f"{url} "})
    yield lambda: Backend(url)


@pytest.mark.both_servers
@pytest.mark.parametrize("url", SHAPES)
def test_no_error_shows_a_secret(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for way in ways(url):
        with pytest.raises(wc.WaterclockError) as raised:
            way()
        assert SECRET not in "".join(traceback.format_exception(raised.value))
        assert SECRET not in repr(raised.value)


@pytest.mark.parametrize("text", [SECRET, f"./{SECRET}/d", f"{SECRET}?x", "s3cr3t", " s3cr3t\n", b"s3cr3t", 53_137])
def test_an_invalid_url_may_be_a_bare_password(text: object) -> None:
    for way in ways(text):  # pyright: ignore[reportArgumentType]  # a caller may give anything
        with pytest.raises(wc.WaterclockError) as raised:
            way()
        said = "".join(traceback.format_exception(raised.value))
        assert not [secret for secret in (SECRET, "s3cr3t", "53137") if f"'{secret}" in said or f"{secret}'" in said]
    assert shown(text) == "***"


def test_the_name_of_a_database_file_without_its_scheme_is_shown() -> None:
    for name in ("factory.db", "data/factory.sqlite3", "C:\\data\\factory.db"):
        with pytest.raises(wc.InvalidArgumentError, match=re.escape(repr(name))):
            wc.connect(name)


@pytest.mark.both_servers
@pytest.mark.parametrize("url", SHAPES)
def test_no_command_shows_a_secret(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "find_java", find_java_once)
    for words in (
        ["topic", "ls"],
        ["doctor"],
        ["doctor", "--json"],
        ["batch", url, "--window", "1s", "--max-delay", "1s"],
    ):
        run([*words, "--url", url, "--ledgers", "ledgers", "--verbose"])
        captured = capsys.readouterr()
        assert SECRET not in captured.out + captured.err, words
    run(["topic", "ls", url])
    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err


@pytest.mark.parametrize("words", [["backup"], ["restore"], ["pipeline", "run"], ["topic", "append", "t"]])
@pytest.mark.parametrize("url", [f"s3://key:{SECRET}@b/x", f"abfs://c@a/x?sig={SECRET}"])
def test_a_url_in_place_of_a_path_is_refused_without_its_secret(
    words: list[str],
    url: str,
    sqlite_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    wc.connect(sqlite_url, create=True).close()
    assert run([*words, url, "--url", sqlite_url]) != 0
    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err
    assert not [path for path in tmp_path.rglob("*") if SECRET in str(path)]


def test_reprs_show_no_secret() -> None:
    url = f"postgresql://u:{SECRET}@h/d"
    kinds: tuple[Callable[..., Opening], ...] = (TopicReadOptions, TableReadOptions, WriteOptions)
    options = [kind(url, ROOT, *list(signature(kind).parameters)[2:]) for kind in kinds]
    source = PipelineSource(url, ROOT, "t", {}, None)
    for thing in (Common(url=url, ledgers=ROOT), *options, source):
        assert SECRET not in repr(thing)
        assert SECRET not in f"{thing}"


def test_opened_objects_show_no_secret(sqlite_url: str) -> None:
    with wc.connect(f"{sqlite_url}?cached_statements=77131") as database:
        topic = database.create_topic("telemetry")
        topic.append([wc.Message("a", "b", 1)])
        [piece] = plan_slices(topic.storage, wc.Position(0, 0, 0), None, 10)
        for thing in (database, topic, piece, database.create_table("orders"), topic.subscribe("s")):
            assert "77131" not in repr(thing)


def test_errors_of_drivers_show_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    url = sa.make_url(f"postgresql://u:p%40ss{SECRET}@h/d?sslpassword=other")
    for said in (
        f'invalid dsn: "host=h user=u password=p@ss{SECRET}"',
        f"cannot parse postgresql://u:p%40ss{SECRET}@h/d",
        f"connect(host='h', password='p@ss{SECRET}', sslpassword='other')",
        f"{{'passwd': 'p@ss{SECRET}'}}",
        f"p@ss{SECRET} is wrong",
    ):
        safe = redacted(said, url)
        assert SECRET not in safe
        assert "other" not in safe
    logging.getLogger("waterclock").warning("%s", redacted(f"at {url.render_as_string(hide_password=False)}"))
    assert SECRET not in caplog.text


def test_harmless_parts_are_shown() -> None:
    for url in (
        "sqlite:///factory.db",
        "sqlite:////home/a@b/factory.db?mode=ro",
        "sqlite:///C:/factory.db",
        "postgresql+psycopg://u@host:5432/factory?sslmode=require",
        "postgresql://[::1]:5432/factory",
        "mysql://one:3306,two:3307/factory",
        "factory.db",
        "C:\\factory.db",
    ):
        assert shown(url) == url
    assert shown("postgres://u:pw@[::1]:5432/d?sslmode=require&x=1") == (
        "postgres://u:***@[::1]:5432/d?sslmode=require&x=***"
    )
    refused = "Access denied for user 'u'@'h' (using password: YES)"
    assert redacted(refused, "mysql://u:pw@h/d") == refused


TEXT = st.text(max_size=8)


@given(scheme=st.sampled_from(["postgres", "postgresql+psycopg", "mysql", "x"]), before=TEXT, after=TEXT)
def test_a_password_is_hidden_for_any_characters_in_it(scheme: str, before: str, after: str) -> None:
    url = f"{scheme}://user:{before}{SECRET}{after}@host:5432/factory"
    assert SECRET not in shown(url)
    assert SECRET not in redacted(f"cannot use {url}, nor {before}{SECRET}{after}", url)


@given(password=st.text(min_size=1, max_size=20))
def test_a_password_that_is_written_as_a_url_asks_is_hidden_in_all_its_forms(password: str) -> None:
    url = sa.URL.create("postgresql", "user", f"{SECRET}{password}", "host", 5432, "factory")
    said = f"{url.render_as_string(hide_password=False)} password={SECRET}{password} {f'{SECRET}{password}'!r}"
    assert SECRET not in redacted(said, url)
    assert shown(url) == "postgresql://user:***@host:5432/factory"


def test_the_short_spellings_of_urls_are_understood() -> None:
    for given_url, driver in (
        ("postgres://u@h/d", "postgresql+psycopg"),
        ("postgres+psycopg://u@h/d", "postgresql+psycopg"),
        ("postgresql://u@h/d", "postgresql+psycopg"),
        ("mysql://u@h/d", "mysql+pymysql"),
        ("mariadb://u@h/d", "mariadb+pymysql"),
    ):
        assert parse_url(given_url).drivername == driver


def test_an_at_too_many_names_the_remedy() -> None:
    with pytest.raises(wc.InvalidArgumentError, match="%40"):
        wc.connect("postgresql://u:p@ss@host/d", "ledgers")


def test_the_doctors_json_says_where_without_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    run(["doctor", "--json", "--url", f"postgres://u:{SECRET}@{NOWHERE}/d", "--ledgers", "x"])
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert findings[-1]["found"] == f"postgres://u:***@{NOWHERE}/d"


@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "sqlite+aiosqlite", "mysql+aiomysql"])
def test_an_asynchronous_driver_is_refused_with_the_one_to_name(driver: str) -> None:
    with pytest.raises(wc.InvalidArgumentError, match=f"a synchronous driver, such as {driver.partition('+')[0]}://"):
        wc.connect(f"{driver}://user:{SECRET}@localhost/factory")


def test_half_a_surrogate_pair_in_a_url_is_a_clean_error() -> None:
    with pytest.raises(wc.InvalidArgumentError, match="must be a database URL") as refused:
        wc.connect(f"postgres://user:{SECRET}\ud800@localhost/factory")
    assert SECRET not in str(refused.value)
