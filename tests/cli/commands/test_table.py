from __future__ import annotations

import inspect

import pytest
from tests.cli.conftest import Shell

from waterclock.cli.app import FAILED, WRONG_USAGE
from waterclock.connection import Database


@pytest.fixture
def orders(shell: Shell) -> Shell:
    shell("table", "add", "orders", "--payload", "text", "--column", "region=text", "--max-backoff", "1h")
    return shell


def test_a_table_is_made_with_its_options_and_they_are_shown_and_changed(orders: Shell) -> None:
    orders("table", "alter", "orders", "--rate-limit", "50", "--max-attempts", "3")
    assert "changed max_attempts, rate_limit of orders" in orders.said
    (info,) = orders.json("table", "info", "orders")
    assert (info["rate_limit"], info["max_attempts"], info["dead_letter"]) == (50.0, 3, "orders_dead")
    assert (info["subscribers"], info["sent_rate"]) == (0, 0)
    orders("table", "alter", "orders", "--unset", "rate-limit")
    (info,) = orders.json("table", "info", "orders")
    assert info["rate_limit"] is None
    orders("table", "alter", "orders", "--rate-limit", "0", expect=WRONG_USAGE)
    orders("table", "alter", "orders", expect=WRONG_USAGE)
    assert "Pass at least one option" in orders.said


def test_a_table_of_groups_is_made_with_the_options_of_groups(shell: Shell) -> None:
    groups = ("--groups", "exclusive", "--group-header", "press", "--ungrouped", "reject", "--group-idle", "1m")
    shell("table", "add", "steps", *groups, "--ack-order", "hold", "--on-exhausted", "dead_letter")
    (info,) = shell.json("table", "info", "steps")
    assert (info["groups"], info["group_header"], info["ungrouped"]) == ("exclusive", "press", "reject")
    assert (info["ack_order"], info["on_exhausted"], info["group_idle"]) == ("hold", "dead_letter", 60)
    shell("table", "alter", "steps", "--on-exhausted", "block", "--unset", "group-idle")
    (info,) = shell.json("table", "info", "steps")
    assert (info["on_exhausted"], info["group_idle"]) == ("block", None)


def test_a_table_is_made_with_a_limit_that_can_change(shell: Shell) -> None:
    key = ("--column", "customer=text", "--limit", "customer=2", "--fair-by", "customer")
    shell("table", "add", "work", *key)
    (info,) = shell.json("table", "info", "work")
    assert (info["limit"], info["fair_by"]) == ("customer=2", "customer")
    shell("table", "alter", "work", "--limit", "customer=5")
    (info,) = shell.json("table", "info", "work")
    assert info["limit"] == "customer=5"
    shell("table", "alter", "work", "--limit", "customer=many", expect=WRONG_USAGE)
    assert "limit must be KEY=N with an integer N, got 'customer=many'" in shell.said


def test_a_table_is_made_with_weights_that_can_change(shell: Shell) -> None:
    shell("table", "add", "work", "--fair-by", "kind", "--weights", "vip=3", "--weights", "a=2")
    (info,) = shell.json("table", "info", "work")
    assert info["weights"] == "vip=3, a=2"
    shell("table", "alter", "work", "--unset", "weights")
    (info,) = shell.json("table", "info", "work")
    assert info["weights"] is None
    shell("table", "alter", "work", "--weights", "vip=many", expect=WRONG_USAGE)
    assert "weights must be KEY=N with an integer N, got 'vip=many'" in shell.said


def test_a_table_is_made_with_a_rate_of_each_key_that_can_change(shell: Shell) -> None:
    shell("table", "add", "work", "--column", "customer=text", "--rate", "customer=10/s")
    (info,) = shell.json("table", "info", "work")
    assert info["rate"] == "customer=10/s"
    shell("table", "alter", "work", "--rate", "customer=5/h")
    (info,) = shell.json("table", "info", "work")
    assert info["rate"] == "customer=5/h"
    for _ in range(2):
        shell("table", "put", "work", "x", "--column", "customer=7")
    shell.json("table", "receive", "work", "--limit", "2")
    explained = shell("table", "explain", "work", "2")
    assert "it waits for the rate of customer='7' until" in explained
    shell("table", "alter", "work", "--rate", "customer=many", expect=WRONG_USAGE)
    assert "rate: the rate of 'customer' must be 1e-06 to" in shell.said


