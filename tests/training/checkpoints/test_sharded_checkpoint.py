"""Checkpoints of several processes: resumed by any number, complete or absent, verified, never pickle."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_runs import CheckpointJob, carry_out, check_parts, parts_at
from forked_processes import fork_together, together
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_runs import track_model
from safetensors.torch import save_file
from tiny_runs import exit_code, final_bytes, tiny_run, write_corpus

from openafm.core.errors import OpenAFMError
from openafm.core.files import OutOfSpaceError
from openafm.training.checkpoints import sharded_save
from openafm.training.checkpoints.checkpoint import open_checkpoint
from openafm.training.checkpoints.folder import checkpoint_paths, newest_checkpoint, remove_incomplete
from openafm.training.checkpoints.index import IndexedTensor, TensorBlock, read_index, write_index
from openafm.training.checkpoints.record import AnotherRunError, CheckpointError, DamagedCheckpointError, read_record
from openafm.training.checkpoints.sharded_load import load
from openafm.training.checkpoints.sharded_save import ShardedSave
from openafm.training.checkpoints.writer import write_checkpoint
from openafm.training.config import CheckpointConfig, EMAConfig, TrainerConfig
from openafm.training.distributed.config import ParallelConfig
from openafm.training.distributed.processes import Processes, RemoteRankError
from openafm.training.initialization import fresh_state, resumed_state
from openafm.training.observability.metrics import read_metrics
from openafm.training.run import load_trained, train, trained_model

pytestmark = pytest.mark.xdist_group("sharded_checkpoint")

DIGEST = "data"
HERE = Path(__file__).parents[1]
SAVED, LAST = 3, 5


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="module")
def losses(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Losses of the runs below by name; one saves after step 3, the others resume from that checkpoint."""
    folder = tmp_path_factory.mktemp("runs")
    jobs: list[tuple[int, dict[str, CheckpointJob]]] = [
        (1, {"one": _job(folder, saved="one")}),
        (
            4,
            {
                "four": _job(folder, expert=2, track=2, saved="four"),
                "four, resumed": _job(folder, expert=2, track=2, source="four"),
                "one, by four": _job(folder, shard=2, track=2, source="one"),
            },
        ),
        (
            2,
            {
                "two": _job(folder, shard=2, saved="two"),
                "two, resumed": _job(folder, shard=2, source="two"),
                "four, by two": _job(folder, track=2, source="four"),
                "one, by two": _job(folder, expert=2, source="one"),
            },
        ),
        (1, {"four, by one": _job(folder, source="four"), "two, by one": _job(folder, source="two")}),
    ]
    found: dict[str, Any] = {"folder": folder}
    for world, named in jobs:
        found |= dict(zip(named, carry_out(world, list(named.values()), corpus, folder / "results"), strict=True))
    return found


def _job(folder: Path, saved: str | None = None, source: str | None = None, **axes: int) -> CheckpointJob:
    return CheckpointJob(
        model="tracks",
        axes=axes,
        stop=LAST,
        source=None if source is None else str(folder / source / "checkpoints"),
        save=None if saved is None else SAVED,
        folder=None if saved is None else str(folder / saved / "checkpoints"),
    )


@pytest.mark.long
@pytest.mark.parametrize("layout", ["four", "two"])
def test_the_same_layout_resumes_bit_identically(losses: dict[str, Any], layout: str) -> None:
    """They continued to train while the checkpoint was written."""
    assert losses[f"{layout}, resumed"] == losses[layout][SAVED:]


@pytest.mark.parametrize("name", ["four, by two", "four, by one", "two, by one", "one, by four", "one, by two"])
def test_other_layouts_resume_with_the_same_losses(losses: dict[str, Any], name: str) -> None:
    undisturbed = losses[name.partition(",")[0]]
    assert len(losses[name]) == LAST - SAVED
    assert losses[name] == pytest.approx(undisturbed[SAVED:], abs=1e-6)
    assert undisturbed[SAVED - 1] != pytest.approx(undisturbed[SAVED], abs=1e-3)  # a lost step would change them


def test_the_averaged_weights_are_loaded_by_one_process(losses: dict[str, Any]) -> None:
    model = load_trained(losses["folder"] / "four").state_dict()
    alone = load_trained(losses["folder"] / "one").state_dict()
    assert model.keys() == alone.keys()
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, alone[name], rtol=0, atol=1e-5)


