"""Run Apple's tests of its SDK on our engine, in a separate environment: `make test-apple-sdk`.

The tests are downloaded, run and deleted. The source distribution holds the test files without their helpers; the
repository holds the whole suite.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from openafm.apple_sdk.source import PACKAGE, SdkSource, open_source
from openafm.apple_sdk.suite_report import SuiteReport
from openafm.apple_sdk.swapped import write_swapped_package
from openafm.core.errors import OpenAFMError

_COMMIT = "e868e60811aa0706feb2ccb33cfe7e27626287b7"  # the commit of the published results
_REQUIREMENTS = ("pytest", "pytest-asyncio", "pytest-timeout", "psutil")
_SECONDS = 120
_FIXTURES = f"""
import pytest
import {PACKAGE} as fm


@pytest.fixture
def model():
    return fm.SystemLanguageModel()


@pytest.fixture
def session(model):
    return fm.LanguageModelSession(model=model)
"""


class SuiteError(OpenAFMError):
    """The suite cannot be run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite. The exit code is 0 if it ran, even if tests failed; the last line has the counts."""
    parser = argparse.ArgumentParser(prog="python -m openafm.apple_sdk.suite", description=__doc__)
    parser.add_argument("--suite", help="folder, archive or git URL of the SDK's source; downloaded by default")
    parser.add_argument("--swapped", action="store_true", help=f"import openafm under the name {PACKAGE}, without the SDK")
    parser.add_argument("pytest", nargs="*", metavar="ARGUMENT", help="for pytest, after --")
    chosen = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="openafm-apple-suite-") as scratch:
            report = run_suite(Path(scratch), chosen.suite, chosen.swapped, chosen.pytest)
    except OpenAFMError as error:
        print(f"apple-sdk: {error}", file=sys.stderr)
        return error.exit_code
    report.print(f"apple-sdk{' (swapped)' if chosen.swapped else ''}")
    return 0


def run_suite(scratch: Path, suite: str | None, swapped: bool, pytest_arguments: Sequence[str]) -> SuiteReport:
    """Download, install and run the suite in `scratch`.

    Raises:
        SuiteError: the suite or its environment cannot be set up.
        SourceUnavailableError: the SDK cannot be downloaded.
    """
    source = _source(scratch, suite)
    python = _environment(scratch / "environment")
    if swapped:
        write_swapped_package(_site_packages(python))
    else:
        command = "from openafm.cli.main import main; main()"
        _run([str(python), "-c", command, "apple-sdk", "install", "--from", str(source.root)])
    not_run = _prepare(source.root / "tests")
    for name, reason in not_run.items():
        print(f"not run: tests/{name}, which {reason}")
    results = scratch / "results.xml"
    ignored = [f"--ignore=tests/{name}" for name in not_run]
    command_line = [str(python), "-m", "pytest", f"--junitxml={results}", "-q", "--tb=no", "-p", "no:cacheprovider"]
    command_line += ["-o", "junit_family=xunit1", "-o", "asyncio_mode=auto", "--continue-on-collection-errors"]
    subprocess.run([*command_line, *ignored, *pytest_arguments], cwd=source.root, env=_variables(python))
    if not results.is_file():
        raise SuiteError("pytest wrote no results; see its output above")
    return SuiteReport.read(results)


def _source(scratch: Path, suite: str | None) -> SdkSource:
    """Return a copy of the SDK's source with its suite, or the part of it in the source distribution."""
    if suite is None:
        distributed = open_source(None, scratch)
        try:
            return open_source(_clone(distributed.repository or "", scratch), scratch)
        except SuiteError as error:
            print(f"{error}\nOnly the tests in the source distribution run; for all tests: SUITE=FOLDER make test-apple-sdk")
            return distributed
    if not Path(suite).exists() or (Path(suite) / "HEAD").is_file():
        return open_source(_clone(suite, scratch), scratch)
    given = Path(suite)
    if given.is_dir():
        given = Path(shutil.copytree(given, scratch / "suite", ignore=shutil.ignore_patterns(".git")))
    return open_source(given, scratch)


def _clone(address: str, scratch: Path) -> Path:
    folder = scratch / "clone"
    quiet = {"GIT_TERMINAL_PROMPT": "0"}
    try:
        _run(["git", "clone", "--quiet", address, str(folder)], quiet)
        _run(["git", "-C", str(folder), "checkout", "--quiet", "--detach", _COMMIT], quiet)
    except SuiteError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise SuiteError(f"the suite cannot be cloned from '{address}': {error}") from error
    return folder


def _environment(folder: Path) -> Path:
    """Create an environment with this one's packages and the suite's requirements. Return its interpreter."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    ours = sysconfig.get_path("purelib")
    (_site_packages(python) / "openafm-environment.pth").write_text(f"import site; site.addsitedir({ours!r})\n", "utf-8")
    missing = [name for name in _REQUIREMENTS if importlib.util.find_spec(name.replace("-", "_")) is None]
    if missing:
        _run([sys.executable, "-m", "pip", "--python", str(python), "install", "-q", *missing])
    return python


def _site_packages(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip())


def _variables(python: Path) -> dict[str, str]:
    return os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def _prepare(tests: Path) -> dict[str, str]:
    """Write the missing `conftest.py`. Return the test files that need other missing helpers, with reasons."""
    if not tests.is_dir():
        raise SuiteError(f"{tests.parent} holds no tests")
    helpers = {path.stem for path in tests.iterdir()}
    if "conftest" in helpers:
        return {}
    missing = {}
    for path in sorted(tests.glob("test_*.py")):
        lacking = [name for name in _imported(path) if name.startswith("tester_") or name == "conftest"]
        if lacking:
            missing[path.name] = f"needs {', '.join(sorted(set(lacking)))}, which the source distribution lacks"
    (tests / "conftest.py").write_text(_FIXTURES, "utf-8")
    return missing


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]


def _run(command: Sequence[str], variables: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command, env=os.environ | (variables or {}), capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SuiteError(f"{command[0]}: {error}") from error
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise SuiteError(output[-1])


if __name__ == "__main__":
    sys.exit(main())
