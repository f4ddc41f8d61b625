"""Low-rank adapters beside the Linears of a decoder (arXiv 2106.09685, report 6).

A hook adds the adapter's output to the Linear's, so the names in the state dict of the base stay as they are:
`layers.0.attention.query.weight`, and beside it `layers.0.attention.query.lora.a`.
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
    """The decoder carries an adapter already, or none where one is needed."""


class AdapterTargetError(UsageError):
    """A target that the decoder does not have, or that cannot be adapted in this way."""


class AdapterWeightsError(UsageError):
    """Weights that are not those of the installed adapter."""


class LoRA(nn.Module):
    """y = (x a^T) b^T * scale, with fp32 masters a [rank, in] and b [out, rank], computed in the dtype of x.

    Beside a Linear that is spread over tracks, a is [T, rank, in] and b [T, out, rank]: every track has a pair of its own.
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
        # Sums are exact enough, of fp32 always, that a token's output does not depend on how many are computed beside it.
        is_few = x.shape[:-1].numel() <= FEW_TOKENS
        is_exact = x.is_cpu and not torch.is_grad_enabled() and (is_few or x.dtype is torch.float32)
        dtype = torch.float64 if is_exact else x.dtype
        y = project(project(x.to(dtype), self.a.to(dtype)), self.b.to(dtype)) * self.scale
        return y.to(x.dtype)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Normal `a` of standard deviation 1 / sqrt(in), drawn on the CPU so that devices agree; zero `b`."""
        self.a.copy_(torch.randn(self.a.shape, generator=generator) * self.a.shape[-1] ** -0.5)
        nn.init.zeros_(self.b)


def install(decoder: Decoder, config: LoRAConfig, seed: int = 0) -> None:
    """Put an adapter on a decoder, started as `config.start` says. From now on only the adapter's weights train.

    Raises:
        AdapterInstalledError: the decoder carries an adapter already.
        AdapterTargetError: a target that the decoder does not have.
    """
    config.start.apply(decoder, config, seed)


def start_at_zero(decoder: Decoder, config: LoRAConfig, seed: int = 0) -> None:
    """Put an adapter on a decoder that changes nothing yet, whatever `config.start` says. Raises as `install`."""
    generator = torch.Generator().manual_seed(seed)
    for lora in attach(decoder, config).values():
        if not lora.a.is_meta:
            lora.initialize(generator)


def attach(decoder: Decoder, config: LoRAConfig) -> dict[str, LoRA]:
    """Put an adapter on a decoder whose weights the caller fills; its modules by the names of their Linears.

    Raises:
        AdapterInstalledError: the decoder carries an adapter already.
        AdapterTargetError: a target that the decoder does not have.
    """
    if installed(decoder):
        raise AdapterInstalledError("the decoder carries an adapter already and takes one at a time; remove() it first")
    linears = target_linears(decoder, config)
    decoder.requires_grad_(False)
    for linear in linears.values():
        linear.add_module("lora", LoRA(linear, config))
    return installed(decoder)


def installed(decoder: Decoder) -> dict[str, LoRA]:
    """The modules of the adapter that a decoder carries, by the names of their Linears; empty where there is none."""
    return {name.removesuffix(".lora"): module for name, module in decoder.named_modules() if isinstance(module, LoRA)}


def target_linears(decoder: Decoder, config: LoRAConfig) -> dict[str, Linear]:
    """The Linears that `config` adapts, by their names in the decoder.

    Raises:
        AdapterTargetError: a target that the decoder does not have; the message names the nearest.
    """
    linears = {f"layers.{name}": module for name, module in decoder.layers.named_modules() if isinstance(module, Linear)}
    known = list(dict.fromkeys(_last(name) for name in linears))
    for target in config.targets:
        if target not in known:
            raise AdapterTargetError(f"the decoder's layers have no Linear '{target}' to adapt{nearest(target, known)}")
    return {name: linear for name, linear in linears.items() if not config.targets or _last(name) in config.targets}


def adapter_weights(decoder: Decoder) -> dict[str, Tensor]:
    """The adapter's weights by their names in the decoder, `layers.0.attention.query.lora.a` ...: views, not copies.

    Raises:
        AdapterInstalledError: the decoder carries no adapter.
    """
    return {
        f"{name}.lora.{part}": weight.detach()
        for name, lora in _required(decoder).items()
        for part, weight in lora.named_parameters()
    }


@torch.no_grad()
def load_adapter_weights(decoder: Decoder, weights: Mapping[str, Tensor | NDArray[Any]]) -> None:
    """Fill the installed adapter. Nothing is changed unless all of it fits.

    Raises:
        AdapterInstalledError: the decoder carries no adapter.
        AdapterWeightsError: the message names a weight that is missing, unexpected or of another shape.
    """
    mine = adapter_weights(decoder)
    for name in mine.keys() | weights.keys():
        if name not in weights:
            raise AdapterWeightsError(f"the weights lack '{name}', which this decoder's adapter has")
        if name not in mine:
            raise AdapterWeightsError(f"the weights hold '{name}', which this decoder's adapter does not have")
        if tuple(weights[name].shape) != tuple(mine[name].shape):
            expected, actual = list(mine[name].shape), list(weights[name].shape)
            raise AdapterWeightsError(f"'{name}' has the shape {actual}, this decoder's adapter needs {expected}")
    for name, weight in mine.items():
        weight.copy_(torch.as_tensor(weights[name]))


@torch.no_grad()
def load_smaller_adapter(decoder: Decoder, config: LoRAConfig, weights: Mapping[str, Tensor | NDArray[Any]]) -> None:
    """Make the freshly installed adapter compute what `weights` of another one, described by `config`, do.

    That one may have a smaller rank, another alpha and fewer targets. Rows that its `a` lacks keep their random start and
    meet zeros in `b`: they change nothing yet, but learn, which zeros on both sides never would.

    Raises:
        AdapterInstalledError: the decoder carries no adapter.
        AdapterWeightsError: the rank is larger than that of the installed one, or a target is missing there. Nothing is
            changed.
    """
    mine = _required(decoder)
    pairs = {name.removesuffix(".lora.a") for name in weights if name.endswith(".lora.a")}
    for name in sorted(pairs):
        if name not in mine:
            raise AdapterWeightsError(
                f"the adapter to start from adapts '{name}', the new one does not; let it adapt that too"
            )
        rank = mine[name].a.shape[-2]
        if config.rank > rank:
            raise AdapterWeightsError(
                f"the adapter to start from has rank {config.rank}, the new one {rank}; give it a larger rank"
            )
    for name in pairs:
        lora = mine[name]
        lora.a[..., : config.rank, :] = torch.as_tensor(weights[f"{name}.lora.a"])
        lora.b[..., : config.rank] = torch.as_tensor(weights[f"{name}.lora.b"]) * (config.scale / lora.scale)


def remove(decoder: Decoder) -> None:
    """Take the adapter off. The base stays frozen, and as the adapter's start left it; `requires_grad_(True)` thaws it.

    Raises:
        AdapterInstalledError: the decoder carries no adapter.
    """
    for name, lora in _required(decoder).items():
        lora.hook.remove()
        delattr(decoder.get_submodule(name), "lora")


def _add_lora(linear: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    return output + cast(LoRA, linear.lora)(*inputs)


def _required(decoder: Decoder) -> dict[str, LoRA]:
    modules = installed(decoder)
    if not modules:
        raise AdapterInstalledError("the decoder carries no adapter; install() one first")
    return modules


def _last(name: str) -> str:
    return name.rpartition(".")[2]
