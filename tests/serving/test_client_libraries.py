"""Client libraries against a real server, each in a process: `make test-clients` installs them; others are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "clients"
PYTHON = os.environ.get("OPENAFM_CLIENTS_PYTHON", sys.executable)
NODE_MODULES = os.environ.get("OPENAFM_CLIENTS_NODE", "")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("script", "library"),
    [
        ("openai_python", "openai"),
        ("langchain_chat", "langchain_openai"),
        ("instructor_models", "instructor"),
        ("litellm_completion", "litellm"),
        ("llm_command", "llm"),
        ("ollama_python", "ollama"),
        ("anthropic_python", "anthropic"),
    ],
)
def test_python_client(url: str, script: str, library: str, tmp_path: Path) -> None:
    found = subprocess.run([PYTHON, "-c", f"import {library}"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"{library} is not installed; `make test-clients` installs it")
    environment = {**os.environ, "HOME": str(tmp_path), "NO_PROXY": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    run([PYTHON, str(SCRIPTS / f"{script}.py"), url], environment)


def test_node_client(url: str) -> None:
    node = shutil.which("node")
    if node is None or not NODE_MODULES:
        pytest.skip("Node, or its package openai, is not installed; `make test-clients` installs the package")
    script = shutil.copy(SCRIPTS / "openai_node.mjs", NODE_MODULES)  # modules are found from the script's folder
    run([node, str(script), url], dict(os.environ))


def run(command: list[str], environment: dict[str, str]) -> None:
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
