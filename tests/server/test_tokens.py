"""Tokens: shown once, hashed at rest, with rights, and refused once they expire or are removed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

import waterclock as wc
from waterclock.database.schema.server_catalogue import tokens
from waterclock.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from waterclock.server.rights import VERBS, Client, Right
from waterclock.server.tokens import add_token, find_token, list_tokens, remove_token

READ = Right("read", "topic", "telemetry")
_DAY = 86_400_000_000_000


def test_a_token_is_found_with_its_rights_until_it_is_removed(database: wc.Database) -> None:
    text = add_token(database.backend, "grafana", [READ, READ, Right("receive", "table", "*")])
    found = find_token(database.backend, text)
    assert found is not None
    assert found.name == "grafana"
    assert found.rights == (READ, Right("receive", "table", "*"))
    assert list_tokens(database.backend) == [found]
    remove_token(database.backend, "grafana")
    assert find_token(database.backend, text) is None
    with pytest.raises(NotFoundError, match="no token named 'grafana'"):
        remove_token(database.backend, "grafana")


@pytest.mark.one_database
def test_a_token_is_not_stored(database: wc.Database) -> None:
    _, token_id, secret = add_token(database.backend, "grafana", [READ]).split("_", 2)
    with database.backend.snapshot() as connection:
        row = connection.execute(sa.select(tokens)).one()
    assert token_id in row
    assert not any(secret in str(value) for value in row)


@pytest.mark.one_database
def test_a_token_with_another_secret_id_or_form_is_unknown(database: wc.Database) -> None:
    text = add_token(database.backend, "grafana", [READ])
    start, token_id, secret = text.split("_", 2)
    other = "A" if secret[0] != "A" else "B"
    wrong = [
        f"{start}_{token_id}_{other}{secret[1:]}",
        f"{start}_{'0' * 16}_{secret}",
        f"{start}_{token_id.upper()}_{secret}",
        text[:-1],
        f" {text}",
        f"{text}\n",
        "",
        "ü" * 64,
        "grafana",
    ]
    assert [each for each in wrong if each != text and find_token(database.backend, each) is not None] == []


def test_a_token_expires_by_the_clock_of_the_database(connect: Callable[..., wc.Database]) -> None:
    now = 1_800_000_000_000_000_000
    database = connect(clock=lambda: now)
    text = add_token(database.backend, "night", [READ], "1d")
    now += _DAY - 1
    assert find_token(database.backend, text) is not None
    now += 1
    assert find_token(database.backend, text) is None
    assert [token.name for token in list_tokens(database.backend)] == ["night"]
    with pytest.raises(InvalidArgumentError, match="expires must be in the future"):
        add_token(database.backend, "past", [READ], "2026-01-01T00:00:00Z")


def test_a_token_has_one_name_and_at_least_one_right(database: wc.Database) -> None:
    add_token(database.backend, "grafana", [READ])
    with pytest.raises(AlreadyExistsError, match="token 'grafana' already exists"):
        add_token(database.backend, "grafana", [READ])
    with pytest.raises(InvalidArgumentError, match="rights must hold at least one right"):
        add_token(database.backend, "none", [])


@pytest.mark.parametrize(
    ("verb", "on", "why"),
    [
        ("read", "telemetry", "read must be topic:NAME or table:NAME"),
        ("read", "topic:", "read must be topic:NAME"),
        ("read", "database:x", "read must be topic:NAME"),
        ("put", "topic:telemetry", "the verb of a topic must be one of read, append, receive, manage, got 'put'"),
        ("append", "table:orders", "the verb of a table must be one of read, put, receive, manage, got 'append'"),
    ],
)
def test_a_right_is_a_verb_and_an_object_that_has_it(verb: str, on: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        Right.parse(verb, on)


def test_no_right_includes_another() -> None:
    rights = [Right(verb, kind, name) for kind, verbs in VERBS.items() for verb in verbs for name in ("a", "*")]
    for right in rights:
        caller = Client("one", frozenset({right}))
        allowed = {
            (verb, kind, name)
            for kind, verbs in VERBS.items()
            for verb in verbs
            for name in "ab"
            if caller.may(verb, kind, name)
        }
        assert allowed == {(right.verb, right.kind, name) for name in ("ab" if right.name == "*" else "a")}
    assert Client("here", None).may("manage", "topic", "a")


def test_a_name_with_a_colon_or_a_space_is_kept(database: wc.Database) -> None:
    right = Right.parse("read", "topic:a b:c")
    text = add_token(database.backend, "odd", [right])
    found = find_token(database.backend, text)
    assert found is not None
    assert found.rights == (Right("read", "topic", "a b:c"),)
