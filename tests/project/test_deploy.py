"""The files in deploy start commands that exist, without more rights than they need."""

from __future__ import annotations

import configparser
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from waterclock.cli.app import app

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFEST = [*yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))]
PODS = [each["spec"]["template"]["spec"] for each in MANIFEST if each["kind"] == "Deployment"]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
GRACE = 30
"""Seconds that handlers have to end, unless the command says otherwise."""


class Unit(configparser.RawConfigParser):
    def __init__(self, path: Path) -> None:
        super().__init__(strict=False)
        self.optionxform = str  # type: ignore[assignment]  # names of options have capitals
        self.read(path)

    def words(self) -> list[str]:
        program, *words = shlex.split(self["Service"]["ExecStart"])
        assert program.endswith("/waterclock")
        return words


COMMANDS = [
    *(Unit(path).words() for path in UNITS),
    *(pod["containers"][0]["args"] for pod in PODS),
    *(COMPOSE["services"][name]["command"] for name in ("work", "upkeep", "ingest")),
    *(
        shlex.split(line)[1:]
        for line in ("waterclock topic add telemetry --retention 30d", "waterclock table add orders")
    ),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_and_its_options_exist(words: list[str]) -> None:
    app.parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_has_no_rights_that_it_does_not_need_and_time_to_stop(path: Path) -> None:
    service = Unit(path)["Service"]
    assert service["User"] == "waterclock"
    assert service["CapabilityBoundingSet"] == ""
    assert (service["ProtectSystem"], service["NoNewPrivileges"]) == ("strict", "yes")
    assert int(service["TimeoutStopSec"]) > GRACE


@pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod["containers"][0]["name"])
def test_a_pod_has_probes_no_rights_and_time_to_stop(pod: dict[str, Any]) -> None:
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    probes = [container[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")]
    assert probes == ["/livez", "/readyz"]
    assert container["args"][container["args"].index("--metrics") + 1].endswith(
        f":{container['ports'][0]['containerPort']}"
    )
    assert pod["terminationGracePeriodSeconds"] > GRACE


def test_the_handler_that_the_compose_file_mounts_is_there() -> None:
    mounted = {name.partition(":")[0] for name in COMPOSE["x-waterclock"]["volumes"] if name.startswith(".")}
    assert mounted == {"./shop.py"}
    script = "from waterclock.work.ground.handlers import Handlers; import shop; Handlers(shop.handle)"
    assert subprocess.run([sys.executable, "-c", script], cwd=DEPLOY, check=False).returncode == 0


def test_the_image_has_the_extras_that_its_commands_need() -> None:
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    assert all(extra in text for extra in ("postgresql", "mysql", "mqtt", "metrics"))
    assert json.dumps(["waterclock"]) in text
