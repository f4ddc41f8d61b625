"""Attempts to leave the sandbox or to exhaust the machine. Each is bounded by itself, in case it is not contained.

An attempt prints "escaped" if it reached what it must not reach. All of a list run in one sandbox, each in a process of its
own, so that the list takes seconds.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from openafm.sandbox import SandboxLimits, run_python, sandbox_reason

pytestmark = pytest.mark.skipif(bool(sandbox_reason()), reason=sandbox_reason() or "works")
LIMITS = SandboxLimits(wall_seconds=40, cpu_seconds=20, memory_mb=512, file_mb=1, processes=24)

ESCAPES = {
    "read a secret file": "open({secret!r}).read(); escaped()",
    "list the secret's folder": "os.listdir({folder!r}); escaped()",
    "walk up from the scratch folder": "os.path.exists('../../../..' + {secret!r}) and escaped()",
    "link to a secret file": "os.symlink({secret!r}, 'link'); open('link').read(); escaped()",
    "read the secret through /proc of the parent": "open('/proc/1/root' + {secret!r}).read(); escaped()",
    "list processes of the host": "len([n for n in os.listdir('/proc') if n.isdigit()]) > 24 and escaped()",
    "see the host's own process": "os.path.exists('/proc/{pid}/status') and {pid} > 100 and escaped()",
    "kill the host's process": "{pid} > 100 and (os.kill({pid}, 0), escaped())",
    "write to the system": "open('/usr/lib/openafm-probe', 'w'); escaped()",
    "write to Python's libraries": "open(os.path.join(os.path.dirname(os.__file__), 'probe'), 'w'); escaped()",
    "write to the root folder": "open('/probe', 'w'); escaped()",
    "read passwords": "open('/etc/shadow').read(); escaped()",
    "read the host's environment": "'OPENAFM_PROBE' in os.environ and escaped()",
    "connect to a server of the host": "socket.create_connection(('127.0.0.1', {port}), 1); escaped()",
    "connect to the internet": "socket.create_connection(('1.1.1.1', 53), 1); escaped()",
    "resolve a name": "socket.getaddrinfo('example.com', 80); escaped()",
    "send a datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53)); escaped()",
    "open a raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP); escaped()",
    "open a packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW); escaped()",
    "connect to an abstract socket": "s = socket.socket(socket.AF_UNIX); s.connect('\\0' + {abstract!r}); escaped()",
    "become root": "os.setuid(0); escaped()",
    "become another user": "os.setuid(1); escaped()",
    "change the root folder": "os.chroot('/usr'); escaped()",
    "mount a file system": "libc.mount(b'none', b'/scratch', b'tmpfs', 0, None) == 0 and escaped()",
    "unmount a file system": "libc.umount2(b'/usr', 2) == 0 and escaped()",
    "trace the first process": "libc.ptrace(16, 1, 0, 0) == 0 and escaped()",
    "load a kernel module": "libc.syscall(175, b'x', 1, b'') == 0 and escaped()",
    "set the host's name": "socket.sethostname('probe'); socket.gethostname() == {host!r} and escaped()",
    "set the clock": "time.clock_settime(time.CLOCK_REALTIME, time.time()); escaped()",
    "create a device": "os.mknod('disk', 0o60666, os.makedev(8, 0)); escaped()",
    "open a disk": "any(os.path.exists('/dev/' + n) for n in ('sda', 'vda', 'nvme0n1', 'mem', 'kvm')) and escaped()",
    "raise its own limits": "resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2); escaped()",
    "raise its priority": "os.nice(-5); escaped()",
    "run a program as root": "subprocess.run(['sudo', '-n', 'true'], check=True, capture_output=True); escaped()",
}
EXHAUSTIONS = {
    "memory": "x = [bytearray(1 << 26) for _ in range(32)]; escaped()",  # 2 GB
    "a large file": "f = open('large', 'wb'); [f.write(bytes(1 << 20)) for _ in range(8)]; f.flush(); escaped()",
    "open files": "x = [open('/dev/null') for _ in range(2000)]; escaped()",
    "processes": "forked(120) >= 120 and escaped()",
    "threads": "threads(200) >= 200 and escaped()",
    "core dumps": "resource.getrlimit(resource.RLIMIT_CORE)[0] != 0 and escaped()",
}
NOT_CONTAINED = ("escaped", "NameError", "SyntaxError", "AttributeError", "TypeError", "KeyError")
"""Outcomes of attempts that got through, or that did not try what they should."""
HARNESS = """
import ctypes, json, os, resource, signal, socket, subprocess, sys, threading, time
attempts = json.load(open("attempts.json"))
libc = ctypes.CDLL(None)
def escaped():
    print("escaped", flush=True)
