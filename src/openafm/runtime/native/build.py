"""The shared library of the native runtime: compiled once for each source, compiler and kind of processor, and kept.

It comes with the installation where a compiler was there, else it is compiled at its first use, into the user's cache.
Kernels for several instruction sets are in it, and the processor that runs it chooses: it may move to another machine.
Imports nothing but the standard library and `core`: the installation runs it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from openafm.core.errors import OpenAFMError
from openafm.core.files import FolderInUseError, folder_lock

SOURCE = Path(__file__).parent / "source"
COMPILERS = ("c++", "g++", "clang++")
# Operations are as they are written, but for kernels, whose sums may fuse products: then engines round to the same integers.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=off", "-Wall", "-Wextra")
_FUSING = "-ffp-contract=fast"
_X86: dict[str, tuple[str, ...]] = {
    "kernels_avx512.cpp": (
        *(_FUSING, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c"),
        *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),
    ),
    "kernels_avx2.cpp": (_FUSING, "-mavx2", "-mfma", "-mf16c"),
}
_ARM: dict[str, tuple[str, ...]] = {
    "kernels_neon.cpp": (_FUSING,),
    "kernels_neon_dot.cpp": (_FUSING, "-march=armv8.2-a+dotprod"),
}
_SPECIAL = {"x86_64": _X86, "amd64": _X86, "aarch64": _ARM, "arm64": _ARM}
BUILT_IN = Path(__file__).parent / "libopenafm.so"
MOST_KEPT = 8  # libraries in the cache; each version of the sources and each compiler has its own
_SAID_AFTER_S, _POLL_S = 1.0, 0.05


class NativeBuildError(OpenAFMError):
    """The native runtime cannot be compiled here: no compiler, or one that fails; the message names the log."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """A compiled library, and where what the compiler said is kept."""

    path: Path
    log: Path | None


def cache_home() -> Path:
    """Where compiled libraries and repacked weights are kept: safe to remove at any time."""
    if os.environ.get("OPENAFM_CACHE"):
        return Path(os.environ["OPENAFM_CACHE"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "openafm"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openafm"


def built_library() -> Library:
    """The library for this machine, compiled if it is not there yet. Processes that start at once compile it once.

    What lies in the cache and is not what was compiled, damaged or cut short, is compiled anew.

    Raises:
        NativeBuildError: it cannot be compiled.
    """
    if is_whole(BUILT_IN) and _loads(BUILT_IN):
        return Library(path=BUILT_IN, log=None)
    home = cache_home() / "native"
    try:
        compiler = find_compiler()
    except NativeBuildError:
        if (found := _made_before(home)) is not None:
            return found
        raise
    path = home / f"libopenafm-{source_digest()}-{_key(compiler)}.so"
    if not is_whole(path):
        with _telling():
            try:
                with waiting_lock(home):
                    if not is_whole(path):
                        compile_library(path, compiler)
                        _remove_oldest(home)
            except OSError as error:
                _tell(f"{home} cannot be written ({error.strerror}); what is compiled is for this process alone")
                return _for_this_process(compiler)
    return Library(path=path, log=path.with_suffix(".log"))


def find_compiler() -> str:
    """The C++ compiler: $CXX, which may hold options, else the first that is installed.

    Raises:
        NativeBuildError: there is none.
    """
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise NativeBuildError(f"CXX cannot be read as a command: {error}; mend or unset it") from error
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise NativeBuildError(f"CXX names the compiler {chosen[0]}, which is not there; unset it or name another")
        return shlex.join(chosen)
    for name in COMPILERS:
        if (found := shutil.which(name)) is not None:
            return found
    raise NativeBuildError("no C++ compiler (c++, g++ or clang++); install one, or name it in CXX, for the native runtime")


def compile_library(path: Path, compiler: str) -> None:
    """Compile into `path`, with what the compiler said beside it. `is_whole(path)` only once all of it stands.

    Options that the compiler is named with come after our own: they have the last word.

    Raises:
        NativeBuildError: the compiler fails.
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    program, *options = shlex.split(compiler)
    special = _SPECIAL.get(platform.machine().lower(), {})
    sources = sorted(SOURCE.glob("*.cpp"))
    with TemporaryDirectory(dir=path.parent, prefix=".build-") as temporary:
        objects = [f"{temporary}/{source.stem}.o" for source in sources]
        steps = [
            [program, *FLAGS, *special.get(source.name, ()), *options, "-c", str(source), "-o", made]
            for source, made in zip(sources, objects, strict=True)
        ]
        library = Path(temporary) / path.name
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            said = list(pool.map(_run, steps))
        if all(done.returncode == 0 for done in said):
            said.append(_run([program, *options, "-shared", "-pthread", *objects, "-o", str(library)]))
        log = path.with_suffix(".log")
        log.write_text("".join(f"$ {shlex.join(done.args)}\n{done.stdout}{done.stderr}" for done in said), encoding="utf-8")
        if any(done.returncode for done in said):
            raise NativeBuildError(f"{compiler} failed to compile the native runtime; see {log}")
        stamp = Path(temporary) / "stamp"
        stamp.write_text(_stamp(library), encoding="utf-8")
        os.replace(library, path)
        os.replace(stamp, path.with_suffix(".stamp"))


