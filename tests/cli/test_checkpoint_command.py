"""`openafm checkpoint` on a run of two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openafm.bundle import open_bundle
from openafm.cli.main import run
from openafm.training.checkpoints.checkpoint import open_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("checkpoint_command")]

CHANGES = {
    "tokenizer.vocab_size": "320",
    "trainer.budget": '{"type": "StepBudget", "num_steps": 4}',
    "trainer.checkpoint.every_steps": "2",
    "trainer.data.rows_per_step": "2",
    "trainer.data.row_tokens": "64",
    "trainer.parallel.track": "2",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over two tracks, each in a process of its own, that ended with the bundle `whole` and was damaged since."""
    place = tmp_path_factory.mktemp("place")
    (place / "text").mkdir()
    (place / "text" / "words.txt").write_text("\n\n".join(f"the number {n} comes before {n + 1}" for n in range(400)))
    command = ["train", "server.pretrain", "--size", "micro", "--processes", "2", "--data", str(place / "text")]
    options = [word for change in CHANGES.items() for word in ("--set", "=".join(change))]
    done = subprocess.run(
        [sys.executable, "-m", "openafm", *command, *options, "--output", str(place / "run"), "--name", "whole", "--json"],
        env={**os.environ, "OPENAFM_HOME": str(place / "home"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()  # only rank 0 prints
    assert json.loads(line)["steps"] == 4
    assert done.stderr.count("training: started") == 1
    assert done.stderr.count("pack ") == done.stderr.count(f"pack {place / 'text'}") > 0
    file = place / "run" / "checkpoints" / "step-00000004" / "rank-00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    return place


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(["checkpoint", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_marks_damaged_checkpoints(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged, whole = output_of(capsys, "list", str(place / "run"))
    assert (damaged["step"], whole["step"], whole["damage"]) == (4, 2, None)
    assert "rank-00001-of-00002.safetensors was changed" in damaged["damage"]
    assert (whole["format"], whole["num_processes"], whole["layout"]) == ("parts", 2, "track 2")
    assert whole["num_bytes"] > 1_000_000
    assert run(["checkpoint", "list", str(place / "run")]) == 0
    assert "step-00000002" in capsys.readouterr().out
    assert run(["checkpoint", "list", str(place)]) == 1
    assert "is not the folder of a run" in capsys.readouterr().err


def test_consolidate_uses_the_newest_undamaged_checkpoint(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(place / "home"))
    made = output_of(capsys, "consolidate", str(place / "run"), "--name", "so_far")
    assert (made["step"], made["num_steps"], Path(made["checkpoint"]).name) == (2, 4, "step-00000002")
    so_far, whole = open_bundle("so_far"), open_bundle("whole")
    so_far.verify()
    assert so_far.config == whole.config
    assert so_far.tokenizer.digest == whole.tokenizer.digest
    assert so_far.signature == made["signature"] != whole.signature
    saved = open_checkpoint(Path(made["checkpoint"])).weights()
    tensors = so_far.tensors()
    assert tensors.keys() == saved.keys() == whole.tensors().keys()
    assert all(np.array_equal(tensors[name], weight.numpy()) for name, weight in saved.items())


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "consolidate", str(tmp_path), "--name", "none"]) == 2
    assert "it has no run.json" in capsys.readouterr().err
