"""The key of a user's saved keys and values."""

from __future__ import annotations

from pathlib import Path

import pytest

from openafm.core import user_key as module
from openafm.core.user_key import user_key


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    return tmp_path / "session.key"


def test_a_key_is_created_once(path: Path) -> None:
    key = user_key()
    assert key is not None
    assert (user_key(), path.read_bytes(), path.stat().st_mode & 0o777) == (key, key, 0o600)
    assert list(path.parent.iterdir()) == [path]


def test_the_key_of_the_first_of_two_processes_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other: list[bytes | None] = []
    create = module._create

    def create_after_another_process(place: Path) -> None:
        monkeypatch.setattr(module, "_create", create)
        other.append(user_key())  # between the reading of this process, which finds none, and its writing
        create(place)

    monkeypatch.setattr(module, "_create", create_after_another_process)
    assert user_key() == other[0] == path.read_bytes()
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("content", "mode"), [(b"short", 0o600), (b"k" * 32, 0o644)])
def test_a_key_of_the_wrong_size_or_that_others_can_read_is_replaced(path: Path, content: bytes, mode: int) -> None:
    path.write_bytes(content)
    path.chmod(mode)
    key = user_key()
    assert key not in (None, content)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (key, 0o600)
