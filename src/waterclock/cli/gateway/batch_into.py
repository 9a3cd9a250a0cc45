"""``waterclock batch TOPIC --into TABLE`` batches a topic in this process, once or as it grows."""

from __future__ import annotations

import json
import logging
from typing import Any

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock._support.quoting import counted, quoted
from waterclock._support.small_process import keep_small
from waterclock.batching.adaptive import AdaptiveBatchLength
from waterclock.batching.by_id.rule import IdRule
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.batching.kernels import note_pause
from waterclock.cli.terminal.common import Common
from waterclock.cli.terminal.log_format import LoggedOutput
from waterclock.cli.terminal.output import Output
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.live.follower import Follower, FollowerCounts
from waterclock.live.rules import ByEventTime, ById, ByRate, LiveRule
from waterclock.monitoring.process_reports import ProcessReport
from waterclock.time import format_duration, to_duration
from waterclock.topics.finding.finding import find_start
from waterclock.topics.finding.positions import beginning, place_of
from waterclock.work.running.signals import StopFlag, stopping_at_signals

LOOK_EVERY = 0.2
"""Seconds between two checks for new messages: each is a query, and a message waits at most this long."""

TELL_EVERY = 30.0
"""Seconds between two progress lines."""

_LONGEST_WAIT = 30.0
"""Seconds between two tries while the database is unavailable; the first wait is a sixty-fourth of it."""

_log = logging.getLogger(__name__)


def batch_into(
    common: Common,
    output: Output,
    topic_name: str,
    table_name: str,
    by: str,
    options: tuple[Any, ...],
    *,
    follow: bool,
    since: str | None,
    sources: list[str] | None,
    max_skew: str,
) -> None:
    """Batch a topic into a message table, until its end or, if it is followed, until a signal."""
    keep_small()
    rule = _rule(by, options)
    skew = to_duration(max_skew, "max_skew")
    stop = StopFlag()
    with common.connect() as database, stopping_at_signals(stop.wish):
        topic, table = database.topic(topic_name), database.table(table_name)
        if table.options.id_type != "text":
            raise InvalidArgumentError(
                f"--into must name a table with text ids, got {table_name!r}, which has {table.options.id_type} ids."
                " Create a table with --id-type text"
            )
        start = beginning(topic.storage)
        if since is not None:
            found = find_start(topic.storage, "publish_time", topic.storage.time(since, "since"))
            start = place_of(topic.storage, found.position)
        follower = Follower(database, topic, table, rule, max_skew=skew, start=start, sources=sources)
        to_pages = ProcessReport(
            database.backend, "batch", table_name, topic.storage.topic_id, {"table": table_name, "rule": rule.text}
        )
        reporter = _BatchReporter(output, topic_name, table_name, to_pages)
        _run(follower, stop, reporter, follow=follow)
        reporter.report(follower.counts, "ended")


def _rule(by: str, options: tuple[Any, ...]) -> LiveRule:
    if by == "event_time":
        return ByEventTime(EventTimeRule.checked(*options))
    if by == "id":
        return ById(IdRule.checked(*options))
    batch_length, longest, timeout, *further = options
    if longest is not None:
        if batch_length != "adaptive":
            raise InvalidArgumentError(
                f"--longest can only be used with --batch-length adaptive, got {quoted(batch_length)}"
            )
        batch_length = AdaptiveBatchLength(longest=longest)
    timeout = float("inf") if timeout == "inf" else timeout
    return ByRate.checked(batch_length, timeout, True, *further)


def _run(follower: Follower, stop: StopFlag, reporter: _BatchReporter, *, follow: bool) -> None:
    wait = 0.0
    while not stop.is_wished:
        try:
            count = follower.step()
        except UnavailableError as error:
            if not follow:
                raise
            wait = min(2 * wait, _LONGEST_WAIT) or _LONGEST_WAIT / 64
            _log.warning(
                "cannot batch now, retrying in %.1f s: %s",
                wait,
                error,
                extra=event("batching_delayed", seconds=wait),
            )
            stop.wait(wait)
            continue
        wait = 0.0
        reporter.report_length(follower.counts)
        reporter.report_sometimes(follower.counts)
        if not count:
            if not follow:
                return
            note_pause()
            stop.wait(LOOK_EVERY)


class _BatchReporter:
    """Reports the progress of batching: a line from time to time, and at the end."""

    def __init__(self, output: Output, topic: str, table: str, to_pages: ProcessReport) -> None:
        self._output = output
        self._to_pages = to_pages
        self._names = {"topic": topic, "table": table}
        self._reported = moments.monotonic()
        self._length: int | None = None

    def report_length(self, counts: FollowerCounts) -> None:
        """Report a change of an adaptive length."""
        before, self._length = self._length, counts.batch_length
        if before is None or self._length is None or before == self._length:
            return
        change = f"{format_duration(before)} → {format_duration(self._length)}"
        text = f"batch length {change}, following the time that batches take"
        self._tell("batch_length", text, {"batch_length_before": before, "batch_length": self._length})

    def report_sometimes(self, counts: FollowerCounts) -> None:
        self._to_pages.write_sometimes(_facts(counts))
        if moments.monotonic() - self._reported >= TELL_EVERY:
            self.report(counts, "progress")

    def report(self, counts: FollowerCounts, event: str) -> None:
        self._reported = moments.monotonic()
        facts = _facts(counts)
        if event == "ended":
            self._to_pages.write(facts, ended=True)
        rejected = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.rejected.items())) or "none"
        notes = f"; {counts.outside:,} outside their windows" if counts.outside else ""
        if counts.missing_ids is not None:
            notes += f"; {counted(counts.missing_ids, 'missing id')}"
        if counts.incomplete is not None:
            notes += f"; {counted(counts.incomplete, 'batch', 'batches')} without all streams"
        batched = f"{counted(counts.messages, 'message')} in {counted(counts.batches, 'batch', 'batches')}"
        text = f"{batched}, {counts.open:,} open{notes}; rejected: {rejected}; {counts.behind:,} behind"
        self._tell(event, text, facts)

    def _tell(self, event: str, text: str, facts: dict[str, Any]) -> None:
        text, facts = f"{self._names['topic']} → {self._names['table']}: {text}", self._names | facts
        if isinstance(self._output, LoggedOutput):
            self._output.report(event, text, **facts)
        elif self._output.as_json:
            self._output.text(json.dumps({"event": event} | facts))
        else:
            self._output.talk(text)


def _facts(counts: FollowerCounts) -> dict[str, Any]:
    of_ids = {"missing_ids": counts.missing_ids, "incomplete_batches": counts.incomplete}
    return {
        "messages": counts.messages,
        "batches": counts.batches,
        "rejected": dict(counts.rejected),
        "outside": counts.outside,
        "open_batches": counts.open,
        "lag_messages": counts.behind,
        **{name: count for name, count in of_ids.items() if count is not None},
    }
