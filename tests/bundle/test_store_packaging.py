"""A wheel contains every file of the shipped model."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
NANO = (
    "config.json",
    "tokenizer.json",
    "chat_template.json",
    "model.safetensors",
    "signature.json",
    "card.md",
    "recovery.fmadapter/metadata.json",
    "recovery.fmadapter/adapter_weights.safetensors",
)


def test_a_wheel_holds_every_file_of_the_shipped_model(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77", reason="builds a wheel")
    package = tmp_path / "src" / "openafm"
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, tmp_path)
    for name in ("__init__.py", "py.typed", "shipped/__init__.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / "src" / "openafm" / name, package / name)
    for name in NANO:
        file = package / "shipped" / "nano" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        assert {f"openafm/shipped/nano/{name}" for name in NANO} <= set(files.namelist())
