from __future__ import annotations

import pytest
import sqlalchemy as sa

from waterclock.database.schema.types import LongText, Name


@pytest.mark.parametrize("kind", [Name, LongText])
def test_texts_are_not_padded_with_spaces_on_mariadb(kind: sa.types.TypeEngine[str]) -> None:
    mariadb = sa.make_url("mariadb+pymysql://").get_dialect()()
    assert kind.compile(mariadb).endswith(" COLLATE utf8mb4_nopad_bin")
