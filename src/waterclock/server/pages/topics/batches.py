"""The page with the timeline of a topic's batches, for any range of event time. The URL holds the batching rule."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.batching.event_time.rule import ACCEPTED, UNDECIDED, EventTimeRule
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.errors import InvalidArgumentError
from waterclock.figures.lane_view import BARS
from waterclock.server.access import ReadTopic
from waterclock.server.api.formats import shapes
from waterclock.server.api.formats.bodies import time_of
from waterclock.server.pages.frame import page
from waterclock.server.pages.topics.batch_range import (
    VERDICTS,
    Batched,
    BatchWindow,
    TooMany,
    batches_by_event_time,
    batches_by_rate,
)
from waterclock.server.pages.topics.time_range import SHORTEST, TimeRange
from waterclock.server.shared_reads import shared
from waterclock.time import format_duration, to_duration
from waterclock.topics.catalogue.outline import outline
from waterclock.topics.topic import Topic

MOST_DOTS = 3_000
"""Maximum messages drawn one by one; more would overlap, and bars are clearer."""

MOST_LANES = 12
"""Maximum lanes of a picture: more do not fit on a screen."""

MOST_WINDOWS = 120
"""Maximum windows drawn in a lane: more would be narrower than 8 px, and 1,400 made a page of 900 kB."""

MOST_LEDGERS = 1_000
"""Maximum ledgers from which a density is counted; if there are more, samples are read."""

_SECOND = 1_000_000_000
_LENGTHS = tuple(to_duration(text) for text in ("1d", "6h", "1h", "10min", "1min", "10s", "1s", "100ms", "10ms", "1ms"))
_DEFAULT_LENGTH = 60 * _SECOND
_EVENT_TIME = ("window", "max_delay", "max_lead", "on_conflict", "gap", "boundaries", "max_skew")
_RATE = ("batch_length", "timeout", "clocks", "max_disorder")

router = APIRouter(include_in_schema=False)


@router.get("/topics/{topic:name}/batches")
@shared
def show_batches(act: ReadTopic, request: Request) -> Response:
    """Show the batches of a range; without one, of the newest messages."""
    return page(request, "topics/batches.html", batches_data(act.topic(), dict(request.query_params)))


def batches_data(topic: Topic, query: dict[str, str]) -> dict[str, Any]:
    """Return a range of a topic's batches.

    Parameters
    ----------
    query
        The options of ``waterclock batch``: ``by``, for event time also ``window``, ``max_delay`` and others, such as
        ``gap``; ``boundaries`` with commas between the streams; ``source`` for one source, with a lane for each stream;
        ``since`` and ``until``, or ``length`` for the newest messages.
    """
    given = {name: value.strip() for name, value in query.items() if value.strip()}
    by = given.get("by", "event_time")
    view = _view(topic, given)
    source = given.get("source")
    found: Batched | TooMany | None = None
    problem = None
    try:
        found = _batched(topic, by, given, view, source)
    except InvalidArgumentError as error:
        problem = str(error)
    data = {
        "topic": topic.name,
        "by": by,
        "rule": {name: given.get(name) for name in (*_EVENT_TIME, *_RATE)},
        "source": source,
        "problem": problem,
        "view": view.data(),
        "follows": "since" not in given and "until" not in given,
        "moves": view.moves(),
        "lengths": view.lengths(_LENGTHS),
        "length": format_duration(view.length),
        "lanes": [],
        "lanes_left_out": 0,
        "more_than": found.limit if isinstance(found, TooMany) else None,
        "read": 0,
        "is_exact": True,
        "reasons": {},
        "rejected": {},
        "density": None,
    }
    if isinstance(found, Batched):
        return data | _drawn(found, view, by_stream=source is not None)
    return data | {"density": _density(topic, view)}


def _view(topic: Topic, given: dict[str, str]) -> TimeRange:
    since, until = (
        topic.storage.time(time_of(given[name]) or "", name) if name in given else None for name in ("since", "until")
    )
    length = to_duration(given["length"], "length", minimum=SHORTEST) if "length" in given else _DEFAULT_LENGTH
    if since is not None and until is not None:
        if until <= since:
            raise InvalidArgumentError(
                f"the end (until) must be later than the start (since={given['since']!r}), got {given['until']!r}"
            )
        return TimeRange(since, until)
    if since is not None:
        return TimeRange.around(since + length // 2, length)
    if until is None:
        bounds = topic.bounds
        until = topic.storage.backend.now() if bounds is None else bounds.end["receive_time"]
    return TimeRange.around(until - length // 2, length)


def _batched(
    topic: Topic, by: str, given: dict[str, str], view: TimeRange, source: str | None
) -> Batched | TooMany | None:
    """Find the batches by the rule of the query; None if it names none."""
    sources = None if source is None else [source]
    boundaries = [name.strip() for name in given["boundaries"].split(",")] if "boundaries" in given else None
    if by == "event_time":
        window, max_delay = given.get("window"), given.get("max_delay")
        if window is None and max_delay is None:
            return None
        for name, value in (("window", window), ("max_delay", max_delay)):
            if value is None:
                raise InvalidArgumentError(f"{name} is missing. Batching by event time needs a duration such as 500ms")
        options: dict[str, Any] = {name: given[name] for name in _EVENT_TIME[:-1] if name in given}
        options["boundaries"] = boundaries
        skew = to_duration(given.get("max_skew", "10s"), "max_skew")
        return batches_by_event_time(topic, EventTimeRule.checked(**options), view, skew, sources)
    if by != "rate":
        raise InvalidArgumentError(f"'by' must be event_time or rate, got {by!r}")
    timeout: Any = given.get("timeout")
    options = {
        "batch_length": given.get("batch_length", "1s"),
        "timeout": float("inf") if timeout == "inf" else timeout,
        "clocks": given.get("clocks", "as_sent"),
        "max_disorder": given.get("max_disorder", 0),
        "boundaries": boundaries,
    }
    RateAwareBatcher(**options)
    begin = None
    if "begin" in given:
        begin = topic.find(topic.storage.time(time_of(given["begin"]) or "", "begin")).position
    return batches_by_rate(topic, options, view, begin, sources)


def _drawn(found: Batched, view: TimeRange, *, by_stream: bool) -> dict[str, Any]:
    inside = np.flatnonzero((found.event_times >= view.start) & (found.event_times <= view.end))
    lane_of = (found.stream_of if by_stream else found.source_of)[inside]
    names = found.streams if by_stream else found.sources
    times, verdicts = found.event_times[inside] - view.start, found.verdicts[inside]
    counts = np.bincount(lane_of, minlength=len(names))
    only = found.sources[0] if by_stream and found.sources else None
    windows = {name: _visible(found.windows.get(name if only is None else only, []), view) for name in names}
    shown = sorted(name for place, name in enumerate(names) if counts[place] or windows[name])
    as_dots = len(inside) <= MOST_DOTS
    lanes: list[dict[str, Any]] = []
    for name in shown[:MOST_LANES]:
        chosen = np.flatnonzero(lane_of == names.index(name))
        lane = _lane(name, windows[name])
        clock = found.clocks.get(name if only is None else only)
        is_here = clock is not None and view.start <= clock <= view.end
        lane |= {
            "messages": len(chosen),
            "clock": shapes.time(clock) if is_here else None,
            "streams": None,
            "dots": None,
            "bars": None,
        }
        if as_dots:
            lane |= _dots(times[chosen], found.stream_of[inside][chosen], verdicts[chosen], found.streams)
        else:
            lane["bars"] = _bars(times[chosen], verdicts[chosen], view)
        lanes.append(lane)
    decided = Counter(one.reason for name in (shown if only is None else shown[:1]) for one in windows[name])
    rejected = {
        VERDICTS[verdict]: int(count)
        for verdict, count in enumerate(np.bincount(verdicts, minlength=len(VERDICTS)))
        if count and verdict not in (ACCEPTED, UNDECIDED)
    }
    return {
        "lanes": lanes,
        "lanes_left_out": max(len(shown) - MOST_LANES, 0),
        "read": found.read,
        "is_exact": found.is_exact,
        "reasons": dict(sorted(decided.items())),
        "rejected": rejected,
    }


def _visible(windows: list[BatchWindow], view: TimeRange) -> list[BatchWindow]:
    return [one for one in windows if one.end >= view.start and one.start <= view.end]


def _lane(name: str, windows: list[BatchWindow]) -> dict[str, Any]:
    data = [
        {
            **one._asdict(),
            "start": shapes.time(one.start),
            "end": shapes.time(one.end),
            "closed_at": shapes.time(one.closed_at),
        }
        for one in windows[:MOST_WINDOWS]
    ]
    return {"name": name, "batches": len(windows), "windows": data if len(windows) <= MOST_WINDOWS else []}


def _dots(times: Any, streams: Any, verdicts: Any, names: list[str]) -> dict[str, Any]:
    """Return each message as its time after the range's start (ns), its stream's place, and its verdict."""
    ranks = {int(stream): rank for rank, stream in enumerate(sorted(set(streams.tolist()), key=names.__getitem__))}
    rows = zip(times.tolist(), streams.tolist(), verdicts.tolist(), strict=True)
    return {
        "streams": [names[stream] for stream in ranks],
        "dots": [[time, ranks[stream], VERDICTS[verdict]] for time, stream, verdict in rows],
    }


def _bars(times: Any, verdicts: Any, view: TimeRange) -> dict[str, list[int]]:
    """Count messages by verdict in equal parts of the range."""
    parts = BARS
    places = times // (view.length // parts + 1)
    return {
        VERDICTS[verdict]: np.bincount(places[verdicts == verdict], minlength=parts).tolist()
        for verdict in sorted(set(verdicts.tolist()))
    }


def _density(topic: Topic, view: TimeRange) -> dict[str, Any]:
    """Count messages in equal parts of the range from the catalogue alone, spread evenly within each ledger."""
    blocks = outline(topic.storage, "event_time", view.start, view.end, most=MOST_LEDGERS).blocks
    parts = BARS
    counts = np.zeros(parts)
    for place, block in enumerate(blocks):
        begin, end = block.begin, block.end
        if begin is None or end is None or not block.messages:
            continue
        following = blocks[place + 1].begin if place + 1 < len(blocks) else None
        if block.stands_for > 1 and following is not None:
            end = max(end, following)
        first, last = max(begin, view.start), min(end, view.end)
        if first <= last:
            held = block.messages * (last - first + 1) / (end - begin + 1)
            left, right = ((time - view.start) / view.length * parts for time in (first, last))
            touched = np.arange(min(int(left), parts - 1), min(int(right), parts - 1) + 1)
            overlap = np.minimum(touched + 1, right) - np.maximum(touched, left) + 1e-6
            counts[touched] += held * overlap / overlap.sum()
    return {
        "about": round(float(counts.sum())),
        "bars": [round(count) for count in counts.tolist()],
        "is_sampled": any(block.stands_for > 1 for block in blocks),
    }
