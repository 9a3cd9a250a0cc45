"""The meanings of the states of messages and groups, for the documentation's page of states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from waterclock.tables.model.states import GroupState, Hold, MessageState


class Meaning(NamedTuple):
    """The meaning of a state, and how the rows show it, in SQL."""

    words: str
    shown_by: str


MESSAGES: Mapping[MessageState, Meaning] = {
    "acked": Meaning("Handled. It is never delivered again.", "`time_acked` is not NULL"),
    "ack_held_back": Meaning(
        'Handled and acked before its turn, in a table with `ack_order="hold"`. The ack takes effect when all earlier'
        " messages of its group are acked.",
        "`ack_held_at` is not NULL",
    ),
    "leased": Meaning(
        "Delivered to a consumer whose lease has not ended.", "`claim_id` is not NULL, `time_next` is in the future"
    ),
    "cancelled": Meaning(
        "Cancelled before a consumer handled it: it is never delivered, and does not block others. A leased message"
        " stays `leased` when it is cancelled, and its consumer sees it in `delivery.cancelled`.",
        "`expires_at` is the smallest bigint, and the message is not leased. (`acked_by` becomes 0 when a claim or"
        " `purge` removes the message from the queue.)",
    ),
    "expired": Meaning(
        "No consumer took it before `expires_at`: it is never delivered, and does not block others. A leased message"
        " stays `leased`.",
        "`expires_at` is past, and the message is not leased. (`acked_by` becomes 0 when a claim or `purge` removes the"
        " message from the queue.)",
    ),
    "blocked": Meaning(
        "Waits for earlier messages of its group.", "a row of the group with a smaller `position` is not acked"
    ),
    "exhausted": Meaning(
        "The first of its group, and its attempts are used up. It is not delivered again, and blocks its group.",
        "`epoch` has reached `max_attempts`",
    ),
    "backing_off": Meaning(
        "Delivered before, given back, and due later.", "`time_next` is in the future, `epoch` is above 0"
    ),
    "scheduled": Meaning("Never delivered, and due later.", "`time_next` is in the future"),
    "ready": Meaning(
        "Due, and not leased. A message whose lease ended without an ack is ready again.", "`time_next` is past"
    ),
    "dead": Meaning(
        "In the dead-letter table: its attempts are used up, a consumer dead-lettered it, or it expired.",
        "a row of the dead-letter table",
    ),
    "absent": Meaning("Not in the table: not put yet, purged, or moved to another table.", "no row"),
}
"""In the order of `state_of`: the first that fits counts."""

HOLDS: Mapping[Hold, Meaning] = {
    "paused": Meaning(
        "The message's table or group is paused.", "`paused_until` of the table or of the group is in the future"
    ),
    "rate": Meaning(
        "The table has delivered as many messages as its `rate_limit` allows.",
        "`rate_next` of the table is in the future",
    ),
    "key_rate": Meaning(
        "Consumers have recently received as many messages with this key as the table's `rate` allows.",
        "a row of its `message_key` in `waterclock_message_keys` has a `rate_next` in the future",
    ),
    "limit": Meaning(
        "Consumers hold as many messages with this key as the table's `limit` allows.",
        "the number of unacked messages with its `message_key` and a `claim_id` has reached the `limit`",
    ),
    "owner_away": Meaning(
        "The owner of the message's group is gone. If the group is not pinned, the next claim takes the group over.",
        "the group's `assigned` names a consumer that has no live row in `waterclock_consumers`",
    ),
    "unsettled": Meaning(
        "Plain SQL deleted an earlier message of the group. A consumer repairs the group within `poll_interval`.",
        "`ready_at` of the group contradicts its messages",
    ),
    "locked": Meaning(
        "An open transaction has locked the message, its group, or another message of the group.",
        "`SKIP LOCKED` skips the row of the group or of the message",
    ),
}
"""The reasons that keep a ready message from being sent."""

GROUPS: Mapping[GroupState, Meaning] = {
    "idle": Meaning("Has no messages; its owner, a pause or a pin is remembered.", "`head` is NULL"),
    "unrouted": Meaning(
        "Its messages are new; the next claim places them.", "rows with `routed` = 0 and no `position`"
    ),
    "draining": Meaning(
        "The group goes to another consumer as soon as none of its messages is leased.", "`drain_to` is not NULL"
    ),
    "leased": Meaning(
        "Its messages are with a consumer. In a sequenced group, no more messages are delivered until these are acked"
        " or given back.",
        "the row at `head` is leased",
    ),
    "exhausted": Meaning("Its next message has used up its attempts.", "`ready_at` is NULL, though it has messages"),
    "paused": Meaning(
        "No message of the group is delivered until the group is resumed.", "`paused_until` is in the future"
    ),
    "ready": Meaning(
        "Its next message is due, or has expired and will be skipped. Among the consumers that are allowed to"
        " have the group, the next one that claims gets it.",
        "`ready_at` is past",
    ),
    "due_later": Meaning("Its next message is scheduled or backs off.", "`ready_at` is in the future"),
    "absent": Meaning("Has no messages, and no settings are remembered.", "no row"),
}
"""In the order of `state_of_group`: the first that fits counts."""