def is_whole(library: Path) -> bool:
    """Whether this file is, byte for byte, what these sources were compiled to. What is not may crash a process."""
    try:
        return library.with_suffix(".stamp").read_text(encoding="utf-8") == _stamp(library)
    except (OSError, UnicodeDecodeError):
        return False


@cache
def source_digest() -> str:
    """What changes with any of the sources."""
    digest = hashlib.sha256(repr((FLAGS, _SPECIAL)).encode())
    for source in sorted(SOURCE.iterdir()):
        if source.suffix in (".h", ".cpp"):
            digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _stamp(library: Path) -> str:
    return f"{source_digest()} {hashlib.sha256(library.read_bytes()).hexdigest()}"


def _key(compiler: str) -> str:
    program = Path(shutil.which(shlex.split(compiler)[0]) or "").resolve()
    about = program.stat()
    described = f"{compiler} {program} {about.st_size} {about.st_mtime_ns} {platform.machine()}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def _loads(library: Path) -> bool:
    """Whether this system can load it: one that was compiled elsewhere may ask for a newer system."""
    try:
        ctypes.CDLL(str(library))
    except OSError:
        return False
    return True


def _made_before(home: Path) -> Library | None:
    """A library of these sources that an earlier compiler made."""
    for path in sorted(home.glob(f"libopenafm-{source_digest()}-*.so")):
        if is_whole(path) and _loads(path):
            return Library(path=path, log=path.with_suffix(".log"))
    return None


def _remove_oldest(home: Path) -> None:
    """Leave the newest, and nothing of those who were killed at it. Needs the folder's lock."""
    for dead in home.glob(".build-*"):
        shutil.rmtree(dead, ignore_errors=True)
    kept = sorted(home.glob("libopenafm-*.so"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[MOST_KEPT:]:
        for file in (path, path.with_suffix(".stamp"), path.with_suffix(".log")):
            file.unlink(missing_ok=True)


def _for_this_process(compiler: str) -> Library:
    """Where the cache cannot be written: compiled for this process alone.

    Raises:
        NativeBuildError: the compiler fails, or there is no place for temporary files either.
    """
    try:
        path = Path(_scratch().name) / "libopenafm.so"
        if not is_whole(path):
            compile_library(path, compiler)
    except OSError as error:
        raise NativeBuildError(
            f"there is no folder to compile the native runtime in ({error}); set OPENAFM_CACHE"
        ) from error
    return Library(path=path, log=path.with_suffix(".log"))


@cache
def _scratch() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="openafm-native-")


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Say why it takes so long, if it does."""
    timer = threading.Timer(_SAID_AFTER_S, lambda: _tell("compiling the native runtime, once"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell(what: str) -> None:
    print(f"openafm: {what}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def waiting_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, once whoever else holds it has let it go."""
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
