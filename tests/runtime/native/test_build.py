"""The build of the shared library, with a fake compiler: a script that logs its calls."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from openafm.core import native_build
from openafm.core.native_build import NativeBuildError, find_compiler
from openafm.runtime.native import build
from openafm.runtime.native.build import built_library

# Writes its arguments to the file after -o, and logs links. Fails with the text in FAILS.
COMPILER = """#!/bin/sh
if [ -n "$FAILS" ]; then echo "$FAILS" >&2; exit 1; fi
for last; do :; done
case "$*" in *-shared*) sleep 0.3; echo "$*" >> {asked};; esac
echo "$*" > "$last"
"""
ASK = "from openafm.runtime.native.build import built_library; print(built_library().path)"


class Compiler:
    def __init__(self, folder: Path) -> None:
        self.path, self._asked = folder / "compiler", folder / "asked"
        self.path.write_text(COMPILER.format(asked=self._asked))
        self.path.chmod(0o755)

    @property
    def links(self) -> list[str]:
        return self._asked.read_text().splitlines() if self._asked.exists() else []


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """A fake compiler and an empty cache."""
    monkeypatch.setattr(build, "SOURCES", replace(build.SOURCES, built_in=tmp_path / "none.so"))
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "cache"))
    made = Compiler(tmp_path)
    monkeypatch.setenv("CXX", str(made.path))
    native_build._scratch.cache_clear()
    yield made
    native_build._scratch.cache_clear()


def test_the_library_is_compiled_once(compiler: Compiler) -> None:
    first = built_library()
    assert built_library() == first
    assert len(compiler.links) == 1
    assert first.log is not None
    assert "kernels_portable.cpp" in first.log.read_text()


def test_concurrent_processes_compile_once(compiler: Compiler, tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", ASK], stdout=subprocess.PIPE, text=True, env={**os.environ})
        for _ in range(2)
    ]
    paths = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(paths) == 1
    assert len(compiler.links) == 1


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", None])
def test_a_damaged_library_is_compiled_again(compiler: Compiler, damage: bytes | None) -> None:
    path = built_library().path
    if damage is None:
        path.with_suffix(".stamp").write_bytes(b"\xff\xfe")
    else:
        path.write_bytes(damage)
    assert not build.SOURCES.is_whole(path)
    assert built_library().path == path
    assert build.SOURCES.is_whole(path)
    assert len(compiler.links) == 2


def test_an_interrupted_build_is_repeated(compiler: Compiler) -> None:
    path = built_library().path
    path.with_suffix(".stamp").unlink()  # the file that is written last
    assert not build.SOURCES.is_whole(path)
    built_library()
    assert build.SOURCES.is_whole(path)


@pytest.mark.parametrize("problem", ["not writable", "of another user", "full", "full while compiling"])
def test_without_a_usable_cache_the_library_is_compiled_for_the_process(
    compiler: Compiler, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if problem == "not writable":
        (tmp_path / "file").touch()
        monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "file" / "cache"))
    elif problem == "of another user":
        (tmp_path / "cache" / "native").mkdir(parents=True)
        monkeypatch.setattr(native_build, "check_private", refuse_below(tmp_path / "cache"))
    elif problem == "full":
        usage = shutil._ntuple_diskusage(100, 99, 1)  # type: ignore[attr-defined]
        monkeypatch.setattr(native_build.shutil, "disk_usage", lambda folder: usage)
    else:
        run = native_build._run
        full = subprocess.CompletedProcess([], 1, "", "as: No space left on device")
        monkeypatch.setattr(native_build, "_run", lambda command: full if str(tmp_path) in command[-1] else run(command))
    library = built_library()
    assert build.SOURCES.is_whole(library.path)
    assert built_library().path == library.path
    assert len(compiler.links) == 1


def test_a_complete_library_in_a_read_only_cache_is_used(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    path = built_library().path
    monkeypatch.setattr(native_build, "folder_lock", cannot_be_written)
    assert built_library().path == path
    assert len(compiler.links) == 1
    path.write_bytes(b"damaged")
    found = built_library().path
    assert found != path
    assert build.SOURCES.is_whole(found)
    assert path.read_bytes() == b"damaged"


def refuse_below(folder: Path) -> Callable[[Path], None]:
    """Return a `check_private` that refuses paths below a folder, as if they belonged to another user."""

    def check(path: Path) -> None:
        if path.is_relative_to(folder):
            raise PermissionError(errno.EPERM, "it belongs to user 1234", str(path))

    return check


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX permissions")
def test_the_cache_is_private_and_a_planted_library_is_not_loaded(compiler: Compiler) -> None:
    library = built_library().path
    assert library.parent.stat().st_mode & 0o777 == 0o700
    library.chmod(0o777)  # any user may have replaced it, with its stamp
    assert built_library().path == library
    assert len(compiler.links) == 2
    assert library.stat().st_mode & 0o022 == 0
    library.parent.chmod(0o777)
    built_library()
    assert library.parent.stat().st_mode & 0o777 == 0o700
    if os.getuid() == 0:
        os.chown(library, 1234, -1)
        with pytest.raises(PermissionError, match="belongs to user 1234"):
            native_build.check_private(library)


def cannot_be_written(folder: Path) -> NoReturn:
    raise PermissionError(errno.EROFS, "read-only file system", str(folder))


def test_options_in_cxx_are_passed_to_the_compiler(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = built_library().path
    monkeypatch.setenv("CXX", f"{compiler.path} -march=somewhere")
    assert built_library().path != plain
    assert ["-march=somewhere" in link for link in compiler.links] == [False, True]
    log = built_library().log
    assert log is not None
    compiled = [line for line in log.read_text().splitlines() if " -c " in line]
    assert all(line.index("-O3") < line.index("-march=somewhere") for line in compiled)


def test_a_missing_compiler_is_reported(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NativeBuildError, match="no-such-compiler"):
        built_library()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NativeBuildError, match="install one"):
        built_library()


def test_a_failing_compiler_is_reported_with_its_log(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS", "no such header")
    with pytest.raises(NativeBuildError) as caught:
        built_library()
    log = Path(str(caught.value).rpartition("see ")[2])
    assert "no such header" in log.read_text()
    monkeypatch.delenv("FAILS")
    assert build.SOURCES.is_whole(built_library().path)


def test_libraries_of_old_sources_are_deleted(compiler: Compiler) -> None:
    home = native_build.cache_home() / "native"
    home.mkdir(parents=True)
    for number in range(20):
        for suffix in (".so", ".stamp", ".log"):
            old = home / f"libopenafm-{number}{suffix}"
            old.touch()
            os.utime(old, (number, number))
    assert built_library().path.exists()
    assert len(list(home.glob("*.so"))) == len(list(home.glob("*.stamp"))) == native_build.MOST_KEPT


def test_a_cached_library_is_used_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = built_library().path  # by the real compiler
    home = tmp_path / "native"
    home.mkdir()
    copy = home / f"libopenafm-{build.SOURCES.digest()}-other.so"
    for suffix in (".so", ".stamp"):
        shutil.copy(made.with_suffix(suffix), copy.with_suffix(suffix))
    monkeypatch.setattr(build, "SOURCES", replace(build.SOURCES, built_in=tmp_path / "none.so"))
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert built_library().path == copy


def test_the_installed_library_is_used_if_it_loads_and_fits_the_sources(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "installed.so"
    build.SOURCES.compile(installed, str(compiler.path))  # this system cannot load it
    monkeypatch.setattr(build, "SOURCES", replace(build.SOURCES, built_in=installed))
    assert built_library().path != installed
    monkeypatch.setattr(native_build, "_loads", lambda path: True)
    assert built_library().path == installed
    installed.with_suffix(".stamp").write_text("of other sources")
    assert built_library().path != installed


def test_an_invalid_cxx_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", 'g++ "')
    with pytest.raises(NativeBuildError, match="CXX is not a valid command line"):
        find_compiler()
