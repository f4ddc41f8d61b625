"""The vision transformer built from a `VisionConfig`.

Shapes: B images, Y and X pixels, outputs of the stem or patches of a side, N windows of W patches (K of them kept),
R registers, T = R + N * W tokens, D dim, H heads, C head dim, P pixels or outputs of a patch side, G patches of the position
grid's side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openafm.core.config import ConfigError
from openafm.models.layers import Linear
from openafm.models.vision.config import VisionConfig, VisionLayerConfig
from openafm.models.vision.layer_norm import LayerNorm
from openafm.models.vision.stem import Stem

EMBEDDING_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class VisionStates:
    """The output of an encoder: registers_BRD, and the patches of the image row by row, patches_BYXD.

    With FLIP masking the patches have no grid: patches_BYXD is [B, 1, kept patches, D].
    """

    registers_BRD: Tensor
    patches_BYXD: Tensor


class VisionLayer(nn.Module):
    """One layer; see `VisionLayerConfig`."""

    def __init__(self, config: VisionLayerConfig, dim: int, eps: float) -> None:
        super().__init__()
        self.config, self.scope = config, config.scope.build()
        self.attention_norm, self.mlp_norm = LayerNorm(dim, eps), LayerNorm(dim, eps)
        self.query_key_value, self.output = Linear(dim, 3 * dim, bias=True), Linear(dim, dim, bias=True)
        self.up, self.down = Linear(dim, config.mlp_dim, bias=True), Linear(config.mlp_dim, dim, bias=True)
        self.attention_scale = None if config.layer_scale is None else nn.Parameter(torch.empty(dim))
        self.mlp_scale = None if config.layer_scale is None else nn.Parameter(torch.empty(dim))

    def forward(self, x_BTD: Tensor, num_registers: int, num_windows: int) -> Tensor:
        qkv_BT3HC = self.query_key_value(self.attention_norm(x_BTD)).unflatten(-1, (3, self.config.num_heads, -1))
        q_BTHC, k_BTHC, v_BTHC = qkv_BT3HC.unbind(2)
        o_BTHC = self.scope.attend(q_BTHC, k_BTHC, v_BTHC, num_registers, num_windows)
        x_BTD = x_BTD + _scaled(self.output(o_BTHC.flatten(-2)), self.attention_scale)
        return x_BTD + _scaled(self.down(F.gelu(self.up(self.mlp_norm(x_BTD)))), self.mlp_scale)

    def initialize(self, generator: torch.Generator, residual_scale: float) -> None:
        self.attention_norm.initialize()
        self.mlp_norm.initialize()
        self.query_key_value.initialize(generator)
        self.output.initialize(generator, residual_scale)
        self.up.initialize(generator)
        self.down.initialize(generator, residual_scale)
        for scale in (self.attention_scale, self.mlp_scale):
            if scale is not None and self.config.layer_scale is not None:
                nn.init.constant_(scale, self.config.layer_scale)


class BaseVisionEncoder(nn.Module, ABC):
    """Base of the encoders. Weights are fp32 masters; an encoder computes in `compute_dtype`."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = torch.float32
        self.stem = Stem(config)

    @abstractmethod
    def forward(self, pixels_BYXC: Tensor, kept_BNK: Tensor | None = None) -> VisionStates:
        """Encode square images, uint8 in 0..255 or fp32 in 0..1, with red, green and blue last.

        `kept_BNK` selects the patches of each window that are encoded (FLIP, arXiv 2212.00794); None encodes all.

        Raises:
            ConfigError: the images do not divide into patches and windows.
        """

    def _normalized(self, values_E: Tensor) -> Tensor:
        """Return pixels, or the pixels of patches, in units of standard deviations; the last dim has channels last."""
        mean_E, std_E = (
            torch.tensor(each, device=values_E.device).repeat(values_E.shape[-1] // 3)
            for each in (self.config.pixel_mean, self.config.pixel_std)
        )
        scale = 255.0 if values_E.dtype == torch.uint8 else 1.0
        return ((values_E.float() / scale - mean_E) / std_E).to(self.compute_dtype)


class ConvolutionalEncoder(BaseVisionEncoder):
    """An encoder without layers: its patches are the outputs of the convolutions."""

    def __init__(self, config: VisionConfig, seed: int = 0) -> None:
        super().__init__(config)
        weight = next(self.stem.parameters())
        if not weight.is_meta:
            self.stem.initialize(torch.Generator(device=weight.device).manual_seed(seed))

    def forward(self, pixels_BYXC: Tensor, kept_BNK: Tensor | None = None) -> VisionStates:
        if kept_BNK is not None:
            raise ConfigError("convolutions encode the whole image; use an encoder with layers for masked patches")
        self.config.grid_side(pixels_BYXC.shape[1])
        patches_BYXD = self.stem(self._normalized(pixels_BYXC))
        return VisionStates(
            registers_BRD=patches_BYXD.new_zeros(len(patches_BYXD), 0, self.config.dim), patches_BYXD=patches_BYXD
        )


class VisionEncoder(BaseVisionEncoder):
    """A vision transformer."""

    def __init__(self, config: VisionConfig, seed: int = 0) -> None:
        super().__init__(config)
        grid = config.grid_side(config.image_side)
        self.patch = Linear(config.patch_inputs, config.dim, bias=True)
        self.position_GGD = nn.Parameter(torch.empty(grid, grid, config.dim))
        self.registers_RD = nn.Parameter(torch.empty(config.num_registers, config.dim))
        self.layers = nn.ModuleList(VisionLayer(layer, config.dim, config.norm_eps) for layer in config.layers)
        self.norm = LayerNorm(config.dim, config.norm_eps) if config.final_norm else None
        if not self.position_GGD.is_meta:
            self.initialize(seed)

    def forward(self, pixels_BYXC: Tensor, kept_BNK: Tensor | None = None) -> VisionStates:
        has_stem = bool(self.config.stem)
        x_BYXC = self.stem(self._normalized(pixels_BYXC)) if has_stem else pixels_BYXC
        x_BNWD = self._embedded(x_BYXC, pixels_BYXC.shape[1])
        if kept_BNK is not None:
            x_BNWD = x_BNWD.gather(2, kept_BNK[..., None].expand(-1, -1, -1, x_BNWD.shape[-1]))
        num_windows, num_registers = x_BNWD.shape[1], self.config.num_registers
        registers_BRD = self.registers_RD.to(x_BNWD.dtype).expand(len(x_BNWD), -1, -1)
        x_BTD = torch.cat((registers_BRD, x_BNWD.flatten(1, 2)), dim=1)
        for layer in cast("Iterable[VisionLayer]", self.layers):
            x_BTD = layer(x_BTD, num_registers, num_windows)
        if self.norm is not None:
            x_BTD = self.norm(x_BTD)
        patches_BPD = x_BTD[:, num_registers:]
        if kept_BNK is None:
            patches_BYXD = self._rows_from_windows(patches_BPD, pixels_BYXC.shape[1])
        else:
            patches_BYXD = patches_BPD[:, None]
        return VisionStates(registers_BRD=x_BTD[:, :num_registers], patches_BYXD=patches_BYXD)

    def resize_positions(self, image_side: int) -> None:
        """Interpolate the position embeddings to another image side, for training at a higher resolution (report 4.2)."""
        grid = self.config.grid_side(image_side)
        self.position_GGD = nn.Parameter(interpolated(self.position_GGD.detach(), grid))

    def initialize(self, seed: int) -> None:
        """Draw initial weights; residual projections are scaled by 1 / sqrt(2 * layers)."""
        generator = torch.Generator(device=self.position_GGD.device).manual_seed(seed)
        self.stem.initialize(generator)
        self.patch.initialize(generator)
        nn.init.normal_(self.position_GGD, std=EMBEDDING_STD, generator=generator)
        nn.init.normal_(self.registers_RD, std=EMBEDDING_STD, generator=generator)
        for layer in cast("Iterable[VisionLayer]", self.layers):
            layer.initialize(generator, (2 * len(self.layers)) ** -0.5)
        if self.norm is not None:
            self.norm.initialize()

    def _embedded(self, x_BYXC: Tensor, image_side: int) -> Tensor:
        """Return the patches of pixels, or of outputs of the stem, with their positions, window by window, x_BNWD."""
        config, grid = self.config, self.config.grid_side(image_side)
        side = config.patch_side // config.stem_stride
        patches_BGPGPC = x_BYXC.unflatten(2, (grid, side)).unflatten(1, (grid, side))
        # Windows are formed here, where the copy is cheapest.
        values_BNWE = self._windows_from_rows(patches_BGPGPC.transpose(2, 3).flatten(3))
        position_GGD = self.position_GGD if grid == len(self.position_GGD) else interpolated(self.position_GGD, grid)
        x_BNWD = self.patch(values_BNWE if config.stem else self._normalized(values_BNWE))
        return x_BNWD + self._windows_from_rows(position_GGD[None]).to(x_BNWD.dtype)

    def _windows_from_rows(self, x_BYXE: Tensor) -> Tensor:
        """Return the patches of a grid ordered by windows, x_BNWE; the inverse of `_rows_from_windows`."""
        window = self.config.window_side or x_BYXE.shape[1]
        x_BYWXWE = x_BYXE.unflatten(2, (-1, window)).unflatten(1, (-1, window))
        return x_BYWXWE.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def _rows_from_windows(self, x_BPE: Tensor, image_side: int) -> Tensor:
        grid = self.config.grid_side(image_side)
        window = self.config.window_side or grid
        x_BYXWWE = x_BPE.unflatten(1, (grid // window, grid // window, window, window))
        return x_BYXWWE.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def interpolated(position_GGD: Tensor, grid: int) -> Tensor:
    """Return position embeddings of another grid, by bicubic interpolation."""
    resized_1DGG = F.interpolate(position_GGD.permute(2, 0, 1)[None], (grid, grid), mode="bicubic", align_corners=False)
    return resized_1DGG[0].permute(1, 2, 0)


def _scaled(x_D: Tensor, scale_D: Tensor | None) -> Tensor:
    return x_D if scale_D is None else x_D * scale_D.to(x_D.dtype)
