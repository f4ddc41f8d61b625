"""Folders in pieces of bounded size."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from openafm.core.files import ForeignFilesError
from openafm.core.pieces import SUMS, PieceError, join_pieces, write_pieces


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "bundles"
    for name, size in {"one/model": 30_000, "one/card.md": 7, "two/model": 12_345, "empty": 0}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(random.Random(name).randbytes(size))
    return source


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("piece_bytes", [4_096, 20_480, 1 << 20])
def test_joined_pieces_are_the_folder(tmp_path: Path, folder: Path, piece_bytes: int) -> None:
    pieces = write_pieces(folder, tmp_path / "pieces", piece_bytes)
    assert max(file.stat().st_size for file in pieces) <= piece_bytes
    assert {file.name for file in (tmp_path / "pieces").iterdir()} == {SUMS, *(file.name for file in pieces)}
    found = join_pieces(tmp_path / "pieces", tmp_path / "joined")
    assert [path.name for path in found] == ["empty", "one", "two"]
    assert content(tmp_path / "joined") == content(folder)


def test_pieces_are_a_tar_archive_with_sums(tmp_path: Path, folder: Path) -> None:
    """Without openafm, the tools of any Unix join them."""
    write_pieces(folder, tmp_path / "pieces", 10_000)
    command = f"cd {tmp_path}/pieces && sha256sum -c {SUMS} && mkdir ../joined && cat bundles.tar.* | tar x -C ../joined"
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert content(tmp_path / "joined") == content(folder)


def test_damaged_and_missing_pieces_are_named(tmp_path: Path, folder: Path) -> None:
    pieces = write_pieces(folder, tmp_path / "pieces", 10_000)
    whole = pieces[1].read_bytes()
    pieces[1].write_bytes(whole[:-1] + b"!")
    with pytest.raises(PieceError, match=r"bundles\.tar\.01 has other bytes"):
        join_pieces(tmp_path / "pieces", tmp_path / "joined")
    pieces[1].unlink()
    with pytest.raises(PieceError, match=r"lists 'bundles\.tar\.01', which .* does not have"):
        join_pieces(tmp_path / "pieces", tmp_path / "joined")
    pieces[1].write_bytes(whole)
    (tmp_path / "pieces" / SUMS).write_text(f"{'0' * 64}  ../bundles/empty\n")
    with pytest.raises(PieceError, match="does not have"):
        join_pieces(tmp_path / "pieces", tmp_path / "joined")
    (tmp_path / "pieces" / SUMS).write_bytes(b"\xff\n")
    with pytest.raises(PieceError, match="not UTF-8"):
        join_pieces(tmp_path / "pieces", tmp_path / "joined")
    (tmp_path / "pieces" / SUMS).unlink()
    with pytest.raises(PieceError, match="has no SHA256SUMS"):
        join_pieces(tmp_path / "pieces", tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path, folder: Path) -> None:
    (folder / "one" / "model [2].bin").write_bytes(b"2")
    write_pieces(folder, tmp_path / "pieces", 10_000)
    joined = tmp_path / "joined"
    join_pieces(tmp_path / "pieces", joined)
    (joined / "one" / "card.md").write_text("changed")
    join_pieces(tmp_path / "pieces", joined)
    assert content(joined) == content(folder)
    (joined / "own.txt").write_text("mine")
    with pytest.raises(ForeignFilesError, match=r"own\.txt"):
        join_pieces(tmp_path / "pieces", joined)
    assert (joined / "own.txt").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"bundles", "pieces", "joined"}
