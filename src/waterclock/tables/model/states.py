"""The states of a message and of a group, and what each means. Pure.

A state is not a column: it follows from a message's columns, from those before it in its group, and from the clock.
Only `state_of` and `state_of_group` decide it. ``explain`` takes its words from here. The tests define the transitions
(`tests/tables/steps.py`), draw the documentation's pictures from them, and exercise all verbs.
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
class Meaning:
    """The meaning of a state.

    Attributes
    ----------
    words
        A description.
    shown_by
        How the rows show it, in SQL.
    reason
        The text of ``explain`` for a message, and of ``groups.info`` for a group, with the names of facts in braces;
        may be "".
    """

    words: str
    shown_by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """The columns that decide on a message's state.

    Attributes
    ----------
    time_acked, ack_held_at
        When it was acked, and when an ack came that is held back, ns; None: never.
    leased
        Whether its row has a claim id, which it keeps until the end of the lease is noticed.
    time_next
        When it is sent next, ns; the end of the lease if it is leased.
    epoch
        How often it was sent.
    expires_at
        When it expires, ns; None: never.
    dropped
        Whether it expired or was cancelled, and was dropped like an acked one.
    cancelled
        Whether it was cancelled.
    """

    time_acked: int | None
    ack_held_at: int | None
    leased: bool
    time_next: int
    epoch: int
    expires_at: int | None = None
    dropped: bool = False
    cancelled: bool = False


def state_of(columns: MessageColumns, now: int, *, blocked: bool = False, most: int | None = None) -> MessageState:
    """Return the state of a message at ``now``, ns.

    Parameters
    ----------
    blocked
        Whether a message before it in its group must be acked first.
    most
        How often it is sent before it blocks its group; None: unlimited, or it is ungrouped.
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
    """The facts that decide on a group's state. "Next" is its first message that may be sent when due.

    Attributes
    ----------
    messages
        Number of unacked messages.
    routed
        Whether any of them is routed.
    next_state
        The state of its next message; None if it has none before others are acked.
    draining
        Whether it goes to another consumer as soon as none of its messages is leased.
    paused_until
        End of the pause, ns; None if it is not paused.
    """

    messages: int
    routed: bool
    next_state: MessageState | None
    draining: bool = False
    paused_until: int | None = None


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


MESSAGES: Mapping[MessageState, Meaning] = {
    "acked": Meaning("Handled. It is never sent again.", "`time_acked` is not NULL", "was acked at {when}"),
    "ack_held_back": Meaning(
        'Handled and acked before its turn, with `ack_order="hold"`: the ack counts once those before it are acked.',
        "`ack_held_at` is not NULL",
        "was acked before its turn; the ack counts once the messages before it in its group are acked",
    ),
    "leased": Meaning(
        "Delivered to a consumer whose lease has not ended.",
        "`claim_id` is not NULL, `time_next` is in the future",
        "is with {who}, whose lease lasts until {when}",
    ),
    "cancelled": Meaning(
        "Cancelled before a consumer handled it: it is never sent again, and does not block others. A leased message"
        " stays `leased` when it is cancelled, and its consumer sees it in `delivery.cancelled`.",
        "`expires_at` is the smallest bigint, `claim_id` is NULL or the lease is over; `acked_by` is 0 once it is"
        " dropped",
        "was cancelled{because}",
    ),
    "expired": Meaning(
        "No consumer took it before `expires_at`: it is never sent again, and does not block others. A leased message"
        " stays `leased`.",
        "`expires_at` is past, `claim_id` is NULL or the lease is over; `acked_by` is 0 once it is dropped",
        "expired at {expired}, before a consumer took it",
    ),
    "blocked": Meaning(
        "Waits for earlier messages of its group.",
        "a row of the group with a smaller `position` is not acked",
        "waits for message {blocking}, which is before it in {group}",
    ),
    "exhausted": Meaning(
        "The first of its group, with all its attempts used up: it is not sent again and blocks its group.",
        "`epoch` has reached `max_attempts`",
        "blocks its group: {why}",
    ),
    "backing_off": Meaning(
        "Sent before, given back, and due later.",
        "`time_next` is in the future, `epoch` is above 0",
        "was sent {epoch} times and backs off until {when}",
    ),
    "scheduled": Meaning("Never sent, and due later.", "`time_next` is in the future", "is scheduled until {when}"),
    "ready": Meaning(
        "Due, and not leased. A message whose lease ended without an ack is ready again.",
        "`time_next` is past",
        "has been ready since {when}; {who} gets it",
    ),
    "dead": Meaning(
        "In the dead-letter table: its attempts are used up, its consumer gave it up, or it expired.",
        "a row of the dead-letter table",
        "became a dead letter at {when}, {why}; it is in {table}",
    ),
    "absent": Meaning("Not in the table: not put yet, purged, or moved to another table.", "no row"),
}
"""The meanings of message states, in the order of `state_of`: the first that fits counts."""

