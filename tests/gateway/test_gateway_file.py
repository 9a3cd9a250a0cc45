"""A gateway's file becomes command lines; a mistake is named with its line before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from waterclock.errors import InvalidArgumentError
from waterclock.gateway.gateway_file import GatewayFile
from waterclock.ingest.ingest_file import IngestFile

INGEST = """
[broker]
url = "mqtt://gateway"
[[subscribe]]
topic = "telemetry"
format = "collectd"
"""
BATCH = """
[[batch]]
topic = "telemetry"
into = "batches"
window = "500ms"
max_delay = "1s"
"""
WORK = """
[work]
handlers = ["gateway:press@batches"]
"""
DATABASE = """
[database]
url = "sqlite:///gateway.db"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.toml"


def read(file: Path, text: str) -> GatewayFile:
    file.write_text(text)
    return GatewayFile.read(file)


def test_each_table_becomes_a_part_in_the_order_of_the_stop(file: Path) -> None:
    found = read(file, INGEST + BATCH + WORK + DATABASE)
    assert found.url == "sqlite:///gateway.db"
    assert [part.words for part in found.parts] == [
        ("ingest", str(file)),
        (
            "batch",
            "telemetry",
            "--follow",
            "--into=batches",
            "--by=event_time",
            "--window=500ms",
            "--max-delay=1s",
        ),
        ("work", "gateway:press@batches", "--upkeep"),
    ]
    assert [part.reloads for part in found.parts] == [True, False, False]


def test_an_ingest_from_kafka_is_a_part_too(file: Path) -> None:
    text = '[kafka]\nurl = "kafka://one"\n[[subscribe]]\nkafka_topic = "plant"\ntopic = "telemetry"\nformat = "raw"\n'
    assert [part.name for part in read(file, text + BATCH).parts] == ["ingest", "batch batches", "upkeep"]


def test_boundaries_are_passed_on_by_event_time_and_rate_and_refused_by_id(file: Path) -> None:
    by_rate = '[[batch]]\ntopic = "t"\ninto = "b"\nby = "rate"\n'
    for text in (BATCH, by_rate):
        part, *_ = read(file, text + 'boundaries = ["-run", "stop"]').parts
        assert part.words[-2:] == ("--boundary=-run", "--boundary=stop")
    with pytest.raises(
        InvalidArgumentError, match="boundaries can only be used with by = 'event_time' or by = 'rate', got by = 'id'"
    ):
        read(file, by_rate.replace("rate", "id") + 'id_of = "x"\nmax_delay = "1s"\nboundaries = ["run"]')


@pytest.mark.parametrize("written", ["inf", '"inf"'])
def test_no_timeout_is_inf_with_and_without_quotes(file: Path, written: str) -> None:
    part, *_ = read(file, f'[[batch]]\ntopic = "t"\ninto = "b"\nby = "rate"\ntimeout = {written}').parts
    assert part.words[-1] == "--timeout=inf"


def test_batching_by_id_passes_its_options_on(file: Path) -> None:
    rule = 'by = "id"\nid_of = "pulse"\nmax_delay = "2s"\nstreams = ["a", "-b"]\nmax_skew = "5s"'
    batch = read(file, f'[[batch]]\ntopic = "t"\ninto = "b"\n{rule}').parts[0]
    words = ("--id-of=pulse", "--max-delay=2s", "--max-skew=5s", "--stream=a", "--stream=-b")
    assert batch.words[3:] == ("--into=b", "--by=id", *words)


def test_all_options_are_passed_on(file: Path) -> None:
    text = """
[[batch]]
topic = "telemetry"
into = "by-rate"
by = "rate"
batch_length = "2s"
timeout = "inf"
clocks = "align"
max_disorder = "6s"
forget_after = "1h"
max_skew = "1s"
since = "2h"
source = ["-a", "b"]
[work]
handlers = ["a:b@c", "a:d.e@f"]
concurrency = 4
processes = 2
where = "amount > 3"
grace = "5s"
"""
    batch, work = read(file, text).parts
    assert batch.words[3:] == (
        "--into=by-rate",
        "--by=rate",
        "--batch-length=2s",
        "--timeout=inf",
        "--clocks=align",
        "--max-disorder=6s",
        "--forget-after=1h",
        "--max-skew=1s",
        "--since=2h",
        "--source=-a",
        "--source=b",
    )
    assert work.words[1:] == (
        "a:b@c",
        "a:d.e@f",
        "--upkeep",
        "--concurrency=4",
        "--processes=2",
        "--where=amount > 3",
        "--grace=5s",
    )
    assert work.stops_within == 15.0


