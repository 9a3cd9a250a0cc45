"""The catalogue: the tables named waterclock_* in which topics and message tables are registered."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "pk": "%(table_name)s_pkey",
    }
)
"""Every catalogue table. The modules next to this one define them; migrations/ creates them."""
