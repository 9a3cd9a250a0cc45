"""Decides the states of a message and of a group, and explains them in words.

A state is not a column: it follows from a message's columns, from earlier messages of its group, and from the clock.
Only `state_of` and `state_of_group` decide it. The tests describe the states (`tests/tables/states/meanings.py`),
define the transitions (`tests/tables/states/steps.py`), draw the documentation's pictures from both, and run every
operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MessageState = Literal[
    "absent",
    "scheduled",
    "ready",
    "leased",
    "backing_off",
    "blocked",
    "ack_held_back",
    "exhausted",
    "acked",
    "expired",
    "cancelled",
    "dead",
]
"""The state of a message."""

GroupState = Literal["absent", "unrouted", "ready", "due_later", "leased", "draining", "paused", "exhausted", "idle"]
"""The state of a group."""

Hold = Literal["paused", "rate", "key_rate", "limit", "owner_away", "unsettled", "locked"]
"""Reasons that may keep a ready message from being sent. They are not in the row, so they are not states."""


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """The columns that decide on a message's state."""

    # When it was acked, and when an ack came that is held back, ns; None: never.
    time_acked: int | None
    ack_held_at: int | None
    leased: bool  # whether its row has a claim id, which it keeps until the end of the lease is noticed
    time_next: int  # when it is sent next, ns; the end of the lease if it is leased
    epoch: int  # how often it was sent
    expires_at: int | None = None  # when it expires, ns; None: never
    dropped: bool = False  # whether it expired or was cancelled, and was dropped like an acked one
    cancelled: bool = False  # whether it was cancelled


def state_of(columns: MessageColumns, now: int, *, blocked: bool = False, most: int | None = None) -> MessageState:
    """Return the state of a message at ``now``, ns.

    ``blocked`` says whether a message before it in its group must be acked first. ``most`` is how often it is sent
    before it blocks its group; None: unlimited, or it is ungrouped.
    """
    later = columns.time_next > now
    judged: list[tuple[bool, MessageState]] = [
        (columns.dropped, "cancelled" if columns.cancelled else "expired"),
        (columns.time_acked is not None, "acked"),
        (columns.ack_held_at is not None, "ack_held_back"),
        (columns.leased and later, "leased"),
        (columns.cancelled, "cancelled"),
        (columns.expires_at is not None and columns.expires_at <= now, "expired"),
        (blocked, "blocked"),
        (most is not None and columns.epoch >= most, "exhausted"),
        (later and columns.epoch > 0, "backing_off"),
        (later, "scheduled"),
    ]
    for fits, state in judged:
        if fits:
            return state
    return "ready"


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The facts that decide on a group's state. "Next" is its first message that may be sent when due."""

    messages: int  # number of unacked messages
    routed: bool  # whether any of them is routed
    next_state: MessageState | None  # the state of its next message; None if it has none before others are acked
    draining: bool = False  # whether it goes to another consumer as soon as none of its messages is leased
    paused_until: int | None = None  # end of the pause, ns; None if it is not paused


def state_of_group(facts: GroupFacts, now: int) -> GroupState:
    """Return the state of a group with messages or a row in the catalogue, at ``now``, ns."""
    judged: list[tuple[bool, GroupState]] = [
        (not facts.messages, "idle"),
        (not facts.routed, "unrouted"),
        (facts.draining, "draining"),
        (facts.next_state in (None, "leased"), "leased"),
        (facts.next_state == "exhausted", "exhausted"),
        (facts.paused_until is not None and facts.paused_until > now, "paused"),
        (facts.next_state in ("ready", "expired", "cancelled"), "ready"),
    ]
    for fits, state in judged:
        if fits:
            return state
    return "due_later"


MESSAGE_REASONS: Mapping[MessageState, str] = {
    "acked": "was acked at {when}",
    "ack_held_back": "was acked before its turn; the ack counts once the messages before it in its group are acked",
    "leased": "is with {who}, whose lease lasts until {when}",
    "cancelled": "was cancelled{because}",
    "expired": "expired at {expired}, before a consumer took it",
    "blocked": "waits for message {blocking}, which is before it in {group}",
    "exhausted": "blocks its group: {why}",
    "backing_off": "was sent {sent} and backs off until {when}",
    "scheduled": "is scheduled until {when}",
    "ready": "has been ready since {when}; {who} gets it",
    "dead": "became a dead letter at {when}, {why}; it is in {table}",
}
"""The text of ``explain`` for each state of a message, with the names of facts in braces."""

HOLD_REASONS: Mapping[Hold, str] = {
    "paused": "{what} is paused{until}",
    "rate": "the table's rate_limit sends nothing until {when}",
    "key_rate": "it waits for the rate of {name}={key} until {when}",
    "limit": "it is held by the limit of key {key}: consumers have {count} of its messages",
    "owner_away": "the owner of the group, {who}, is gone; {then}",
    "unsettled": (
        "its group still waits for a message that is gone; consumers check the groups every poll_interval,"
        " and repair this"
    ),
    "locked": "an open transaction has locked {what}",
}
"""The text of ``explain``, and of ``groups.info``, for each hold, with the names of facts in braces."""

GROUP_REASONS: Mapping[GroupState, str] = {
    "draining": "message {id} has to be acked or given back before the group goes {where}",
    "leased": "message {id} is with {who} until {when}",
    "exhausted": "message {id} has used up its attempts ({epoch}); skip it, or reschedule it",
    "paused": "it is paused{until}",
    "due_later": "message {id} {verb} until {when}",
}
"""The text of ``groups.info`` for states in which a group sends nothing, with the names of facts in braces."""
