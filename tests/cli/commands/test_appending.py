"""A file that is appended again goes on after what is in, and an error says how far it came."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from waterclock.arrow import to_arrow
from waterclock.cli.app import DONE, FAILED, WRONG_USAGE, run
from waterclock.cli.topics import appending
from waterclock.cli.topics.appending import AppendedFile, append_file
from waterclock.cli.topics.recognising import recognise
from waterclock.connection import connect
from waterclock.errors import UnavailableError
from waterclock.ingest.files import MessageFile
from waterclock.message import Message
from waterclock.topics.topic import Topic

GOOD = 1_500


def line(number: int) -> str:
    message = {"source": "press-01", "stream": "load", "event_time": 1_000_000 + number, "payload": str(number)}
    return json.dumps(message) + "\n"


@pytest.fixture
def topic(sqlite_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Topic:
    monkeypatch.setenv("WATERCLOCK_URL", sqlite_url)
    monkeypatch.chdir(tmp_path)
    return connect(sqlite_url).create_topic("telemetry")


def numbers(topic: Topic) -> list[int]:
    return [int(message.payload) for message in topic.read()]


def append(*words: str) -> int:
    return run(["topic", "append", "telemetry", *words])


@contextmanager
def standard_input(text: str) -> Generator[None]:
    """Replace the standard input of this process, which costs less than to start another one."""
    earlier = os.dup(0)
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.dup2(reader, 0)
    for file in (reader, writer):
        os.close(file)
    try:
        yield
    finally:
        os.dup2(earlier, 0)
        os.close(earlier)


@pytest.mark.parametrize("name", ["messages.jsonl", "messages.parquet"])
@pytest.mark.filterwarnings("default")
def test_the_unit_of_integer_times_is_warned_of_and_can_be_given(
    topic: Topic, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    row = {"source": "press", "stream": "load", "event_time": 1_782_907_200_123, "receive_time": 1_782_907_200_124}
    if name.endswith("jsonl"):
        Path(name).write_text(json.dumps(row))
    else:
        pq.write_table(pa.Table.from_pylist([row]), name)
    assert append(name) == DONE
    warned = [each for each in capsys.readouterr().err.splitlines() if "warning" in each]
    assert warned == [
        f"waterclock: warning: {each} looks like milliseconds since 1970, but an int counts nanoseconds. Give"
        " --time-unit ms"
        for each in ("event_time", "receive_time")
    ]
    assert append(name, "--time-unit", "ms") == DONE
    assert "warning" not in capsys.readouterr().err
    assert [message.event_time for message in topic.read()] == [1_782_907_200_123, 1_782_907_200_123_000_000]
    assert run(["batch", name, "--window", "1s", "--max-delay", "1s", "--time-unit", "ms", "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["start"] == "2026-07-01T12:00:00.123Z"


def test_after_a_bad_line_the_mended_file_continues_and_duplicates_nothing(
    topic: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line(number) for number in range(GOOD)]
    file = Path("messages.jsonl")
    file.write_text("".join([*lines, "no message\n", line(GOOD)]))
    for _ in range(2):
        assert append("messages.jsonl") == WRONG_USAGE
        assert numbers(topic) == list(range(1_000))
    said = capsys.readouterr().err
    assert f"line {GOOD + 1}" in said
    assert "first 1000 messages were appended" in said
    file.write_text("".join([*lines, line(GOOD)]))
    assert append("messages.jsonl") == DONE
    assert "appended 501 messages, skipped 1000 that were already appended" in capsys.readouterr().err
    assert numbers(topic) == list(range(GOOD + 1))


def test_a_file_that_is_in_is_not_appended_twice_under_any_name(
    topic: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one.jsonl", "two.jsonl"):
        Path(name).write_text(line(1) + line(2))
        assert append(name) == DONE
    assert "appended 0 messages, skipped 2 that were already appended" in capsys.readouterr().err
    assert append("one.jsonl", "--producer", "again") == DONE
    assert numbers(topic) == [1, 2, 1, 2]


def write(lines: Iterable[str], name: str = "log.jsonl") -> None:
    Path(name).write_text("".join(lines))


@pytest.mark.parametrize("counts", [(1, 2, 3), (700, 2_300), (1_000, 1_000, 1_001), (700, 900, 8_200, 8_201)])
def test_a_file_that_grows_continues_after_its_appended_part(topic: Topic, counts: tuple[int, ...]) -> None:
    for count in counts:
        write(map(line, range(count)))
        assert append("log.jsonl") == DONE
    assert numbers(topic) == list(range(counts[-1]))


def test_a_file_whose_last_line_is_still_being_written_continues_once_it_is_whole(topic: Topic) -> None:
    whole = line(3)
    for end, code in (("", DONE), (whole[:20], WRONG_USAGE), (whole.rstrip(), DONE), (whole + line(4), DONE)):
        write([*map(line, range(3)), end])
        assert append("log.jsonl") == code
    assert numbers(topic) == list(range(5))


def test_files_that_begin_with_the_same_message_are_appended_each_and_each_continues(topic: Topic) -> None:
    for count in (2, 1_200):
        for first in (100, 5_000, 9_000):
            write([line(0), *(line(first + number) for number in range(count))], f"{first}.jsonl")
            for _ in range(2):
                assert append(f"{first}.jsonl") == DONE
    expected = [number for first in (100, 5_000, 9_000) for number in (0, *range(first, first + 1_200))]
    assert sorted(numbers(topic)) == sorted(expected)


@pytest.mark.parametrize(
    ("count", "changed", "says"),
    [
        (50, 20, "line 21"),
        (2_500, 20, "line 21"),
        (2_500, 2_400, "line 2401"),
        (2_500, 2_499, "line 2500"),
        (7_500, 20, "some of its messages 1 to 4000 have changed"),  # of what came earlier only the checksum is kept
        (7_500, 6_001, "line 6002"),
    ],
)
def test_a_file_changed_in_its_appended_part_is_refused_with_the_line(
    topic: Topic, capsys: pytest.CaptureFixture[str], count: int, changed: int, says: str
) -> None:
    lines = [line(number) for number in range(count)]
    write(lines)
    assert append("log.jsonl") == DONE
    if says.startswith("between"):
        del lines[changed]
    lines[changed] = line(99_999)
    write([*lines, line(count)])
    assert append("log.jsonl") == WRONG_USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert says in said
    assert "give it its own --producer" in said
    assert numbers(topic) == list(range(count))
    assert append("log.jsonl", "--producer", "another") == DONE


@pytest.mark.parametrize(
    ("left", "says"), [(1_200, "has fewer messages now"), (700, "have changed or are missing"), (1, "are missing")]
)
def test_a_file_shorter_than_its_appended_part_is_refused(
    topic: Topic, capsys: pytest.CaptureFixture[str], left: int, says: str
) -> None:
    for count in (1_200, 1_500):
        write(map(line, range(count)))
        assert append("log.jsonl") == DONE
    write(map(line, range(left)))
    assert append("log.jsonl") == WRONG_USAGE
    assert says in capsys.readouterr().err
    assert numbers(topic) == list(range(1_500))


def test_an_appended_line_that_is_not_a_message_any_more_is_an_error(
    topic: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line(number) for number in range(30)]
    write(lines)
    assert append("log.jsonl") == DONE
    write([*lines[:9], "no message\n", *lines[9:]])
    assert append("log.jsonl") == WRONG_USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert "line 10" in said
    assert "The topic already has this message of the file" in said
    assert numbers(topic) == list(range(30))


def test_a_parquet_file_continues_where_it_was_interrupted(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [Message("press-01", "load", number, str(number).encode()) for number in range(2_500)]
    pq.write_table(pa.Table.from_batches([to_arrow(messages)]), "messages.parquet")
    with monkeypatch.context() as patch:
        patch.setattr(appending, "append_entry", once(appending.append_entry))
        assert append("messages.parquet") == FAILED
    assert numbers(topic) == list(range(1_000))
    for _ in range(2):
        assert append("messages.parquet") == DONE
    assert numbers(topic) == list(range(2_500))


def once(kept: Callable[..., object]) -> Callable[..., object]:
    """Let one call through; the next one finds the database away."""
    calls: list[object] = []

    def called(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) > 1:
            raise UnavailableError("away")
        return kept(*arguments)

    return called


def test_two_runs_of_one_file_at_a_time_append_it_once(topic: Topic) -> None:
    write(map(line, range(1_500)))
    first = recognise(topic, MessageFile("log.jsonl"))
    assert append_file(topic, MessageFile("log.jsonl"), None).appended == 1_500
    second = recognise(topic, MessageFile("log.jsonl"))
    assert first is not None
    assert second == (first.producer, 1_500)
    assert first.before == 0
    with pytest.MonkeyPatch.context() as patch:  # it looked before the other one had begun
        patch.setattr(appending, "recognise", lambda *_: first)
        assert append_file(topic, MessageFile("log.jsonl"), None) == AppendedFile(1_500, 0, 1_500, ())
    assert numbers(topic) == list(range(1_500))


def test_a_file_that_grew_continues_where_its_producer_is_named(topic: Topic) -> None:
    file = Path("log.jsonl")
    for count in (700, 2_300):
        file.write_text("".join(line(number) for number in range(count)))
        assert append("log.jsonl", "--producer", "log") == DONE
    assert numbers(topic) == list(range(2_300))


def test_a_file_that_grew_twice_continues_where_its_producer_is_named(topic: Topic) -> None:
    file = Path("log.jsonl")
    for count in (700, 900, 1_200):
        file.write_text("".join(line(number) for number in range(count)))
        assert append("log.jsonl", "--producer", "log") == DONE
    assert numbers(topic) == list(range(1_200))


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (1_500, "has already appended other messages with the numbers 1000 to 1499"),
        (900, "but this file has fewer messages"),
    ],
)
def test_another_file_under_the_same_producer_is_refused(
    topic: Topic, capsys: pytest.CaptureFixture[str], count: int, says: str
) -> None:
    Path("january.jsonl").write_text("".join(line(number) for number in range(1_500)))
    Path("february.jsonl").write_text("".join(line(number) for number in range(5_000, 5_000 + count)))
    assert append("january.jsonl", "--producer", "gateway") == DONE
    assert append("february.jsonl", "--producer", "gateway") == WRONG_USAGE
    said = capsys.readouterr().err
    assert says in said
    assert "messages were appended" not in said
    assert numbers(topic) == list(range(1_500))


def test_a_run_that_the_database_broke_off_is_continued(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("messages.jsonl").write_text("".join(line(number) for number in range(3_500)))
    for count in (1_000, 2_000):
        with monkeypatch.context() as patch:
            patch.setattr(appending, "append_entry", once(appending.append_entry))
            assert append("messages.jsonl") == FAILED
        assert numbers(topic) == list(range(count))
    assert append("messages.jsonl") == DONE
    assert numbers(topic) == list(range(3_500))


def test_standard_input_is_appended_whole_unless_a_producer_is_named(topic: Topic) -> None:
    command = [sys.executable, "-m", "waterclock", "topic", "append", "telemetry", "-"]
    subprocess.run(command, input=line(7), text=True, capture_output=True, check=True)
    for _ in range(2):
        with standard_input(line(7)):
            assert append("-", "--producer", "pipe") == DONE
    assert numbers(topic) == [7, 7]


def test_rejected_messages_count_and_a_file_continues_behind_them(
    sqlite_url: str, topic: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(sqlite_url).create_topic("strict", max_ahead="5m")
    lines = [line(number) for number in range(1_002)]
    ahead = json.dumps({**json.loads(line(0)), "publish_time": "2200-01-01T00:00:00Z"}) + "\n"
    lines[3] = lines[1_001] = ahead
    file = Path("messages.jsonl")
    file.write_text("".join([*lines, "no message\n"]))
    words = ["topic", "append", "strict", "messages.jsonl", "--producer", "p"]
    assert run(words) == WRONG_USAGE
    assert "first 1000 messages were appended, except 1 that were rejected" in capsys.readouterr().err
    file.write_text("".join(lines))
    assert run(words) == FAILED
    said = capsys.readouterr().err
    assert "appended 1 message, skipped 1000 that were already appended" in said
    assert "rejected 1 of 1002 messages" in said
    assert "message 1002: publish_time" in said
    assert run(words) == DONE
    expected = [number for number in range(1_001) if number != 3]
    assert numbers(connect(sqlite_url).topic("strict")) == expected


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfe\n", "the line must be UTF-8"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (b'{"source": "\\ud800", "stream": "b", "event_time": 1}\n', "the line must be valid Unicode"),
        (b'{"source": "a", "stream": "b", "event_time": ' + b"9" * 5_000 + b"}\n", "line 2"),
        (b"{\n", "line 2"),
    ],
)
def test_an_invalid_message_is_a_clean_error_with_its_line(
    topic: Topic, content: bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("messages.jsonl").write_bytes(line(1).encode() + content)
    assert append("messages.jsonl") == WRONG_USAGE
    said = capsys.readouterr().err
    assert says in said
    assert "line 2" in said
    assert "none of its messages were appended" in said
    assert len(said) < 1_000


def test_a_folder_is_not_a_file_of_messages(topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("folder", "folder.parquet"):
        Path(name).mkdir()
        assert append(name) == FAILED
        assert "cannot read" in capsys.readouterr().err


def test_a_byte_order_mark_is_not_part_of_the_first_message(topic: Topic) -> None:
    Path("messages.jsonl").write_text(line(1), encoding="utf-8-sig")
    assert append("messages.jsonl") == DONE
    assert numbers(topic) == [1]
