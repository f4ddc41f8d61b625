"""Pipelines from crawled pages to image-text pairs and interleaved documents (report 3.2.1), as typed configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from openafm.core.config import nearest
from openafm.core.registry import load_plugin
from openafm.data.deduplication import ExactConfig, MinHashConfig
from openafm.data.filtering import HeuristicsConfig, LanguageConfig, LengthConfig, PrivacyConfig, WordListConfig
from openafm.data.pairs.alignment import AlignmentConfig
from openafm.data.pairs.config import InterleavedConfig, PairsConfig
from openafm.data.pairs.filters import AltTextConfig
from openafm.data.pairs.pages import ImagePageConfig
from openafm.data.pipeline.config import DeduplicationStageConfig, ExtractionStageConfig, FilterStageConfig

Build = Callable[[], PairsConfig]


def recipe() -> PairsConfig:
    """Return the pipeline of images: alt-text pairs and interleaved documents, filtered, aligned and deduplicated."""
    return PairsConfig(
        recipe="images.recipe",
        pages=(
            ExtractionStageConfig(
                name="extract", extraction=ImagePageConfig(), filters=(LanguageConfig(), WordListConfig())
            ),
        ),
        text_filters=(WordListConfig(min_distinct=1, max_per_1000=0.0), PrivacyConfig()),
        pair_filters=(AltTextConfig(), AlignmentConfig()),
        interleaved=InterleavedConfig(
            stages=(
                FilterStageConfig(filters=(LengthConfig(), HeuristicsConfig(), PrivacyConfig())),
                DeduplicationStageConfig(name="exact", deduplication=ExactConfig()),
                DeduplicationStageConfig(name="near", deduplication=MinHashConfig()),
            )
        ),
    )


IMAGE_PIPELINES: Mapping[str, Build] = {"images.recipe": recipe}
"""The pipelines of image data by name."""


def build_image_pipeline(name: str) -> PairsConfig:
    """Return a pipeline by name, or from the user's code: `./my_images.py:function` or `package.module:function`.

    The function has no parameters and returns a `PairsConfig`.

    Raises:
        UnknownRecipeError: no such pipeline; the message gives the nearest one.
        PluginError: the module cannot be imported.
    """
    from openafm.recipes.config import UnknownRecipeError  # loads the configs of training, which pipelines do not need

    if ":" not in name:
        if name not in IMAGE_PIPELINES:
            raise UnknownRecipeError(f"unknown pipeline of images '{name}'{nearest(name, list(IMAGE_PIPELINES))}")
        return IMAGE_PIPELINES[name]()
    module_name, _, function = name.rpartition(":")
    build = getattr(load_plugin(module_name), function, None)
    config = build() if callable(build) else None
    if not isinstance(config, PairsConfig):
        raise UnknownRecipeError(f"'{name}' is not a function without parameters that returns a PairsConfig")
    plugin = str(Path(module_name).resolve()) if module_name.endswith(".py") else module_name
    return replace(
        config,
        recipe=config.recipe or f"{Path(module_name).stem}.{function}",
        plugins=tuple(dict.fromkeys((*config.plugins, plugin))),
    )
