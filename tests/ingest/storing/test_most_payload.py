"""The limit of payloads, which leaves room for the rest of a statement."""

import pytest

from waterclock.errors import InvalidArgumentError
from waterclock.ingest.storing.dead_letters import check_most_payload


def test_a_payload_may_take_half_of_the_largest_statement() -> None:
    check_most_payload(500, 1001)
    with pytest.raises(InvalidArgumentError, match=r"^max_payload must be at most 500, half of .*, got 501$"):
        check_most_payload(501, 1001)
    with pytest.raises(InvalidArgumentError, match=r"^max_payload must be at least 1, got 0$"):
        check_most_payload(0, 1001)
