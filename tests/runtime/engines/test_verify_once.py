"""A bundle is verified once per machine and week while its files do not change, an adapter once per process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from native_bundles import write_compressed, write_random_adapter

from openafm.adapters.package import AdapterPackage
from openafm.bundle import Bundle, BundleTamperedError
from openafm.core import verified_files as markers
from openafm.runtime.engines import verified_files
from openafm.runtime.engines.verified_files import verify_once

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no change time")


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(markers, "RECENT_SECONDS", 0.0)
    return write_compressed(tmp_path / "bundle", seed=5)


def in_new_process(open_part: Callable[[], Bundle | AdapterPackage], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Verify a part as a new process does; return whether its bytes were read."""
    verified_files._verified.clear()
    part, read = open_part(), []
    verify = type(part).verify
    with monkeypatch.context() as patched:
        patched.setattr(type(part), "verify", lambda self: (read.append(self), verify(self)))
        verify_once(part)
        verify_once(part)
    assert len(read) <= 1, "once in a process"
    return bool(read)


def change(file: Path, at: int) -> None:
    """Change one byte; keep size, inode and modification time."""
    time.sleep(0.02)  # more than the resolution of a file system's clock
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_bundle_is_verified_once(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [in_new_process(lambda: Bundle(bundle.path), monkeypatch) for _ in range(3)]
    assert found == [True, False, False]
    monkeypatch.setattr(verified_files, "RECHECK_S", 0)
    assert in_new_process(lambda: Bundle(bundle.path), monkeypatch), "after a week"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_bundle_that_changed_after_it_was_verified_is_refused(
    bundle: Bundle, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_new_process(lambda: Bundle(bundle.path), monkeypatch)
    file = bundle.path / name
    change(file, file.stat().st_size - 1 if name == "model.safetensors" else file.read_bytes().index(b'"content":"') + 12)
    for _ in range(2):
        with pytest.raises(BundleTamperedError):
            in_new_process(lambda: Bundle(bundle.path), monkeypatch)


def test_a_bundle_opened_from_other_files_is_not_taken_for_the_verified_one(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is exchanged while a process opens it; its files keep all of their times."""
    in_new_process(lambda: Bundle(bundle.path), monkeypatch)
    other = write_compressed(tmp_path / "other", seed=6)
    bundle.path.rename(tmp_path / "kept")
    other.path.rename(bundle.path)
    opened = Bundle(bundle.path)
    bundle.path.rename(other.path)
    (tmp_path / "kept").rename(bundle.path)
    with pytest.raises(BundleTamperedError):
        in_new_process(lambda: opened, monkeypatch)


def test_an_adapter_is_verified_in_every_process(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = write_random_adapter(tmp_path / "a.fmadapter", bundle, seed=1)
    assert all(in_new_process(lambda: adapter, monkeypatch) for _ in range(2))