def test_each_block_is_written_once_and_nothing_is_pickled(losses: dict[str, Any]) -> None:
    (path,) = checkpoint_paths(losses["folder"] / "four" / "checkpoints")
    files = sorted(file.name for file in path.iterdir())
    ranks = [f"rank-{rank:05}-of-00004.safetensors" for rank in range(4)]
    assert files == sorted(["config.json", "index.json", "record.json", *ranks])
    checkpoint = open_checkpoint(path)
    assert checkpoint.record.num_processes == 4
    stored = sum(prod(tensor.shape) * tensor.dtype.itemsize for tensor in checkpoint.index.values())
    on_disk = sum((path / name).stat().st_size for name in ranks)
    assert stored <= on_disk < stored * 1.2  # the remaining bytes are headers


@pytest.fixture
def config(corpus: Path) -> TrainerConfig:
    return tiny_run(_loader(corpus), checkpoint=CheckpointConfig(keep=2))


def _loader(corpus: Path) -> Any:
    return CheckpointJob(model="plain", axes={}, stop=0).config(corpus).data


def test_writers_killed_during_a_save_leave_the_last_checkpoint_intact(tmp_path: Path, config: TrainerConfig) -> None:
    folder, choose, num_cut_short, newest = tmp_path / "checkpoints", random.Random(5), 0, 0

    def write_on(processes: Processes) -> None:
        for step in range(newest + 1, newest + 1000):
            write_checkpoint(folder, config, parts_at(step, processes), DIGEST, processes)

    for _ in range(4):
        processes = fork_together(2, write_on)
        while not list(folder.glob(f"step-{newest + 2:08}")):
            time.sleep(0.002)
        time.sleep(choose.random() * 0.05)
        victim = choose.randrange(2)
        os.kill(processes[victim], signal.SIGKILL)
        assert exit_code(processes[victim]) == -signal.SIGKILL
        if choose.random() < 0.5:  # the other one gets a connection error, or is killed too
            os.kill(processes[1 - victim], signal.SIGKILL)
        assert exit_code(processes[1 - victim]) in (1, -signal.SIGKILL)
        notes: list[str] = []
        step = check_parts(folder, notes)
        assert notes == []
        assert step >= newest + 2
        newest = step
        num_cut_short += len(list(folder.glob(".step-*")))
        remove_incomplete(folder)
    assert num_cut_short >= 1


class UnreadableError(Exception):
    """Cannot be made from what pickle stores of it."""

    def __init__(self, number: int, place: str) -> None:
        super().__init__(f"{number} at {place}")


