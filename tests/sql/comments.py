"""What a reader asks about a clause, by the text that it is known by."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NOT_ACKED = r"AND coalesce\(\w+\.time_acked, "

COMMENTS = {
    # transactions
    r"^PRAGMA synchronous=NORMAL": "The commit of a claim does not wait for the disk. If the computer fails, a lost"
    " claim's messages are delivered again.",
    r"^PRAGMA synchronous=FULL": "All other commits wait for the disk.",
    r"^BEGIN IMMEDIATE": "Takes the write lock immediately.",
    r"^SET TRANSACTION ISOLATION LEVEL REPEATABLE READ": "All reads of the transaction see the same state.",
    r"idle_in_transaction_session_timeout": "If the process stops in the middle of the transaction, the server ends"
    " it and releases its locks. A lock wait ends after 30 s, or earlier if the server's own limit is lower.",
    # the clock
    r":waterclock_now": "The computer's clock, ns: all processes that use the file are on this computer.",
    r"date_part\('epoch', statement_timestamp|TIMESTAMPDIFF\(MICROSECOND": "The database's clock, ns.",
    # put
    r"FROM sqlite_sequence": "The greatest id so far, including the ids of purged messages.",
    r"^ON CONFLICT": "A message whose id already exists changes nothing.",
    r"FROM unnest\(%\(id\)b": "One list per column: the statement's text is the same for any number of messages.",
    r"^VALUES \(%\(id\)s": "The driver sends many rows in one statement. A trigger and defaults set the other times.",
    r"^SELECT nextval\(": "Draws numbers from the table's sequence, and keeps the unused ones for the next puts.",
    r"LOCK IN SHARE MODE": "Existing ids, including ids committed after this transaction began.",
    # claim
    r"^WITH RECURSIVE levels": "The priorities to search, from the highest to the lowest.",
    r"LIMIT 128": "Each step reads at most this many messages, because most priorities may have no due message.",
    r"FROM unnest\(%\(known\)s": "Priorities that the last claim found, and the time at which it stopped in each.",
    r"AND (other|orders)\.priority > (:of|%\(of\)s|coalesce)": "A message with a priority that is not yet known comes"
    " first.",
    r"AND orders\.time_next >= (:low|%\(low\)s|levels\.low)": "Begins where the last claim stopped, after the dead"
    " index entries of acked messages.",
    r"^found AS MATERIALIZED": "Runs the search only once.",
    r"SKIP LOCKED": "Skips rows that another transaction has locked.",
    r"^WHERE orders\.seq = ANY \(ARRAY\[": "Reads the rows by key, whatever the statistics: the planner cannot turn"
    " `= ANY` into a merge join.",
    r"time_next=(\(?json_extract|:until)|time_next=CAST\(json_value": "The end of each lease, which the claim has"
    " computed from the back-off.",
    r"\+ least\($": "The end of the lease: the back-off with its jitter, between the shortest and the longest delay.",
    r"epoch=coalesce": "Counts the delivery.",
    # ack, nack, extend
    r"AND (orders|calls)\.claim_id = ": "Changes nothing if another claim has the message now.",
    _NOT_ACKED: "Not acked. The form of this condition prevents the use of an index, so the row is read by its key.",
    r"last_error=coalesce": "Without a new error text, keeps the last one.",
    r"^SET time_next=CASE$": "A new message has a consumer only if plain SQL moved it here. Its lease ends.",
    # purge
    r"^WHERE orders\.time_acked IS NOT NULL": "The oldest messages first, through the index of acked messages.",
    r"^UPDATE waterclock_table_totals": "Adds the deleted messages to the totals.",
    # groups
    r"^WHERE waterclock_message_tables\.table_id": "Takes the turn to route: only one consumer routes at a time.",
    r"^SELECT seen\.seq, seen\.group_id": "The messages that the consumer has. A group with a row that another"
    " transaction has locked is postponed.",
    r"^SELECT seen\.seq, seen\.(?!group_id)": "The next messages that are new or were changed by plain SQL. Messages"
    " that another transaction has locked, and the messages behind them in their groups, wait for the next call.",
    r"^INSERT INTO waterclock_groups": "Inserts rows for new groups.",
    r"position=pairs\.number": "The new positions follow the group's last position, in the order of insertion.",
    r"^    head=|^SET head=": "The group's first unacked message, and the columns that depend on it.",
    r"^ +next_position=": "The position at which the next claim begins.",
    r"^ +ready_at=\(": "When the group next has a message to deliver.",
    r"^DELETE FROM waterclock_groups": "A group without messages ends, unless it has an owner or is paused or pinned.",
    r"ended_at=": "The group's row is deleted some minutes later, unless the group gets messages.",
    r"AS first_new": "The first message that must be routed before the claim.",
    r"AS of_unassigned": "The highest priority of the groups without an owner.",
    r"AS of_mine": "The highest priority of the consumer's own groups.",
    r"ORDER BY \w+\.ready_at, \w+\.first_seq": "The groups that became due first. Groups"
    " due at the same time come in the order in which they began.",
    r"calls\.ack_held_at IS NULL": "Leaves out messages whose ack is held back.",
    r"^WHERE waterclock_groups\.ctid = ANY": "Reads the rows by their physical addresses, whatever the statistics."
    " Each address was looked up by key.",
    r"LIMIT ALL OFFSET 0": "Prevents the planner from turning the look-up into a join.",
    r"^ORDER BY waterclock_groups\.group_id": "Locks in order, so that two transactions cannot deadlock.",
    r"^SET ready_at=": "The end of the lease, unless the message is acked earlier.",
    r"acked_by=(orders|calls|`orders`|`calls`)": "The claim that acked the message, so that a repeated ack is"
    " recognised.",
    r"^SELECT waterclock_consumers\.session": "If another live process uses the consumer's name, this consumer gets"
    " no messages.",
    r"AND waterclock_consumers\.lease_until <= ": "Consumers whose leases have ended: their groups are released first.",
    r"^ +\) <= (:now|%\(now\)s(::BIGINT)?)$": "If the first message was not acked in time, the messages behind it are"
    " taken back, so that none of them overtakes it.",
    r"max\(jobs\.time_next\)": "The lease of a message never ends before the lease of an earlier message of its group.",
    r"ready_at=nullif\(": "When the group next has a message to deliver: its first message after the lease ends, or"
    " the next message.",
    r"^ +assigned=CASE": "A group that is being moved goes to its next consumer once none of its messages is leased.",
    r"AND waterclock_consumers\.session = ": "Renews nothing if another process has taken over the name.",
    r"AND waterclock_consumers\.lease_until < ": "A lease never becomes shorter.",
    r"^SET time_next=\S+, claim_id=": "Takes back the consumer's messages. Otherwise, another consumer could get"
    " later messages of a group first.",
    r"^SET assigned=CASE": "Any consumer may have the group now, unless the group is pinned to this one.",
    r"^DELETE FROM waterclock_consumers": "Deletes the consumer once no group is assigned to it.",
    r"waterclock_heartbeats\.beat_at > ": "The number of processes that compare groups: together, they spend at most"
    " 2 % of their time on it.",
    r"waterclock_groups\.head (IS DISTINCT FROM|IS NOT|<=>) \($": "The group's row contradicts its messages.",
    # partitions
    r"PARTITION BY LIST \(|PARTITION p_open VALUES": "All unacked messages are in one partition. An ack moves the"
    " message to its day's partition.",
    r"^CREATE FUNCTION \w+_once|TRIGGER \w+_once AFTER INSERT ON \w+ FOR EACH ROW": "Refuses the id of an acked"
    " message that is still in the table, because no index is unique across partitions.",
    r"SET LOCAL lock_timeout|WAIT 1 ": "Gives up early, because later transactions on the table would have to wait,"
    " too.",
    r"^LOCK TABLE": "No ack can move a message into the shared partition while the day's partition is created.",
    r"^WITH moved": "Messages that were acked on that day before its partition existed.",
    r"ATTACH PARTITION": "Other transactions continue meanwhile.",
    # topics
    r"^UPDATE waterclock_topics": "Each append locks this row from its beginning, so messages are in the order of"
    " commits.",
    r"AS unmeasured": "A ledger without time bounds, which must be scanned.",
    r"waterclock_ledgers\.peak_publish_time >= ": "The peak (running maximum) never falls from one ledger to the"
    " next, so one index look-up finds the first ledger.",
    r"waterclock_entries\.peak_publish_time >= ": "The same search within a ledger whose entries are rows.",
}
"""Comments by the pattern of a line that they stand above; each once in a call's statements."""


def commented(statements: Iterable[str]) -> list[str]:
    """Give laid-out statements with their comments."""
    left = {re.compile(pattern): comment for pattern, comment in COMMENTS.items()}
    result: list[str] = []
    for statement in statements:
        lines: list[str] = []
        for line in statement.splitlines():
            indent = line[: len(line) - len(line.lstrip())]
            found = [pattern for pattern in left if pattern.search(line)]
            lines += [*(f"{indent}-- {left.pop(pattern)}" for pattern in found), line]
        result.append("\n".join(lines))
    return result
