"""Drawn images of the vision recipes, in the sizes of the models.

Sides are in the report's proportions: contrastive pre-training has 2 x 2 windows (448 pixels), joint training and the
on-device model 3 x 3 (672), rapid mode one (224). The server model has 448 pixels.
"""

from __future__ import annotations

from dataclasses import replace

from openafm.data.drawing.corpus import DrawingConfig
from openafm.data.drawing.generators import generator_config
from openafm.data.images.packing import ImagePackConfig, Learned
from openafm.data.images.resolution import ResolutionConfig
from openafm.models.vision.config import VisionConfig
from openafm.models.vision.sizes import encoder_of, raised
from openafm.recipes.sources.drawn_corpus import DrawnCorpusConfig, InterleavedCorpusConfig

RESOLUTIONS = {
    "micro": ResolutionConfig(side=168, rapid_side=56, tokens=36, rapid_tokens=9),
    "nano": ResolutionConfig(side=336, rapid_side=112, tokens=144, rapid_tokens=9),
}
SERVER_RESOLUTIONS = {
    "micro": ResolutionConfig(side=112, tokens=36, rapid_share=0.0, rapid_share_of_high_resolution=0.0),
    "nano": ResolutionConfig(side=224, tokens=144, rapid_share=0.0, rapid_share_of_high_resolution=0.0),
}
"""Without rapid mode, which the report states for the on-device model."""
CLIP_RESOLUTIONS = {
    "micro": ResolutionConfig(side=112, rapid_side=56, tokens=1, rapid_tokens=1),
    "nano": ResolutionConfig(side=224, rapid_side=112, tokens=1, rapid_tokens=1),
}
"""An image takes one token of a row: the towers do not read the tokens of images."""
TOKENS_SIDE = {"micro": 6, "nano": 12}
NUM_DRAWINGS = {"micro": 100, "nano": 20_000}
LANGUAGES = {"micro": ("en",), "nano": ("en", "de", "fr", "es", "it", "pt", "nl", "ja", "zh-Hans", "ko")}

CAPTIONED = ("charts", "flyers", "scenes", "signs")
"""Kinds with captions."""
ASKED = ("charts", "flyers", "scenes", "signs")
"""Kinds with questions. Scenes ask for coordinates, by coordinates and marks, about pairs of images, and, as flyers do, for
what is absent: the answer refuses."""
TEXT_RICH = ("charts", "flyers", "signs")
COARSE = ("scenes",)
"""Kinds that count as low-resolution images: all drawings are larger than a view, and their shapes are large."""


def encoder_at(name: str, size: str, resolution: ResolutionConfig) -> VisionConfig:
    """Return a kind of encoder, `rw_vitdet` on-device or `vit` on the server, in a size at a resolution."""
    return raised(encoder_of(f"{name}.{size}"), resolution.side)


def drawing(size: str, kinds: tuple[str, ...], *, held_out: bool = False) -> DrawingConfig:
    """Return drawings of some kinds."""
    return DrawingConfig(
        generators=tuple(generator_config(kind) for kind in kinds),
        languages=LANGUAGES[size],
        count=max(NUM_DRAWINGS[size] // (20 if held_out else 1), 50),
        split="held_out" if held_out else "train",
    )


def drawn(
    name: str,
    size: str,
    kinds: tuple[str, ...],
    learn: tuple[Learned, ...],
    *,
    resolution: ResolutionConfig,
    held_out: bool = False,
    draws_modes: bool = False,
) -> DrawnCorpusConfig:
    """Return a corpus of drawings of some kinds, in balanced mode or in modes that are drawn (report 5.1)."""
    if kinds == COARSE and draws_modes:
        resolution = replace(resolution, rapid_share_of_high_resolution=resolution.rapid_share)
    return DrawnCorpusConfig(
        name=name,
        drawing=drawing(size, kinds, held_out=held_out),
        packing=ImagePackConfig(
            source=name,
            learn=learn,
            resolution=resolution,
            mode="drawn" if draws_modes else "balanced",
        ),
    )


def interleaved(size: str, resolution: ResolutionConfig) -> InterleavedCorpusConfig:
    """Return documents of several drawings with text between them."""
    return InterleavedCorpusConfig(
        name="interleaved",
        drawing=drawing(size, CAPTIONED),
        packing=ImagePackConfig(source="interleaved", learn=("interleaved",), resolution=RESOLUTIONS[size], mode="balanced"),
    )


def vision_corpora(size: str, resolution: ResolutionConfig) -> tuple[DrawnCorpusConfig | InterleavedCorpusConfig, ...]:
    """Return the image sources of joint training and of adaptation, and the held-out corpus."""
    return (
        interleaved(size, resolution),
        drawn("captions", size, CAPTIONED, ("captions",), resolution=resolution),
        drawn("domain", size, ASKED, ("transcription", "questions"), resolution=resolution),
        drawn("held_out", size, ASKED, ("captions", "questions"), held_out=True, resolution=resolution),
    )