class UnreadableDiskError(OutOfSpaceError):
    """The same, with an exit code; its text changes with each copy."""

    def __init__(self, place: str) -> None:
        super().__init__(f"no space at {place}")


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("no more"), ValueError),
        (UnreadableError(3, "home"), RuntimeError),
        (UnreadableDiskError("home"), OpenAFMError),
    ],
)
def test_an_error_of_one_process_is_raised_by_all(
    tmp_path: Path, config: TrainerConfig, error: Exception, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(processes: Processes) -> None:
        def write(*_: object) -> None:
            raise error

        if processes.rank == 1:
            monkeypatch.setattr(sharded_save, "_write", write)
        with pytest.raises(raised, match=f"{error}$") as found:
            write_checkpoint(tmp_path, config, parts_at(3, processes, side=8), DIGEST, processes)
        assert getattr(found.value, "exit_code", 1) == getattr(error, "exit_code", 1)

    together(2, fail)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_kept_for_equal_layouts_only(
    tmp_path: Path, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five checkpoints of two layouts have three plans."""
    sides = [8, 6, 6, 8, 8]

    def write(processes: Processes) -> None:
        sharded, plan_blocks, planned = ShardedSave(), sharded_save.plan_blocks, []
        monkeypatch.setattr(sharded_save, "plan_blocks", lambda *args: planned.append(1) or plan_blocks(*args))
        for number, side in enumerate(sides):
            parts = parts_at(number, processes, side=side)
            write_checkpoint(tmp_path, config, parts, DIGEST, processes, sharded=sharded)
            assert checkpoint_paths(tmp_path)[0].name == f"step-{number:08}"
        assert len(planned) == 3

    together(2, write)
    assert check_parts(tmp_path, []) == len(sides) - 1


@pytest.mark.parametrize("damaged", ["rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors", "index.json"])
def test_all_processes_skip_a_damaged_checkpoint(tmp_path: Path, config: TrainerConfig, damaged: str) -> None:
    def write(processes: Processes) -> None:
        for step in (3, 6):
            write_checkpoint(tmp_path, config, parts_at(step, processes, side=8), DIGEST, processes)

    def read(processes: Processes) -> None:
        notes: list[str] = []
        found = newest_checkpoint(tmp_path, config, DIGEST, notes.append, processes)
        assert found is not None
        assert found.record.step == 3
        assert [("step-00000006" in note, damaged in note) for note in notes] == [(True, True)] * processes.is_main
        with pytest.raises((AnotherRunError, RemoteRankError), match=r"optimizer\.learning_rate"):
            newest_checkpoint(
                tmp_path, replace(config, optimizer=replace(config.optimizer, learning_rate=1.0)), DIGEST, print, processes
            )

    together(2, write)
    file = tmp_path / "step-00000006" / damaged
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    together(2, read)
    notes: list[str] = []
    assert check_parts(tmp_path, notes) == 3
    assert len(notes) == 1


FILL_THE_DISK = """
import sys
from pathlib import Path
from forked_processes import together
from openafm.core.files import OutOfSpaceError
from openafm.training.distributed.config import ParallelConfig
from openafm.training.run import last_checkpoint, train
from tiny_runs import tiny_run, write_corpus
disk = Path(sys.argv[1])
config = tiny_run(write_corpus(Path(sys.argv[2])), num_steps=200, parallel=ParallelConfig(shard=2))

def fill(processes):
    try:
        train(config, disk / "run", processes=processes)
    except OutOfSpaceError as error:
        print("error:", error, flush=True)

together(2, fill)
print("leftovers:", list((disk / "run" / "checkpoints").glob(".*")))
print("step:", last_checkpoint(disk / "run").record.step)
"""


@pytest.mark.slow
def test_a_full_disk_is_the_same_typed_error_in_every_process(tmp_path: Path) -> None:
    """On a real file system of its own, large enough for one checkpoint and not for three."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=650k tmpfs {disk}"
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("this system does not allow users to mount a file system")
    script = tmp_path / "fill.py"
    script.write_text(FILL_THE_DISK)
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{mount} && exec {sys.executable} {script} {disk} {tmp_path / 'corpus'}"],
        env={"PYTHONPATH": ":".join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("error: no space left on the disk while writing") == 2
    assert "leftovers: []" in done.stdout
    assert int(done.stdout.rsplit("step: ", 1)[1]) > 0


@pytest.mark.slow
def test_a_repeatedly_killed_run_of_two_processes_ends_with_the_same_bytes(tmp_path: Path, corpus: Path) -> None:
    """Its processes divide tracks; one of them is killed, and the other one ends with an error."""
    config = tiny_run(
        _loader(corpus),
        num_steps=9,
        model=track_model(),
        ema=EMAConfig(decay=0.9),
        parallel=ParallelConfig(track=2),
        checkpoint=CheckpointConfig(every_steps=2, every_seconds=None),
    )
    choose = random.Random(11)
    output = tmp_path / "killed"
    for step in (3, 6):
        processes = fork_together(2, lambda processes: train(config, output, processes=processes))
        while not any(line["step"] >= step for line in read_metrics(output)):
            time.sleep(0.002)
        time.sleep(choose.random() * 0.1)
        victim = choose.randrange(2)
        os.kill(processes[victim], signal.SIGKILL)
        assert exit_code(processes[victim]) == -signal.SIGKILL
        assert exit_code(processes[1 - victim]) == 1
    together(2, lambda processes: train(config, output, processes=processes))
    together(2, lambda processes: train(config, tmp_path / "undisturbed", processes=processes))
    assert final_bytes(output) == final_bytes(tmp_path / "undisturbed")
    curves = [[(line["step"], line["loss"]) for line in read_metrics(run)] for run in (output, tmp_path / "undisturbed")]
    assert curves[0] == curves[1]
    assert [step for step, _ in curves[0]] == list(range(1, 10))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: replace(model, layers=model.layers[:2]), r"model.layers has 4 items, not 2"),
        (lambda model: replace(model, tracks=replace(model.tracks, num_tracks=2)), r"model.tracks.num_tracks is 4, not 2"),
        (lambda model: replace(model, dim=48), r"model.dim is 32, not 48"),
    ],
)
def test_another_layer_layout_is_refused_by_its_key(tmp_path: Path, corpus: Path, change: Any, message: str) -> None:
    config = tiny_run(_loader(corpus), model=track_model())
    write_checkpoint(tmp_path, config, fresh_state(config, "cpu").snapshot(), DIGEST)
    with pytest.raises(AnotherRunError, match=message):
        newest_checkpoint(tmp_path, replace(config, model=change(config.model)), DIGEST, print)


