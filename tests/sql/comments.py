"""What a reader asks about a clause, by the text that it is known by."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NOT_ACKED = r"AND coalesce\(\w+\.time_acked, "

COMMENTS = {
    # transactions
    r"^PRAGMA synchronous=NORMAL": "The commit of a claim need not wait for the disk: a claim that a failure of the"
    " computer undoes is sent again.",
    r"^PRAGMA synchronous=FULL": "All other commits wait for the disk.",
    r"^BEGIN IMMEDIATE": "Takes the write lock at once.",
    r"^SET TRANSACTION ISOLATION LEVEL REPEATABLE READ": "All reads of the transaction see the same state.",
    r"idle_in_transaction_session_timeout": "The server ends the transaction of a process that stops in the"
    " middle of it, so that its locks do not stay. It waits for others' locks for 30 s, or for less where the"
    " operator has set less.",
    # the clock
    r":waterclock_now": "The computer's clock, ns; all who use the file are on this computer.",
    r"EXTRACT\(epoch FROM statement_timestamp|TIMESTAMPDIFF\(MICROSECOND": "The database's clock, ns.",
    # put
    r"FROM sqlite_sequence": "The greatest id there ever was, of messages that were purged too.",
    r"^ON CONFLICT": "A message whose id is there already changes nothing.",
    r"FROM unnest\(%\(id\)b": "A list for each column: the text is the same for any number of messages.",
    r"^VALUES \(%\(id\)s": "The driver makes one statement of many rows; a trigger and defaults set the other times.",
    r"^SELECT nextval\(": "The numbers are drawn from the table's sequence, and those that are over are kept for"
    " the next puts.",
    r"LOCK IN SHARE MODE": "Ids that are there already, also those that are committed after the transaction began.",
    # claim
    r"^WITH RECURSIVE levels": "The priorities to look at, from the highest down.",
    r"LIMIT 128": "So many messages are looked at in a step, because most priorities may have nothing that is due.",
    r"FROM unnest\(%\(known\)s": "Priorities that are known from the last claim, and where it stopped in each.",
    r"AND (other|orders)\.priority > (:of|%\(of\)s|coalesce)": "A message of a priority that is not known yet goes"
    " first.",
    r"AND orders\.time_next >= (:low|%\(low\)s|levels\.low)": "Begins where the last claim stopped, behind the dead"
    " entries of acked messages.",
    r"^found AS MATERIALIZED": "Looks for messages once.",
    r"SKIP LOCKED": "Leaves what another transaction has locked to that one.",
    r"^WHERE orders\.seq = ANY \(ARRAY\[": "By key, for any statistics: `= ANY` cannot become a merge.",
    r"time_next=\(?json_extract|time_next=CAST\(json_value": "The end of each lease: the claim computes it by the"
    " back-off.",
    r"\+ least\($": "The back-off, with its jitter, between the shortest and the longest wait: the end of the lease.",
    r"epoch=coalesce": "Counts the delivery.",
    # ack, nack, extend
    r"AND (orders|calls)\.claim_id = ": "Refused where another claim has the message now.",
    _NOT_ACKED: "Not acked. Written so that no index answers it: the key does.",
    r"last_error=coalesce": "Keeps the last error where this one has no text.",
    r"^SET time_next=CASE$": "Only what plain SQL moved here is with a consumer, whose it is no more.",
    # purge
    r"^WHERE orders\.time_acked IS NOT NULL": "The oldest first, by the index of acked messages.",
    r"^UPDATE waterclock_table_totals": "What is deleted stays counted.",
    # groups
    r"^WHERE waterclock_message_tables\.table_id": "The turn to route: one consumer at a time.",
    r"^SELECT seen\.seq, seen\.group_id": "What the consumer has. A group of which another transaction has locked a"
    " part is put off.",
    r"^SELECT seen\.seq, seen\.(?!group_id)": "The next messages that are new, or were changed by plain SQL. Those"
    " that another transaction has locked, and what follows them in their groups, are left to the next one.",
    r"^INSERT INTO waterclock_groups": "Begins groups that are new.",
    r"position=pairs\.number": "Places go on behind the last one of the group, in the order of insertion.",
    r"^    head=|^SET head=": "The first message of the group that is not acked, and what follows from it.",
    r"^ +next_position=": "Where the next claim begins.",
    r"^ +ready_at=\(": "When there is something to hand out.",
    r"^DELETE FROM waterclock_groups": "A group without messages ends, unless it has an owner, or was paused or"
    " pinned.",
    r"ended_at=": "Its row is deleted some minutes later, unless it gets messages.",
    r"AS first_new": "The first message that has to be routed before.",
    r"AS of_unassigned": "The highest priority of groups that any consumer may have.",
    r"AS of_mine": "The highest priority of the consumer's own groups.",
    r"ORDER BY waterclock_groups\.ready_at, waterclock_groups\.first_seq": "The groups that are due the longest, in the"
    " order in which they began.",
    r"calls\.ack_held_at IS NULL": "Without messages whose ack is held back.",
    r"^WHERE waterclock_groups\.ctid = ANY": "By the places of the rows, each looked up by its key, for any"
    " statistics.",
    r"LIMIT ALL OFFSET 0": "Keeps the look-up from becoming a join.",
    r"^ORDER BY waterclock_groups\.group_id": "In order, so that transactions do not wait for each other in a circle.",
    r"^SET ready_at=": "Not before the lease ends, unless it is acked.",
    r"acked_by=(orders|calls|`orders`|`calls`)": "Acked by this claim: its ack may be repeated without harm.",
    r"^SELECT waterclock_consumers\.session": "Another process that is alive may have the consumer's name: then it gets"
    " nothing.",
    r"AND waterclock_consumers\.lease_until <= ": "Consumers whose lease has ended: their groups are released first.",
    r"^ +\) <= (:now|%\(now\)s(::BIGINT)?)$": "The first message was not acked in time: those behind it are"
    " taken back, so that none overtakes it.",
    r"max\(jobs\.time_next\)": "No message of a group gets a lease that ends before that of an earlier one.",
    r"ready_at=nullif\(": "When there is something to hand out: the first message once its lease has ended, or the"
    " next one.",
    r"^ +assigned=CASE": "A group that was moved goes to its next consumer, once no message of it is out.",
    r"AND waterclock_consumers\.session = ": "Renews nothing where another process has the name by now.",
    r"AND waterclock_consumers\.lease_until < ": "A lease never becomes shorter.",
    r"^SET time_next=\S+, claim_id=": "Takes back what the consumer had. Else another consumer would get later messages"
    " of a group first.",
    r"^SET assigned=CASE": "Free for any consumer, unless pinned to this one.",
    r"^DELETE FROM waterclock_consumers": "Once no group is assigned to it.",
    r"waterclock_heartbeats\.beat_at > ": "The processes that look, too: together they spend a fiftieth of their time.",
    r"waterclock_groups\.head (IS DISTINCT FROM|IS NOT|<=>) \($": "The row of the group says something else than its"
    " messages do.",
    # partitions
    r"PARTITION BY LIST \(|PARTITION p_open VALUES": "Messages that are not acked lie together; an ack moves its"
    " message to the day.",
    r"^CREATE FUNCTION \w+_once|TRIGGER \w+_once AFTER INSERT ON \w+ FOR EACH ROW": "An id may not be put again"
    " while the message that was acked is there; no index is unique over all partitions.",
    r"SET LOCAL lock_timeout|WAIT 1 ": "Gives up soon: transactions that ask for the table later would wait, too.",
    r"^LOCK TABLE": "No ack may move a message there while the day is made.",
    r"^WITH moved": "What was acked on that day before there was a partition of it.",
    r"ATTACH PARTITION": "Others go on meanwhile.",
    # topics
    r"^UPDATE waterclock_topics": "Every append has this row locked from its beginning, so position order is commit"
    " order.",
    r"AS unmeasured": "A ledger without time bounds, which has to be looked through.",
    r"waterclock_ledgers\.peak_publish_time >= ": "The peak never falls from one ledger to the next, so the first one"
    " is a step down an index.",
    r"waterclock_entries\.peak_publish_time >= ": "The same within a ledger whose entries are rows.",
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
