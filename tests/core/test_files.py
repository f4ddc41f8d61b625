"""Atomic files and folders, and the lock of a folder, under failure."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openafm.core.files import (
    ForeignFilesError,
    OutOfSpaceError,
    atomic_file,
    atomic_folder,
    file_digest,
    foreign_files,
    lines_of,
    remove_written,
)
from openafm.core.folder_lock import FolderInUseError, folder_lock
from openafm.core.regular_files import (
    NotAFileError,
    OversizeFilesError,
    check_regular,
    copy_files,
    open_regular,
    read_document,
)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(ValueError, match="stop"), atomic_file(tmp_path / "a", "w") as file:
        file.write("new")
        raise ValueError("stop")
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_folder_is_replaced_atomically(tmp_path: Path) -> None:
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


def test_a_write_error_of_a_full_device_is_typed(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with pytest.raises(OutOfSpaceError), atomic_file(tmp_path / "a", "w"), Path("/dev/full").open("w") as full:
        full.write("x" * 100_000)
    assert names(tmp_path) == []


def test_the_error_of_a_held_lock_names_the_process(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from openafm.core.folder_lock import folder_lock\n"
        f"with folder_lock(Path({str(tmp_path)!r})): pass"
    )
    with folder_lock(tmp_path):
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert FolderInUseError.__name__ in other.stderr
        assert str(os.getpid()) in other.stderr
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_lock_of_a_failed_block_leaves_no_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for folder in ("kept", "new/inner", "filled/inner"):
        with pytest.raises(RuntimeError), folder_lock(tmp_path / folder):
            if folder.startswith("filled"):
                (tmp_path / folder / "file").touch()
            raise RuntimeError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["filled", "kept"]
    assert (tmp_path / "filled" / "inner" / "file").is_file()
    with folder_lock(tmp_path / "new"):
        pass
    assert (tmp_path / "new" / ".lock").is_file()


def test_written_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "file").touch()
    with atomic_folder(tmp_path / "folder") as folder, atomic_file(folder / "file") as file:
        file.write(b"x")
    for name in ("", "file"):
        assert (tmp_path / "folder" / name).stat().st_mode == (tmp_path / "plain" / name).stat().st_mode


def test_without_an_atomic_swap_a_failed_rename_restores_the_old_folder(
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
def test_folders_and_devices_are_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(NotAFileError, match="exists and is not a regular file"), atomic_file(tmp_path / name) as file:
        file.write(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_replaced_file_keeps_its_permissions_and_a_private_one_is_never_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    for permissions in (0o600, 0o640, 0o444):
        path.chmod(permissions)
        with atomic_file(path) as file:
            file.write(b"x")
        assert mode_of(path) == permissions
    with atomic_file(tmp_path / "private", permissions=0o600) as file:
        (temporary,) = tmp_path.glob(".private.*")
        assert mode_of(temporary) == 0o600
        file.write(b"x")
    assert mode_of(tmp_path / "private") == 0o600


def test_files_of_an_atomic_folder_get_the_permissions_of_the_umask(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "weights").touch(0o600)
    (tmp_path / "plain").touch()
    assert mode_of(tmp_path / "folder" / "sub" / "weights") == mode_of(tmp_path / "plain")


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "FIFO"])
def test_the_lock_of_a_folder_never_writes_to_another_file(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "thesis.txt"
    target.write_text("ten years")
    folder = tmp_path / "run"
    folder.mkdir()
    lock = folder / ".lock"
    match kind:
        case "symbolic link":
            lock.symlink_to(target)
        case "hard link":
            lock.hardlink_to(target)
        case _:
            os.mkfifo(lock)
    with pytest.raises(NotAFileError), folder_lock(folder):
        pass
    assert target.read_text() == "ten years"


def test_only_regular_files_below_the_root_are_opened_and_copied(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "file").write_text("content")
    (tmp_path / "secret").write_text("secret")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path)
    os.mkfifo(root / "fifo")
    with open_regular(root, "sub/file") as file:
        assert file.read() == b"content"
    for name in ("link", "folder/secret", "../secret", "fifo", "sub", "/dev/null"):
        with pytest.raises(NotAFileError):
            open_regular(root, name)
    (tmp_path / "target").mkdir()
    with pytest.raises(OversizeFilesError, match="more than the 6 bytes"):
        copy_files(root, tmp_path / "target", ["sub/file"], max_bytes=6)
    (tmp_path / "target" / "sub" / "file").unlink()
    copy_files(root, tmp_path / "target", ["sub/file"], max_bytes=7)
    assert (tmp_path / "target" / "sub" / "file").read_text() == "content"


def test_a_folder_with_files_of_others_is_not_removed(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    (folder / "draft").mkdir(parents=True)
    patterns = ("metadata.json", "draft/*.json")
    for name in ("metadata.json", "draft/a.json"):
        (folder / name).touch()
    for foreign in ("thesis.txt", "draft/thesis.txt", "more/metadata.json", "draft/a.json.txt"):
        (folder / foreign).parent.mkdir(exist_ok=True)
        (folder / foreign).touch()
        assert foreign in foreign_files(folder, patterns)
        with pytest.raises(ForeignFilesError, match="did not write"):
            remove_written(folder, patterns)
        (folder / foreign).unlink()
    (folder / "more").rmdir()
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(ForeignFilesError, match="symbolic link"):
        remove_written(tmp_path / "link", patterns)
    remove_written(folder, patterns)
    assert not folder.exists()


def test_documents_are_regular_files_of_a_limited_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "device").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo")
    for name in ("file", "link"):
        assert read_document(tmp_path / name, 5) == b"12345"
        check_regular(tmp_path / name)
    for name in ("device", "fifo", "."):
        for read in (read_document, check_regular, file_digest):
            with pytest.raises(NotAFileError, match="not a regular file"):
                read(tmp_path / name)
    with pytest.raises(OversizeFilesError, match="more than the 4 bytes"):
        read_document(tmp_path / "file", 4)
    assert read_document(tmp_path / "file", None) == b"12345"


def test_lines_end_only_at_a_line_feed() -> None:
    line = json.dumps({"text": "a\u2028b\x85c\x1dd"}, ensure_ascii=False)
    assert [json.loads(each) for each in lines_of(f"{line}\n{line}\n")] == [json.loads(line)] * 2
    assert lines_of("") == []
    assert lines_of("a\n\nb") == ["a", "", "b"]
