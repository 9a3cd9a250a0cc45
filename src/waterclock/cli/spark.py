"""``waterclock spark`` makes Spark start faster on this machine."""

from __future__ import annotations

from cyclopts import App

from waterclock.cli.terminal.common import Common
from waterclock.errors import InvalidArgumentError
from waterclock.spark.runtime.class_archive import SWITCH, archive_folder, find_archive, is_wanted
from waterclock.spark.runtime.java import find_java

app = App(name="spark")


@app.command
def prepare(*, common: Common = Common()) -> None:
    """Halve Spark's start-up time on this machine, with an archive of the classes that it loads.

    Takes about a minute, and some 200 MB in the cache folder. Needed once for each Java and Spark; does nothing if the
    archive exists. WATERCLOCK_CLASS_ARCHIVE=off starts sessions without the archive.
    """
    if not is_wanted():
        raise InvalidArgumentError(
            f"cannot create the class archive: {SWITCH} is off, so sessions would not use the archive."
            f" Unset {SWITCH} first"
        )
    archive = find_archive(find_java())
    if archive is None:
        from waterclock.spark.preparing import make_class_archive

        common.output.talk(f"making an archive of classes in {archive_folder()}; this takes about a minute")
        archive = make_class_archive()
    size = archive.stat().st_size
    if common.json:
        common.output.facts({"archive": str(archive), "size": size})
    else:
        common.output.talk(f"Spark starts with {archive}, {size / 1e6:,.0f} MB")
