"""Event names and fields of log lines. Programs that read logs can rely on them; the text of a line may change."""

from __future__ import annotations

from typing import Any

NAME, FIELDS = "waterclock_event", "waterclock_fields"
"""Attributes of a log record."""

EVENTS = {
    "message_failed": "A handler raised, and its message goes back to the table: table, id, attempt.",
    "message_dead": "A message went to the dead-letter table: table, id.",
    "message_discarded": "A message was acked without being handled, because its handler raised Discard: table, id.",
    "outcome_lost": "A message was handled, but its lease had ended: id.",
    "outcomes_not_written": "Outcomes could not be written, and the messages are sent again: table, count.",
    "outcomes_delayed": "Outcomes cannot be written yet, and are retried.",
    "messages_not_given_back": "Messages could not be given back yet: table, count.",
    "lease_lost": "The lease of a message ended while its handler ran: id.",
    "handler_stuck": "A handler still runs after its time limit, and another message is handled in its place: id.",
    "handlers_unfinished": "Handlers still run after the grace period, and their messages are given back: count.",
    "claims_fail": "Claims of a consumer fail: table, consumer.",
    "claims_succeed": "Claims of a consumer succeed again: table, consumer, seconds.",
    "leases_not_extended": "Leases could not be extended: table, count.",
    "upkeep_failed": "A task of upkeep failed: kind, name, task.",
    "upkeep_delayed": "Upkeep could not run, and is retried.",
    "metrics_unavailable": "The database could not be read for metrics.",
    "metrics_available": "The database can be read for metrics again.",
    "groups_released": "A consumer releases its groups, because its claims keep failing: table, consumer.",
    "claim_refused": "A message, group or schedule is skipped, because the database refuses it: table.",
    "schedule_failed": "A schedule cannot put its message: table, schedule.",
    "schedule_waits": "A schedule puts nothing until the database's clock has caught up: table, schedule.",
    "message_not_archived": "A message stays in its table, because the topic refuses it: table, id.",
    "event_loop_blocked": "A handler blocks the event loop: id.",
    "messages_rejected": "A topic refused messages of a producer: producer, count.",
    "messages_skipped": "A reader skips damaged messages: topic, count.",
    "messages_missed": "Messages were deleted before they were batched: topic, table, count.",
    "ledger_failed": "A task on a ledger failed, and the others continue: topic, ledger, task.",
    "request": "The server executed or refused a request: caller, verb, kind, name, details, status, rows.",
    "request_failed": "A request failed in the server: reference, status.",
    "batching_delayed": "Live batching could not continue, and is retried: seconds.",
}
"""The events of the library, and the fields of each. Log lines without one are ``log``."""


def event(name: str, /, **fields: Any) -> dict[str, Any]:
    """Return the ``extra`` of a log call."""
    return {NAME: name, FIELDS: fields}
