"""Waterclock in a zip file, as Spark's ``--py-files`` brings it, is refused before any query runs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import waterclock
from waterclock.errors import UnavailableError
from waterclock.spark import register, registering

REGISTER = "import sys; sys.path.insert(0, sys.argv[1]); from waterclock.spark import register; register(None)"


def test_waterclock_from_a_zip_is_refused_with_the_remedy(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    register(spark)
    monkeypatch.setattr(registering, "__file__", "/app/waterclock.zip/waterclock/spark/registering.py")
    with pytest.raises(UnavailableError, match=r"^waterclock was imported from '/app/waterclock.zip', .*--archives"):
        register(spark)


@pytest.mark.slow  # a zip has no compiled modules
def test_waterclock_as_py_files_is_refused_in_a_process_of_its_own(tmp_path: Path) -> None:
    package = Path(waterclock.__file__).parent
    zipped = tmp_path / "waterclock.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        for path in package.rglob("*.py"):
            archive.write(path, path.relative_to(package.parent))
    ran = subprocess.run([sys.executable, "-c", REGISTER, zipped], capture_output=True, text=True, check=False)
    *_, said = ran.stderr.strip().splitlines()
    assert said.startswith(
        f"waterclock.errors.UnavailableError: waterclock was imported from '{zipped}', as --py-files"
    )
