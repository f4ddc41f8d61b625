"""The device of a run: choice, refusals before anything is written, copies between host and device."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from forked_processes import together
from tiny_runs import final_bytes, tiny_run, write_corpus

from openafm.core.config import ConfigError, override
from openafm.models.transfer import to_device
from openafm.training.config import BFloat16Config, DevicePrecisionConfig, TrainerConfig
from openafm.training.device import (
    DeviceConfig,
    DeviceError,
    computes_training,
    host_copies,
    host_numbers,
)
from openafm.training.distributed.processes import Processes, open_processes
from openafm.training.observability.metrics import read_metrics
from openafm.training.run import train


def find(kind: str, *, local_rank: int = 0, local_world: int = 1, world: int = 1) -> torch.device:
    return DeviceConfig(kind=kind).find(local_rank, local_world, world)  # type: ignore[arg-type]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make torch find two GPUs."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    return monkeypatch


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    return monkeypatch


def test_auto_takes_each_process_its_own_gpu(gpus: pytest.MonkeyPatch) -> None:
    assert find("auto") == torch.device("cuda", 0)
    assert find("auto", local_rank=1, local_world=2, world=4) == torch.device("cuda", 1)
    assert find("cpu") == torch.device("cpu")


def test_auto_takes_mps_only_where_it_works(no_gpu: pytest.MonkeyPatch) -> None:
    assert find("auto") == torch.device("cpu")
    no_gpu.setattr("torch.backends.mps.is_available", lambda: True)
    assert find("auto") == torch.device("cpu"), "this build of torch has no kernels for it"
    no_gpu.setattr("openafm.training.device.computes_training", lambda device: True)
    assert find("auto") == torch.device("mps")
    assert find("auto", world=2) == torch.device("cpu"), "there are no collectives on mps"


def test_the_probe_runs_on_a_cpu_and_fails_without_kernels() -> None:
    assert computes_training("cpu")
    assert not computes_training("mps")


def test_a_device_that_is_absent_is_refused(no_gpu: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match=r"torch finds no GPU .* is built .*; install a CUDA build"):
        find("cuda")
    with pytest.raises(DeviceError, match="needs macOS on Apple silicon: use --device cpu"):
        find("mps")
    with pytest.raises(DeviceError, match="no collectives on mps, the run has 2 processes"):
        find("mps", world=2)


@pytest.mark.parametrize("kind", ["auto", "cuda"])
def test_more_processes_than_gpus_are_refused(kind: str, gpus: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="process 2 of 3 on this machine needs a GPU of its own, torch finds 2"):
        find(kind, local_rank=2, local_world=3, world=3)
    with pytest.raises(DeviceError, match="process 0 of 3"):
        find(kind, local_rank=0, local_world=3, world=3)


def test_several_gpus_need_nccl(gpus: pytest.MonkeyPatch) -> None:
    gpus.setattr("torch.distributed.is_nccl_available", lambda: False)
    assert find("cuda") == torch.device("cuda", 0)
    with pytest.raises(DeviceError, match="communicate through NCCL"):
        find("cuda", local_world=2, world=2)


def test_unknown_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="auto"):
        override(tiny_run(write_corpus(tmp_path)), {"device.kind": "tpu"})
    with pytest.raises(ConfigError, match="above 0"):
        DeviceConfig(collective_seconds=0)


def test_an_absent_device_leaves_no_files(tmp_path: Path, no_gpu: pytest.MonkeyPatch) -> None:
    config = tiny_run(write_corpus(tmp_path / "corpus"), device=DeviceConfig(kind="cuda"))
    with pytest.raises(DeviceError):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def _open_on(folder: Path, findings: dict[int, tuple[str, str, int]], processes: Processes) -> None:
    """Open the processes of a run whose ranks find these cards or errors, and this memory in GiB."""
    card, error, memory = findings[processes.rank]
    patched = pytest.MonkeyPatch()
    patched.setattr("openafm.training.distributed.processes.describe_device", lambda device: card)
    patched.setattr("openafm.training.distributed.processes.device_memory", lambda device: (0, memory << 30))
    if error:
        patched.setattr(DeviceConfig, "find", lambda *_, **__: (_ for _ in ()).throw(DeviceError(error)))
    store = torch.distributed.FileStore(str(folder / "store"), processes.world)
    patched.setattr(
        "openafm.training.distributed.processes.rendezvous", lambda _: iter([(store, processes.rank, processes.world)])
    )
    os.environ.update({"RANK": str(processes.rank), "WORLD_SIZE": str(processes.world)})
    with pytest.raises(DeviceError) as raised, open_processes(config=DeviceConfig(kind="cpu")):
        raise AssertionError("the processes must not start")
    (folder / f"{processes.rank}.json").write_text(json.dumps(str(raised.value)))


@pytest.mark.parametrize(
    ("findings", "message"),
    [
        ({0: ("a", "", 1), 1: ("a", "torch finds no GPU", 1)}, "rank 1: torch finds no GPU"),
        ({0: ("H100", "", 1), 1: ("A100", "", 1)}, "rank 0 has H100, rank 1 has A100; use machines with equal cards"),
        ({0: ("A100", "", 40), 1: ("A100", "", 80)}, "rank 0 has 40 GiB of memory, rank 1 has 80 GiB of memory; use"),
    ],
)
def test_all_ranks_refuse_what_one_of_them_finds(
    findings: dict[int, tuple[str, str, int]], message: str, tmp_path: Path
) -> None:
    together(2, partial(_open_on, tmp_path, findings))
    for rank in range(2):
        assert message in json.loads((tmp_path / f"{rank}.json").read_text())


def test_precision_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)  # the machine's GPU does not matter to a run on its CPU
    monkeypatch.setattr("torch.cpu.get_capabilities", dict)
    assert DevicePrecisionConfig().compute_dtype("cuda") is torch.bfloat16
    assert DevicePrecisionConfig().compute_dtype("cpu") is torch.float32


@pytest.mark.parametrize(
    ("instructions", "has_library", "dtype"),
    [
        (("avx512_f", "avx512_vnni"), True, torch.float32),  # torch supports bf16 there by converting
        (("avx512_f", "avx512_bf16"), True, torch.bfloat16),
        (("amx_bf16",), True, torch.bfloat16),
        (("sve", "bf16"), True, torch.bfloat16),
        (("bf16",), False, torch.float32),
    ],
)
def test_processors_that_emulate_bf16_compute_in_fp32(
    instructions: tuple[str, ...], has_library: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: dict.fromkeys(instructions, True) | {"amx_fp16": False})
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: has_library)
    assert DevicePrecisionConfig().compute_dtype("cpu") is dtype


def test_copies_to_the_host_are_independent() -> None:
    source = torch.arange(6.0).view(2, 3).T
    (copy,) = host_copies([source])
    assert copy.is_contiguous()
    source.zero_()
    assert copy.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_numbers_are_read_in_order() -> None:
    assert host_numbers([torch.tensor(3), torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64)]) == [
        3.0,
        float(np.float32(0.1)),
        0.1,
    ]
    assert host_numbers([]) == []


def test_arrays_are_not_copied_on_a_cpu() -> None:
    values = np.arange(3)
    assert to_device(values, "cpu").data_ptr() == values.ctypes.data


def cuda_run(folder: Path, num_steps: int = 6) -> TrainerConfig:
    corpus = write_corpus(folder / "corpus")
    return tiny_run(corpus, num_steps, device=DeviceConfig(kind="cuda"), precision=BFloat16Config())


@pytest.mark.gpu
def test_a_run_on_a_gpu(tmp_path: Path) -> None:
    train(cuda_run(tmp_path), tmp_path / "run")
    lines = read_metrics(tmp_path / "run")
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["device_peak_memory_mb"] > 0


@pytest.mark.gpu
def test_losses_on_a_gpu_are_those_of_a_cpu(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    losses = {}
    for kind in ("cuda", "cpu"):
        train(tiny_run(corpus, 4, device=DeviceConfig(kind=kind)), tmp_path / kind)
        losses[kind] = [line["loss"] for line in read_metrics(tmp_path / kind)]
    assert losses["cuda"] == pytest.approx(losses["cpu"], abs=1e-3)


@pytest.mark.gpu
def test_a_snapshot_of_a_gpu_is_pinned(tmp_path: Path) -> None:
    tensor = torch.arange(4.0, device="cuda")
    (copy,) = host_copies([tensor])
    assert copy.is_pinned()
    assert copy.tolist() == [0.0, 1.0, 2.0, 3.0]
    train(cuda_run(tmp_path), tmp_path / "run")
    assert final_bytes(tmp_path / "run")
