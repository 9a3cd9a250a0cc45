"""The states of a message and of a group, and what each means. Pure.

A state is not a column: it follows from a message's columns, from those before it in its group, and from the clock.
`state_of` and `state_of_group` are the only places that say how. ``explain`` takes its words from here. The tests hold
the steps between states (`tests/tables/steps.py`), draw the documentation's pictures from them, and walk all verbs.
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
"""What a message can be."""

GroupState = Literal["absent", "unrouted", "ready", "due_later", "leased", "draining", "paused", "exhausted", "idle"]
"""What a group can be."""

Hold = Literal["paused", "rate", "owner_away", "unsettled", "locked"]
"""What may keep a message that is ready from going out. It says nothing of the row, so it is no state."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a state means.

    Attributes
    ----------
    words
        In a sentence.
    shown_by
        How the rows show it, in SQL's words.
    reason
        What ``explain`` says of a message in it, and ``groups.info`` of a group in it, with the names of facts in
        braces; "" where there is nothing to say.
    """

    words: str
    shown_by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """What decides on a message's state.

    Attributes
    ----------
    time_acked, ack_held_at
        When it was acked, and when an ack of it came that is held back, ns; None: never.
    leased
        Whether a claim's number stands in its row, which it does until the lease's end is noticed.
    time_next
        When it is sent next, ns; the end of the lease where it is leased.
    epoch
        How often it was sent.
    expires_at
        From when on it is not sent any more, ns; None: it never expires.
    dropped
        Whether it expired or was cancelled, and was dropped as one that is acked.
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
    """Say what a message is at ``now``, ns.

    Parameters
    ----------
    blocked
        Whether a message before it in its group must be acked first.
    most
        How often it is sent before it holds up its group; None: any number of times, or it has no group to hold up.
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
    """What decides on a group's state. "Next" is its first message that may go out when the time comes.

    Attributes
    ----------
    messages
        How many it has that are not acked.
    routed
        Whether any of them has its place in the group.
    next_state
        What its next message is; None where it has none before others are acked.
    draining
        Whether it goes to another consumer as soon as nothing of it is leased.
    paused_until
        ns; None where it is not paused.
    """

    messages: int
    routed: bool
    next_state: MessageState | None
    draining: bool = False
    paused_until: int | None = None


def state_of_group(facts: GroupFacts, now: int) -> GroupState:
    """Say what a group is at ``now``, ns, that has messages or a row in the catalogue."""
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
        "was acked, which counts once the messages before it in its group are",
    ),
    "leased": Meaning(
        "With a consumer whose lease lasts.",
        "`claim_id` is not NULL, `time_next` is to come",
        "is with {who}, whose lease lasts until {when}",
    ),
    "cancelled": Meaning(
        "Taken back by `cancel` before a consumer handled it: it is never sent again, and holds up none. What is with a"
        " consumer when it is cancelled stays `leased`, and its consumer sees it in `delivery.cancelled`.",
        "`expires_at` is the smallest bigint, `claim_id` is NULL or the lease is over; `acked_by` is 0 once it is"
        " dropped",
        "was cancelled{because}",
    ),
    "expired": Meaning(
        "No consumer took it before `expires_at`: it is never sent again, and holds up none. What is with a consumer at"
        " that time stays `leased`.",
        "`expires_at` is past, `claim_id` is NULL or the lease is over; `acked_by` is 0 once it is dropped",
        "expired at {expired}, before a consumer took it",
    ),
    "blocked": Meaning(
        "Waits for messages before it in its group.",
        "a row of the group with a smaller `position` is not acked",
        "waits for message {blocking}, which is before it in {group}",
    ),
    "exhausted": Meaning(
        "The first of its group, with all its attempts used up: it is not sent again and holds up its group.",
        "`epoch` has reached `max_attempts`",
        "holds up its group: {why}",
    ),
    "backing_off": Meaning(
        "Sent before, given back, and due later.",
        "`time_next` is to come, `epoch` is above 0",
        "was sent {epoch} times and backs off until {when}",
    ),
    "scheduled": Meaning("Never sent, and due later.", "`time_next` is to come", "is scheduled until {when}"),
    "ready": Meaning(
        "Due, and with no consumer. Where a lease ended without an ack, the message is ready again.",
        "`time_next` is past",
        "is ready since {when}; {who} gets it",
    ),
    "dead": Meaning(
        "In the dead-letter table: its attempts are used up, its consumer gave it up, or it expired.",
        "a row of the dead-letter table",
        "died at {when}, {why}; it is in {table}",
    ),
    "absent": Meaning("Not in the table: not put yet, purged, or moved to another table.", "no row"),
}
"""What the states of a message mean, in the order in which `state_of` judges: the first that fits counts."""

HOLDS: Mapping[Hold, Meaning] = {
    "paused": Meaning(
        "Its table or its group is paused.",
        "`paused_until` of either is to come",
        "{what} is paused{until}",
    ),
    "rate": Meaning(
        "The table has sent as many messages as its `rate_limit` allows.",
        "`rate_next` of the table is to come",
        "the table's rate_limit sends nothing until {when}",
    ),
    "owner_away": Meaning(
        "Its group is with a consumer that is not there. Where it is not pinned, the next claim takes it over.",
        "no living row of `waterclock_consumers` bears the name in `assigned`",
        "the owner of the group, {who}, is not there; {then}",
    ),
    "unsettled": Meaning(
        "Plain SQL deleted a message before it, and no consumer has looked since. One does within `poll_interval`.",
        "`ready_at` of the group contradicts its messages",
        "its group still waits for a message that is gone; a consumer that looks through the groups, every"
        " poll_interval, mends it",
    ),
    "locked": Meaning(
        "A transaction under way, ours or a caller's, has locked it, its group, or what of that is next or out.",
        "`SKIP LOCKED` passes the row of the group or of the message by",
        "a transaction under way has locked {what}",
    ),
}
"""What keeps a message that is ready from going out."""

GROUPS: Mapping[GroupState, Meaning] = {
    "idle": Meaning("Has no messages; its owner, a pause or a pin is remembered.", "`head` is NULL"),
    "unrouted": Meaning(
        "Its messages are new; the next claim gives them their places.", "rows with `routed` = 0 and no `position`"
    ),
    "draining": Meaning(
        "Goes to another consumer as soon as nothing of it is leased.",
        "`drain_to` is not NULL",
        "message {id} has to be acked or given back before the group goes {where}",
    ),
    "leased": Meaning(
        "All that may be out is with a consumer. Of a sequenced group nothing more goes out until that is over.",
        "the row at `head` is leased",
        "message {id} is with {who} until {when}",
    ),
    "exhausted": Meaning(
        "Its next message has used up its attempts.",
        "`ready_at` is NULL, though it has messages",
        "message {id} was sent {epoch} times, which is all it may be; skip it, or reschedule it",
    ),
    "paused": Meaning("Gives nothing until it is resumed.", "`paused_until` is to come", "it is paused{until}"),
    "ready": Meaning(
        "Its next message is due, or expired and so passed over; a consumer that may have the group gets it.",
        "`ready_at` is past",
    ),
    "due_later": Meaning(
        "Its next message is scheduled or backs off.",
        "`ready_at` is to come",
        "message {id} {verb} until {when}",
    ),
    "absent": Meaning("Has no messages, and nothing of it is remembered.", "no row"),
}
"""What the states of a group mean, in the order in which `state_of_group` judges: the first that fits counts."""
