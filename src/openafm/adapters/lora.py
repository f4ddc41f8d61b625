"""Low-rank adapters of the Linears of a decoder (arXiv 2106.09685, report 6).

A forward hook adds the adapter's output to the Linear's, so the names in the base's state dict are unchanged:
`layers.0.attention.query.weight`, and for the adapter `layers.0.attention.query.lora.a`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from openafm.adapters.config import LoRAConfig
from openafm.core.config import nearest
from openafm.core.errors import UsageError
from openafm.models.decoder import FEW_TOKENS, Decoder
from openafm.models.layers import Linear, project


class AdapterInstalledError(UsageError):
    """The decoder already has an adapter, or has none and needs one."""


class AdapterTargetError(UsageError):
    """The decoder has no such target, or the target cannot be adapted in this way."""


class AdapterWeightsError(UsageError):
    """The weights do not match the installed adapter."""


class LoRA(nn.Module):
    """y = (x a^T) b^T * scale, with fp32 masters a [rank, in] and b [out, rank], computed in the dtype of x.

    For a Linear with tracks, a is [T, rank, in] and b [T, out, rank].
    """

    def __init__(self, linear: Linear, config: LoRAConfig) -> None:
        super().__init__()
        matrix = next(iter(linear.state_dict().values()))
        tracks, device = matrix.shape[:-2], matrix.device
        self.scale = config.scale
        self.a = nn.Parameter(torch.empty(*tracks, config.rank, linear.in_dim, device=device))
        self.b = nn.Parameter(torch.empty(*tracks, linear.out_dim, config.rank, device=device))
        self.hook = linear.register_forward_hook(_add_lora)

    def forward(self, x: Tensor) -> Tensor:
        # Double precision makes a token's output independent of the number of tokens in the call.
        is_few = x.shape[:-1].numel() <= FEW_TOKENS
        is_exact = x.is_cpu and not torch.is_grad_enabled() and (is_few or x.dtype is torch.float32)
        dtype = torch.float64 if is_exact else x.dtype
        y = project(project(x.to(dtype), self.a.to(dtype)), self.b.to(dtype)) * self.scale
        return y.to(x.dtype)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw normal `a` of standard deviation 1 / sqrt(in), on the CPU so that devices agree; set `b` to zero."""
        self.a.copy_(torch.randn(self.a.shape, generator=generator) * self.a.shape[-1] ** -0.5)
        nn.init.zeros_(self.b)


def install(decoder: Decoder, config: LoRAConfig, seed: int = 0) -> None:
    """Put an adapter on a decoder, initialized by `config.start`, and freeze the base.

    Raises:
        AdapterInstalledError: the decoder already has an adapter.
        AdapterTargetError: the decoder has no such target.
    """
    config.start.apply(decoder, config, seed)


def start_at_zero(decoder: Decoder, config: LoRAConfig, seed: int = 0) -> None:
    """Put an adapter on a decoder with unchanged outputs, independently of `config.start`. Raises as `install`."""
    generator = torch.Generator().manual_seed(seed)
    for lora in attach(decoder, config).values():
        if not lora.a.is_meta:
            lora.initialize(generator)


def attach(decoder: Decoder, config: LoRAConfig) -> dict[str, LoRA]:
    """Put an uninitialized adapter on a decoder and return its modules by the names of their Linears.

    Raises:
        AdapterInstalledError: the decoder already has an adapter.
        AdapterTargetError: the decoder has no such target.
    """
    if installed(decoder):
        raise AdapterInstalledError("the decoder already has an adapter; remove() it first, a decoder has one at a time")
    linears = target_linears(decoder, config)
    decoder.requires_grad_(False)
    for linear in linears.values():
        linear.add_module("lora", LoRA(linear, config))
    return installed(decoder)


def installed(decoder: Decoder) -> dict[str, LoRA]:
    """Return the modules of the decoder's adapter by the names of their Linears; empty without an adapter."""
    return {name.removesuffix(".lora"): module for name, module in decoder.named_modules() if isinstance(module, LoRA)}


