"""Any message that there can be."""

from __future__ import annotations

from hypothesis import strategies as st

from waterclock.message import Message, Position
from waterclock.time import MAX_NS, MIN_NS

# Printable ones alone: hypothesis would give up if most of what it draws were filtered out.
printable = st.characters(exclude_categories=("C", "Z"), include_characters=" ")

names = st.text(printable, min_size=1, max_size=8)

times = st.integers(MIN_NS, MAX_NS)


messages = st.builds(
    Message,
    names,
    names,
    times,
    st.binary(max_size=20),
    publish_time=st.none() | times,
    receive_time=st.none() | times,
    headers=st.none() | st.dictionaries(names, names, max_size=3),
    position=st.none() | st.builds(Position, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
)
