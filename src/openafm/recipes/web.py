"""Pipelines from web pages to a corpus (report 3.1), as functions that return one typed config each."""

from __future__ import annotations

# `recipes.config` loads the configs of training, which pipelines do not need; it is imported where names are wrong.
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from openafm.core.config import ConfigError, nearest
from openafm.core.registry import load_plugin
from openafm.data.deduplication import ExactConfig, MinHashConfig, ParagraphsConfig
from openafm.data.extraction import ExtractionConfig
from openafm.data.filtering import HeuristicsConfig, LanguageConfig, LengthConfig, PrivacyConfig, WordListConfig
from openafm.data.pipeline.config import (
    DeduplicationStageConfig,
    ExtractionStageConfig,
    FilterStageConfig,
    PipelineConfig,
)

Build = Callable[[], PipelineConfig]


def recipe() -> PipelineConfig:
    """Return the pipeline of web pages: extraction, filters, personal data masked, exact and near duplicates removed."""
    return PipelineConfig(
        recipe="web.recipe",
        stages=(
            ExtractionStageConfig(extraction=ExtractionConfig()),
            FilterStageConfig(
                filters=(LanguageConfig(), LengthConfig(), HeuristicsConfig(), WordListConfig(), PrivacyConfig())
            ),
            DeduplicationStageConfig(name="exact", deduplication=ExactConfig()),
            DeduplicationStageConfig(name="paragraphs", deduplication=ParagraphsConfig()),
            DeduplicationStageConfig(name="near", deduplication=MinHashConfig()),
        ),
    )


PIPELINES: Mapping[str, Build] = {"web.recipe": recipe}
"""The pipelines by name."""


def build_pipeline(name: str) -> PipelineConfig:
    """Return a pipeline by name, or from the user's code: `./my_pipeline.py:function` or `package.module:function`.

    The function has no parameters and returns a `PipelineConfig`. It may be left out if the module has one of these.

    Raises:
        UnknownRecipeError: no such pipeline; the message gives the nearest one.
        PluginError: the module cannot be imported.
    """
    if ":" in name or name.endswith(".py"):
        return _imported(name)
    if name not in PIPELINES:
        from openafm.recipes.config import UnknownRecipeError

        raise UnknownRecipeError(f"unknown pipeline '{name}'{nearest(name, list(PIPELINES))}")
    return PIPELINES[name]()


def summaries() -> dict[str, str]:
    """Return the first line of each pipeline's docstring by name."""
    from openafm.recipes.config import summary_of

    return {name: summary_of(build) for name, build in PIPELINES.items()}


def _imported(reference: str) -> PipelineConfig:
    module_name, _, function = reference.rpartition(":") if ":" in reference else (reference, "", "")
    module = load_plugin(module_name)
    found = {name: value for name, value in vars(module).items() if _is_pipeline(value, module.__name__)}
    if not function and len(found) == 1:
        (function,) = found
    if function not in found:
        from openafm.recipes.config import UnknownRecipeError

        listing = f"its pipelines: {', '.join(found)}" if found else "it has none"
        raise UnknownRecipeError(
            f"'{reference}' names no pipeline in {module_name}; {listing}. A pipeline is a function without parameters"
            " that is annotated to return PipelineConfig"
        )
    config = found[function]()
    if not isinstance(config, PipelineConfig):
        raise ConfigError(f"{reference} returned {type(config).__name__}; a pipeline returns a PipelineConfig")
    plugin = str(Path(module_name).resolve()) if module_name.endswith(".py") else module_name
    name = config.recipe or f"{Path(module_name).stem}.{function}"
    return replace(config, recipe=name, plugins=tuple(dict.fromkeys((*config.plugins, plugin))))


def _is_pipeline(value: Any, module: str) -> bool:
    if not inspect.isfunction(value) or value.__module__ != module:
        return False
    return (
        value.__annotations__.get("return") in (PipelineConfig, "PipelineConfig") and not inspect.signature(value).parameters
    )
