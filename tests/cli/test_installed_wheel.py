"""The wheel in fresh environments without network, for every Python from 3.11 to 3.14 that is installed on this machine.

In the Python that runs the tests the wheel reuses the installed dependencies, and `doctor` and `respond` run. In another one
they run if OPENAFM_WHEELHOUSE names a folder with wheels of the dependencies (torch is not needed). Without it the test
checks that the wheel installs, that all modules compile and that the native library loads.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
VERSIONS = (11, 12, 13, 14)
SCHEMA = {"type": "object", "properties": {"title": {"type": "string", "maxLength": 40}}, "required": ["title"]}
LOADS = """
import ctypes
from openafm.runtime.native.build import BUILT_IN, SOURCES
ctypes.CDLL(str(BUILT_IN))
assert SOURCES.is_whole(BUILT_IN)
"""
DEPENDENCIES = ("numpy", "safetensors", "tokenizers", "llguidance", "typer", "rich", "jinja2", "filelock")


@cache
def interpreter(minor: int) -> str | None:
    """Return a Python 3.`minor` of this machine; None if there is none."""
    candidates = [
        shutil.which(f"python3.{minor}"),
        *sorted((Path.home() / ".pyenv/versions").glob(f"3.{minor}.*/bin/python")),
    ]
    if sys.version_info.minor == minor:
        candidates.insert(0, sys.executable)
    for candidate in filter(None, candidates):
        ask = [str(candidate), "-c", "import sys, venv, ensurepip; print(sys.version_info.minor)"]
        if subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip() == str(minor):
            return str(candidate)
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the repository's files."""
    pytest.importorskip("setuptools", minversion="77", reason="builds a wheel")
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.stamp", "*.log", "*.egg-info")
    shutil.copytree(REPOSITORY / "src", copy / "src", ignore=ignored)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, check=True)
    return copy / "dist" / done.stdout.splitlines()[-1]


def offline() -> list[str]:
    """Return the beginning of a command line that runs without network; empty where the system cannot do that."""
    unshare = shutil.which("unshare")
    command = [] if unshare is None else [unshare, "--map-root-user", "--net"]
    return (
        command if command and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0 else []
    )


@pytest.mark.slow
@pytest.mark.parametrize("minor", VERSIONS)
def test_the_wheel_runs_in_a_fresh_environment_without_network(minor: int, wheel: Path, tmp_path: Path) -> None:
    python = interpreter(minor)
    if python is None:
        pytest.skip(f"Python 3.{minor} is not installed")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "OPENAFM_"))}
    environment |= {"OPENAFM_HOME": str(tmp_path / "home"), "OPENAFM_CACHE": str(tmp_path / "cache"), "CXX": "/absent"}

    def checked(*command: str, text: str | None = None) -> str:
        done = subprocess.run(
            [*offline(), *command], cwd=tmp_path, input=text, capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    checked(python, "-m", "venv", "fresh")
    programs = tmp_path / "fresh" / "bin"
    install = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]
    checked(*install, "--no-deps", str(wheel))
    (packages,) = (tmp_path / "fresh" / "lib").glob("python3*/site-packages")
    checked(str(programs / "python"), "-m", "compileall", "-q", str(packages / "openafm"))
    checked(str(programs / "python"), "-c", LOADS)
    wheelhouse = os.environ.get("OPENAFM_WHEELHOUSE")
    if minor == sys.version_info.minor:
        (packages / "installed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    elif wheelhouse is not None:
        checked(*install, "--find-links", wheelhouse, *DEPENDENCIES)
    else:
        return
    openafm = str(programs / "openafm")
    assert re.fullmatch(r"openafm \d+\.\d+\.\d+\n", checked(openafm, "--version"))
    report = json.loads(checked(openafm, "doctor", "--json"))
    assert report["model"]["engine"] == "native"
    assert Path(report["machine"]["library"]).is_relative_to(packages)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    answer = checked(openafm, "respond", "--schema", "schema.json", text="Dinner with Maria on Friday at 7")
    assert json.loads(answer).keys() == {"title"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="manylinux")
def test_the_wheel_is_a_manylinux_one(wheel: Path) -> None:
    assert re.fullmatch(r"openafm-[\d.]+-py3-none-manylinux_2_\d+_\w+\.whl", wheel.name)