def target_linears(decoder: Decoder, config: LoRAConfig) -> dict[str, Linear]:
    """Return the Linears that `config` adapts, by their names in the decoder.

    Raises:
        AdapterTargetError: the decoder has no such target; the message gives the nearest name.
    """
    linears = {f"layers.{name}": module for name, module in decoder.layers.named_modules() if isinstance(module, Linear)}
    known = list(dict.fromkeys(_last(name) for name in linears))
    for target in config.targets:
        if target not in known:
            raise AdapterTargetError(f"the decoder's layers have no Linear '{target}' to adapt{nearest(target, known)}")
    return {name: linear for name, linear in linears.items() if not config.targets or _last(name) in config.targets}


def adapter_weights(decoder: Decoder) -> dict[str, Tensor]:
    """Return views of the adapter's weights by their names in the decoder, such as `layers.0.attention.query.lora.a`.

    Raises:
        AdapterInstalledError: the decoder has no adapter.
    """
    return {
        f"{name}.lora.{part}": weight.detach()
        for name, lora in _required(decoder).items()
        for part, weight in lora.named_parameters()
    }


@torch.no_grad()
def load_adapter_weights(decoder: Decoder, weights: Mapping[str, Tensor | NDArray[Any]]) -> None:
    """Copy weights into the installed adapter. Nothing changes unless all of them match.

    Raises:
        AdapterInstalledError: the decoder has no adapter.
        AdapterWeightsError: a weight is missing, unexpected or of another shape; the message names it.
    """
    mine = adapter_weights(decoder)
    for name in mine.keys() | weights.keys():
        if name not in weights:
            raise AdapterWeightsError(f"the weights lack '{name}', which the decoder's adapter has")
        if name not in mine:
            raise AdapterWeightsError(f"the weights have '{name}', which the decoder's adapter lacks")
        if tuple(weights[name].shape) != tuple(mine[name].shape):
            expected, actual = list(mine[name].shape), list(weights[name].shape)
            raise AdapterWeightsError(f"'{name}' has the shape {actual}, the decoder's adapter needs {expected}")
    for name, weight in mine.items():
        weight.copy_(torch.as_tensor(weights[name]))


@torch.no_grad()
def load_smaller_adapter(decoder: Decoder, config: LoRAConfig, weights: Mapping[str, Tensor | NDArray[Any]]) -> None:
    """Initialize the newly installed adapter to the outputs of another one with `weights` and `config`.

    The other adapter may have a smaller rank, another alpha and fewer targets. Additional rows of `a` keep their random
    values and have zeros in `b`: they leave the outputs unchanged and have gradients.

    Raises:
        AdapterInstalledError: the decoder has no adapter.
        AdapterWeightsError: the other rank is larger, or the installed adapter lacks a target. Nothing changes.
    """
    mine = _required(decoder)
    pairs = {name.removesuffix(".lora.a") for name in weights if name.endswith(".lora.a")}
    for name in sorted(pairs):
        if name not in mine:
            raise AdapterWeightsError(
                f"the adapter to start from has the target '{name}', which the new one lacks; add it to the targets"
            )
        rank = mine[name].a.shape[-2]
        if config.rank > rank:
            raise AdapterWeightsError(
                f"the adapter to start from has rank {config.rank}, the new one only {rank}; use a larger rank"
            )
    for name in pairs:
        lora = mine[name]
        lora.a[..., : config.rank, :] = torch.as_tensor(weights[f"{name}.lora.a"])
        lora.b[..., : config.rank] = torch.as_tensor(weights[f"{name}.lora.b"]) * (config.scale / lora.scale)


def remove(decoder: Decoder) -> None:
    """Remove the adapter. The base stays frozen and keeps the weights that the initialization left.

    Raises:
        AdapterInstalledError: the decoder has no adapter.
    """
    for name, lora in _required(decoder).items():
        lora.hook.remove()
        delattr(decoder.get_submodule(name), "lora")


def _add_lora(linear: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    return output + cast(LoRA, linear.lora)(*inputs)


def _required(decoder: Decoder) -> dict[str, LoRA]:
    modules = installed(decoder)
    if not modules:
        raise AdapterInstalledError("the decoder has no adapter; install() one first")
    return modules


def _last(name: str) -> str:
    return name.rpartition(".")[2]
