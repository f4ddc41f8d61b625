"""Python in bubblewrap: own process, network, mount and user namespaces, a read-only system, and limits of the kernel.

The code sees the system's libraries and this Python environment, read-only, and one scratch folder that is removed. Where
bubblewrap or a limit is not available, nothing runs: there is no weaker mode.

A process limit does not bind for root, also not inside a user namespace. So as root the sandbox changes to a user without
rights after the mounts are made; other users get a user namespace.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openafm.core.config import Config
from openafm.core.errors import OpenAFMError

_UID = 61234
"""User of sandboxed processes when the caller is root: one that owns nothing."""
_SCRATCH = "/scratch"
_MAIN = "main.py"
_SYSTEM = ("/usr", "/etc/fonts", "/etc/ld.so.cache", "/etc/alternatives")
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64")
_ENVIRONMENT = {
    "HOME": _SCRATCH,
    "TMPDIR": _SCRATCH,
    "PATH": "/usr/bin",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": _SCRATCH,
}
_PROBE_SECONDS = 10
_CHECK_SECONDS = 0.05
_REMOVALS = 100


class SandboxMissingError(OpenAFMError):
    """The sandbox cannot be set up on this machine, so the code was not run."""


class SandboxFailedError(OpenAFMError):
    """The sandboxed code failed, exceeded a limit, or did not write what was asked for."""


@dataclass(frozen=True, kw_only=True)
class SandboxLimits(Config):
    """Limits of one run.

    `file_mb` is the size of each file that it writes, its output included. `total_mb` and `total_files` are those of the
    scratch folder; the run is killed when it exceeds them, which is checked every 50 ms.
    """

    wall_seconds: float = 30.0
    cpu_seconds: int = 20
    memory_mb: int = 2048
    file_mb: int = 16
    total_mb: int = 128
    total_files: int = 10_000
    processes: int = 32

    def __post_init__(self) -> None:
        sizes = (self.memory_mb, self.file_mb, self.total_mb, self.total_files)
        smallest = min(self.wall_seconds, self.cpu_seconds, self.processes, *sizes)
        self.require(smallest > 0, f"limits must be positive, got {smallest}")


@dataclass(frozen=True, kw_only=True)
class SandboxResult:
    """What a run left: its exit code (negative for a signal), its output, and the files that were asked for."""

    exit_code: int
    output: str
    timed_out: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)


def run_python(
    code: str, *, files: Mapping[str, bytes] | None = None, collect: Sequence[str] = (), limits: SandboxLimits | None = None
) -> SandboxResult:
    """Run Python code in the sandbox, with `files` in its working folder, and return the files named in `collect`.

    Raises:
        SandboxMissingError: bubblewrap, setpriv or prlimit is missing or does not work here.
    """
    reason = sandbox_reason()
    if reason:
        raise SandboxMissingError(reason)
    chosen = limits or SandboxLimits()
    with _work_folder() as folder:
        scratch = _new_scratch(folder, {**(files or {}), _MAIN: code.encode()})
        output = folder / "output"
        with output.open("wb") as stream:
            command = _command(scratch, chosen, ["-I", _MAIN])
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, env={})
            exit_code, timed_out = _waited(process, (scratch,), chosen)
        return _result(folder, exit_code, timed_out, collect, chosen)


def run_connected(
    code: str,
    other: str,
    *,
    files: Mapping[str, bytes] | None = None,
    collect: Sequence[str] = (),
    limits: SandboxLimits | None = None,
) -> SandboxResult:
    """Run two programs in two sandboxes, each reading what the other one writes, and return the result of the first.

    They share nothing else: neither sees files and processes of the other one. Each has the limits.

    Args:
        files: files in both working folders.

    Raises:
        SandboxMissingError: bubblewrap, setpriv or prlimit is missing or does not work here.
    """
    reason = sandbox_reason()
    if reason:
        raise SandboxMissingError(reason)
    chosen = limits or SandboxLimits()
    with _work_folder() as folder, _work_folder() as other_folder, contextlib.ExitStack() as pipes:
        scratches = [
            _new_scratch(place, {**(files or {}), _MAIN: program.encode()})
            for place, program in ((folder, code), (other_folder, other))
        ]
        (first_in, other_out), (other_in, first_out) = os.pipe(), os.pipe()
        for end in (first_in, other_out, other_in, first_out):
            pipes.callback(os.close, end)
        stream = pipes.enter_context((folder / "output").open("wb"))
        ends = ((first_in, first_out, stream.fileno()), (other_in, other_out, subprocess.DEVNULL))
        processes = [
            subprocess.Popen(_command(scratch, chosen, ["-I", _MAIN]), stdin=given, stdout=made, stderr=errors, env={})
            for scratch, (given, made, errors) in zip(scratches, ends, strict=True)
        ]
        pipes.close()  # a process reads the end of its input when the other one has ended
        try:
            exit_code, timed_out = _waited(processes[0], scratches, chosen)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return _result(folder, exit_code, timed_out, collect, chosen)


@functools.cache
def sandbox_reason() -> str:
    """Return why the sandbox cannot be used on this machine; empty if it can."""
    needed = ("bwrap", "prlimit", *(("setpriv",) if os.geteuid() == 0 else ()))
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        return (
            f"running code of a model needs the commands {', '.join(missing)}, which are not installed; "
            "install them with: apt install bubblewrap util-linux"
        )
    with _work_folder() as folder:
        command = _command(_new_scratch(folder, {}), SandboxLimits(), ["-I", "-S", "-c", "import os; print(os.getuid())"])
        try:
            probe = subprocess.run(
                command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"bubblewrap does not work on this machine: {error}; allow user namespaces, or run as root"
    if probe.returncode != 0 or probe.stdout.strip() in ("", "0"):
        detail = " ".join(probe.stderr.split()) or f"exit code {probe.returncode}"
        return f"bubblewrap does not work on this machine: {detail}; allow user namespaces, or run as root"
    return ""


@contextlib.contextmanager
def _work_folder() -> Iterator[Path]:
    """Yield a new folder and remove it. Processes of a killed run may write for a moment after the kill."""
    folder = Path(tempfile.mkdtemp(prefix="openafm-sandbox-"))
    try:
        yield folder
    finally:
        for _ in range(_REMOVALS):
            with contextlib.suppress(OSError):
                shutil.rmtree(folder)
                break
            time.sleep(_CHECK_SECONDS)


def _new_scratch(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Return a new folder with files that belongs to the user of the sandbox."""
    scratch = folder / "scratch"
    scratch.mkdir()
    scratch.chmod(0o711)  # bubblewrap enters it as root without rights over other users' files
    for name, data in files.items():
        (scratch / name).write_bytes(data)
    if os.geteuid() == 0:
        for path in (scratch, *scratch.iterdir()):
            os.chown(path, _UID, _UID)
    return scratch


