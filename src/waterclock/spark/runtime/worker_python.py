"""Writes the script with which an embedded Spark launches its Python workers."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pyspark

from waterclock.spark.runtime import forked

# Plain sh, which starts in a millisecond.
_LAUNCHER = """\
#!/bin/sh
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
        @SPARK@/*) ;;
        *) kept=$kept${kept:+:}$entry ;;
    esac
done
export PYTHONPATH="$kept"
# Spark's setting for this is only for tasks.
if [ "$1 $2" = "-m pyspark.daemon" ]; then shift 2; set -- -m waterclock.spark.runtime.worker_daemon "$@"; fi
# This worker prints each step, and reports errors over its socket.
case "$*" in *transform_with_state_driver_worker*) exec >/dev/null 2>&1 ;; esac
if [ -n @FORKS@ ] && [ "$1" = -m ]; then exec @PYTHON@ -I -S @FORKED@ @FORKS@ "$@"; fi
exec @PYTHON@ "$@"
"""


def make_python(launcher: Path, forks: Path | None = None) -> Path:
    """Create ``launcher``, which runs this Python, with PySpark as it is installed.

    If ``forks`` is the folder of a fork server's sockets, modules run in processes that the server forks.

    Spark puts a zipped copy of it first in PYTHONPATH, which has no compiled modules: each process would compile what
    it imports for half a second, and read the zip's directory again at each task.
    """
    spark = Path(pyspark.__file__).parent
    places = {"SPARK": spark, "PYTHON": sys.executable, "FORKED": forked.__file__, "FORKS": forks or ""}
    text = _LAUNCHER
    for name, place in places.items():
        text = text.replace(f"@{name}@", shlex.quote(str(place)))
    launcher.write_text(text, encoding="utf-8")
    launcher.chmod(0o755)
    return launcher
