"""The states of a message and of a group as data: what each means, and which verbs lead from one to another. Pure.

A state is not a column: it follows from a message's columns, from those before it in its group, and from the clock.
`state_of` and `state_of_group` are the only places that say how. ``explain`` takes its words from here, the pictures
and tables of the documentation are drawn from it, and a test walks all verbs and refuses a step that is not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

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
    "dead",
]
"""What a message can be."""

GroupState = Literal["absent", "unrouted", "ready", "due_later", "leased", "draining", "paused", "exhausted", "idle"]
"""What a group can be."""

Hold = Literal["paused", "rate"]
"""What may keep a message that is ready from going out. It says nothing of the row, so it is no state."""

Verb = Literal[
    "put",
    "route",
    "receive",
    "ack",
    "nack",
    "extend",
    "dead_letter",
    "reschedule",
    "retry",
    "close",
    "redrive",
    "purge",
    "alter",
    "time",
    "groups.purge",
    "groups.move",
    "groups.reroute",
    "groups.pause",
    "groups.resume",
    "groups.close",
    "groups.release",
    "groups.pin",
    "groups.unpin",
    "groups.skip_head",
    "groups.rebalance",
]
"""What makes a step: a method of the message table, of a delivery or of a subscription, or of the table's ``groups``.

``route`` is what each claim and each command does first: it gives new messages their places in their groups. ``time``
is the database's clock alone.
"""

_S = TypeVar("_S", bound=str)


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
class Step(Generic[_S]):
    """A way from one state to another.

    Attributes
    ----------
    source, target
        The states. They are equal where the verb changes nothing but the time.
    verbs
        What makes the step: done to this message or group, or to another message of the same group.
    usual
        Which of the verbs belong to the usual life, which the picture shows.
    """

    source: _S
    target: _S
    verbs: Sequence[Verb]
    usual: Sequence[Verb] = ()


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
    """

    time_acked: int | None
    ack_held_at: int | None
    leased: bool
    time_next: int
    epoch: int


def state_of(columns: MessageColumns, now: int, *, blocked: bool = False, most: int | None = None) -> MessageState:
    """Say what a message is at ``now``, ns.

    Parameters
    ----------
    blocked
        Whether a message before it in its group must be acked first.
    most
        How often it is sent before it holds up its group; None: any number of times, or it has no group to hold up.
    """
    if columns.time_acked is not None:
        return "acked"
    if columns.ack_held_at is not None:
        return "ack_held_back"
    later = columns.time_next > now
    if columns.leased and later:
        return "leased"
    if blocked:
        return "blocked"
    if most is not None and columns.epoch >= most:
        return "exhausted"
    if later:
        return "backing_off" if columns.epoch else "scheduled"
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
    if not facts.messages:
        return "idle"
    if not facts.routed:
        return "unrouted"
    if facts.draining:
        return "draining"
    if facts.next_state in (None, "leased"):
        return "leased"
    if facts.next_state == "exhausted":
        return "exhausted"
    if facts.paused_until is not None and facts.paused_until > now:
        return "paused"
    return "ready" if facts.next_state == "ready" else "due_later"


MESSAGES: Mapping[MessageState, Meaning] = {
    "absent": Meaning("Not in the table: not put yet, purged, or moved to another table.", "no row"),
    "scheduled": Meaning(
        "Never sent, and due later.", "`time_next` is to come, `epoch` is 0", "is scheduled until {when}"
    ),
    "ready": Meaning(
        "Due, and with no consumer. Where a lease ended without an ack, the message is ready again.",
        "`time_next` is past",
        "is ready since {when}; {who} gets it",
    ),
    "leased": Meaning(
        "With a consumer whose lease lasts.",
        "`lease` is not NULL, `time_next` is to come",
        "is with {who}, whose lease lasts until {when}",
    ),
    "backing_off": Meaning(
        "Sent before, given back, and due later.",
        "`lease` is NULL, `time_next` is to come, `epoch` is above 0",
        "was sent {epoch} times and backs off until {when}",
    ),
    "blocked": Meaning(
        "Waits for messages before it in its group.",
        "a row of the group with a lesser `position` is not acked",
        "waits for message {blocking}, which is before it in {group}",
    ),
    "ack_held_back": Meaning(
        'Handled and acked before its turn, with `ack_order="hold"`: the ack counts once those before it are acked.',
        "`held_at` is not NULL",
        "was acked, which counts once the messages before it in its group are",
    ),
    "exhausted": Meaning(
        "The first of its group, with all its attempts used up: it is not sent again and holds up its group.",
        "`epoch` has reached `max_attempts`",
        "holds up its group: {why}",
    ),
    "acked": Meaning("Handled. It is never sent again.", "`time_acked` is not NULL", "was acked at {when}"),
    "dead": Meaning(
        "In the dead-letter table: its attempts are used up, or its consumer gave it up.",
        "a row of the dead-letter table",
        "died at {when}, {why}; it is in {table}",
    ),
}
"""What the states of a message mean."""

HOLDS: Mapping[Hold, Meaning] = {
    "paused": Meaning(
        "Its table or its group is paused.", "`paused_until` of either is to come", "is due, but {what} is paused{until}"
    ),
    "rate": Meaning(
        "The table has sent as many messages as its `rate_limit` allows.",
        "`rate_next` of the table is to come",
        "is due, but the table's rate_limit sends nothing until {when}",
    ),
}
"""What keeps a message that is ready from going out."""

GROUPS: Mapping[GroupState, Meaning] = {
    "absent": Meaning("Has no messages, and nothing of it is remembered.", "no row"),
    "unrouted": Meaning(
        "Its messages are new; the next claim gives them their places.", "rows with `routed` = 0 and no `position`"
    ),
    "ready": Meaning("Its next message is due; a consumer that may have the group gets it.", "`ready_at` is past"),
    "due_later": Meaning(
        "Its next message is scheduled or backs off.",
        "`ready_at` is to come",
        "message {id} {verb} until {when}",
    ),
    "leased": Meaning(
        "All that may be out is with a consumer. Of a sequenced group nothing more goes out until that is over.",
        "the row at `head` is leased",
        "message {id} is with {who} until {when}",
    ),
    "draining": Meaning(
        "Goes to another consumer as soon as nothing of it is leased.",
        "`drain_to` is not NULL",
        "message {id} has to be acked or given back before the group goes {where}",
    ),
    "paused": Meaning("Gives nothing until it is resumed.", "`paused_until` is to come", "it is paused{until}"),
    "exhausted": Meaning(
        "Its next message has used up its attempts.",
        "`ready_at` is NULL, though it has messages",
        "message {id} was sent {epoch} times, which is all it may be; skip it, or reschedule it",
    ),
    "idle": Meaning("Has no messages; its owner, a pause or a pin is remembered.", "`head` is NULL"),
}
"""What the states of a group mean."""

MESSAGE_STEPS: Sequence[Step[MessageState]] = ()

GROUP_STEPS: Sequence[Step[GroupState]] = ()
