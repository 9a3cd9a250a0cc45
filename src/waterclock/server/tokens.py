"""Creates, lists and removes the tokens with which clients sign in, and checks the token of each request.

A token is ``wct_ID_SECRET``. The id finds the row, and the SHA-256 of the secret is compared in constant time. The
secret has 256 random bits, so a slow hash would add no protection.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from waterclock._support.quoting import quoted, unknown_name
from waterclock.database.backend import Backend
from waterclock.database.schema.server_catalogue import tokens
from waterclock.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from waterclock.server.rights import Right
from waterclock.time import Time, is_duration, to_duration, to_time
from waterclock.topics.model.names import check_name

_TOKEN = re.compile(r"wct_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_NO_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token without its secret. Times in ns."""

    name: str
    rights: tuple[Right, ...]
    # When it was created, and when it expires; None: never.
    created_at: int
    expires_at: int | None


def add_token(backend: Backend, name: str, rights: Sequence[Right], expires: Time | None = None) -> str:
    """Create a token and return it: it cannot be read again.

    Raises `AlreadyExistsError` if there is a token of this name. Raises `InvalidArgumentError` if it has no right, or
    would have expired already.

    Parameters
    ----------
    expires
        When it expires: a time, or a duration from now such as ``"90d"``; None: never.
    """
    check_name(name)
    if not rights:
        raise InvalidArgumentError("rights must hold at least one right, such as --read topic:telemetry, got none")
    now = backend.now()
    token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    row = {
        "name": name,
        "token_id": token_id,
        "digest": _digest(secret),
        "rights": json.dumps([str(right) for right in dict.fromkeys(rights)]),
        "created_at": now,
        "expires_at": None if expires is None else _expiry(expires, now),
    }

    def insert_token(own: sa.Connection) -> None:
        if own.execute(sa.select(tokens.c.name).where(tokens.c.name == name)).first() is not None:
            raise AlreadyExistsError(f"token {quoted(name)} already exists. Remove it first, or choose another name")
        own.execute(sa.insert(tokens).values(row))

    backend.transact(insert_token)
    return f"wct_{token_id}_{secret}"


def list_tokens(backend: Backend) -> list[AccessToken]:
    """Return all tokens by name, including expired ones."""
    with backend.snapshot() as connection:
        return [_token(row) for row in connection.execute(sa.select(tokens).order_by(tokens.c.name))]


def remove_token(backend: Backend, name: str) -> None:
    """Remove a token, which servers refuse within a second; NotFoundError if missing."""

    def delete_token(own: sa.Connection) -> bool:
        return own.execute(sa.delete(tokens).where(tokens.c.name == name)).rowcount > 0

    if not backend.transact(delete_token):
        known = [token.name for token in list_tokens(backend)]
        raise NotFoundError(unknown_name("token", name, known, "list them with 'waterclock token ls'"))


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token."""
    return _TOKEN.fullmatch(text) is not None


def find_token(backend: Backend, text: str) -> AccessToken | None:
    """Return the token that a caller sent; None if it is unknown or has expired."""
    parts = _TOKEN.fullmatch(text)
    if parts is None:
        return None
    token_id, secret = parts.groups()
    with backend.snapshot() as connection:
        row = connection.execute(sa.select(tokens).where(tokens.c.token_id == token_id)).first()
        # Always compared, so that the time does not show which ids exist.
        is_right = hmac.compare_digest(_NO_DIGEST if row is None else row.digest, _digest(secret))
        if row is None or not is_right:
            return None
        token = _token(row)
        if token.expires_at is not None and token.expires_at <= backend.now(connection):
            return None
    return token


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _expiry(expires: Time, now: int) -> int:
    if isinstance(expires, str) and is_duration(expires):
        at = now + to_duration(expires, "expires")
    else:
        at = to_time(expires, "expires")
    if at <= now:
        raise InvalidArgumentError(f"expires must be in the future, got {quoted(expires)}")
    return to_time(at, "expires")


def _token(row: sa.Row[tuple[object, ...]]) -> AccessToken:
    rights = tuple(Right.parse(*text.split(" ", 1)) for text in json.loads(row.rights))
    return AccessToken(row.name, rights, row.created_at, row.expires_at)
