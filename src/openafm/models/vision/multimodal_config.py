"""Decoders that see images, and contrastive pairs of towers, as data. Imports no tensor library."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from openafm.models.config import DecoderConfig
from openafm.models.vision.config import AdapterConfig, VisionConfig
from openafm.models.vision.image_modes import ImageModeConfig
from openafm.models.vision.letters import CELL, LETTER_TOKENS, NUM_CLASSES
from openafm.models.vision.pixel_shuffle_config import PixelShuffleAdapterConfig

if TYPE_CHECKING:
    from openafm.models.vision.clip import ClipModel
    from openafm.models.vision.multimodal import MultimodalDecoder
    from openafm.models.vision.reader import Reader


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
class ReaderConfig(MultimodalConfig):
    """A decoder with vision that also learns which letter is where, from drawings (`training/objectives/reading.py`).

    A linear layer gives the probabilities of the classes of letters in each cell, from the output of the stem there; of an
    encoder without a stem, from the state of the patch. Each image token has the expected embeddings of its letters added,
    scaled by cell: a small decoder finds letters among the image tokens soon if these have the embeddings of the text
    (docs/benchmarks.md, Transcribing).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            self._side % math.lcm(*CELL) == 0,
            f"{self._side} pixels between states do not divide into cells of {CELL[0]} x {CELL[1]} pixels",
        )
        self.require(
            isinstance(self.adapter, PixelShuffleAdapterConfig),
            f"letters need tokens of whole patches; use a PixelShuffleAdapterConfig, got {type(self.adapter).__name__}",
        )
        needed = LETTER_TOKENS.stop
        self.require(
            self.vocab_size >= needed, f"vocab_size must be {needed} or more to spell letters, got {self.vocab_size}"
        )

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of the cells of a state."""
        return self._side // CELL[0], self._side // CELL[1]

    def num_cells(self, image_side: int) -> int:
        """Return the cells of a view."""
        return (image_side // self._side) ** 2 * math.prod(self.cells)

    @property
    def cells_of_token(self) -> int:
        """Cells of an image token: of its states row by row, then of each state."""
        assert isinstance(self.adapter, PixelShuffleAdapterConfig)
        rows, columns = self.cells
        return (self.adapter.factor * self.vision.patch_side // self._side) ** 2 * rows * columns

    @property
    def letters_dim(self) -> int:
        """Inputs of the layer that classifies letters."""
        return self.vision.stem[-1].channels if self.vision.stem else self.vision.dim

    @property
    def _side(self) -> int:
        return self.vision.stem_stride if self.vision.stem else self.vision.patch_side

    def other_parameters(self) -> int:
        rows, columns = self.cells
        head = (self.letters_dim + 1) * rows * columns * NUM_CLASSES
        return super().other_parameters() + head + self.cells_of_token * self.dim

    def view_flops(self, image_side: int, num_tokens: int) -> float:
        letters = 2.0 * self.num_cells(image_side) * (NUM_CLASSES * self.letters_dim + len(LETTER_TOKENS) * self.dim)
        return super().view_flops(image_side, num_tokens) + letters

    def build(self, seed: int = 0) -> Reader:
        """Return the module with freshly initialized weights, or without storage under `torch.device("meta")`."""
        from openafm.models.vision.reader import Reader

        return Reader(self, seed)


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


def _values(decoder: DecoderConfig) -> dict[str, Any]:
    return {each.name: getattr(decoder, each.name) for each in fields(DecoderConfig)}
