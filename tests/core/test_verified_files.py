"""Files are compared with their digests once per machine, as long as nothing about them changes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from openafm.core import verified_files
from openafm.core.verified_files import compare_once

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no change time")


class Files:
    """Two files, and how often they were compared."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / "a", folder / "b"]
        for path in self.paths:
            path.write_bytes(b"content")
        self.num_compared = 0

    def compare(self, digest: str = "d", most_age_s: float = 1000) -> int:
        """Compare them as a new process does; return how often they were compared until now."""

        def compare() -> None:
            self.num_compared += 1

        compare_once(digest, self.paths, compare, most_age_s=most_age_s)
        return self.num_compared


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(verified_files, "RECENT_SECONDS", 0.0)
    (tmp_path / "files").mkdir()
    return Files(tmp_path / "files")


def markers() -> Path:
    return Path(os.environ["OPENAFM_CACHE"]) / "verified"


def test_unchanged_files_are_compared_once(files: Files) -> None:
    assert [files.compare(), files.compare(), files.compare()] == [1, 1, 1]
    assert markers().stat().st_mode & 0o777 == 0o700


def test_a_changed_byte_with_its_old_size_and_time_is_found(files: Files) -> None:
    files.compare()
    before = files.paths[1].stat()
    time.sleep(0.02)  # more than the resolution of a file system's clock
    with files.paths[1].open("r+b") as file:
        file.write(b"C")
    os.utime(files.paths[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    after = files.paths[1].stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert files.compare() == 2


def test_a_file_in_the_place_of_another_is_found(files: Files) -> None:
    files.compare()
    files.paths[0].rename(files.paths[0].with_name("moved"))
    files.paths[1].rename(files.paths[0])
    files.paths[0].with_name("moved").rename(files.paths[1])
    assert files.compare() == 2


def test_another_digest_is_compared(files: Files) -> None:
    files.compare()
    assert files.compare("e") == 2


def test_a_failed_comparison_is_not_remembered(files: Files) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        compare_once("d", files.paths, fail)
    assert files.compare() == 1


def test_a_change_during_the_comparison_is_not_remembered(files: Files) -> None:
    compare_once("d", files.paths, lambda: files.paths[0].write_bytes(b"longer content"))
    assert files.compare() == 1


def test_files_that_changed_just_now_are_not_remembered(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified_files, "RECENT_SECONDS", 60.0)
    assert [files.compare(), files.compare()] == [1, 2]
    assert not markers().exists()


def test_a_marker_is_valid_for_a_time(files: Files) -> None:
    files.compare()
    (marker,) = markers().iterdir()
    os.utime(marker, (time.time() - 2000, time.time() - 2000))
    assert [files.compare(), files.compare()] == [2, 2], "compared again, then remembered again"
    os.utime(marker, (time.time() + 2000, time.time() + 2000))
    assert files.compare() == 3, "the clock was set back"


def test_markers_that_others_may_write_are_not_used(files: Files) -> None:
    files.compare()
    markers().chmod(0o777)
    assert files.compare() == 2


def test_a_missing_or_damaged_cache_only_costs_time(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.compare()
    (marker,) = markers().iterdir()
    marker.unlink()
    assert files.compare() == 2
    marker.write_text("damaged")
    assert files.compare() == 2, "a marker has no content"
    monkeypatch.setenv("OPENAFM_CACHE", str(files.paths[0]))
    assert [files.compare(), files.compare()] == [3, 4]
