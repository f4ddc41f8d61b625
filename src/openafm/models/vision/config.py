"""Vision encoders as data: patches, layers in order, and which tokens attend to each other. Imports no tensor library.

ViT-g of the server model and RW-ViTDet-L of the on-device model (report 2.3) differ in these configs, not in their classes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openafm.core.config import Config

if TYPE_CHECKING:
    from openafm.models.vision.adapter import BaseVisionAdapter, VisionAdapter
    from openafm.models.vision.encoder import BaseVisionEncoder
    from openafm.models.vision.scopes import Scope


@dataclass(frozen=True, kw_only=True)
class ScopeConfig(Config, ABC):
    """Base of the scopes: which tokens of an image attend to each other in a layer."""

    @abstractmethod
    def build(self) -> Scope:
        """Return the scope."""

    @abstractmethod
    def num_pairs(self, num_windows: int, window_tokens: int, num_registers: int) -> int:
        """Return the number of (query, key) pairs of an image."""


@dataclass(frozen=True, kw_only=True)
class GlobalScopeConfig(ScopeConfig):
    """All patches and registers of an image attend to each other."""

    def build(self) -> Scope:
        from openafm.models.vision.scopes import GlobalScope

        return GlobalScope()

    def num_pairs(self, num_windows: int, window_tokens: int, num_registers: int) -> int:
        return (num_windows * window_tokens + num_registers) ** 2


@dataclass(frozen=True, kw_only=True)
class WindowScopeConfig(ScopeConfig):
    """The patches of each window attend to each other; registers attend in other layers only (ViTDet, arXiv 2203.16527)."""

    def build(self) -> Scope:
        from openafm.models.vision.scopes import WindowScope

        return WindowScope()

    def num_pairs(self, num_windows: int, window_tokens: int, num_registers: int) -> int:
        return num_windows * window_tokens**2


@dataclass(frozen=True, kw_only=True)
class RegisterWindowScopeConfig(ScopeConfig):
    """Register-Window: each window attends within itself and to a copy of the registers (report 2.3).

    The report gives one sentence; the reading is this project's: the registers attend in every window, and the mean of the
    windows' results is added to them. So a register gathers from all windows in each layer and takes part in global layers.
    """

    def build(self) -> Scope:
        from openafm.models.vision.scopes import RegisterWindowScope

        return RegisterWindowScope()

    def num_pairs(self, num_windows: int, window_tokens: int, num_registers: int) -> int:
        return num_windows * (window_tokens + num_registers) ** 2


@dataclass(frozen=True, kw_only=True)
class VisionLayerConfig(Config):
    """One pre-norm transformer layer: attention within a scope, then two linear layers with GELU between them.

    `layer_scale` is the start value of a learned factor per channel on both outputs (arXiv 2103.17239); None has none.
    """

    num_heads: int
    mlp_dim: int
    scope: ScopeConfig = GlobalScopeConfig()
    layer_scale: float | None = None

    def __post_init__(self) -> None:
        self.require(self.num_heads > 0 and self.mlp_dim > 0, "num_heads and mlp_dim must be positive")

    def num_parameters(self, dim: int) -> int:
        """Return the number of weights."""
        attention, mlp = 4 * dim * dim + 4 * dim, 2 * dim * self.mlp_dim + self.mlp_dim + dim
        return attention + mlp + 4 * dim + (0 if self.layer_scale is None else 2 * dim)


@dataclass(frozen=True, kw_only=True)
class ConvolutionConfig(Config):
    """A square convolution with zero padding, then GELU and a layer norm over the channels."""

    channels: int
    kernel_side: int = 3
    stride: int = 1

    def __post_init__(self) -> None:
        values = (self.channels, self.stride, self.kernel_side)
        self.require(min(values) > 0, f"channels, stride and kernel_side must be positive, got {values}")
        self.require(self.kernel_side % 2 == 1, f"kernel_side must be odd, got {self.kernel_side}")


@dataclass(frozen=True, kw_only=True)
class VisionConfig(Config):
    """A vision transformer (arXiv 2010.11929): patches, learned positions, registers, layers, final norm.

    The patch embedding is a linear layer of the pixels of a patch, or of the outputs of `stem`, convolutions of the whole
    image (arXiv 2106.14881). The report's encoders have none. An encoder without layers is its stem alone: a patch is one
    output, without positions, registers and final norm. It learns to read letters faster (docs/benchmarks.md, Letters).

    `image_side` and `patch_side` are in pixels; `window_side` is in patches, None without windows. Other image sides are
    allowed if they divide into patches and windows: the position embeddings are interpolated. Registers are learned tokens
    without a position; the first one is the class token. InternVL's encoder has no norm after the last layer.
    """

    image_side: int
    patch_side: int
    dim: int
    layers: tuple[VisionLayerConfig, ...]
    window_side: int | None = None
    num_registers: int = 1
    norm_eps: float = 1e-6
    final_norm: bool = True
    stem: tuple[ConvolutionConfig, ...] = ()
    pixel_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    pixel_std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        self.require(min(self.image_side, self.patch_side, self.dim) > 0, "image_side, patch_side and dim must be positive")
        self.require(bool(self.layers or self.stem), "an encoder needs a stem or at least one layer")
        self.require(
            all(0 < value < math.inf for value in self.pixel_std), f"pixel_std must be positive, got {self.pixel_std}"
        )
        self.require(self.num_registers >= 0, f"num_registers must not be negative, got {self.num_registers}")
        self.require(
            self.patch_side % self.stem_stride == 0,
            f"a patch of {self.patch_side} pixels does not divide into the stem's strides of {self.stem_stride}",
        )
        outputs = (self.stem_stride, self.stem[-1].channels if self.stem else 0)
        self.require(
            bool(self.layers)
            or (self.patch_side, self.dim, self.window_side, self.num_registers, self.final_norm)
            == (*outputs, None, 0, False),
            "an encoder without layers has patches of its stem's stride ({}) and dim ({}), no windows, no registers and no "
            "final norm".format(*outputs),
        )
        for layer in self.layers:
            self.require(self.dim % layer.num_heads == 0, f"dim {self.dim} does not divide into {layer.num_heads} heads")
            in_windows = not isinstance(layer.scope, GlobalScopeConfig)
            self.require(self.window_side is not None or not in_windows, "layers with windows need window_side")
            self.require(
                self.num_registers > 0 or not isinstance(layer.scope, RegisterWindowScopeConfig),
                "RegisterWindowScopeConfig needs num_registers of at least 1",
            )
        self.grid_side(self.image_side)

    @property
    def stem_stride(self) -> int:
        """Pixels between neighboring outputs of the stem; 1 without a stem."""
        return math.prod(each.stride for each in self.stem)

    @property
    def stem_inputs(self) -> tuple[int, ...]:
        """Inputs of one output of each convolution of the stem: the taps of its kernel times the channels before it."""
        channels = (3, *(each.channels for each in self.stem))
        return tuple(each.kernel_side**2 * before for each, before in zip(self.stem, channels, strict=False))

    @property
    def patch_inputs(self) -> int:
        """Inputs of the patch embedding."""
        channels = self.stem[-1].channels if self.stem else 3
        return channels * (self.patch_side // self.stem_stride) ** 2

    def grid_side(self, image_side: int) -> int:
        """Return the number of patches on each side of an image of this side in pixels.

        Raises:
            ConfigError: the image does not divide into patches and windows.
        """
        unit = self.patch_side * (self.window_side or 1)
        self.require(
            image_side > 0 and image_side % unit == 0,
            f"an image side of {image_side} pixels must be a multiple of {unit} (patches of {self.patch_side} pixels"
            + (f", windows of {self.window_side} patches)" if self.window_side else ")"),
        )
        return image_side // self.patch_side

    def windows(self, image_side: int) -> tuple[int, int]:
        """Return the number of windows of an image, and of patches in each; one window without `window_side`."""
        grid = self.grid_side(image_side)
        window = self.window_side or grid
        return (grid // window) ** 2, window * window

    def num_parameters(self) -> int:
        """Return the number of weights."""
        stem = sum((inputs + 3) * each.channels for each, inputs in zip(self.stem, self.stem_inputs, strict=True))
        if not self.layers:
            return stem
        patches = (self.patch_inputs + 1) * self.dim + stem
        positions = (self.grid_side(self.image_side) ** 2 + self.num_registers) * self.dim
        layers = sum(layer.num_parameters(self.dim) for layer in self.layers)
        return patches + positions + layers + (2 * self.dim if self.final_norm else 0)

    def stem_flops(self, image_side: int) -> float:
        """Return the operations of the stem's forward pass of an image."""
        total, side = 0.0, image_side
        for each, inputs in zip(self.stem, self.stem_inputs, strict=True):
            side //= each.stride
            total += 2.0 * side**2 * each.channels * inputs
        return total

    def flops(self, image_side: int, kept: float = 1.0) -> float:
        """Return the operations of the forward pass of an image, of which a share `kept` of the patches is encoded."""
        if not self.layers:
            return self.stem_flops(image_side)
        num_windows, window_tokens = self.windows(image_side)
        window_tokens = round(window_tokens * kept)
        num_tokens = num_windows * window_tokens + self.num_registers
        total = self.stem_flops(image_side) + 2.0 * num_windows * window_tokens * self.patch_inputs * self.dim
        for layer in self.layers:
            total += 2.0 * num_tokens * (4 * self.dim**2 + 2 * self.dim * layer.mlp_dim)
            total += 4.0 * self.dim * layer.scope.num_pairs(num_windows, window_tokens, self.num_registers)
        return total

    def build(self, seed: int = 0) -> BaseVisionEncoder:
        """Return the module with freshly initialized weights, or without storage under `torch.device("meta")`."""
        from openafm.models.vision.encoder import ConvolutionalEncoder, VisionEncoder

        return (VisionEncoder if self.layers else ConvolutionalEncoder)(self, seed)