def forked(count):
    made = []
    try:
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                time.sleep(2)
                os._exit(0)
            made.append(pid)
    except OSError:
        pass
    return len(made)
def threads(count):
    made = []
    try:
        for _ in range(count):
            made.append(threading.Thread(target=time.sleep, args=(1,), daemon=True))
            made[-1].start()
    except RuntimeError:
        made.pop()
    return len(made)
code = attempts[sys.argv[1]] if len(sys.argv) > 1 else None
if code is None:
    for name in attempts:
        done = subprocess.run([sys.executable, "-I", "main.py", name], capture_output=True, text=True)
        print(json.dumps([name, done.stdout.strip()]), flush=True)
else:
    try:
        exec(code)
    except BaseException as error:
        print(type(error).__name__)
    os._exit(0)
"""


def _outcomes(attempts: dict[str, str]) -> dict[str, str]:
    result = run_python(HARNESS, files={"attempts.json": json.dumps(attempts).encode()}, limits=LIMITS)
    assert not result.timed_out, result.output
    return dict(json.loads(line) for line in result.output.splitlines() if line.startswith("["))


def test_no_attempt_leaves_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x", encoding="utf-8")
    monkeypatch.setenv("OPENAFM_PROBE", "1")
    abstract = f"openafm-probe-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + abstract)
        listener.listen()
        values = {
            "secret": str(secret),
            "folder": str(tmp_path),
            "pid": os.getpid(),
            "port": server.getsockname()[1],
            "abstract": abstract,
            "host": socket.gethostname(),
        }
        attempts = {name: code.format(**values) for name, code in ESCAPES.items()}
        outcomes = _outcomes(attempts)
    assert list(outcomes) == list(ESCAPES)
    assert {name: outcome for name, outcome in outcomes.items() if outcome in NOT_CONTAINED} == {}


def test_no_attempt_exhausts_the_machine() -> None:
    outcomes = _outcomes(EXHAUSTIONS)
    assert list(outcomes) == list(EXHAUSTIONS)
    assert {name: outcome for name, outcome in outcomes.items() if outcome in NOT_CONTAINED} == {}
    assert len(ESCAPES | EXHAUSTIONS) >= 25


def test_the_attempts_would_succeed_outside(tmp_path: Path) -> None:
    """The harness itself works: an attempt on what is allowed reports that it got through."""
    assert _outcomes({"allowed": "open('own', 'w').write('x'); escaped()"}) == {"allowed": "escaped"}


def test_output_and_time_are_limited() -> None:
    flood = run_python("while True: print('x' * 1000)", limits=SandboxLimits(wall_seconds=5, cpu_seconds=2, file_mb=1))
    assert len(flood.output) <= 1 << 16
    busy = run_python("while True: pass", limits=SandboxLimits(wall_seconds=30, cpu_seconds=1))
    assert busy.exit_code != 0
    late = run_python(
        "import os, time\nif os.fork() == 0:\n    time.sleep(60)\ntime.sleep(60)", limits=SandboxLimits(wall_seconds=0.5)
    )
    assert late.timed_out
