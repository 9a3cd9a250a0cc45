"""Waterclock in a zip file, or missing in the Python of Spark's processes, is refused with the remedy."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession

import waterclock
from waterclock.errors import UnavailableError
from waterclock.spark import register, registering

REGISTER = "import sys; sys.path.insert(0, sys.argv[1]); from waterclock.spark import register; register(None)"


def test_waterclock_from_a_zip_is_refused_with_the_remedy(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    register(spark)
    monkeypatch.setattr(registering, "__file__", "/app/waterclock.zip/waterclock/spark/registering.py")
    with pytest.raises(
        UnavailableError, match=r"^cannot stream: waterclock was imported from '/app/waterclock.zip', .*--archives"
    ):
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
        f"waterclock.errors.UnavailableError: cannot stream: waterclock was imported from '{zipped}', where --py-files"
    )


def test_python_without_waterclock_is_named_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = CloudPickleSerializer().dumps(registering.portable_source())
    source = pickle.loads(pickled)  # noqa: S301  # our own
    assert source.name() == "waterclock"
    assert isinstance(source(options={}), registering.WaterclockSource)
    for name in ("waterclock", "waterclock.spark", "waterclock.spark.registering"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(ImportError, match=r"^cannot use the format waterclock: .* in /.*python.* on ") as raised:
        pickle.loads(pickled)(options={})  # noqa: S301
    assert "\n" not in str(raised.value)
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"
