"""FIFOs, devices, folders and circular links in the place of files are typed errors: reading one may never end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz_targets import TARGETS, Target
from time_limits import time_limit

from openafm.core.errors import OpenAFMError

LIMIT_S = 5
KINDS: dict[str, Callable[[Path], None]] = {
    "FIFO": os.mkfifo,
    "device": lambda file: file.symlink_to("/dev/zero"),
    "folder": lambda file: file.mkdir(),
    "circle": lambda file: file.symlink_to(file),
}


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs SIGALRM")
@pytest.mark.parametrize("target", [target for target in TARGETS if target.reads_paths], ids=lambda target: target.name)
def test_special_files_are_typed_errors(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    folder = tmp_path / "target"
    folder.mkdir()
    target.write(folder)
    untyped = []
    for file in [file for file in sorted(folder.rglob("*")) if file.is_file()]:
        content = file.read_bytes()
        for name, put in KINDS.items():
            file.unlink()
            put(file)
            try:
                with time_limit(LIMIT_S):
                    target.read(folder)
            except OpenAFMError:
                pass
            except Exception as error:
                untyped.append(f"{file.name} as a {name}: {error!r:.200}")
            file.rmdir() if name == "folder" else file.unlink()
            file.write_bytes(content)
    assert not untyped, "\n".join(untyped)
