"""The catalogue of the server: the tokens with which programs and people sign in."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.schema.catalogue import metadata
from waterclock.database.schema.types import BigInt, LongText, Name

tokens = sa.Table(
    "waterclock_tokens",
    metadata,
    sa.Column("name", Name, primary_key=True, doc="Name of the token, which the audit log shows."),
    sa.Column("token_id", sa.String(16), nullable=False, unique=True, doc="The public part of the token."),
    sa.Column("digest", sa.String(64), nullable=False, doc="SHA-256 of its secret part, in hexadecimal."),
    sa.Column("rights", LongText, nullable=False, doc="Its rights, such as `read topic:telemetry`, as a JSON list."),
    sa.Column("created_at", BigInt, nullable=False, doc="When it was created, ns."),
    sa.Column("expires_at", BigInt, doc="When it expires, ns; NULL: never."),
)
"""One row for each token of `waterclock serve`. The token itself is not stored."""
