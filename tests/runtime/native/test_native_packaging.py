"""The native runtime in wheels and source distributions; compiler failures never stop an installation."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
NATIVE = "openafm/runtime/native"
COMPILER = """#!/bin/sh
if [ -n "$FAILS" ]; then echo "no such header" >&2; exit 1; fi
for last; do :; done
printf 'compiled\\0GLIBC_2.2.5\\0GLIBC_2.29\\0GLIBC_2.14\\0%s' "$NEEDS" > "$last"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of part of the repository, with a fake compiler."""
    pytest.importorskip("setuptools", minversion="77", reason="builds a wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, tmp_path)
    package = tmp_path / "src" / "openafm"
    extraction = ("data", "data/web", "data/extraction", "data/extraction/source")
    for name in ("core", "runtime", "runtime/native", "runtime/native/source", *extraction):
        (package / name).mkdir(parents=True)
        for file in (REPOSITORY / "src" / "openafm" / name).iterdir():
            if file.suffix in (".py", ".cpp", ".h"):
                shutil.copy(file, package / name)
    for name in ("__init__.py", "py.typed"):
        shutil.copy(REPOSITORY / "src" / "openafm" / name, package)
    (tmp_path / "compiler").write_text(COMPILER)
    (tmp_path / "compiler").chmod(0o755)
    return tmp_path


def made(checkout: Path, what: str, **environment: str) -> Path:
    program = f"from setuptools import build_meta; print(build_meta.build_{what}('dist'))"
    variables = {**os.environ, "CXX": str(checkout / "compiler"), **environment}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=checkout, capture_output=True, text=True, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr
    return checkout / "dist" / done.stdout.splitlines()[-1]


def sources() -> set[str]:
    return {f"{NATIVE}/source/{file.name}" for file in (REPOSITORY / "src" / NATIVE / "source").glob("*.*")}


def test_a_wheel_contains_the_library_and_is_for_this_platform(checkout: Path) -> None:
    wheel = made(checkout, "wheel")
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert not wheel.name.endswith("any.whl")
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        assert wheel.name.split("-")[4] == f"manylinux_2_29_{platform.machine()}.whl"
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        assert sources() | {f"{NATIVE}/libopenafm.so", f"{NATIVE}/libopenafm.stamp"} <= names
        assert {f"openafm/data/extraction/libopenafm_page.{end}" for end in ("so", "stamp")} <= names
        installed = checkout / "installed"
        files.extractall(installed)
    ask = (
        "from openafm.runtime.native.build import *; "
        f"print(SOURCES.is_whole(BUILT_IN), BUILT_IN.is_relative_to({str(installed)!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "True True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="manylinux")
def test_a_library_that_needs_a_libstdcpp_of_the_system_is_for_this_platform_only(checkout: Path) -> None:
    wheel = made(checkout, "wheel", NEEDS="libstdc++.so.6")
    assert wheel.name.endswith(f"-linux_{platform.machine()}.whl")


@pytest.mark.parametrize("environment", [{"FAILS": "1"}, {"CXX": "no-such-compiler"}], ids=["fails", "absent"])
def test_without_a_working_compiler_the_wheel_is_for_any_platform(checkout: Path, environment: dict[str, str]) -> None:
    wheel = made(checkout, "wheel", **environment)
    assert wheel.name.endswith("py3-none-any.whl")
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
    assert sources() <= names
    assert f"{NATIVE}/libopenafm.so" not in names


def test_a_source_distribution_contains_no_library(checkout: Path) -> None:
    with tarfile.open(made(checkout, "sdist")) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {f"src/{name}" for name in sources()} | {"setup.py"} <= names
    assert not [name for name in names if name.endswith(".so")]
