"""Checkpoints: complete, verified, of the same run; errors of a full disk."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_runs import tiny_run, write_corpus

from openafm.core.files import file_digest
from openafm.training.checkpoints.checkpoint import open_checkpoint
from openafm.training.checkpoints.folder import checkpoint_paths, newest_checkpoint, quarantine_newer, remove_incomplete
from openafm.training.checkpoints.record import AnotherRunError, CheckpointError, DamagedCheckpointError, record_digest
from openafm.training.checkpoints.writer import checkpoint_writer, write_checkpoint
from openafm.training.config import CheckpointConfig, EMAConfig, TrainerConfig
from openafm.training.initialization import fresh_state
from openafm.training.optimizer_config import AdamWConfig
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


def test_the_newest_checkpoints_are_kept_and_read_back(tmp_path: Path, config: TrainerConfig) -> None:
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


def test_a_damaged_newer_checkpoint_does_not_replace_the_one_just_written(tmp_path: Path, config: TrainerConfig) -> None:
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


def rewrite_record(path: Path, **changes: object) -> None:
    """Change a record and give it a valid digest."""
    values = json.loads((path / "record.json").read_text()) | changes
    (path / "record.json").write_text(json.dumps(values | {"digest": record_digest(values)}))


@pytest.mark.parametrize("name", ["../model.safetensors", "/model.safetensors", "..", "record.json", ""])
def test_a_record_lists_files_of_its_own_folder_only(tmp_path: Path, config: TrainerConfig, name: str) -> None:
    path = write_checkpoint(tmp_path, config, snapshot_at(config, 3), DIGEST)
    files = json.loads((path / "record.json").read_text())["files"]
    rewrite_record(path, files=files | {name: "0" * 64})
    with pytest.raises(DamagedCheckpointError, match="plain names"):
        open_checkpoint(path)


def test_checkpoints_of_older_versions_are_read(tmp_path: Path, config: TrainerConfig) -> None:
    path = write_checkpoint(tmp_path, config, snapshot_at(config, 3), DIGEST)
    record = json.loads((path / "record.json").read_text())
    assert all(checksum.startswith("crc32:") for checksum in record["files"].values())
    older = {name: file_digest(path / name) for name in record["files"]}
    rewrite_record(path, files=older, version=3)
    assert open_checkpoint(path).load().step == 3
    rewrite_record(path, files=older | {"model.safetensors": "0" * 64}, version=3)
    with pytest.raises(DamagedCheckpointError, match=r"model\.safetensors was changed"):
        open_checkpoint(path).load()
    del record["digest"], older["config.json"]
    record["files"] = older
    (path / "record.json").write_text(json.dumps(record | {"version": 2}))
    assert open_checkpoint(path).load().step == 3
    assert record.pop("num_processes") == 1
    (path / "record.json").write_text(json.dumps(record | {"version": 1}))
    assert open_checkpoint(path).load().step == 3
    (path / "record.json").write_text(json.dumps(record | {"version": 5}))
    with pytest.raises(DamagedCheckpointError, match="version 5; this openafm reads"):
        open_checkpoint(path)


@pytest.mark.parametrize("key", ["step", "num_steps", "num_tokens", "data_digest"])
def test_a_changed_record_is_damage(tmp_path: Path, config: TrainerConfig, key: str) -> None:
    path = write_checkpoint(tmp_path, config, snapshot_at(config, 3), DIGEST)
    record = json.loads((path / "record.json").read_text())
    record[key] = "other" if key == "data_digest" else record[key] + 1
    (path / "record.json").write_text(json.dumps(record))
    with pytest.raises(DamagedCheckpointError, match=r"record\.json was changed"):
        open_checkpoint(path)


def test_a_changed_config_is_damage(tmp_path: Path, config: TrainerConfig) -> None:
    path = write_checkpoint(tmp_path, config, snapshot_at(config, 3), DIGEST)
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text.replace('"seed": 0', '"seed": 1', 1))
    with pytest.raises(DamagedCheckpointError, match=r"config\.json was changed"):
        open_checkpoint(path).load()


def test_mutated_checkpoints_are_damage_and_never_other_values(tmp_path: Path, config: TrainerConfig) -> None:
    path = write_checkpoint(tmp_path, config, fresh_state(config, "cpu").snapshot(), DIGEST)
    wanted = open_checkpoint(path).load()
    choose, files = random.Random(3), sorted(path.iterdir())
    for _ in range(150):
        file = choose.choice(files)
        content = bytearray(before := file.read_bytes())
        match choose.randrange(3):
            case 0:
                content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
            case 1:
                del content[choose.randrange(len(content)) :]
            case _:
                position = choose.randrange(len(content))
                content[position:position] = choose.choice([b"[" * 9999, b"\xff", b"0", b"null", b'"'])
        file.write_bytes(content)
        try:
            found = open_checkpoint(path).load()
        except DamagedCheckpointError:
            pass
        else:
            assert found.step == wanted.step
            for group, tensors in wanted.tensors.items():
                assert all(torch.equal(tensor, found.tensors[group][name]) for name, tensor in tensors.items())
        file.write_bytes(before)


def test_a_run_never_restarts_over_damaged_checkpoints(tmp_path: Path, config: TrainerConfig) -> None:
    assert notes_and_newest(tmp_path, config) == ([], None)
    for step in (3, 6):
        path = write_checkpoint(tmp_path, config, snapshot_at(config, step), DIGEST)
        (path / "record.json").unlink()
    with pytest.raises(DamagedCheckpointError, match=r"all 2 checkpoints in .* are damaged.*move the folder away"):
        notes_and_newest(tmp_path, config)


def test_only_files_of_checkpoints_are_removed(tmp_path: Path, config: TrainerConfig) -> None:
    (tmp_path / "step-notes").mkdir()
    for step in (3, 6, 9, 12):
        path = write_checkpoint(tmp_path, config, snapshot_at(config, step), DIGEST)
        if step == 3:
            (path / "thesis.txt").write_text("mine")
    assert [path.name for path in checkpoint_paths(tmp_path)] == ["step-00000012", "step-00000009"]
    assert (tmp_path / "other-step-00000003" / "thesis.txt").read_text() == "mine"
    assert (tmp_path / "step-notes").is_dir()
    assert not (tmp_path / "step-00000006").exists()


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "record"])
def test_a_damaged_checkpoint_is_skipped_with_a_note(tmp_path: Path, config: TrainerConfig, damage: str) -> None:
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


def test_another_config_is_refused_by_its_key_and_neutral_keys_are_not(tmp_path: Path, config: TrainerConfig) -> None:
    write_checkpoint(tmp_path, config, snapshot_at(config, 3), DIGEST)
    other = replace(config, optimizer=AdamWConfig(learning_rate=3e-3, betas=(0.9, 0.999)))
    with pytest.raises(AnotherRunError, match=r"optimizer.betas\[1\] is 0.95, not 0.999"):
        newest_checkpoint(tmp_path, other, DIGEST, print)
    with pytest.raises(AnotherRunError, match=r"ema is .*decay.*, not None"):
        newest_checkpoint(tmp_path, replace(config, ema=None), DIGEST, print)
    neutral = replace(config, log_every=7, checkpoint=CheckpointConfig(keep=9), microbatch_rows=2, num_threads=1)
    moved = replace(neutral, data=replace(config.data, sources=(replace(config.data.sources[0], path="elsewhere"),)))
    for changed in (neutral, moved):
        assert newest_checkpoint(tmp_path, changed, DIGEST, print) is not None


def test_other_data_is_refused(tmp_path: Path, config: TrainerConfig) -> None:
    write_checkpoint(tmp_path, config, snapshot_at(config, 3), DIGEST)
    with pytest.raises(AnotherRunError, match="other data"):
        newest_checkpoint(tmp_path, config, "other", print)


def test_incomplete_checkpoints_are_removed(tmp_path: Path, config: TrainerConfig) -> None:
    write_checkpoint(tmp_path, config, snapshot_at(config, 3), DIGEST)
    (tmp_path / ".step-00000006.abc").mkdir()
    (tmp_path / ".step-mine").mkdir()
    remove_incomplete(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("step")] == ["step-00000003"]
    assert not (tmp_path / ".step-00000006.abc").exists()
    assert (tmp_path / ".step-mine").exists()


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
from openafm.training.checkpoints.folder import checkpoint_paths, newest_checkpoint
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


@pytest.mark.long
def test_a_full_disk_is_a_typed_error_and_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    """On a real file system of its own, large enough for one checkpoint and not for two."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=450k tmpfs {disk}"
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("this system does not allow users to mount a file system")
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
