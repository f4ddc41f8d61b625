"""Atomic files and folders, and the lock of a folder, under failure."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openafm.core.files import FolderInUseError, NoFileError, OutOfSpaceError, atomic_file, atomic_folder, folder_lock


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(ValueError, match="stop"), atomic_file(tmp_path / "a", "w") as file:
        file.write("new")
        raise ValueError("stop")
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_folder_is_replaced_whole(tmp_path: Path) -> None:
    for content in ("one", "two"):
        with atomic_folder(tmp_path / "bundle") as folder:
            (folder / content).write_text(content)
            if content == "two":
                assert names(tmp_path / "bundle") == ["one"]
    assert names(tmp_path / "bundle") == ["two"]
    assert names(tmp_path) == ["bundle"]


def test_full_disk_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(OutOfSpaceError, match="bundle"), atomic_folder(tmp_path / "bundle"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert names(tmp_path) == []


def test_a_really_full_device_is_a_typed_error(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with pytest.raises(OutOfSpaceError), atomic_file(tmp_path / "a", "w"), Path("/dev/full").open("w") as full:
        full.write("x" * 100_000)
    assert names(tmp_path) == []


def test_second_holder_of_a_lock_is_told_who_has_it(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from openafm.core.files import folder_lock\n"
        f"with folder_lock(Path({str(tmp_path)!r})): pass"
    )
    with folder_lock(tmp_path):
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert FolderInUseError.__name__ in other.stderr
        assert str(os.getpid()) in other.stderr
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_what_is_written_is_as_readable_as_other_files(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "file").touch()
    with atomic_folder(tmp_path / "folder") as folder, atomic_file(folder / "file") as file:
        file.write(b"x")
    for name in ("", "file"):
        assert (tmp_path / "folder" / name).stat().st_mode == (tmp_path / "plain" / name).stat().st_mode


def test_where_folders_cannot_be_swapped_a_failed_rename_puts_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "old").touch()
    renamed = os.replace
    calls = []

    def replace(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.EIO, "broken")
        renamed(source, target)

    monkeypatch.setattr("openafm.core.files._exchange", lambda *_: False)
    monkeypatch.setattr("os.replace", replace)
    with pytest.raises(OSError, match="broken"), atomic_folder(tmp_path / "bundle") as folder:
        (folder / "new").touch()
    assert names(tmp_path / "bundle") == ["old"]
    assert names(tmp_path) == ["bundle"]
    with atomic_folder(tmp_path / "bundle") as folder:
        (folder / "new").touch()
    assert names(tmp_path / "bundle") == ["new"]
    assert names(tmp_path) == ["bundle"]


@pytest.mark.parametrize("name", ["folder", "/dev/null"])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(NoFileError, match="is there and is no file"), atomic_file(tmp_path / name) as file:
        file.write(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