def test_every_option_of_a_table_can_be_given(shell: Shell) -> None:
    options = set(inspect.signature(Database.create_table).parameters) - {"self", "name", "columns", "key_range"}
    help_text = shell("table", "add", "--help")
    missing = {option for option in options if f"--{option.replace('_', '-')} " not in help_text}
    assert not missing


def test_a_message_that_expires_is_put_and_shown_and_counted(orders: Shell) -> None:
    orders("table", "put", "orders", "tea", "--expires", "2100-01-01T00:00:00Z")
    orders("table", "put", "orders", "cake")
    assert [row["expires_at"] for row in orders.json("table", "peek", "orders")] == ["2100-01-01T00:00:00Z", None]
    late = ("--at", "2100-01-01T00:00:00Z", "--expires", "2099-01-01T00:00:00Z")
    orders("table", "put", "orders", "stale", *late, expect=WRONG_USAGE)
    assert "expires_at must be later than" in orders.said
    (info,) = orders.json("table", "info", "orders")
    assert (info["on_expired"], info["ready"], info["expired"]) == ("drop", 2, 0)
    orders("table", "alter", "orders", "--on-expired", "dead_letter", expect=WRONG_USAGE)
    assert "needs a dead-letter table" in orders.said
    orders("table", "alter", "orders", "--on-expired", "dead_letter", "--dead-letter", "orders_dead")


def test_a_message_that_would_have_expired_already_is_refused(orders: Shell) -> None:
    orders("table", "put", "orders", "1", "--expires", "2020-01-01T00:00:00Z", expect=WRONG_USAGE)
    assert "expires must be in the future, got '2020-01-01T00:00:00Z'" in orders.said


def test_the_info_of_a_table_says_whether_it_is_paused_and_until_when(orders: Shell) -> None:
    def paused() -> tuple[bool, str | None]:
        (info,) = orders.json("table", "info", "orders")
        return info["paused"], info["paused_until"]

    assert paused() == (False, None)
    for until, shown in (("2100-01-01T00:00:00Z", "2100-01-01T00:00:00Z"), (None, "no end")):
        orders("table", "pause", "orders", *(() if until is None else ("--until", until)))
        assert paused() == (True, shown)
    orders("table", "pause", "orders", "--until", "2001-01-01T00:00:00Z")
    assert paused() == (False, None)
    orders("table", "resume", "orders")
    assert paused() == (False, None)


def test_waiting_messages_are_shown_and_not_taken(orders: Shell) -> None:
    orders("table", "peek", "orders", expect=FAILED)
    orders("table", "put", "orders", "tea", "--priority", "2")
    orders("table", "put", "orders", "milk", "--header", "of=a cow")
    shown = orders.json("table", "peek", "orders")
    assert [(one["id"], one["payload"], one["priority"]) for one in shown] == [(1, "tea", 2), (2, "milk", 0)]
    assert (shown[0]["headers"], shown[1]["headers"]) == (None, {"of": "a cow"})
    assert orders.json("table", "peek", "orders", "--limit", "1") == shown[:1]
    assert len(orders.json("table", "receive", "orders")) == 2


def test_a_table_is_paused_and_resumed(orders: Shell) -> None:
    orders("table", "put", "orders", "tea")
    orders("table", "pause", "orders", "--until", "2100-01-01T00:00:00Z")
    assert "until 2100-01-01T00:00:00Z" in orders.said
    orders("table", "receive", "orders", expect=FAILED)
    assert "is paused until 2100" in orders("table", "explain", "orders", "1")
    orders("table", "pause", "orders")
    assert "until it is resumed" in orders.said
    orders("table", "resume", "orders")
    assert len(orders.json("table", "receive", "orders")) == 1


def test_acked_messages_are_archived_in_a_topic(orders: Shell) -> None:
    orders("topic", "add", "done")
    orders("table", "put", "orders", "tea")
    orders("table", "put", "orders", "coffee")
    orders("table", "receive", "orders", "--limit", "1", "--ack")
    orders("table", "archive", "orders", "done", "--older-than", "1h")
    assert "archived 0 messages" in orders.said
    orders("table", "archive", "orders", "done")
    assert [row["payload"] for row in orders.json("topic", "read", "done")] == ["tea"]


