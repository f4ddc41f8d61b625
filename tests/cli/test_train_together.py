"""`openafm train` under torchrun: rank 0 packs, writes and prints; an error is printed once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("train_together")

TIMEOUT_S = 300
SMALL = {
    "tokenizer.vocab_size": "320",
    "trainer.budget.num_steps": "3",
    "trainer.data.row_tokens": "64",
    "trainer.log_every": "1",
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijkl", k=chance.randint(2, 8))) for _ in range(400)]
    folder = tmp_path_factory.mktemp("texts")
    (folder / "words.txt").write_text(" ".join(chance.choices(words, k=8000)), encoding="utf-8")
    return folder


def torchrun(num_processes: int, texts: Path, folder: Path, changes: dict[str, str]) -> subprocess.CompletedProcess[str]:
    sets = [part for key, value in (SMALL | changes).items() for part in ("--set", f"{key}={value}")]
    options = ["--size", "micro", "--data", str(texts), "--output", str(folder / "run"), "--json", *sets]
    torchrun_options = ["--standalone", "--nproc-per-node", str(num_processes), "-m"]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *torchrun_options, "openafm", "train", "server.pretrain", *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENAFM_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.mark.slow
def test_two_processes_write_one_bundle_and_print_one_result(texts: Path, tmp_path: Path) -> None:
    done = torchrun(2, texts, tmp_path, {"trainer.parallel.track": "2"})
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result["steps"] == 3
    assert (Path(result["bundle"]) / "config.json").is_file()
    assert done.stderr.count("training: started") == 1
    assert done.stderr.count("pack ") == done.stderr.count(f"pack {texts}")
    log = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log if "loss" in entry] == [1, 2, 3]


@pytest.mark.slow
def test_an_invalid_mesh_is_reported_once_before_anything_is_written(texts: Path, tmp_path: Path) -> None:
    done = torchrun(2, texts, tmp_path, {"trainer.parallel.expert": "2", "trainer.parallel.track": "2"})
    assert done.returncode != 0
    assert done.stderr.count("openafm: ") == 1, done.stderr
    assert "takes a multiple of 4 processes, there are 2" in done.stderr
    assert "exitcode  : 2" in done.stderr
    assert not (tmp_path / "run").exists()
