"""How the shared library comes to be: with a compiler that is a script of a few lines, which counts what it is asked."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from openafm.runtime.native import build
from openafm.runtime.native.build import NativeBuildError, built_library, find_compiler, is_whole

# Writes its own arguments where -o says, and tells about it.
COMPILER = """#!/bin/sh
if [ -n "$FAILS" ]; then echo "no such header" >&2; exit 1; fi
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
    """The only compiler of a machine on which nothing has been compiled."""
    monkeypatch.setattr(build, "BUILT_IN", tmp_path / "none.so")
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "cache"))
    made = Compiler(tmp_path)
    monkeypatch.setenv("CXX", str(made.path))
    build._scratch.cache_clear()
    yield made
    build._scratch.cache_clear()


def test_it_is_compiled_once_and_kept(compiler: Compiler) -> None:
    first = built_library()
    assert built_library() == first
    assert len(compiler.links) == 1
    assert first.log is not None
    assert "kernels_portable.cpp" in first.log.read_text()


def test_processes_that_start_at_once_compile_once(compiler: Compiler, tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", ASK], stdout=subprocess.PIPE, text=True, env={**os.environ})
        for _ in range(2)
    ]
    paths = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(paths) == 1
    assert len(compiler.links) == 1


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", None])
def test_what_is_broken_in_the_cache_is_compiled_anew(compiler: Compiler, damage: bytes | None) -> None:
    path = built_library().path
    if damage is None:
        path.with_suffix(".stamp").write_bytes(b"\xff\xfe")
    else:
        path.write_bytes(damage)
    assert not is_whole(path)
    assert built_library().path == path
    assert is_whole(path)
    assert len(compiler.links) == 2


def test_a_compiler_killed_half_way_leaves_nothing_that_counts(compiler: Compiler) -> None:
    path = built_library().path
    path.with_suffix(".stamp").unlink()  # what is written last
    assert not is_whole(path)
    built_library()
    assert is_whole(path)


def test_a_cache_that_cannot_be_written_is_done_without(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "file" / "cache"))
    library = built_library()
    assert is_whole(library.path)
    assert built_library().path == library.path
    assert len(compiler.links) == 1


def test_what_is_whole_in_a_cache_that_cannot_be_written_is_taken(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = built_library().path
    monkeypatch.setattr(build, "folder_lock", cannot_be_written)
    assert built_library().path == path
    assert len(compiler.links) == 1
    path.write_bytes(b"damaged")
    found = built_library().path
    assert found != path
    assert is_whole(found)
    assert path.read_bytes() == b"damaged"


def cannot_be_written(folder: Path) -> NoReturn:
    raise PermissionError(errno.EROFS, "read-only file system", str(folder))


def test_options_in_cxx_are_given_to_the_compiler(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = built_library().path
    monkeypatch.setenv("CXX", f"{compiler.path} -march=somewhere")
    assert built_library().path != plain
    assert ["-march=somewhere" in link for link in compiler.links] == [False, True]
    log = built_library().log
    assert log is not None
    compiled = [line for line in log.read_text().splitlines() if " -c " in line]
    assert all(line.index("-O3") < line.index("-march=somewhere") for line in compiled)


def test_a_compiler_that_is_not_there_is_told(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NativeBuildError, match="no-such-compiler"):
        built_library()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NativeBuildError, match="install one"):
        built_library()


def test_a_compiler_that_fails_is_told_with_its_log(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(NativeBuildError) as caught:
        built_library()
    log = Path(str(caught.value).rpartition("see ")[2])
    assert "no such header" in log.read_text()
    monkeypatch.delenv("FAILS")
    assert is_whole(built_library().path)


def test_libraries_of_old_sources_go(compiler: Compiler) -> None:
    home = build.cache_home() / "native"
    home.mkdir(parents=True)
    for number in range(20):
        for suffix in (".so", ".stamp", ".log"):
            old = home / f"libopenafm-{number}{suffix}"
            old.touch()
            os.utime(old, (number, number))
    assert built_library().path.exists()
    assert len(list(home.glob("*.so"))) == len(list(home.glob("*.stamp"))) == build.MOST_KEPT


def test_a_compiler_that_is_gone_leaves_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = built_library().path  # by the real compiler
    home = tmp_path / "native"
    home.mkdir()
    copy = home / f"libopenafm-{build.source_digest()}-other.so"
    for suffix in (".so", ".stamp"):
        shutil.copy(made.with_suffix(suffix), copy.with_suffix(suffix))
    monkeypatch.setattr(build, "BUILT_IN", tmp_path / "none.so")
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert built_library().path == copy


def test_a_library_that_came_with_the_installation_is_taken_if_it_fits(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "installed.so"
    build.compile_library(installed, str(compiler.path))  # this system cannot load it
    monkeypatch.setattr(build, "BUILT_IN", installed)
    assert built_library().path != installed
    monkeypatch.setattr(build, "_loads", lambda path: True)
    assert built_library().path == installed
    installed.with_suffix(".stamp").write_text("of other sources")
    assert built_library().path != installed


def test_a_compiler_that_cannot_be_read_as_a_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", 'g++ "')
    with pytest.raises(NativeBuildError, match="CXX cannot be read as a command"):
        find_compiler()