def test_dead_letters_are_listed_and_brought_back(shell: Shell) -> None:
    shell("table", "add", "orders", "--payload", "text", "--ack-wait", "1ms", "--max-attempts", "1")
    for payload in ("tea", "coffee"):
        shell("table", "put", "orders", payload)
    shell("table", "receive", "orders")
    shell("table", "receive", "orders", "--wait", "100ms", expect=FAILED)
    letters = shell.json("table", "dead", "orders")
    assert [letter["payload"] for letter in letters] == ["coffee", "tea"]
    assert letters[0]["dead_reason"] == "sent once without an ack"
    shell("table", "redrive", "orders", str(letters[0]["id"]))
    assert "redrove 1 dead letters" in shell.said
    shell("table", "redrive", "orders")
    assert {row["payload"] for row in shell.json("table", "receive", "orders")} == {"tea", "coffee"}


def test_messages_move_to_the_dead_letters_by_id_or_by_filter(shell: Shell) -> None:
    shell("table", "add", "orders", "--payload", "text", "--dead-letter", "lost")
    for payload in ("tea", "coffee", "tea leaves", "cocoa"):
        shell("table", "put", "orders", payload, "--header", f"kind={payload}")
    taken = shell.json("table", "receive", "orders", "--limit", "1")[0]["id"]
    move = ("table", "dead-letter", "orders")
    shell(*move, "--reason", "sold", expect=WRONG_USAGE)
    shell(*move, "2", "--text", "tea", "--reason", "sold", expect=WRONG_USAGE)
    assert "either ids or a filter" in shell.said
    shell(*move, "2", "99", "--reason", "sold", expect=FAILED)
    shell(*move, "--text", "tea", "--reason", "sold", expect=WRONG_USAGE)
    assert "this would move 1 message of orders to the dead letters" in shell.said
    shell(*move, "--text", "tea", "--reason", "sold", "--yes")
    shell(*move, "--header", "kind=nothing", "--reason", "sold", "--yes")
    letters = shell.json("table", "dead", "orders")
    assert taken == 1
    assert {(one["payload"], one["dead_reason"]) for one in letters} == {("coffee", "sold"), ("tea leaves", "sold")}


def test_messages_are_chosen_in_sqls_words(orders: Shell) -> None:
    for priority in ("1", "2", "3"):
        orders("table", "put", "orders", priority, "--priority", priority)
    chosen = orders.json("table", "receive", "orders", "--where", "priority > 1", "--order", "priority")
    assert [row["payload"] for row in chosen] == ["2", "3"]
    orders("table", "receive", "orders", "--where", "price > 1", expect=WRONG_USAGE)
    assert "no column named 'price'" in orders.said


def test_all_that_backs_off_is_retried(shell: Shell) -> None:
    shell("table", "add", "orders", "--payload", "text")
    shell("table", "retry", "orders")
    assert "retrying 0 messages now" in shell.said
    shell("table", "retry", "orders", "--at", "2100-01-01T00:00:00Z", expect=WRONG_USAGE)
    assert "--at can only be used with ids" in shell.said


def test_a_table_is_removed_only_with_consent(orders: Shell) -> None:
    orders("table", "rm", "orders", expect=WRONG_USAGE)
    assert "--yes" in orders.said
    orders("table", "rm", "orders", "--yes")
    assert orders.json("table", "ls") == []


def test_a_producer_closes_a_group(shell: Shell) -> None:
    shell("table", "add", "steps", "--payload", "text", "--groups", "exclusive")
    shell("table", "put", "steps", "one", "--group", "a", "--closes-group")
    shell("table", "receive", "steps", "--ack")
    assert shell.json("group", "ls", "steps") == []


def test_the_info_of_a_table_rounds_measured_rates_for_people_and_not_in_json(orders: Shell) -> None:
    orders("table", "put", "orders", "one")
    assert f"put rate           {1 / 60:.3g}/s" in orders("table", "info", "orders")
    (info,) = orders.json("table", "info", "orders")
    assert info["put_rate"] == 1 / 60
