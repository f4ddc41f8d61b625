"""Mutated files of every format raise typed errors only, quickly, or are read; signed values never differ.

`make fuzz` mutates 20,000 files (OPENAFM_FUZZ_FILES); the suite runs a short form. A failure names the seed, file and a copy
of its folder; repeat it with OPENAFM_FUZZ_SEED.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import warnings
from pathlib import Path
from random import Random

import numpy as np
import pytest
from fuzz_targets import TARGETS, Target
from mutations import mutate
from time_limits import time_limit

from openafm.core.errors import OpenAFMError

NUM_FILES = int(os.environ.get("OPENAFM_FUZZ_FILES", "300"))
FIRST_SEED = int(os.environ.get("OPENAFM_FUZZ_SEED", "0"))
LIMIT_S = 10
RESEALED_SHARE = 0.6
MOST_FAILURES = 5


def restore(valid: dict[Path, bytes], folder: Path) -> None:
    for file, data in valid.items():
        if not file.is_file() or file.read_bytes() != data:
            file.write_bytes(data)
    for file in folder.rglob("*"):
        if file.is_file() and file not in valid:
            file.unlink()


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs SIGALRM")
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_mutated_files_raise_typed_errors_only(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    folder = tmp_path / "target"
    folder.mkdir()
    target.write(folder)
    values = target.read(folder)
    valid = {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
    failures: list[str] = []
    for seed in range(FIRST_SEED, FIRST_SEED + max(1, NUM_FILES // len(TARGETS))):
        rng = Random(f"{target.name} {seed}")
        file = rng.choice(list(valid))
        file.write_bytes(mutate(valid[file], rng))
        is_resealed = target.reseal is not None and rng.random() < RESEALED_SHARE
        if target.reseal is not None and is_resealed:
            with contextlib.suppress(Exception):  # data that cannot be resealed is read unchanged
                target.reseal(folder)
        try:
            with time_limit(LIMIT_S), warnings.catch_warnings(action="ignore"):
                found = target.read(folder)
            if target.has_values and not is_resealed:
                np.testing.assert_equal(found, values)
        except OpenAFMError:
            pass
        except Exception as error:
            kept = tmp_path / f"failure-{seed}"
            shutil.copytree(folder, kept)
            failures.append(f"seed {seed}, {file.name}: {type(error).__name__}: {error!s:.200} ({_where(error)}; {kept})")
        restore(valid, folder)
        if len(failures) >= MOST_FAILURES:
            break
    assert not failures, f"{target.name}:\n" + "\n".join(failures)


def _where(error: BaseException) -> str:
    """Return the innermost line of openafm that the error passed."""
    where, trace = "?", error.__traceback__
    while trace is not None:
        if "/openafm/" in trace.tb_frame.f_code.co_filename:
            where = f"{trace.tb_frame.f_code.co_filename.rpartition('/openafm/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where
