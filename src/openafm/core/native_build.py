"""Build of shared libraries from the package's C++ sources, cached by sources, compiler and processor type.

A wheel built with a compiler contains the libraries. Otherwise each is compiled on first use into the user's cache.
Imports only the standard library and `core`, because setup.py runs it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from openafm.core.errors import OpenAFMError
from openafm.core.folder_lock import FolderInUseError, folder_lock
from openafm.core.terminal import escaped

COMPILERS = ("c++", "g++", "clang++")
# No contraction outside of kernels, so that all engines round activations to the same integers.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=off", "-Wall", "-Wextra")
MOST_KEPT = 8  # libraries of a name in the cache, one for each version of the sources and compiler
_MESSAGE_DELAY_S, _POLL_S = 1.0, 0.05
_BUILD_BYTES = 64 << 20  # free space for a build, with a margin


class NativeBuildError(OpenAFMError):
    """A native library cannot be compiled or loaded: no compiler, or an error in the named log."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """A compiled library and the log of its compiler."""

    path: Path
    log: Path | None


def cache_home() -> Path:
    """Return the folder of compiled libraries and repacked weights. It may be deleted at any time."""
    if os.environ.get("OPENAFM_CACHE"):
        return Path(os.environ["OPENAFM_CACHE"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "openafm"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openafm"


def find_compiler() -> str:
    """Return the C++ compiler: $CXX, which may include options, else the first installed one.

    Raises:
        NativeBuildError: no compiler is installed, or CXX is invalid.
    """
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise NativeBuildError(f"CXX is not a valid command line: {error}; correct or unset it") from error
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise NativeBuildError(f"CXX names the compiler {chosen[0]}, which is not installed; unset it or name another")
        return shlex.join(chosen)
    for name in COMPILERS:
        if (found := shutil.which(name)) is not None:
            return found
    raise NativeBuildError("no C++ compiler (c++, g++ or clang++) for native code; install one or name it in CXX")


@dataclass(frozen=True, kw_only=True)
class NativeSources:
    """The C++ files of a library.

    `built_in` is where a wheel has the compiled library, `special` are options of single files by processor type and
    `title` names the library in messages.
    """

    name: str
    title: str
    folder: Path
    built_in: Path
    special: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def built(self) -> Library:
        """Return the library for this machine, compiling it if needed. Concurrent processes compile it once.

        A damaged file in the cache is compiled again. If the cache cannot be used (not writable, full, or writable by other
        users), the library is compiled for this process only.

        Raises:
            NativeBuildError: the library cannot be compiled.
        """
        if self.is_whole(self.built_in) and _loads(self.built_in):
            return Library(path=self.built_in, log=None)
        home = cache_home() / "native"
        try:
            compiler = find_compiler()
        except NativeBuildError:
            if (found := self._made_before(home)) is not None:
                return found
            raise
        path = home / f"{self.name}-{self.digest()}-{_key(compiler)}.so"
        if not self._is_usable(path):
            with _delayed_message(self.title):
                try:
                    private_folder(home)
                    with waiting_lock(home):
                        if not self._is_usable(path):
                            _check_space(home)
                            self.compile(path, compiler)
                            self._remove_oldest(home)
                except OSError as error:
                    _print(f"{home} cannot be used ({error.strerror or error}); compiling for this process only")
                    return self._for_this_process(compiler)
        return Library(path=path, log=path.with_suffix(".log"))

    def compile(self, path: Path, compiler: str) -> None:
        """Compile into `path`, with the compiler's output beside it. `is_whole(path)` is true only after success.

        Options in `compiler` follow the default ones and so override them.

        Raises:
            NativeBuildError: the compiler fails.
            OSError: the folder cannot be written, or the disk is full.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        program, *options = shlex.split(compiler)
        special = self.special.get(platform.machine().lower(), {})
        sources = sorted(self.folder.glob("*.cpp"))
        with TemporaryDirectory(dir=path.parent, prefix=".build-") as temporary:
            objects = [f"{temporary}/{source.stem}.o" for source in sources]
            steps = [
                [program, *FLAGS, *special.get(source.name, ()), *options, "-c", str(source), "-o", made]
                for source, made in zip(sources, objects, strict=True)
            ]
            library = Path(temporary) / path.name
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                results = list(pool.map(_run, steps))
            if all(done.returncode == 0 for done in results):
                results.append(_run([program, *options, "-shared", "-pthread", *objects, "-o", str(library)]))
            log = path.with_suffix(".log")
            log.write_text(
                "".join(f"$ {shlex.join(done.args)}\n{done.stdout}{done.stderr}" for done in results), encoding="utf-8"
            )
            if any(done.returncode for done in results):
                if any("No space left" in done.stderr for done in results):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path.parent))
                raise NativeBuildError(f"{compiler} failed to compile {self.title}; see {log}")
            stamp = Path(temporary) / "stamp"
            stamp.write_text(self._stamp(library), encoding="utf-8")
            library.chmod(0o755)  # independent of the umask: a library that others may write is not loaded
            os.replace(library, path)
            os.replace(stamp, path.with_suffix(".stamp"))

    def is_whole(self, library: Path) -> bool:
        """Return True if the file is bit-identical to the compiled one. A damaged library may crash the process."""
        try:
            return library.with_suffix(".stamp").read_text(encoding="utf-8") == self._stamp(library)
        except (OSError, UnicodeDecodeError):
            return False

    def digest(self) -> str:
        """Return a digest of sources and flags."""
        return _digest(self.folder, repr((FLAGS, self.special)))

    def _stamp(self, library: Path) -> str:
        return f"{self.digest()} {hashlib.sha256(library.read_bytes()).hexdigest()}"

    def _made_before(self, home: Path) -> Library | None:
        """Return a cached library of these sources by another compiler, if there is one."""
        for path in sorted(home.glob(f"{self.name}-{self.digest()}-*.so")):
            if self._is_usable(path) and _loads(path):
                return Library(path=path, log=path.with_suffix(".log"))
        return None

    def _is_usable(self, path: Path) -> bool:
        """Return True if a library of the cache is complete and no other user can have written it."""
        try:
            check_private(path.parent)
            check_private(path)
        except OSError:
            return False
        return self.is_whole(path)

    def _remove_oldest(self, home: Path) -> None:
        """Delete all but the newest libraries, and leftovers of killed builds. Needs the folder's lock."""
        for dead in home.glob(".build-*"):
            shutil.rmtree(dead, ignore_errors=True)
        kept = sorted(home.glob(f"{self.name}-*.so"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in kept[MOST_KEPT:]:
            for file in (path, path.with_suffix(".stamp"), path.with_suffix(".log")):
                file.unlink(missing_ok=True)

    def _for_this_process(self, compiler: str) -> Library:
        """Compile the library into a temporary folder of this process.

        Raises:
            NativeBuildError: the compiler fails, or temporary files cannot be written either.
        """
        try:
            path = Path(_scratch().name) / f"{self.name}.so"
            if not self.is_whole(path):
                self.compile(path, compiler)
        except OSError as error:
            raise NativeBuildError(
                f"no folder to compile {self.title} in ({error}); set OPENAFM_CACHE to a writable one"
            ) from error
        return Library(path=path, log=path.with_suffix(".log"))


@cache
def _digest(folder: Path, options: str) -> str:
    digest = hashlib.sha256(options.encode())
    for source in sorted(folder.iterdir()):
        if source.suffix in (".h", ".cpp"):
            digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _key(compiler: str) -> str:
    program = Path(shutil.which(shlex.split(compiler)[0]) or "").resolve()
    about = program.stat()
    described = f"{compiler} {program} {about.st_size} {about.st_mtime_ns} {platform.machine()}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def _loads(library: Path) -> bool:
    """Return True if this system can load the library; one that was compiled elsewhere may need a newer libc."""
    try:
        ctypes.CDLL(str(library))
    except OSError:
        return False
    return True


@cache
def _scratch() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="openafm-native-")


@contextlib.contextmanager
def _delayed_message(title: str) -> Iterator[None]:
    """Print a message if the block takes longer than a second."""
    timer = threading.Timer(_MESSAGE_DELAY_S, lambda: _print(f"compiling {title}, once"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _print(message: str) -> None:
    print(f"openafm: {escaped(message)}", file=sys.stderr, flush=True)


def private_folder(path: Path) -> None:
    """Create a folder of the cache with mode 0700, or take the write permission of others from an existing one.

    Raises:
        OSError: the folder cannot be created, or belongs to another user.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = path.stat()
    if sys.platform != "win32" and about.st_uid == os.geteuid() and stat.S_IMODE(about.st_mode) & 0o022:
        path.chmod(0o700)
    check_private(path)


def check_private(path: Path) -> None:
    """Check that a path of the cache can be written by this user and root only: its content is executed or computed with.

    Raises:
        OSError: the path does not exist, belongs to another user, or others may write it.
    """
    if sys.platform == "win32":
        return
    about = path.stat()
    if about.st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, f"it belongs to user {about.st_uid}", str(path))
    if stat.S_IMODE(about.st_mode) & 0o022:
        raise PermissionError(errno.EPERM, "other users may write it; run chmod go-w", str(path))


def _check_space(folder: Path) -> None:
    """Check that a build fits on the disk: a compiler on a full disk fails with messages of its own.

    Raises:
        OSError: the disk is nearly full.
    """
    if shutil.disk_usage(folder).free < _BUILD_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@contextlib.contextmanager
def waiting_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, waiting until it is free."""
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(folder_lock(folder))
                break
            except FolderInUseError:
                time.sleep(_POLL_S)
        yield


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
