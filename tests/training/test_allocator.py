"""The C library's allocator: freed blocks are returned to the system."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import tiny_run, write_corpus

from openafm.training import initialization
from openafm.training.config import ActivationCheckpointingConfig

# Eight blocks of 6 MiB, each followed by one of 2 MiB that stays, as in a forward pass with recomputed layers. The first
# round of such blocks only raises the threshold from which glibc returns freed blocks.
KEPT_AFTER_FREEING = """
import ctypes, re, sys
from pathlib import Path
from openafm.training.allocator import return_freed_blocks

libc = ctypes.CDLL(None)
if sys.argv[1] == "returned":
    return_freed_blocks()

def allocated(size):
    block = ctypes.c_void_p()
    libc.posix_memalign(ctypes.byref(block), 64, ctypes.c_size_t(size << 20))
    return block

def data():
    return int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10

for _ in range(2):
    before, freed, kept = data(), [], []
    for _ in range(8):
        freed.append(allocated(6)), kept.append(allocated(2))
    for block in freed:
        libc.free(block)
    after = data() - before
    for block in kept:
        libc.free(block)
print(after)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_freed_blocks_between_kept_ones_are_returned() -> None:
    kept = {}
    for mode in ("returned", "default"):
        command = [sys.executable, "-c", KEPT_AFTER_FREEING, mode]
        kept[mode] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert kept["returned"] <= 20, "16 MiB are in use"
    assert kept["default"] >= 60, "else the setting is not needed any more"


def test_only_recomputed_runs_on_a_cpu_return_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(initialization, "return_freed_blocks", lambda: calls.append(True))
    config = tiny_run(write_corpus(tmp_path))
    initialization.fresh_state(config, "cpu")
    assert calls == []
    initialization.fresh_state(tiny_run(config.data, activation_checkpointing=ActivationCheckpointingConfig()), "cpu")
    assert calls == [True]
