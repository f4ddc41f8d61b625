"""Checkpoints: whole, verified, of this run, and harmless when the disk is full."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_runs import tiny_run, write_corpus

from openafm.training.checkpoints.checkpoint import (
    AnotherRunError,
    CheckpointError,
    DamagedCheckpointError,
    checkpoint_paths,
    newest_checkpoint,
    open_checkpoint,
    quarantine_newer,
    remove_leftovers,
)
from openafm.training.checkpoints.writer import checkpoint_writer, write_checkpoint
from openafm.training.config import AdamWConfig, CheckpointConfig, EMAConfig, TrainerConfig
from openafm.training.initialization import fresh_state
from openafm.training.snapshot import TrainingSnapshot

DIGEST = "data"


@pytest.fixture
def config(tmp_path: Path) -> TrainerConfig:
    return tiny_run(write_corpus(tmp_path / "corpus", num_documents=8), ema=EMAConfig())


def snapshot_at(config: TrainerConfig, step: int) -> TrainingSnapshot:
    return replace(fresh_state(config, "cpu").snapshot(), step=step, num_tokens=7 * step, seconds=0.5)


def notes_and_newest(folder: Path, config: TrainerConfig) -> tuple[list[str], TrainingSnapshot | None]:
    notes: list[str] = []
    found = newest_checkpoint(folder, config, DIGEST, notes.append)
    return notes, None if found is None else found.read()


def test_what_is_written_is_read_and_only_the_newest_are_kept(tmp_path: Path, config: TrainerConfig) -> None:
    for step in (3, 6, 9, 100_000_000):
        written = snapshot_at(config, step)
        write_checkpoint(tmp_path / "c", config, written, DIGEST)
    assert [path.name for path in checkpoint_paths(tmp_path / "c")] == ["step-100000000", "step-00000009"]
    notes, read = notes_and_newest(tmp_path / "c", config)
    assert notes == []
    assert read is not None
    assert (read.step, read.num_steps, read.num_tokens, read.seconds) == (100_000_000, 12, 700_000_000, 0.5)
    for group, tensors in written.tensors.items():
        assert all(torch.equal(tensor, read.tensors[group][name]) for name, tensor in tensors.items())
    assert not list((tmp_path / "c").rglob("*.p*t"))  # no pickle: .pt, .pkl, .pickle


def test_a_damaged_newer_checkpoint_does_not_cost_the_one_just_written(tmp_path: Path, config: TrainerConfig) -> None:
    config = replace(config, checkpoint=CheckpointConfig(keep=1))
    write_checkpoint(tmp_path, config, snapshot_at(config, 5), DIGEST)
    (tmp_path / "step-00000005" / "model.safetensors").write_bytes(b"damaged")
    for step in (2, 3):
        write_checkpoint(tmp_path, config, snapshot_at(config, step), DIGEST)
        _, read = notes_and_newest(tmp_path, config)
        assert read is not None
        assert read.step == step
    assert [path.name for path in checkpoint_paths(tmp_path)] == ["step-00000005", "step-00000003"]
    quarantine_newer(tmp_path, 3)
    assert [path.name for path in checkpoint_paths(tmp_path)] == ["step-00000003"]
    assert (tmp_path / "damaged-step-00000005").exists()


def test_checkpoints_are_ordered_by_step_beyond_eight_digits(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000, 7):
        (tmp_path / f"step-{step:08}").mkdir()
    assert [path.name for path in checkpoint_paths(tmp_path)] == ["step-100000000", "step-99999999", "step-00000007"]


@pytest.mark.parametrize("name", ["../model.safetensors", "/model.safetensors", "..", "record.json", ""])
def test_a_record_names_files_of_its_own_folder_only(tmp_path: Path, config: TrainerConfig, name: str) -> None:
    path = write_checkpoint(tmp_path, config, snapshot_at(config, 3), DIGEST)
    record = json.loads((path / "record.json").read_text())
    record["files"][name] = record["files"]["model.safetensors"]
    (path / "record.json").write_text(json.dumps(record))
    with pytest.raises(DamagedCheckpointError, match="plain names"):
        open_checkpoint(path)


def test_checkpoints_of_version_1_are_read(tmp_path: Path, config: TrainerConfig) -> None:
    path = write_checkpoint(tmp_path, config, snapshot_at(config, 3), DIGEST)
    record = json.loads((path / "record.json").read_text())
    assert record.pop("num_processes") == 1
    (path / "record.json").write_text(json.dumps(record | {"version": 1}))
    assert open_checkpoint(path).load().step == 3
    (path / "record.json").write_text(json.dumps(record | {"version": 3}))
    with pytest.raises(DamagedCheckpointError, match="version 3, this openafm reads"):
        open_checkpoint(path)


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "record"])
def test_a_damaged_checkpoint_is_passed_over_with_a_note(tmp_path: Path, config: TrainerConfig, damage: str) -> None:
    for step in (3, 6):
        write_checkpoint(tmp_path, config, snapshot_at(config, step), DIGEST)
    file = tmp_path / "step-00000006" / ("record.json" if damage == "record" else "model.safetensors")
    content = bytearray(file.read_bytes())
    match damage:
        case "truncate" | "record":
            file.write_bytes(content[: len(content) // 2])
        case "flip":
            content[-1] ^= 1
            file.write_bytes(content)
        case "remove":
            file.unlink()
    notes, read = notes_and_newest(tmp_path, config)
    assert read is not None
    assert read.step == 3
    assert len(notes) == 1
    assert "step-00000006" in notes[0]
    with pytest.raises(DamagedCheckpointError):
        open_checkpoint(tmp_path / "step-00000006").load()


def test_another_config_is_refused_by_its_key_and_harmless_keys_are_not(tmp_path: Path, config: TrainerConfig) -> None:
    write_checkpoint(tmp_path, config, snapshot_at(config, 3), DIGEST)
    other = replace(config, optimizer=AdamWConfig(learning_rate=3e-3, betas=(0.9, 0.999)))
    with pytest.raises(AnotherRunError, match=r"optimizer.betas\[1\] is 0.95, not 0.999"):
        newest_checkpoint(tmp_path, other, DIGEST, print)
    with pytest.raises(AnotherRunError, match=r"ema is .*decay.*, not None"):
        newest_checkpoint(tmp_path, replace(config, ema=None), DIGEST, print)
    harmless = replace(config, log_every=7, checkpoint=CheckpointConfig(keep=9))
    assert newest_checkpoint(tmp_path, harmless, DIGEST, print) is not None


def test_other_data_is_refused(tmp_path: Path, config: TrainerConfig) -> None:
    write_checkpoint(tmp_path, config, snapshot_at(config, 3), DIGEST)
    with pytest.raises(AnotherRunError, match="other data"):
        newest_checkpoint(tmp_path, config, "other", print)


def test_what_killed_writers_left_is_removed(tmp_path: Path, config: TrainerConfig) -> None:
    write_checkpoint(tmp_path, config, snapshot_at(config, 3), DIGEST)
    (tmp_path / ".step-00000006.abc").mkdir()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".step", "step"))] == ["step-00000003"]


def test_an_error_in_the_background_surfaces(tmp_path: Path, config: TrainerConfig) -> None:
    (tmp_path / "file").write_text("where the folder should be")
    with (
        pytest.raises(OSError, match="file"),
        checkpoint_writer(tmp_path / "file", config, DIGEST) as writer,
    ):
        writer.on_save(snapshot_at(config, 3))
    with pytest.raises(CheckpointError), checkpoint_writer(tmp_path, config, DIGEST):
        raise CheckpointError("an error in the block is not hidden")


FILL_THE_DISK = """
import sys
from pathlib import Path
from openafm.core.config import from_dict
from openafm.core.files import OutOfSpaceError
from openafm.training.checkpoints.checkpoint import checkpoint_paths, newest_checkpoint
from openafm.training.run import train
from tiny_runs import tiny_run, write_corpus
disk, corpus = Path(sys.argv[1]), Path(sys.argv[2])
config = tiny_run(write_corpus(corpus), num_steps=200)
try:
    train(config, disk / "run")
except OutOfSpaceError as error:
    print("error:", error)
left = [path.name for path in (disk / "run" / "checkpoints").iterdir() if path.name.startswith(".step")]
snapshot = newest_checkpoint(disk / "run" / "checkpoints", config, config.data.build().digest, print)
print("leftovers:", left)
print("step:", snapshot.record.step)
"""


def test_a_full_disk_is_a_typed_error_and_the_checkpoint_before_stays(tmp_path: Path) -> None:
    """On a real file system of its own, large enough for one checkpoint and not for two."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=450k tmpfs {disk}"
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("this system does not let a user mount a file system of his own")
    script = tmp_path / "fill.py"
    script.write_text(FILL_THE_DISK)
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{mount} && exec {sys.executable} {script} {disk} {tmp_path / 'corpus'}"],
        env={"PYTHONPATH": ":".join([str(Path(__file__).parents[1]), *sys.path]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "error: no space left on the disk while writing" in done.stdout
    assert "leftovers: []" in done.stdout
    assert int(done.stdout.rsplit("step: ", 1)[1]) > 0
