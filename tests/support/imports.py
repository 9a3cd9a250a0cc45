"""What a fresh Python has imported after some code."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"numba", "numpy", "pandas", "pyarrow", "pyspark", "sqlalchemy"}


def loaded_after(code: str) -> set[str]:
    """Give the packages that a fresh Python has imported after ``code``."""
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())