def _result(folder: Path, exit_code: int, timed_out: bool, collect: Sequence[str], limits: SandboxLimits) -> SandboxResult:
    collected = {name: _collected(folder / "scratch" / name, limits) for name in collect}
    return SandboxResult(
        exit_code=exit_code,
        output=(folder / "output").read_bytes()[: 1 << 16].decode("utf-8", "replace"),
        timed_out=timed_out,
        files={name: data for name, data in collected.items() if data is not None},
    )


def _waited(process: subprocess.Popen[bytes], scratches: Sequence[Path], limits: SandboxLimits) -> tuple[int, bool]:
    """Wait for a process; return its exit code, and whether it was ended because of the time.

    A run that exceeds the limits of a scratch folder is killed.
    """
    deadline = time.monotonic() + limits.wall_seconds
    while True:
        try:
            return process.wait(min(_CHECK_SECONDS, max(deadline - time.monotonic(), 0))), False
        except subprocess.TimeoutExpired:
            is_late = time.monotonic() >= deadline
            if is_late or any(_exceeds(scratch, limits) for scratch in scratches):
                process.kill()  # the namespace of its processes ends with it
                return process.wait(), is_late


def _exceeds(scratch: Path, limits: SandboxLimits) -> bool:
    """Return True if the scratch folder has too many files or bytes. Only what takes up space on the disk counts."""
    num_files = num_bytes = 0
    for folder, folders, files in os.walk(scratch):
        num_files += len(folders) + len(files)
        for name in files:
            with contextlib.suppress(OSError):  # it was removed
                num_bytes += os.lstat(os.path.join(folder, name)).st_blocks * 512  # noqa: PTH118
        if num_files > limits.total_files or num_bytes > limits.total_mb << 20:
            return True
    return False


def _command(scratch: Path, limits: SandboxLimits, arguments: Sequence[str]) -> list[str]:
    is_root = os.geteuid() == 0
    # Root keeps its user namespace: inside another one, the process limit would not bind.
    spaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"] if is_root else ["--unshare-all"]
    command = [_found("bwrap"), *spaces, "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    if is_root:
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    for path in _read_only_paths():
        command += [*_parents(path), "--ro-bind", path, path]
    for link in _LINKS:
        if Path(f"/{link}").is_symlink():
            command += ["--symlink", f"usr/{link}", f"/{link}"]
        elif Path(f"/{link}").is_dir():
            command += ["--ro-bind", f"/{link}", f"/{link}"]
    command += ["--proc", "/proc", "--dev", "/dev", "--bind", str(scratch), _SCRATCH, "--chdir", _SCRATCH]
    for name, value in _ENVIRONMENT.items():
        command += ["--setenv", name, value]
    if is_root:
        user = str(_UID)
        command += [_found("setpriv"), "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs"]
    # Other users' processes count: the limit is that of the user, not of the sandbox.
    processes = limits.processes + (0 if is_root else _num_processes())
    command += [
        _found("prlimit"),
        f"--nproc={processes}",
        f"--as={limits.memory_mb << 20}",
        f"--cpu={limits.cpu_seconds}",
        f"--fsize={limits.file_mb << 20}",
        "--nofile=256",
        "--core=0",
    ]
    return [*command, sys.executable, *arguments]


def _read_only_paths() -> Iterator[str]:
    """Yield the folders that Python and its libraries need, without those inside others."""
    wanted = [
        *_SYSTEM,
        sys.prefix,
        sys.base_prefix,
        *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")),
    ]
    kept: list[str] = []
    for path in sorted({str(Path(each)) for each in wanted if Path(each).exists()}):
        if not any(Path(path).is_relative_to(other) for other in kept):
            kept.append(path)
            yield path


def _parents(path: str) -> Iterator[str]:
    """Yield options that make the folders above a path, which the user of the sandbox may pass through."""
    for parent in [*reversed(Path(path).parents)][1:]:
        yield from ("--perms", "0755", "--dir", str(parent))


def _found(name: str) -> str:
    return shutil.which(name) or f"/usr/bin/{name}"


def _num_processes() -> int:
    """Return how many processes and threads this user has."""
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == os.geteuid():
                count += len(list((entry / "task").iterdir()))
        except OSError:
            continue  # it ended
    return count


def _collected(path: Path, limits: SandboxLimits) -> bytes | None:
    """Return a regular file that the run wrote; None for links, folders, and files that are too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > limits.file_mb << 20:
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read()
