from __future__ import annotations

import lzma
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from waterclock.arrow import MESSAGE_SCHEMA
from waterclock.ingest.mapping.collectd import collectd_time, parse_topic
from waterclock.ingest.recording import read_recording

RECORDING = files("waterclock.ingest") / "recordings" / "collectd.parquet"
SCRIPT = Path(__file__).parents[2] / "scripts/make-recording"


def make(original: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, original, target], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture(scope="module")
def recording():
    return read_recording()


def test_the_recording_holds_every_message_of_four_hosts_in_the_order_received(recording) -> None:
    assert recording.num_rows == 200_000
    assert recording.schema == MESSAGE_SCHEMA
    hosts = {count["values"]: count["counts"] for count in pc.value_counts(recording["source"]).to_pylist()}
    assert hosts == {"robot-04": 111_118, "press-01": 55_595, "press-02": 27_723, "oven-03": 5_564}
    received = recording["receive_time"].to_numpy()
    assert (received[1:] >= received[:-1]).all()


def test_the_payloads_of_the_recording_are_the_raw_bytes(recording) -> None:
    assert all(payload.endswith(b"\0") for payload in recording["payload"].to_pylist())


def test_the_recording_reads_the_same_one_message_at_a_time(recording) -> None:
    with RECORDING.open("rb") as file:
        raw = pq.read_table(file)
    for row in range(0, raw.num_rows, 997):
        topic, payload, received = (raw[name][row].as_py() for name in ("topic", "payload", "receive_time"))
        parsed = recording.slice(row, 1).to_pylist()[0]
        assert (parsed["source"], parsed["stream"]) == parse_topic(topic)
        assert (parsed["event_time"], parsed["receive_time"], parsed["payload"]) == (
            collectd_time(payload),
            received,
            payload,
        )


def test_late_bursts_are_in_the_recording(recording) -> None:
    delay = recording["receive_time"].to_numpy() - recording["event_time"].to_numpy()
    assert (delay > 1_000_000_000).sum() == 29_390
    assert -1_000_000 < delay.min() < 0


def test_the_recording_is_small_enough_to_ship() -> None:
    with RECORDING.open("rb") as file:
        assert len(file.read()) <= 2 << 20


def test_the_script_makes_the_recording_from_its_original_form(tmp_path: Path) -> None:
    original, target = tmp_path / "original.tsv.xz", tmp_path / "made.parquet"
    with RECORDING.open("rb") as file:
        some = pq.read_table(file).slice(1_000, 500)
    lines = [
        f"{row['receive_time'] // 10**9}.{row['receive_time'] % 10**9:09}\t{row['topic']}\t".encode() + row["payload"]
        for row in some.to_pylist()
    ]
    original.write_bytes(lzma.compress(b"\n".join(lines) + b"\n"))
    made = make(original, target)
    assert made.returncode == 0, made.stderr
    assert pq.read_table(target).equals(some)


def test_the_script_refuses_an_original_that_it_cannot_keep_whole(tmp_path: Path) -> None:
    original = tmp_path / "original.tsv.xz"
    original.write_bytes(lzma.compress(b"1795250333.15\tcollectd/h/p/t\t1:2\n"))
    made = make(original, tmp_path / "made.parquet")
    assert made.returncode == 1
    assert "does not hold what" in made.stderr
