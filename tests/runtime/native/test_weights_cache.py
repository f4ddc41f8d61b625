"""The cached file of repacked weights: written once, checked, shared and evicted; damage never crashes a process."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from damage import sign_again
from hypothesis import given, settings
from hypothesis import strategies as st
from native_bundles import compressed_bundle, write_compressed
from tiny_engines import random_tokens

from openafm.bundle import Bundle, BundleError, BundleTamperedError
from openafm.core import native_build
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native import weights
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.library import native_library
from openafm.runtime.native.weights import NativeWeights, open_weights, weights_file

TOKENS = random_tokens(20)
ANSWER = """
import pathlib
import sys
from openafm.bundle import Bundle
from openafm.runtime.native.engine import NativeEngine
engine = NativeEngine(Bundle(pathlib.Path(sys.argv[1])))
print(engine.step([(engine.new_sequence(), [1, 2, 3])])[0].tobytes().hex())
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def cache_of_all_examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A file that is cut while another process reads it from its memory ends that process: not in the shared cache."""
    with pytest.MonkeyPatch.context() as patched:
        empty_cache(tmp_path_factory.mktemp("examples"), patched)
        yield


def empty_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of weights with the compiled library of the real one."""
    native_library()
    (folder / "cache").mkdir()
    (folder / "cache" / "native").symlink_to(native_build.cache_home() / "native")
    monkeypatch.setenv("OPENAFM_CACHE", str(folder / "cache"))
    return folder / "cache"


def opened(bundle: Bundle) -> NativeWeights:
    """Open weights as a new process does."""
    weights._opened.clear()
    return open_weights(bundle, native_library())


def content(found: NativeWeights) -> bytes:
    return bytes(found._data)


def logits(bundle: Bundle) -> np.ndarray:
    weights._opened.clear()
    engine = NativeEngine(bundle)
    return engine.step([(engine.new_sequence(), TOKENS)])[0]


def test_large_weights_are_written_and_checked_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = compressed_bundle()
    first = content(opened(bundle))
    file = weights_file(bundle, native_library())
    assert file.read_bytes() == first

    def forbidden(*_: object) -> None:
        raise AssertionError("read or written again")

    monkeypatch.setattr(weights, "repacked", forbidden)
    monkeypatch.setattr(weights, "ALWAYS_CHECKED_BYTES", 0)
    monkeypatch.setattr(weights.zlib, "crc32", forbidden)
    assert content(opened(bundle)) == first