HOLDS: Mapping[Hold, Meaning] = {
    "paused": Meaning(
        "Its table or its group is paused.",
        "`paused_until` of either is in the future",
        "{what} is paused{until}",
    ),
    "rate": Meaning(
        "The table has sent as many messages as its `rate_limit` allows.",
        "`rate_next` of the table is in the future",
        "the table's rate_limit sends nothing until {when}",
    ),
    "key_rate": Meaning(
        "Consumers got as many messages of its key as the `rate` of the table allows.",
        "`rate_next` in the rows of its `message_key` in `waterclock_message_keys` is in the future",
        "it waits for the rate of {name}={key} until {when}",
    ),
    "limit": Meaning(
        "Consumers have as many messages of its key as the `limit` of the table allows.",
        "as many unacked messages have its `message_key` and a `claim_id`",
        "it is held by the limit of key {key}: consumers have {count} of its messages",
    ),
    "owner_away": Meaning(
        "The owner of its group is gone. If the group is not pinned, the next claim takes it over.",
        "`waterclock_consumers` has no live row with the name in `assigned`",
        "the owner of the group, {who}, is gone; {then}",
    ),
    "unsettled": Meaning(
        "Plain SQL deleted an earlier message. A consumer repairs the group within `poll_interval`.",
        "`ready_at` of the group contradicts its messages",
        "its group still waits for a message that is gone; a consumer that looks through the groups, every"
        " poll_interval, repairs it",
    ),
    "locked": Meaning(
        "An open transaction has locked it, its group, or another message of the group.",
        "`SKIP LOCKED` skips the row of the group or of the message",
        "an open transaction has locked {what}",
    ),
}
"""What keeps a ready message from being sent."""

GROUPS: Mapping[GroupState, Meaning] = {
    "idle": Meaning("Has no messages; its owner, a pause or a pin is remembered.", "`head` is NULL"),
    "unrouted": Meaning(
        "Its messages are new; the next claim places them.", "rows with `routed` = 0 and no `position`"
    ),
    "draining": Meaning(
        "Goes to another consumer as soon as none of its messages is leased.",
        "`drain_to` is not NULL",
        "message {id} has to be acked or given back before the group goes {where}",
    ),
    "leased": Meaning(
        "Its messages are with a consumer. A sequenced group sends nothing more until they are acked or given back.",
        "the row at `head` is leased",
        "message {id} is with {who} until {when}",
    ),
    "exhausted": Meaning(
        "Its next message has used up its attempts.",
        "`ready_at` is NULL, though it has messages",
        "message {id} has used up its attempts ({epoch}); skip it, or reschedule it",
    ),
    "paused": Meaning("Sends nothing until it is resumed.", "`paused_until` is in the future", "it is paused{until}"),
    "ready": Meaning(
        "Its next message is due, or has expired and is skipped; the next consumer that may have the group gets it.",
        "`ready_at` is past",
    ),
    "due_later": Meaning(
        "Its next message is scheduled or backs off.",
        "`ready_at` is in the future",
        "message {id} {verb} until {when}",
    ),
    "absent": Meaning("Has no messages, and no settings are remembered.", "no row"),
}
"""The meanings of group states, in the order of `state_of_group`: the first that fits counts."""
