"""Compiles the kernels into the wheel; hatchling runs this when it builds one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

NO_CC = 2
"""The status of scripts/compile-kernels without a C compiler that works."""


class KernelsHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernels, except for an editable installation; the wheel has none without a C compiler."""
        if version == "editable":
            return
        script = Path(self.root, "scripts", "compile-kernels")
        status = subprocess.run([sys.executable, str(script)], check=False).returncode
        if status == NO_CC:
            self.app.display_warning(
                "this wheel has no compiled kernels: the first large table that a machine batches will wait up to 45 s"
                " for Numba"
            )
            return
        if status:
            self.app.abort(f"cannot compile the kernels: {script} failed with status {status}")
        # Libraries need neither one version of Python nor its interface for extensions.
        platform = next(tag.platform for tag in sys_tags() if "linux_" not in tag.platform[1:])
        build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}
        build_data["artifacts"].append("/src/waterclock/**/lib*.so")