def test_tensors_that_do_not_fit_the_config_are_refused(tmp_path: Path, corpus: Path) -> None:
    config = tiny_run(_loader(corpus), model=track_model(), ema=EMAConfig())
    wider = replace(config, model=replace(config.model, dim=48))
    write_checkpoint(tmp_path, wider, fresh_state(config, "cpu").snapshot(), DIGEST)
    found = newest_checkpoint(tmp_path, wider, DIGEST, print)
    assert found is not None
    with pytest.raises(CheckpointError, match=r"embedding is \[100, 32\] in the checkpoint, \[100, 48\] in the model"):
        resumed_state(wider, "cpu", found)
    with pytest.raises(CheckpointError, match="does not fit the model of its config"):
        trained_model(found)


@st.composite
def cut_tensors(draw: st.DrawFn) -> tuple[torch.Tensor, list[tuple[tuple[int, int], ...]]]:
    """A tensor and a grid of blocks that covers it, as (start, length) of each dim."""
    shape = draw(st.lists(st.integers(1, 7), min_size=0, max_size=3))
    cuts = [sorted({0, size, *draw(st.lists(st.integers(1, size), max_size=3))}) for size in shape]
    blocks: list[tuple[tuple[int, int], ...]] = [()]
    for edges in cuts:
        spans = [(start, stop - start) for start, stop in itertools.pairwise(edges)]
        blocks = [(*block, span) for block in blocks for span in spans]
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64]))
    return torch.arange(prod(shape)).reshape(shape).to(dtype), draw(st.permutations(blocks))


@settings(max_examples=30, deadline=None)
@given(cut=cut_tensors(), num_files=st.integers(1, 4))
def test_a_tensor_in_any_grid_of_blocks_is_read_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: tuple[torch.Tensor, list[tuple[tuple[int, int], ...]]], num_files: int
) -> None:
    tensor, blocks = cut
    folder, parts = tmp_path_factory.mktemp("parts"), []
    for number, block in enumerate(blocks):  # a file holds one part of a tensor
        file = f"rank-{number:05}.safetensors"
        piece = tensor[tuple(slice(start, start + length) for start, length in block)].clone()
        save_file({"model/w": piece}, folder / file)
        parts.append(
            TensorBlock(file=file, key="model/w", offsets=tuple(start for start, _ in block), shape=tuple(piece.shape))
        )
    written = {"model/w": IndexedTensor(dtype=tensor.dtype, shape=tuple(tensor.shape), blocks=tuple(parts))}
    write_index(folder, written)
    files = sorted(path.name for path in folder.iterdir())
    index = read_index(folder, files)
    assert index == written
    target = torch.empty_like(tensor)
    load(folder, index, {"model/w": target}, Processes())
    assert torch.equal(target, tensor)
    with pytest.raises(ValueError, match="which the record does not"):
        read_index(folder, [name for name in files if name != "rank-00000.safetensors"])


BLOCK = '{"file": "a.safetensors", "offsets": %s, "shape": %s}'
TENSOR = '{"model/w": {"dtype": "F32", "shape": [4], "parts": [%s]}}'


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        "[" * 100_000,
        '{"model/w": 3}',
        '{"model/w": {"dtype": "object", "shape": [], "parts": []}}',
        '{"model/w": {"dtype": "F32", "shape": [2.0], "parts": []}}',
        "not json",
        TENSOR % (BLOCK % ("[0]", "[3]")),
        TENSOR % ", ".join([BLOCK % ("[0]", "[2]")] * 2),
        TENSOR % ", ".join([BLOCK % ("[0]", "[2]"), BLOCK % ("[3]", "[2]")]),
        TENSOR % ", ".join([BLOCK % ("[0]", "[4]")] * 2),
        TENSOR.replace("[4]", "[2, 2]") % ", ".join(BLOCK % (at, "[1, 1]") for at in ("[0, 0]", "[0, 1]", "[1, 1]")),
        TENSOR % (BLOCK % ("[-1]", "[4]")),
        TENSOR % (BLOCK % ("[0, 0]", "[2, 2]")),
    ],
)
def test_a_malformed_index_is_damage(tmp_path: Path, config: TrainerConfig, index: str) -> None:
    path = write_checkpoint(tmp_path, config, fresh_state(config, "cpu").snapshot(), DIGEST)
    record = read_record(path)
    replace(record, files={**record.files, "index.json": "0" * 64, "a.safetensors": "0" * 64}).write(path)
    (path / "index.json").write_text(index)
    with pytest.raises(DamagedCheckpointError, match=r"index\.json|not a readable"):
        _ = open_checkpoint(path).index
