"""The sandbox: code has no network, no rights and no other files, limits bind, and without bubblewrap nothing runs."""

from __future__ import annotations

import shutil
import socket

import pytest

from openafm.core.config import ConfigError
from openafm.sandbox import SandboxLimits, SandboxMissingError, bubblewrap, run_python, sandbox_reason

works = pytest.mark.skipif(bool(sandbox_reason()), reason=sandbox_reason() or "works")
QUICK = SandboxLimits(wall_seconds=20, cpu_seconds=5, memory_mb=512, file_mb=1, processes=12)


@works
def test_code_reads_and_writes_its_own_folder_only(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x", encoding="utf-8")
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    code = f"""
import os, socket
open("out.txt", "w").write(open("in.txt").read().upper())
for attempt in (lambda: open({str(secret)!r}), lambda: open("/usr/new", "w"), lambda: open("/etc/passwd"),
                lambda: socket.create_connection(("127.0.0.1", {port}), 1)):
    try:
        attempt()
    except OSError as error:
        print("refused")
print(os.getuid() == 0, sorted(os.environ))
"""
    with server:
        socket.create_connection(("127.0.0.1", port)).close()
        result = run_python(code, files={"in.txt": b"hello"}, collect=("out.txt", "none.txt"), limits=QUICK)
    assert result.files == {"out.txt": b"HELLO"}
    lines = result.output.splitlines()
    assert lines[:-1] == ["refused"] * 4
    assert lines[-1].startswith("False ")
    assert "PYTHONPATH" not in lines[-1]
    assert result.exit_code == 0


@works
def test_limits_bind():
    # Bounded by itself: at most 60 children, which end by themselves.
    forks = """
import os, time
count = 0
try:
    for _ in range(60):
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        count += 1
except OSError:
    pass
print(count)
"""
    assert int(run_python(forks, limits=QUICK).output) < 20
    assert "MemoryError" in run_python("x = bytearray(1 << 30)", limits=QUICK).output
    large = run_python("open('large', 'wb').write(bytes(1 << 22))", collect=("large",), limits=QUICK)
    assert large.exit_code != 0
    sleeping = run_python("import time; time.sleep(60)", limits=SandboxLimits(wall_seconds=0.5))
    assert sleeping.timed_out


@works
def test_links_are_not_collected():
    code = "import os; os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe'); os.mkdir('folder')"
    assert run_python(code, collect=("link", "pipe", "folder"), limits=QUICK).files == {}


def test_without_bubblewrap_nothing_runs(monkeypatch):
    bubblewrap.sandbox_reason.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    try:
        with pytest.raises(SandboxMissingError, match="apt install bubblewrap"):
            run_python("open('/tmp/never', 'w')")
    finally:
        bubblewrap.sandbox_reason.cache_clear()


def test_wrong_limits_are_errors():
    with pytest.raises(ConfigError, match="limits must be positive, got 0"):
        SandboxLimits(cpu_seconds=0)


@works
@pytest.mark.parametrize(
    "code",
    [
        'for n in range(40): open(f"{n}", "wb").write(bytes(1 << 19))',
        'import os\nfor n in range(40): os.mkdir(f"{n}")',
    ],
)
def test_the_scratch_folder_has_a_total_limit(code: str) -> None:
    limits = SandboxLimits(
        wall_seconds=20, cpu_seconds=5, memory_mb=512, file_mb=1, total_mb=4, total_files=30, processes=12
    )
    result = run_python(f"{code}\nimport time; time.sleep(15); print('not killed')", limits=limits)
    assert (result.exit_code, result.timed_out, "not killed" in result.output) == (-9, False, False)
