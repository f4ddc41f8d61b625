"""The recipes by name, in the order of the report, and recipes from the user's own files and packages."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from openafm.core.config import ConfigError, UnknownKindError, from_dict, nearest
from openafm.core.registry import load_plugin
from openafm.recipes import continued_pretraining, multimodal_adaptation
from openafm.recipes.config import Recipe, RunConfig, UnknownRecipeError, summary_of
from openafm.recipes.on_device import draft, low_bit, pretrain, reward_model, sft, upcycling
from openafm.recipes.server import pretrain as server_pretrain
from openafm.recipes.server import sft as server_sft
from openafm.recipes.vision import clip, joint, letters

RECIPES = (
    pretrain.pretrain,
    upcycling.trunk,
    upcycling.upcycle_teacher,
    upcycling.distill,
    continued_pretraining.on_device_text,
    continued_pretraining.on_device_long,
    sft.sft,
    sft.sft_multilingual,
    reward_model.reward_model,
    reward_model.selection_model,
    clip.clip,
    joint.joint,
    letters.letters,
    multimodal_adaptation.on_device,
    multimodal_adaptation.on_device_sft,
    low_bit.qat,
    low_bit.recovery_adapter,
    draft.draft,
    server_pretrain.pretrain,
    continued_pretraining.server_text,
    continued_pretraining.server_long,
    server_sft.sft,
    clip.server_clip,
    joint.server_joint,
    multimodal_adaptation.server,
    multimodal_adaptation.server_sft,
)


def find_recipe(name: str) -> Recipe:
    """Return a recipe by name, or from the user's code by reference: `./my_recipe.py:function` or `package.module:function`.

    The function has no parameters and returns a `RunConfig`, or is decorated with `recipe`. It may be left out if the module
    has one recipe. Importing the module also registers the kinds that it defines. A name that ends in .json is a file with a
    whole config, such as the `run.json` of a run.

    Raises:
        UnknownRecipeError: no such recipe; the message gives the nearest one.
        PluginError: the module cannot be imported.
        ConfigError: the file is not a config of a run.
    """
    if name.endswith(".json"):
        return _from_file(Path(name))
    if ":" in name or name.endswith(".py"):
        return _imported(name)
    by_name = {recipe.name: recipe for recipe in RECIPES}
    if name not in by_name:
        raise UnknownRecipeError(f"unknown recipe '{name}'{nearest(name, list(by_name))}")
    return by_name[name]


def build_run(name: str, size: str | None = None) -> RunConfig:
    """Return the complete config of a recipe at a size, by default its largest.

    Raises:
        UnknownRecipeError: no such recipe, or not at this size.
    """
    recipe = find_recipe(name)
    return recipe(recipe.checked_size(size))


def _from_file(path: Path) -> Recipe:
    """Return a recipe that gives the config in a file.

    Its plugins are not imported: the caller names the ones to trust.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownRecipeError(f"the config {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a JSON object, got {type(values).__name__}")
    try:
        config = from_dict(RunConfig, values)
    except UnknownKindError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; `openafm recipes show RECIPE` prints a config") from error
    return Recipe(name=config.recipe, summary=f"The config in {path}", sizes=(), build=lambda _: config)


def _imported(reference: str) -> Recipe:
    module_name, _, function = reference.rpartition(":") if ":" in reference else (reference, "", "")
    module = load_plugin(module_name)
    found = {name: value for name, value in vars(module).items() if _is_recipe(value, module)}
    if not function and len(found) == 1:
        (function,) = found
    if function not in found:
        listing = f"its recipes: {', '.join(found)}" if found else "it has none"
        raise UnknownRecipeError(
            f"'{reference}' names no recipe in {module_name}; {listing}. A recipe is a function without parameters that is"
            " annotated to return RunConfig, or one decorated with @recipe"
        )
    value = found[function]
    if isinstance(value, Recipe):
        return replace(value, plugins=(module_name,))
    return Recipe(
        name=f"{Path(module_name).stem}.{function}",
        summary=summary_of(value),
        sizes=(),
        build=lambda _: _built(value, reference),
        plugins=(module_name,),
    )


def _is_recipe(value: Any, module: ModuleType) -> bool:
    if isinstance(value, Recipe):
        return value.build.__module__ == module.__name__
    if not inspect.isfunction(value) or value.__module__ != module.__name__:
        return False
    annotation = value.__annotations__.get("return")
    return annotation in (RunConfig, "RunConfig") and not inspect.signature(value).parameters


def _built(build: Callable[[], Any], reference: str) -> RunConfig:
    config = build()
    if not isinstance(config, RunConfig):
        raise ConfigError(f"{reference} returned {type(config).__name__}; a recipe returns a RunConfig")
    return config
