"""scripts/test-all: what fails runs once more, alone."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_test_that_passes_alone_is_named_and_one_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n"
        "def test_passes_the_second_time():\n"
        "    seen = Path('seen').exists()\n"
        "    Path('seen').touch()\n"
        "    assert seen\n"
        "def test_fails_if_told():\n"
        "    assert not Path('fail').exists()\n"
    )
    pytest = Path(sys.executable).parent / "pytest"

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "scripts/test-all", "-n0"],
            check=False,
            cwd=tmp_path,
            env=os.environ
            | {"PYTEST": str(pytest), "PYTEST_ADDOPTS": "-p xdist", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
        )

    once = run()
    assert once.returncode == 0, once.stdout
    assert "Passed alone" in once.stdout
    assert "test_it.py::test_passes_the_second_time" in once.stdout.partition("Passed alone")[2]
    (tmp_path / "fail").touch()
    always = run()
    assert always.returncode == 1, always.stdout
    assert "test_fails_if_told" in always.stdout
