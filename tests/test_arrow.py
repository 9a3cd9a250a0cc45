from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from waterclock.arrow import cut_apart, to_arrow
from waterclock.batching.batch import Batch, encode_batch
from waterclock.message import Message, Position

names = st.sampled_from(["a", "press-01", "öl", "x" * 70])
times = st.integers(-3, 3) | st.just(2**63 - 1)
flows = st.lists(
    st.builds(
        Message,
        names,
        names,
        times,
        st.sampled_from([b"", b"1", bytes(range(70))]),
        publish_time=st.none() | times,
        receive_time=times,
        headers=st.sampled_from([None, {}, {"k": "v"}, {"k": "", "ö": "2"}]),
        position=st.none() | st.just(Position(3, 1, 2)),
    ),
    min_size=1,
    max_size=20,
)


@given(flows, st.sets(st.integers(1, 19), max_size=4), st.booleans())
def test_batches_cut_out_of_columns_have_the_bytes_of_batches_made_of_messages(
    flow: list[Message], cuts: set[int], bare: bool
) -> None:
    if bare:
        flow = [message.replace(headers=None, position=None) for message in flow]
    bounds = [0, *sorted(cut for cut in cuts if cut < len(flow)), len(flow)]
    runs = [flow[first:stop] for first, stop in pairwise(bounds)]
    pieces = cut_apart(to_arrow(flow, positions=True), [len(run) for run in runs])
    for number, (run, piece) in enumerate(zip(runs, pieces, strict=True)):
        batch = Batch("press-01", number, number + 5, number + 9, "timeout", tuple(run))
        same = encode_batch(piece, "press-01", number, number + 5, number + 9, "timeout") == batch.to_bytes()
        assert same  # comparing in the assert would spell out the difference of long bytes


def test_large_batches_have_the_same_bytes_too() -> None:
    flow = [Message("s", "t", i, bytes(range(i % 200)) * 7, receive_time=i) for i in range(3000)]
    (first, second) = cut_apart(to_arrow(flow, positions=True), [1000, 2000])
    assert encode_batch(first, "s", 0, 1, 2, "gap") == Batch("s", 0, 1, 2, "gap", tuple(flow[:1000])).to_bytes()
    assert encode_batch(second, "s", 0, 1, 2, "gap") == Batch("s", 0, 1, 2, "gap", tuple(flow[1000:])).to_bytes()


def test_whether_a_batch_is_worth_compressing_does_not_depend_on_how_its_columns_came_about() -> None:
    sizes = set()
    for size in range(2400, 4100):
        flow = [Message("s", "t", i, bytes(size), receive_time=None if i == 2 else i) for i in range(3)]
        pieces = cut_apart(to_arrow(flow, positions=True), [1, 2])
        written = encode_batch(next(pieces), "s", 0, 1, 2, "gap")
        same = written == Batch("s", 0, 1, 2, "gap", tuple(flow[:1])).to_bytes()
        assert same
        sizes.add(len(written) < size)
    assert sizes == {True, False}
