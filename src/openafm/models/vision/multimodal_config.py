"""Decoders that see images, contrastive pairs of towers, and models of letters, as data. Imports no tensor library."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from openafm.models.config import DecoderConfig, LayerConfig
from openafm.models.vision.config import AdapterConfig, VisionConfig
from openafm.models.vision.image_modes import ImageModeConfig
from openafm.models.vision.letters import CELL, NUM_CLASSES
from openafm.models.vision.pixel_shuffle_config import PixelShuffleAdapterConfig

if TYPE_CHECKING:
    from openafm.models.vision.clip import ClipModel
    from openafm.models.vision.letters_model import LettersModel
    from openafm.models.vision.multimodal import MultimodalDecoder


# A union and not the base: configs of older bundles have no "type" here.
AnyAdapterConfig: TypeAlias = AdapterConfig | PixelShuffleAdapterConfig


@dataclass(frozen=True, kw_only=True)
class MultimodalConfig(DecoderConfig):
    """A decoder with a vision encoder and an adapter (report 2.3), on-device or server.

    The decoder is unchanged: image embeddings replace those of the image tokens in its input. `modes` are the resolution
    modes that the model is trained for; the first one is the default. Their numbers of tokens differ.
    """

    vision: VisionConfig
    adapter: AnyAdapterConfig
    modes: tuple[ImageModeConfig, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        names, counts = [mode.name for mode in self.modes], {mode.num_tokens for mode in self.modes}
        self.require(len(names) == len(set(names)) == len(counts), f"modes have distinct names and tokens, got {self.modes}")
        for mode in self.modes:
            self.vision.grid_side(mode.side)
            self.adapter.check_view(self.vision, mode.side, mode.tokens)

    @classmethod
    def of(
        cls,
        decoder: DecoderConfig,
        vision: VisionConfig,
        adapter: AnyAdapterConfig,
        modes: tuple[ImageModeConfig, ...] = (),
    ) -> Self:
        """Return a decoder with eyes."""
        return cls(**_values(decoder), vision=vision, adapter=adapter, modes=modes)

    @property
    def image_modes(self) -> tuple[ImageModeConfig, ...]:
        """`modes`; if they are not stated, balanced mode at the encoder's side."""
        if self.modes:
            return self.modes
        side = self.vision.image_side
        return (ImageModeConfig(name="balanced", side=side, tokens=self.adapter.usual_tokens(self.vision, side)),)

    @property
    def decoder(self) -> DecoderConfig:
        """The decoder alone."""
        return DecoderConfig(**_values(self))

    def other_parameters(self) -> int:
        return self.vision.num_parameters() + self.adapter.num_parameters(self.vision.dim, self.dim)

    def view_flops(self, image_side: int, num_tokens: int) -> float:
        """Return the operations of the forward pass from one view of an image to its tokens."""
        return self.vision.flops(image_side) + self.adapter.flops(self.vision, self.dim, image_side, num_tokens)

    def image_flops(self, mode: ImageModeConfig) -> float:
        """Return the operations of the forward pass from an image to its tokens."""
        return mode.num_views * self.view_flops(mode.side, mode.tokens)

    def build(self, seed: int = 0) -> MultimodalDecoder:
        """Return the module with freshly initialized weights, or without storage under `torch.device("meta")`."""
        from openafm.models.vision.multimodal import MultimodalDecoder

        return MultimodalDecoder(self, seed)


@dataclass(frozen=True, kw_only=True)
class ClipConfig(DecoderConfig):
    """Two towers for contrastive pre-training (arXiv 2103.00020, report 4.2): the decoder encodes texts, `vision` images.

    The last token of a text and the mean of an image's registers, or of its patches without registers, are projected to
    `shared_dim`.
    """

    generates_text: ClassVar[bool] = False

    vision: VisionConfig
    shared_dim: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.shared_dim > 0, f"shared_dim must be at least 1, got {self.shared_dim}")

    @classmethod
    def of(cls, text: DecoderConfig, vision: VisionConfig, *, shared_dim: int = 256) -> Self:
        """Return the towers of a text decoder and a vision encoder."""
        return cls(**_values(text), vision=vision, shared_dim=shared_dim)

    def other_parameters(self) -> int:
        return self.vision.num_parameters() + (self.vision.dim + self.dim) * self.shared_dim + 2

    def build(self, seed: int = 0) -> ClipModel:
        """Return the module with freshly initialized weights, or without storage under `torch.device("meta")`."""
        from openafm.models.vision.clip import ClipModel

        return ClipModel(self, seed)


@dataclass(frozen=True, kw_only=True)
class LettersModelConfig(DecoderConfig):
    """Convolutions and a linear layer that classifies the letter of each cell of a view (`letters.py`). Not in the report.

    It has nothing of a decoder: `dim` is 0 and `layers` is empty. `vocab_size` is that of the tokenizer in its bundle.
    """

    generates_text: ClassVar[bool] = False

    dim: int = 0
    layers: tuple[LayerConfig, ...] = ()
    vision: VisionConfig

    def __post_init__(self) -> None:
        self.require(min(self.vocab_size, self.context_length) > 0, "vocab_size and context_length must be positive")
        has_decoder = (self.dim, self.layers, self.tracks) != (0, (), None)
        self.require(not has_decoder, "a model of letters has no decoder; leave dim, layers and tracks out")
        self.require(not self.vision.layers, "the encoder of letters has convolutions alone; leave vision.layers empty")
        patch_side = self.vision.patch_side
        self.require(patch_side == CELL[0], f"vision.patch_side must be {CELL[0]} pixels as cells, got {patch_side}")

    @property
    def patch_classes(self) -> int:
        """Outputs of the linear layer: the classes of the cells of a patch, which are beside each other."""
        return self.vision.patch_side // CELL[1] * NUM_CLASSES

    def other_parameters(self) -> int:
        return self.vision.num_parameters() + (self.vision.dim + 1) * self.patch_classes

    def view_flops(self, image_side: int) -> float:
        """Return the operations of the forward pass of a view."""
        num_patches = self.vision.grid_side(image_side) ** 2
        return self.vision.flops(image_side) + 2.0 * num_patches * self.vision.dim * self.patch_classes

    def build(self, seed: int = 0) -> LettersModel:
        """Return the module with freshly initialized weights, or without storage under `torch.device("meta")`."""
        from openafm.models.vision.letters_model import LettersModel

        return LettersModel(self, seed)


def _values(decoder: DecoderConfig) -> dict[str, Any]:
    return {each.name: getattr(decoder, each.name) for each in fields(DecoderConfig)}
