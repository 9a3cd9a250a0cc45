"""Random messages for the properties: few times and few streams, so that everything collides often."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st
from tests.batching.event_time.definition import Rule

from waterclock.message import Message

CONFLICT_OPTIONS = ("split", "replace", "isolate", "keep")
STREAMS = ("a", "b", "c", "d")

rules = st.builds(
    Rule,
    window=st.integers(0, 15),
    max_delay=st.integers(0, 12),
    max_lead=st.integers(0, 4),
    on_conflict=st.sampled_from(CONFLICT_OPTIONS),
    gap=st.none() | st.integers(0, 9),
    boundaries=st.sampled_from(((), (), ("d",), ("c", "d"))),
)


@st.composite
def arrivals(draw: st.DrawFn, *, sources: str = "x") -> list[Message]:
    """Messages in the order in which they were received: jittered, late, ahead of the clock, and some redelivered."""
    latest = draw(st.sampled_from((6, 20, 60)))
    sent = draw(
        st.lists(
            st.tuples(st.sampled_from(sources), st.sampled_from(STREAMS), st.integers(0, latest), st.integers(-6, 16)),
            max_size=40,
        )
    )
    again = [(*sent[i][:3], delay) for i, delay in draw(redeliveries(len(sent)))]
    number = itertools.count()
    messages = [
        Message(source, stream, event_time, str(next(number)).encode(), receive_time=event_time + delay)
        for source, stream, event_time, delay in draw(st.permutations(sent + again))
    ]
    return sorted(messages, key=lambda m: m.receive_time or 0)


def redeliveries(count: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Which of ``count`` messages come again, and how long after they happened."""
    if count == 0:
        return st.just([])
    return st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, 14)), max_size=6)
