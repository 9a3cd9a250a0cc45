"""An append takes a short path: the number of our functions and files that it passes."""

from __future__ import annotations

import pytest
from tests.support.ways import WARM, Way, fewest, is_within, way_of

from waterclock.message import Message
from waterclock.topics.topic import Topic


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_append_of_one_message_passes_few_functions_and_files(topic: Topic) -> None:
    seen: list[Way] = []
    for number in range(2 * WARM):
        message = Message("press", "load", number, b"x")
        _, way = way_of(lambda message=message: topic.append([message]))
        seen.append(way)
    assert is_within(fewest(seen[WARM:]), calls=72, files=16), seen
