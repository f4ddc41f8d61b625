"""The generators by name: those that come with openafm, and those that plugins define."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from typing import Any

from openafm.core.config import nearest
from openafm.core.errors import UsageError
from openafm.data.drawing.base import GeneratorConfig

_BUILT_IN = {
    "charts": "openafm.data.drawing.charts:ChartsConfig",
    "documents": "openafm.data.drawing.documents:DocumentsConfig",
    "flyers": "openafm.data.drawing.flyers:FlyersConfig",
    "formulas": "openafm.data.drawing.formulas:FormulasConfig",
    "handwriting": "openafm.data.drawing.handwriting:HandwritingConfig",
    "lines": "openafm.data.drawing.lines:LinesConfig",
    "scenes": "openafm.data.drawing.scenes:ScenesConfig",
    "signs": "openafm.data.drawing.signs:SignsConfig",
    "tables": "openafm.data.drawing.tables:TablesConfig",
    "words": "openafm.data.drawing.words:WordsConfig",
}


class UnknownGeneratorError(UsageError):
    """No generator has this name."""


def generator_names() -> tuple[str, ...]:
    """Return the names of all known generators, those of plugins last."""
    return tuple(dict.fromkeys((*_BUILT_IN, *_of_plugins())))


def generator_config(name: str) -> GeneratorConfig:
    """Return the config of a generator with its default values.

    Raises:
        UnknownGeneratorError: the name is unknown.
    """
    if name in _BUILT_IN:
        module, _, class_name = _BUILT_IN[name].partition(":")
        found = getattr(importlib.import_module(module), class_name)()
        assert isinstance(found, GeneratorConfig)
        return found
    plugins = _of_plugins()
    if name not in plugins:
        raise UnknownGeneratorError(f"unknown kind '{name}'{nearest(name, list(generator_names()))}")
    return plugins[name]


def load_built_in() -> None:
    """Import the configs of all generators that come with openafm, so that a record that has them can be read."""
    for name in _BUILT_IN:
        generator_config(name)


def _of_plugins() -> dict[str, GeneratorConfig]:
    """The generators of imported plugins, by name. A class of openafm is not one of them."""
    return {
        config.name: config
        for kind in _below(GeneratorConfig)
        if not inspect.isabstract(kind) and not kind.__module__.startswith("openafm.")
        for config in (kind(),)
    }


def _below(kind: Any) -> Iterable[type[GeneratorConfig]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)
