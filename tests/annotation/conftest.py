"""Databases that the tests of this room share."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from openafm.annotation.people import passwords

_PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL server of Debian that listens on a socket in a temporary folder."""
    if not _PROGRAMS:
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    programs = _PROGRAMS[-1].parent
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"openafm-postgres-{os.getpid()}"  # sockets need short paths
    folder.mkdir(mode=0o700)
    user = "nobody" if os.getuid() == 0 else None  # the server refuses to run as root
    if user:
        shutil.chown(folder, user)
    run = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    data = folder / "data"
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        initialize = [programs / "initdb", "-D", data, "-U", "openafm", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(initialize, check=True, **run)
        start = [programs / "pg_ctl", "-D", data, "-w", "-o", f"-k {folder} -h '' -F", "-l", folder / "log", "start"]
        subprocess.run(start, check=True, **run)
        stack.callback(subprocess.run, [programs / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **run)
        yield f"postgresql://openafm@/postgres?host={folder}"


@pytest.fixture(autouse=True)
def _cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "COST", 2)
