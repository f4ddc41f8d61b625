"""Pipelines from web pages to a corpus (report 3.1), as functions that return one typed config each."""

from __future__ import annotations

# `recipes.config` loads the configs of training, which pipelines do not need; it is imported where names are wrong.
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from openafm.core.config import Config, ConfigError, UnknownKeyError, nearest, override
from openafm.core.registry import load_plugin
from openafm.data.deduplication import DecontaminationConfig, ExactConfig, MinHashConfig, ParagraphsConfig
from openafm.data.extraction import ExtractionConfig
from openafm.data.extraction.base import PageExtractorConfig
from openafm.data.filtering import (
    FilterConfig,
    HeuristicsConfig,
    LanguageConfig,
    LengthConfig,
    PrivacyConfig,
    QualityConfig,
    WordListConfig,
)
from openafm.data.pipeline.config import (
    DeduplicationStageConfig,
    ExtractionStageConfig,
    FilterStageConfig,
    OptOutStageConfig,
    PipelineConfig,
    StageConfig,
)
from openafm.data.pipeline.domain_language import DomainLanguageConfig
from openafm.data.rendering.config import RenderConfig

Build = Callable[..., PipelineConfig]


@dataclass(frozen=True, kw_only=True)
class WebOptions(Config):
    """Options of `web.recipe`, for the command line: `--set quality=de.filter --set decontaminate=evaluation/`.

    `quality` are files of `openafm data train-filter`, one for each language, and `keep_rate` replaces the keep rate that
    they store. `decontaminate` are files or folders of evaluation sets; documents that share 13-grams with them are dropped.
    `domain_language` gives uncertain documents the language of their domain. `render` renders the pages that need scripts
    from the scripts and data in their WARC file; it needs Chromium.

    `model` asks a language model for the main content of pages whose confidence is below `model_below`: the name or path of
    a bundle, or the name of a model at `endpoint`, an OpenAI-compatible address.
    """

    quality: str | tuple[str, ...] = ()
    keep_rate: float | None = None
    decontaminate: str | tuple[str, ...] = ()
    domain_language: bool = False
    render: bool = False
    model: str = ""
    endpoint: str = ""
    model_below: float = 0.9

    def __post_init__(self) -> None:
        self.require(
            bool(self.model) or not self.endpoint, f"endpoint {self.endpoint} needs the name of a model: model=NAME"
        )
        self.require(self.keep_rate is None or bool(self.quality), "keep_rate needs a quality filter: quality=FILE")


def recipe(options: WebOptions = WebOptions()) -> PipelineConfig:
    """Return the pipeline of web pages: extraction, filters, personal data masked, exact and near duplicates removed."""
    quality = tuple(QualityConfig(file=file, keep_rate=options.keep_rate) for file in _paths(options.quality))
    filters = (HeuristicsConfig(), WordListConfig(), PrivacyConfig(), *quality)
    evaluation = _paths(options.decontaminate)
    return PipelineConfig(
        recipe="web.recipe",
        stages=(
            ExtractionStageConfig(extraction=_extraction(options), rendering=RenderConfig() if options.render else None),
            OptOutStageConfig(),
            *_filters(filters, options.domain_language),
            DeduplicationStageConfig(name="exact", deduplication=ExactConfig()),
            DeduplicationStageConfig(name="paragraphs", deduplication=ParagraphsConfig()),
            DeduplicationStageConfig(name="near", deduplication=MinHashConfig()),
            *(
                [DeduplicationStageConfig(name="decontaminate", deduplication=DecontaminationConfig(evaluation=evaluation))]
                if evaluation
                else []
            ),
        ),
    )


def _extraction(options: WebOptions) -> PageExtractorConfig:
    if not options.model:
        return ExtractionConfig()
    from openafm.recipes.pipelines.block_choice import ModelExtractionConfig

    return ModelExtractionConfig(
        extraction=ExtractionConfig(model_below=options.model_below), model=options.model, endpoint=options.endpoint
    )


def _filters(filters: tuple[FilterConfig, ...], has_domain_language: bool) -> tuple[StageConfig, ...]:
    """Return the stages of filters: in two parts if the domains vote on languages after the first one."""
    if not has_domain_language:
        return (FilterStageConfig(filters=(LanguageConfig(), LengthConfig(), *filters)),)
    return (
        FilterStageConfig(name="language", filters=(LanguageConfig(),)),
        DeduplicationStageConfig(name="domain_language", deduplication=DomainLanguageConfig()),
        FilterStageConfig(filters=(LengthConfig(), *filters)),
    )


def _paths(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return ((value,) if value else ()) if isinstance(value, str) else value


PIPELINES: Mapping[str, Build] = {"web.recipe": recipe}
"""The pipelines by name."""


def build_pipeline(name: str, changes: Mapping[str, str] | None = None) -> PipelineConfig:
    """Return a pipeline by name, or from the user's code: `./my_pipeline.py:function` or `package.module:function`.

    The function has no parameter, or one named `options` that is a config and has a default; it returns a `PipelineConfig`.
    The function's name may be left out if the module has one of these. `changes` are texts by key: those of options first,
    then dotted keys of the config (`core.config.override`).

    Raises:
        UnknownRecipeError: no such pipeline; the message gives the nearest one.
        UnknownKeyError: neither the options nor the config have a key.
        PluginError: the module cannot be imported.
    """
    changes = changes or {}
    if ":" in name or name.endswith(".py"):
        return _imported(name, changes)
    if name not in PIPELINES:
        from openafm.recipes.config import UnknownRecipeError

        raise UnknownRecipeError(f"unknown pipeline '{name}'{nearest(name, list(PIPELINES))}")
    return _built(PIPELINES[name], name, changes)


def _built(build: Build, name: str, changes: Mapping[str, str]) -> PipelineConfig:
    """Return the config of a pipeline function with the changes of its options and of the config."""
    parameter = inspect.signature(build).parameters.get("options")
    options = parameter.default if parameter is not None else None
    names = [] if options is None else [field.name for field in fields(options)]
    of_options = {key: text for key, text in changes.items() if key.partition(".")[0] in names}
    config = build(override(options, of_options)) if options is not None else build()
    if not isinstance(config, PipelineConfig):
        raise ConfigError(f"{name} returned {type(config).__name__}; a pipeline returns a PipelineConfig")
    known = [*names, *(field.name for field in fields(PipelineConfig))]
    unknown = [key for key in changes if key.partition(".")[0] not in known]
    if unknown:
        raise UnknownKeyError(f"unknown key '{unknown[0]}' of {name}{nearest(unknown[0].partition('.')[0], known)}")
    return override(config, {key: changes[key] for key in changes if key not in of_options})


def summaries() -> dict[str, str]:
    """Return the first line of each pipeline's docstring by name."""
    from openafm.recipes.config import summary_of

    return {name: summary_of(build) for name, build in PIPELINES.items()}


def _imported(reference: str, changes: Mapping[str, str]) -> PipelineConfig:
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
    config = _built(found[function], reference, changes)
    plugin = str(Path(module_name).resolve()) if module_name.endswith(".py") else module_name
    name = config.recipe or f"{Path(module_name).stem}.{function}"
    return replace(config, recipe=name, plugins=tuple(dict.fromkeys((*config.plugins, plugin))))


def _is_pipeline(value: Any, module: str) -> bool:
    if not inspect.isfunction(value) or value.__module__ != module:
        return False
    parameters = inspect.signature(value).parameters
    has_defaults = all(name == "options" and isinstance(each.default, Config) for name, each in parameters.items())
    return value.__annotations__.get("return") in (PipelineConfig, "PipelineConfig") and has_defaults
