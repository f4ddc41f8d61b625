"""The files of examples/deployment: unit, container, scrape configuration, dashboard."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main
from servers import http

from openafm.cli.main import app
from openafm.serving.access import PUBLIC_PATHS

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "deployment"
UNIT, CONTAINERFILE = FOLDER / "openafm.service", FOLDER / "Containerfile"
_INSTRUCTIONS = {"FROM", "RUN", "ENV", "VOLUME", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def check_options(words: list[str]) -> None:
    """Check that a command line of openafm names options that exist."""
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_unit_is_valid(tmp_path: Path) -> None:
    text = UNIT.read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.M)
    program, *words = shlex.split(command)
    check_options(words)
    assert int(words[words.index("--drain-seconds") + 1]) < int(re.findall(r"^TimeoutStopSec=(\d+)$", text, re.M)[0])
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    copy = tmp_path / "openafm.service"
    copy.write_text(text.replace(program, shutil.which("true") or "/bin/true"))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    copy.write_text(copy.read_text().replace("KillSignal=", "KillSignall="))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60
    )
    assert "KillSignall" in verified.stderr  # the check sees a mistake


def test_the_container_runs_without_privileges() -> None:
    lines = re.sub(r"\\\n *", "", CONTAINERFILE.read_text()).splitlines()
    instructions = [line.partition(" ")[::2] for line in lines if line and not line.startswith("#")]
    assert {name for name, _ in instructions} <= _INSTRUCTIONS
    found = dict(instructions)
    assert instructions[0][0] == "FROM"
    assert int(found["USER"]) > 0
    words = [*json.loads(found["ENTRYPOINT"]), *json.loads(found["CMD"])]
    assert words[0] == "openafm"
    check_options(words[1:])
    assert "--require-key" in words
    assert words[words.index("--port") + 1] == found["EXPOSE"]
    probe = json.loads(found["HEALTHCHECK"].partition("CMD ")[2])
    compile(probe[2], "healthcheck", "exec")
    path = re.search(r"127\.0\.0\.1:8000(/[a-z/]+)", probe[2])
    assert path is not None
    assert path[1] in PUBLIC_PATHS


def test_the_dashboard_names_metrics_of_the_server(url: str) -> None:
    body = {"model": "nano", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
    assert http.post(f"{url}/v1/chat/completions", json=body).status_code == 200
    lines = [line for line in http.get(f"{url}/metrics").text.splitlines() if not line.startswith("#")]
    samples = {
        name: set(re.findall(r'(\w+)="', labels))
        for name, labels in re.findall(r"^([\w:]+)(\{.*\})? ", "\n".join(lines), re.M)
    }
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    names = {name for query in queries for name in re.findall(r"openafm:\w+", query)}
    assert len(names) > 10
    assert names <= set(samples)
    labels = {label for query in queries for group in re.findall(r"by \(([\w, ]+)\)", query) for label in group.split(", ")}
    assert labels <= set.union(*samples.values())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_scrape_configuration_uses_a_key() -> None:
    text = (FOLDER / "prometheus.yml").read_text()
    assert "credentials_file" in text
    assert "job_name: openafm" in text
