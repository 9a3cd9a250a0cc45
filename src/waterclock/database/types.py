"""Column types that mean the same on every database."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

BigInt = sa.BigInteger
"""Times in ns, counts and sizes."""

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""A key the database generates: SQLite numbers only an INTEGER PRIMARY KEY by itself."""

Name = sa.String(255).with_variant(mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")
"""A name, compared byte by byte also where the database would ignore case."""

Blob = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
"""Bytes of up to 1 GB; MySQL's plain BLOB ends at 64 KiB."""

LongText = sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")
"""Text of any length; MySQL's plain TEXT ends at 64 KiB."""