@pytest.mark.parametrize("is_large", [False, True])
def test_damage_that_keeps_the_file_times_is_found(cache: Path, is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In small files at every open, in large ones a week after the last check."""
    bundle = compressed_bundle()
    whole = content(opened(bundle))
    file = weights_file(bundle, native_library())
    before = file.stat()
    damaged = whole[:-300] + bytes([whole[-300] ^ 1]) + whole[-299:]
    with file.open("r+b") as opened_file:
        opened_file.write(damaged)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    if is_large:
        monkeypatch.setattr(weights, "ALWAYS_CHECKED_BYTES", 0)
        assert content(opened(bundle)) == damaged, "not checked again yet"
        monkeypatch.setattr(weights, "RECHECK_S", 0)
    assert content(opened(bundle)) == whole


def test_a_planted_file_is_not_used(cache: Path) -> None:
    bundle = compressed_bundle()
    whole = content(opened(bundle))
    file = weights_file(bundle, native_library())
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    file.chmod(0o666)
    assert content(opened(bundle)) == whole
    assert file.stat().st_mode & 0o777 == 0o600, "written again"


def test_a_changed_copy_is_not_served_from_the_cache_of_the_original(cache: Path, tmp_path: Path) -> None:
    original = write_compressed(tmp_path / "a", seed=11)
    held = opened(original)
    shutil.copytree(original.path, tmp_path / "b")
    file = tmp_path / "b" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    for _ in range(2):
        with pytest.raises(BundleTamperedError):
            NativeEngine(Bundle(tmp_path / "b"))
        with pytest.raises(BundleTamperedError):
            TorchEngine.open(Bundle(tmp_path / "b"))
    assert held is open_weights(original, native_library())


@pytest.mark.usefixtures("cache_of_all_examples")
@given(data=st.data())
@settings(max_examples=40)
def test_a_damaged_file_is_written_again(data: st.DataObject) -> None:
    bundle = compressed_bundle()
    whole = content(opened(bundle))
    file = weights_file(bundle, native_library())
    before = file.stat()
    kind = data.draw(st.sampled_from(["flip", "cut", "grow", "header", "nothing"]))
    if kind == "flip":
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    elif kind == "cut":
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    elif kind == "grow":
        damaged = whole + data.draw(st.binary(min_size=1, max_size=100))
    elif kind == "header":
        start = data.draw(st.binary(max_size=300))
        damaged = start + whole[len(start) :]
    else:
        damaged = b""
    file.write_bytes(damaged)
    os.utime(file, ns=(before.st_mtime_ns + 1, before.st_mtime_ns + 1))  # clocks of file systems are coarse
    assert content(opened(bundle)) == whole
    assert file.read_bytes() == whole


def test_a_moved_file_is_checked_and_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = compressed_bundle()
    first = content(opened(bundle))
    file = weights_file(bundle, native_library())
    copy = file.with_suffix(".copy")
    copy.write_bytes(first)
    os.replace(copy, file)
    monkeypatch.setattr(weights, "repacked", lambda *_: pytest.fail("written again"))
    assert content(opened(bundle)) == first
    assert weights._is_checked(file)


def test_without_a_writable_cache_weights_are_repacked_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits(compressed_bundle())
    (tmp_path / "file").touch()
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "file" / "cache"))
    assert np.array_equal(logits(compressed_bundle()), expected)


def test_a_complete_file_in_a_read_only_cache_is_mapped(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = compressed_bundle()
    whole, expected = content(opened(bundle)), logits(bundle)
    file = weights_file(bundle, native_library())
    monkeypatch.setattr(native_build, "folder_lock", cannot_be_written)
    monkeypatch.setattr(weights, "atomic_file", cannot_be_written)
    with monkeypatch.context() as patched:
        patched.setattr(weights, "repacked", lambda *_: pytest.fail("repacked again"))
        assert content(opened(bundle)) == whole
        weights._note_beside(file).unlink()  # as for a file that was copied there
        assert content(opened(bundle)) == whole
    damaged = whole[:-200] + bytes(200)
    file.write_bytes(damaged)
    assert np.array_equal(logits(bundle), expected)
    assert file.read_bytes() == damaged


def cannot_be_written(place: Path, *_: object, **__: object) -> NoReturn:
    raise PermissionError(errno.EROFS, "read-only file system", str(place))


def test_a_note_that_cannot_be_written_is_ignored(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = compressed_bundle()
    first = content(opened(bundle))
    note = weights._note_beside(weights_file(bundle, native_library()))
    note.unlink()
    note.mkdir()
    assert content(opened(bundle)) == first


def test_weights_that_differ_from_the_signed_ones_raise(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = write_compressed(tmp_path / "b", seed=11)
    file = bundle.path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(BundleTamperedError):
        opened(Bundle(bundle.path))
    assert not weights_file(bundle, native_library()).exists()
    monkeypatch.setattr(native_build, "folder_lock", cannot_be_written)
    with pytest.raises(BundleTamperedError):
        opened(Bundle(bundle.path))


@pytest.mark.parametrize("number", [2**36, 10**400], ids=["too much", "beyond counting"])
def test_a_huge_claimed_size_allocates_no_memory(
    number: int, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle is signed, so it was made on purpose."""
    monkeypatch.setattr(Bundle, "verify", lambda bundle: None)
    path = write_compressed(tmp_path / "b").path
    config = json.loads((path / "config.json").read_text())
    config["model"]["vocab_size"] = number
    (path / "config.json").write_text(json.dumps(config))
    sign_again(path)
    for _ in range(2):
        with pytest.raises(BundleError, match=r"embedding is U8 .*, expected U8"):
            opened(Bundle(path))
        monkeypatch.setattr(native_build, "folder_lock", cannot_be_written)


def test_concurrent_processes_write_one_file(cache: Path) -> None:
    bundle = compressed_bundle()
    processes = [
        subprocess.Popen([sys.executable, "-c", ANSWER, str(bundle.path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert answers[0] == answers[1] != ""
    assert [file.name for file in (cache / "weights").glob("*.bin")] == [weights_file(bundle, native_library()).name]


def test_the_least_recently_used_files_are_deleted(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MOST_FILES", 2)
    bundles = [write_compressed(tmp_path / str(seed), seed=seed) for seed in (1, 2, 3)]
    files = [weights_file(bundle, native_library()) for bundle in bundles]
    for number, bundle in enumerate(bundles[:2]):
        opened(bundle)
        os.utime(weights._note_beside(files[number]), (number, number))
    (cache / "weights" / ".some.bin.0123abcd").write_bytes(b"left by a writer that was killed")
    opened(bundles[0])  # used last, now
    opened(bundles[2])
    assert [file.exists() for file in files] == [True, False, True]
    assert not list((cache / "weights").glob(".*.bin.*"))
    monkeypatch.setattr(weights, "MOST_BYTES", 0)
    content(opened(bundles[1]))
    assert [file.exists() for file in files] == [False, True, False]


def test_a_mapped_file_stays_usable_after_deletion(cache: Path) -> None:
    found = opened(compressed_bundle())
    before = content(found)
    weights_file(compressed_bundle(), native_library()).unlink()
    assert content(found) == before
    assert ctypes.string_at(found.address("embedding"), 16)
