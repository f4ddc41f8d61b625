"""The device that a run computes on: found or named by the config, checked on all ranks before anything is written.

Imports torch inside of functions: configs do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from openafm.core.config import Config
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DeviceKind: TypeAlias = Literal["auto", "cuda", "mps", "cpu"]


class DeviceError(UsageError):
    """The device of a run is absent, has no backend for collectives, or differs between ranks."""

    shared = True


@dataclass(frozen=True, kw_only=True)
class DeviceConfig(Config):
    """The device of each process.

    Attributes:
        kind: `auto` is cuda if torch finds a GPU, else mps for a single process, else cpu. A GPU is never replaced by a CPU:
            a run whose machine has GPUs, but fewer than processes, is refused.
        collective_seconds: NCCL ends a process whose collective takes longer. It is longer than the watchdog's timeouts,
            so that the watchdog reports a hang first.
        check_memory: refuse a run on CUDA whose planned peak memory is above the free memory of the device.
    """

    kind: DeviceKind = "auto"
    collective_seconds: float = 3600.0
    check_memory: bool = True

    def __post_init__(self) -> None:
        self.require(self.collective_seconds > 0, f"collective_seconds must be above 0, got {self.collective_seconds}")

    def find(self, local_rank: int = 0, local_world: int = 1, world: int = 1) -> torch.device:
        """Return the device of process `local_rank` of the `local_world` processes of this machine.

        Raises:
            DeviceError: the device is absent, this process sees none, or several processes cannot use it together.
        """
        import torch

        kind = _found_kind(world) if self.kind == "auto" else self.kind
        if kind == "cuda":
            _check_cuda(local_rank, local_world, world)
            return torch.device("cuda", local_rank)
        if kind == "mps":
            _check_mps(world)
        return torch.device(kind)


def _found_kind(world: int) -> DeviceKind:
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if world == 1 and torch.backends.mps.is_available() and computes_training("mps") else "cpu"


def computes_training(device: str) -> bool:
    """Return True if a device has the operations of a training step that not every backend of torch has."""
    import torch
    import torch.nn.functional as F

    try:
        x_BHLC = torch.ones(2, 4, 2, 8, device=device, requires_grad=True)
        angles_F = torch.ones(4, device=device)
        pairs_BHLF = torch.view_as_complex(x_BHLC.unflatten(-1, (-1, 2))) * torch.polar(angles_F, angles_F)
        q_BHLC = torch.view_as_real(pairs_BHLF).flatten(-2)
        o_BHLC = F.scaled_dot_product_attention(q_BHLC, x_BHLC[:, :2], x_BHLC[:, :2], is_causal=True, enable_gqa=True)
        weights_ECC = torch.ones(2, 8, 8, device=device)
        ends_E = torch.tensor([8, 16], dtype=torch.int32, device=device)
        F.grouped_mm(o_BHLC.flatten(0, 2), weights_ECC.mT, offs=ends_E).square().sum().backward()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _check_cuda(local_rank: int, local_world: int, world: int) -> None:
    import torch
    import torch.distributed as dist

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        built = "without CUDA" if torch.version.cuda is None else f"for CUDA {torch.version.cuda}"
        raise DeviceError(
            f"device cuda is requested, but torch finds no GPU (torch {torch.__version__} is built {built}); install a CUDA "
            "build of torch and a driver, or use --device cpu"
        )
    if local_rank >= count or local_world > count:
        raise DeviceError(
            f"process {local_rank} of {local_world} on this machine needs a GPU of its own, torch finds {count}; start at "
            f"most {count} processes on it, or use --device cpu"
        )
    if world > 1 and not dist.is_nccl_available():
        raise DeviceError(
            f"{world} processes on GPUs communicate through NCCL, which torch {torch.__version__} lacks; install a build "
            "with NCCL, or use one process"
        )


def _check_mps(world: int) -> None:
    import torch

    if world > 1:
        raise DeviceError(f"torch has no collectives on mps, the run has {world} processes; use one, or --device cpu")
    if not torch.backends.mps.is_available():
        raise DeviceError("device mps is requested, but torch finds none; it needs macOS on Apple silicon: use --device cpu")


def describe_device(device: torch.device) -> str:
    """Return the name of the card, or of the kind of device."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def device_memory(device: torch.device) -> tuple[int, int] | None:
    """Return the bytes that this process can allocate on a GPU, and those of the GPU; None for other devices."""
    import torch

    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + unused, total


def host_copies(tensors: list[Tensor]) -> list[Tensor]:
    """Return copies in host memory. Copies from a GPU go to pinned memory together, and the host waits for them once."""
    import torch

    copies = []
    for tensor in tensors:
        if tensor.is_cuda:
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            copies.append(copy.copy_(tensor.detach(), non_blocking=True))
        else:
            copies.append(tensor.detach().to("cpu", copy=True).contiguous())
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.synchronize(device)
    return copies


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of sums over a step: fp64 except on mps, which lacks it."""
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


def host_numbers(scalars: list[Tensor]) -> list[float]:
    """Return the values of scalars on any devices. The host waits once for each device."""
    import torch

    values = [0.0] * len(scalars)
    places: dict[torch.device, list[int]] = {}
    for place, scalar in enumerate(scalars):
        places.setdefault(scalar.device, []).append(place)
    for device, of_device in places.items():
        numbers = torch.stack([scalars[place].detach().to(sum_dtype(device)) for place in of_device]).tolist()
        for place, number in zip(of_device, numbers, strict=True):
            values[place] = number
    return values
