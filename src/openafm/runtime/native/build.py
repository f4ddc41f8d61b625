"""The shared library of the native runtime: compiled once for each source, compiler and processor, and kept.

It comes with the installation where a compiler was there, else it is compiled at its first use, into the user's cache.
Imports no tensor library.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from openafm.core.errors import OpenAFMError
from openafm.core.files import folder_lock

SOURCE = Path(__file__).parent / "source"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-Wall", "-Wextra")
_X86 = {
    "kernels_avx512.cpp": (
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c"),
        "-Wno-maybe-uninitialized",
    ),
    "kernels_avx2.cpp": ("-mavx2", "-mfma", "-mf16c"),
}
BUILT_IN = Path(__file__).parent / "libopenafm.so"


class NativeBuildError(OpenAFMError):
    """The native runtime cannot be compiled here: no compiler, or one that fails; the message names the log."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """A compiled library, and where what the compiler said is kept."""

    path: Path
    log: Path | None


def cache_home() -> Path:
    """Where compiled libraries and repacked weights are kept: safe to remove at any time."""
    if "OPENAFM_CACHE" in os.environ:
        return Path(os.environ["OPENAFM_CACHE"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "openafm"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openafm"


def built_library() -> Library:
    """The library for this machine, compiled if it is not there yet. Processes that start at once compile it once.

    Raises:
        NativeBuildError: it cannot be compiled.
    """
    if BUILT_IN.is_file() and _stamp_of(BUILT_IN) == source_digest():
        return Library(path=BUILT_IN, log=None)
    compiler = find_compiler()
    home = cache_home() / "native"
    path = home / f"libopenafm-{_key(compiler)}.so"
    if path.is_file():
        return Library(path=path, log=path.with_suffix(".log"))
    try:
        with folder_lock(home):
            if not path.is_file():
                compile_library(path, compiler)
        return Library(path=path, log=path.with_suffix(".log"))
    except OSError:
        return _in_memory(compiler)


def find_compiler() -> str:
    """The C++ compiler: $CXX, else the first that is installed.

    Raises:
        NativeBuildError: there is none.
    """
    for name in (os.environ.get("CXX", ""), *COMPILERS):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise NativeBuildError("no C++ compiler (c++, g++ or clang++); install one, or name it in CXX, for the native runtime")


def compile_library(path: Path, compiler: str, extra_flags: Sequence[str] = ()) -> None:
    """Compile into `path`, which appears whole or not at all, with what the compiler said beside it.

    Raises:
        NativeBuildError: the compiler fails.
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    log: list[str] = []
    with TemporaryDirectory(dir=path.parent, prefix=".build-") as temporary:
        objects = []
        special = _X86 if platform.machine().lower() in ("x86_64", "amd64") else {}
        for source in sorted(SOURCE.glob("*.cpp")):
            objects.append(f"{temporary}/{source.stem}.o")
            flags = (*FLAGS, *extra_flags, *special.get(source.name, ()))
            log.append(_run([compiler, *flags, "-c", str(source), "-o", objects[-1]], path))
        library = f"{temporary}/{path.name}"
        log.append(_run([compiler, *extra_flags, "-shared", "-pthread", *objects, "-o", library], path))
        path.with_suffix(".log").write_text("".join(log), encoding="utf-8")
        os.replace(library, path)


@cache
def source_digest() -> str:
    """What changes with any of the sources."""
    digest = hashlib.sha256(repr((FLAGS, _X86)).encode())
    for source in sorted(SOURCE.iterdir()):
        if source.suffix in (".h", ".cpp"):
            digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _key(compiler: str) -> str:
    version = _output([compiler, "--version"])
    return hashlib.sha256(f"{source_digest()} {compiler} {version} {platform.machine()}".encode()).hexdigest()[:16]


def _stamp_of(library: Path) -> str:
    stamp = library.with_suffix(".stamp")
    return stamp.read_text(encoding="utf-8").strip() if stamp.is_file() else ""


def _in_memory(compiler: str) -> Library:
    """Where the cache cannot be written: compiled for this process alone."""
    folder = Path(_scratch().name)
    path = folder / "libopenafm.so"
    if not path.is_file():
        compile_library(path, compiler)
    return Library(path=path, log=path.with_suffix(".log"))


@cache
def _scratch() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="openafm-native-")


def _run(command: list[str], path: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = f"$ {' '.join(command)}\n{done.stdout}{done.stderr}"
    if done.returncode:
        log = path.with_suffix(".log")
        log.write_text(text, encoding="utf-8")
        raise NativeBuildError(f"{command[0]} failed to compile the native runtime; see {log}")
    return text


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