def test_without_a_worker_the_upkeep_is_a_part_of_its_own(file: Path) -> None:
    assert [part.name for part in read(file, BATCH).parts] == ["batch batches", "upkeep"]


def test_an_ingest_reads_the_same_file(file: Path) -> None:
    read(file, INGEST + BATCH + WORK)
    assert IngestFile.read(file).plan.rules[0].topic == "telemetry"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", r"must have at least one of the tables \[broker\], \[kafka\], \[\[batch\]\] and \[work\]"),
        ("[broker]\n", r"line 1: broker.url is missing"),
        ("[bath]\n", r"line 1: no key named bath; choose from broker, "),
        (f"{BATCH}window = 5", r"is not valid TOML"),
        (BATCH.replace('"500ms"', '"5x"'), r"line 5: batch.window = '5x': "),
        (BATCH.replace('"1s"', "1"), r"line 6: batch.max_delay must be a string, got 1"),
        (f'{BATCH}max_dely = "1s"', r"line 7: no key named batch.max_dely"),
        (f'{BATCH}by = "rate"\nclocks = "a"', r"line 8: batch.clocks = 'a': clocks must be one of 'as_sent', 'align'"),
        (
            f'{BATCH}by = "rate"\nforget_after = "0s"',
            r"line 8: batch.forget_after = '0s': forget_after must be at least 1ns",
        ),
        (
            f'{BATCH}by = "rate"\nmax_disorder = "4s"',
            r"line 8: batch.max_disorder = '4s': max_disorder must be at most 3 batch lengths \(3s\), got '4s'",
        ),
        (
            f'{BATCH}by = "rate"\nlongest = "9s"',
            r"line 8: batch.longest can only be used with batch_length = 'adaptive', got '1s'",
        ),
        (f'{BATCH}by = "rate"\ntimeout = nan', r"line 8: batch.timeout = nan: timeout must be a string such as '1.5s'"),
        (f'{BATCH}by = "rate"\ntimeout = ""', r"line 8: batch.timeout = '': timeout must be a duration such as"),
        (f'{BATCH}by = "id"', r"line 2: batch.id_of is missing"),
        (f'{BATCH}by = "id"\nid_of = ""', r"line 8: batch.id_of must be a non-empty string"),
        (f'{BATCH}by = "id"\nid_of = "pulse"', r"line 5: no key named batch.window"),
        (f'{BATCH}by = "id"\nid_of = "pulse"\nstreams = []', r"line 9: batch.streams = \[\]: streams must name all"),
        (f'{BATCH}streams = ["a"]', r"line 7: batch.streams can only be used with by = 'id', got by = 'event_time'"),
        (f'{BATCH}by = "weight"', r"line 7: batch.by must be one of event_time, rate, id, got 'weight'"),
        (
            f'{BATCH}on_conflict = "x"',
            r"line 7: batch.on_conflict must be one of split, replace, isolate, keep, got 'x'",
        ),
        (f'{BATCH}since = "nan"', r"line 7: batch.since = 'nan': since must be ISO 8601"),
        (BATCH + BATCH, r"line 10: batch.into must be a different table for each \[\[batch\]\]"),
        ('[batch]\ntopic = "x"', r"line 1: batch must be an array of tables. Write \[\[batch\]\]"),
        ('[work]\nhandlers = "a:b@c"', r"line 2: work.handlers must be an array of strings"),
        ("[work]\nhandlers = []", r"line 2: work.handlers must name at least one handler"),
        ('[work]\nhandlers = ["a:b"]', r"line 2: work.handlers must be MODULE:NAME@TABLE, got 'a:b'"),
        ('[work]\nhandlers = ["--json:b@c"]', r"line 2: work.handlers must be MODULE:NAME@TABLE"),
        ('[work]\nhandlers = ["a:b@c", 1]', r"line 2: work.handlers must hold non-empty strings"),
        (f'{WORK}grace = "soon"', r"line 4: work.grace = 'soon': "),
    ],
)
def test_a_mistake_is_named_with_its_line(file: Path, text: str, error: str) -> None:
    with pytest.raises(InvalidArgumentError, match=error):
        read(file, text)
