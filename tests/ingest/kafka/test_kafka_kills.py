"""Each record is appended once, also if the ingest is killed before or after a commit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.ingest.kafka.conftest import Place, payloads, running
from tests.ingest.running import until
from tests.support.forked import Forked

from waterclock.connection import Database

pytestmark = pytest.mark.one_database


@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=pytest.mark.slow)])
def test_a_killed_ingest_appends_each_record_once(
    database: Database, database_url: str, tmp_path: Path, place: Place, kills: int
) -> None:
    chance = random.Random(kills)  # noqa: S311  # a repeatable one
    database.create_topic("telemetry")
    good: list[bytes] = []
    poison: list[bytes] = []
    for number in range(kills):
        some = [b"%d" % (number * 100 + each) for each in range(chance.randint(1, 40))]
        bad = b"no json %d" % number
        place.send(*some[:1], bad, *some[1:])
        good += some
        poison.append(bad)
        arguments = (database_url, tmp_path / "ledgers", place.cluster.servers, place.name)
        with Forked("tests.ingest.kafka.dying_ingest", *arguments, ("before", "after")[number % 2]) as killed:
            assert killed.wait() == -9
    with running(database, place.plan(place.rule(format_name="json"))):
        until(lambda: len(set(payloads(database))) == len(good))
    assert payloads(database) == good
    assert payloads(database, "dead") == poison