@dataclass(frozen=True, kw_only=True)
class BaseAdapterConfig(Config, ABC):
    """Base of the adapters: from the states of an encoder to the embeddings of image tokens of a decoder."""

    @abstractmethod
    def usual_tokens(self, vision: VisionConfig, image_side: int) -> int:
        """Return the number of tokens of a view that no mode states."""

    @abstractmethod
    def check_view(self, vision: VisionConfig, image_side: int, num_tokens: int) -> None:
        """Check that a view of this side can have this number of tokens.

        Raises:
            ConfigError: it cannot.
        """

    @abstractmethod
    def num_parameters(self, vision_dim: int, decoder_dim: int) -> int:
        """Return the number of weights between an encoder and a decoder of these dims."""

    @abstractmethod
    def flops(self, vision: VisionConfig, decoder_dim: int, image_side: int, num_tokens: int) -> float:
        """Return the operations of the forward pass of an image with `num_tokens` tokens."""

    @abstractmethod
    def build(self, vision_dim: int, decoder_dim: int, seed: int = 0) -> BaseVisionAdapter:
        """Return the module with freshly initialized weights, or without storage under `torch.device("meta")`."""


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(BaseAdapterConfig):
    """The vision-language adaptation module (report 2.3): a transformer layer, a linear projection, a 3x3 convolution, and
    average pooling to `tokens_side` x `tokens_side` tokens."""

    layer: VisionLayerConfig
    tokens_side: int = 12
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        self.require(self.tokens_side > 0, f"tokens_side must be at least 1, got {self.tokens_side}")
        self.require(isinstance(self.layer.scope, GlobalScopeConfig), "the adapter's layer attends globally")

    def usual_tokens(self, vision: VisionConfig, image_side: int) -> int:
        return self.tokens_side**2

    def check_view(self, vision: VisionConfig, image_side: int, num_tokens: int) -> None:
        is_square = math.isqrt(num_tokens) ** 2 == num_tokens
        self.require(is_square, f"a view has a square number of tokens, got {num_tokens}")

    def num_parameters(self, vision_dim: int, decoder_dim: int) -> int:
        projection = 2 * vision_dim + (vision_dim + 1) * decoder_dim
        return self.layer.num_parameters(vision_dim) + projection + (9 * decoder_dim + 1) * decoder_dim

    def flops(self, vision: VisionConfig, decoder_dim: int, image_side: int, num_tokens: int) -> float:
        grid, tokens_side, dim = vision.grid_side(image_side), math.isqrt(num_tokens), vision.dim
        num_patches, num_states = grid * grid, grid * grid + vision.num_registers
        layer = 2.0 * num_states * (4 * dim**2 + 2 * dim * self.layer.mlp_dim)
        layer += 4.0 * dim * self.layer.scope.num_pairs(1, num_patches, vision.num_registers)
        pooling = 2.0 * 3 * tokens_side * grid * (grid + 3 * tokens_side) * decoder_dim
        return layer + 2.0 * num_patches * dim * decoder_dim + pooling + 2.0 * num_tokens * 9 * decoder_dim**2

    def build(self, vision_dim: int, decoder_dim: int, seed: int = 0) -> VisionAdapter:
        from openafm.models.vision.adapter import VisionAdapter

        return VisionAdapter(self, vision_dim, decoder_dim, seed)
