"""The catalogue of the server: the tokens with which programs and people sign in."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.schema.catalogue import metadata
from waterclock.database.schema.types import BigInt, LongText, Name, key_part, required

tokens = sa.Table(
    "waterclock_tokens",
    metadata,
    key_part("name", Name, doc="Name of the token, which the audit log shows."),
    sa.Column("token_id", sa.String(16), nullable=False, unique=True, doc="The public part of the token."),
    required("digest", sa.String(64), doc="SHA-256 of the token's secret part, in hexadecimal."),
    required("rights", LongText, doc="The token's rights, such as `read topic:telemetry`, as a JSON list."),
    required("created_at", BigInt, doc="When the row was created, ns."),
    sa.Column("expires_at", BigInt, doc="When the token expires, ns; NULL: never."),
)
"""One row for each token of `waterclock serve`. The token itself is not stored."""
