"""Drawn images of the vision recipes, in the sizes of the models."""

from __future__ import annotations

from openafm.data.drawing.corpus import DrawingConfig
from openafm.data.drawing.generators import generator_config
from openafm.data.images.packing import ImagePackConfig, Learned
from openafm.data.images.resolution import Mode, ResolutionConfig
from openafm.recipes.drawn_corpus import DrawnCorpusConfig

# The sides of views divide into the patches and windows of the encoder of the size (models/vision/sizes.py).
RESOLUTIONS = {
    "micro": ResolutionConfig(side=112, rapid_side=56, tokens=36, rapid_tokens=9),
    "nano": ResolutionConfig(side=224, rapid_side=112, tokens=144, rapid_tokens=9),
}
MODE: Mode = "balanced"
"""The resolution mode of all drawn images."""
TOKENS_SIDE = {"micro": 6, "nano": 12}
NUM_DRAWINGS = {"micro": 100, "nano": 20_000}
LANGUAGES = {"micro": ("en",), "nano": ("en", "de", "fr", "es", "it", "pt", "nl", "ja", "zh-Hans", "ko")}


def drawn(
    name: str, size: str, kinds: tuple[str, ...], learn: tuple[Learned, ...], *, held_out: bool = False
) -> DrawnCorpusConfig:
    """Return a corpus of drawings of some kinds."""
    return DrawnCorpusConfig(
        name=name,
        drawing=DrawingConfig(
            generators=tuple(generator_config(kind) for kind in kinds),
            languages=LANGUAGES[size],
            count=max(NUM_DRAWINGS[size] // (20 if held_out else 1), 50),
            split="held_out" if held_out else "train",
        ),
        packing=ImagePackConfig(source=name, learn=learn, resolution=RESOLUTIONS[size], mode=MODE),
    )
