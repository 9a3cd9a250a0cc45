"""A file that is appended again goes on after what is in, and an error says how far it came."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from waterclock.cli.app import DONE, FAILED, WRONG_USAGE, run
from waterclock.connection import connect
from waterclock.errors import UnavailableError
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


def test_after_a_bad_line_the_mended_file_goes_on_and_doubles_nothing(
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
    assert "first 1000 messages are in" in said
    file.write_text("".join([*lines, line(GOOD)]))
    producer = re.search(r"--producer (\S+)", said)
    assert producer is not None
    assert append("messages.jsonl", "--producer", producer[1]) == DONE
    assert "appended 501 messages, 1000 were in already" in capsys.readouterr().err
    assert numbers(topic) == list(range(GOOD + 1))


def test_a_file_that_is_in_is_not_appended_twice_under_any_name(
    topic: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one.jsonl", "two.jsonl"):
        Path(name).write_text(line(1) + line(2))
        assert append(name) == DONE
    assert "appended 0 messages, 2 were in already" in capsys.readouterr().err
    assert append("one.jsonl", "--producer", "again") == DONE
    assert numbers(topic) == [1, 2, 1, 2]


def test_a_file_that_grew_goes_on_where_its_producer_is_named(topic: Topic) -> None:
    file = Path("log.jsonl")
    for count in (700, 2_300):
        file.write_text("".join(line(number) for number in range(count)))
        assert append("log.jsonl", "--producer", "log") == DONE
    assert numbers(topic) == list(range(2_300))


def test_a_file_that_grew_twice_goes_on_where_its_producer_is_named(topic: Topic) -> None:
    file = Path("log.jsonl")
    for count in (700, 900, 1_200):
        file.write_text("".join(line(number) for number in range(count)))
        assert append("log.jsonl", "--producer", "log") == DONE
    assert numbers(topic) == list(range(1_200))


@pytest.mark.parametrize(
    ("count", "says"), [(1_500, "has appended other messages as 1000 to 1499"), (900, "has fewer")]
)
def test_another_file_under_the_same_producer_is_refused(
    topic: Topic, capsys: pytest.CaptureFixture[str], count: int, says: str
) -> None:
    Path("january.jsonl").write_text("".join(line(number) for number in range(1_500)))
    Path("february.jsonl").write_text("".join(line(number) for number in range(5_000, 5_000 + count)))
    assert append("january.jsonl", "--producer", "gateway") == DONE
    assert append("february.jsonl", "--producer", "gateway") == WRONG_USAGE
    assert says in capsys.readouterr().err
    assert numbers(topic) == list(range(1_500))


def test_a_run_that_the_database_broke_off_is_continued(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("messages.jsonl").write_text("".join(line(number) for number in range(3_500)))
    kept: Callable[..., object] = Topic.append
    calls: list[int] = []

    def failing(self: Topic, messages: object, **options: object) -> object:
        calls.append(len(calls))
        if len(calls) == 3:
            raise UnavailableError("away")
        return kept(self, messages, **options)

    monkeypatch.setattr(Topic, "append", failing)
    assert append("messages.jsonl") == FAILED
    assert numbers(topic) == list(range(2_000))
    assert append("messages.jsonl") == DONE
    assert numbers(topic) == list(range(3_500))


def test_standard_input_is_appended_whole_unless_a_producer_is_named(topic: Topic) -> None:
    command = [sys.executable, "-m", "waterclock", "topic", "append", "telemetry", "-"]
    for words in ([], ["--producer", "pipe"], ["--producer", "pipe"]):
        subprocess.run([*command, *words], input=line(7), text=True, capture_output=True, check=True)
    assert numbers(topic) == [7, 7]


def test_rejected_messages_count_and_a_file_goes_on_behind_them(
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
    assert "first 1000 messages are in, but for 1 that were rejected" in capsys.readouterr().err
    file.write_text("".join(lines))
    assert run(words) == FAILED
    said = capsys.readouterr().err
    assert "appended 1 messages, 1000 were in already" in said
    assert "rejected 1 of 1002 messages" in said
    assert "message 1002: publish_time" in said
    assert run(words) == DONE
    expected = [number for number in range(1_001) if number != 3]
    assert numbers(connect(sqlite_url).topic("strict")) == expected


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfe\n", "is not UTF-8"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (b'{"source": "\\ud800", "stream": "b", "event_time": 1}\n', "is not a text"),
        (b'{"source": "a", "stream": "b", "event_time": ' + b"9" * 5_000 + b"}\n", "line 2"),
        (b"{\n", "line 2"),
    ],
)
def test_what_is_no_message_is_a_clean_error_with_its_line(
    topic: Topic, content: bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("messages.jsonl").write_bytes(line(1).encode() + content)
    assert append("messages.jsonl") == WRONG_USAGE
    said = capsys.readouterr().err
    assert says in said
    assert "line 2" in said
    assert "none of its messages is in" in said
    assert len(said) < 1_000


def test_a_folder_is_no_file_of_messages(topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("folder", "folder.parquet"):
        Path(name).mkdir()
        assert append(name) == FAILED
        assert "cannot read" in capsys.readouterr().err


def test_a_byte_order_mark_is_no_part_of_the_first_message(topic: Topic) -> None:
    Path("messages.jsonl").write_text(line(1), encoding="utf-8-sig")
    assert append("messages.jsonl") == DONE
    assert numbers(topic) == [1]
