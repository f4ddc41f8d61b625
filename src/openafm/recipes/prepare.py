"""Resolve a recipe: its bundle to start from, the user's data, changed values, and the teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from openafm.bundle import Bundle, open_bundle
from openafm.bundle.store import bundle_place
from openafm.compression.errors import UncompressibleModelError
from openafm.core.config import override
from openafm.core.errors import UsageError
from openafm.data.loading.loader import LoaderConfig
from openafm.models.initialization.upcycling_config import upcycled_config
from openafm.models.reward_config import RewardModelConfig
from openafm.models.vision.multimodal_config import LettersModelConfig, MultimodalConfig
from openafm.recipes.catalog import find_recipe
from openafm.recipes.config import Recipe, RunConfig
from openafm.recipes.sources.data_config import DataConfig
from openafm.recipes.sources.own_data import BUILT_IN, chosen_data, read_data, with_data
from openafm.recipes.sources.preferences import with_preferences, with_row_limit
from openafm.training.config import TrainerConfig, VisionStart
from openafm.training.objectives.preference_config import PreferenceConfig


def prepare_run(
    recipe: str,
    size: str | None = None,
    *,
    start: str | None = None,
    data: Path | DataConfig | None = None,
    changes: Mapping[str, str] | None = None,
    plugins: Sequence[str] = (),
) -> RunConfig:
    """Return the resolved config of a recipe.

    `start` is the bundle to start from or to learn from. Without it the run uses the bundle of the recipe's `starts_from`
    under its default name, if that exists; the same holds for `taught_by` and `sees_with`. `data` is the user's data, as a
    path or a description; by default that of `start`. The path `built-in` selects the recipe's own corpora. `changes`
    replace single values by dotted key. `plugins` are recorded in the config; the caller has loaded them.

    Raises:
        UnknownRecipeError, UnknownKeyError, ConfigError: the message names the nearest valid name.
        BundleNotFoundError: `start` names no bundle.
        OwnDataError: `data` cannot be read, or inherited data does not exist any more.
        UsageError: either the recipe or `start`, and not both, has a model of letters.
        UncompressibleModelError: `start` is compressed and the recipe trains its weights.
        UpcyclingError: the recipe upcycles `start`, and `start` is not dense.
        TeacherError: the teacher has another tokenizer than `start`.
    """
    found = find_recipe(recipe)
    size = found.checked_size(size)
    config = found(size)
    config = replace(config, plugins=tuple(dict.fromkeys((*config.plugins, *found.plugins, *plugins))))
    start = start or default_bundle(found.starts_from, size)
    bundle = None if start is None else open_bundle(start)
    if bundle is not None:
        config = _started(config, found, bundle)
    built_in = str(data) == BUILT_IN
    given = None if built_in else read_data(data) if isinstance(data, Path) else data
    if isinstance(config.trainer.objective, PreferenceConfig):  # the conversations of the start bundle are no preferences
        config = config if given is None else with_preferences(config, given)
    elif (chosen := chosen_data(given, bundle, built_in)) is not None:
        config = with_data(config, chosen)
    config = _resolved(with_row_limit(override(config, changes or {})), default_bundle(found.taught_by, size))
    return _with_vision(config, default_bundle(found.sees_with, size))


def default_bundle(recipe: str | None, size: str) -> str | None:
    """Return the bundle that a recipe wrote under its default name; None if it does not exist."""
    if recipe is None:
        return None
    place = bundle_place(find_recipe(recipe).default_name(size))
    return str(place) if (place / "config.json").is_file() else None


def _started(config: RunConfig, recipe: Recipe, bundle: Bundle) -> RunConfig:
    """Return the run with `bundle` as its teacher or as its initial weights."""
    taught = config.trainer.objective.with_teacher(config.trainer, bundle)
    if taught is not None:
        return replace(config, trainer=taught)
    if bundle.numerics.is_compressed and config.trainer.adapter is None:
        raise UncompressibleModelError(
            f"{bundle.name} is compressed ({bundle.numerics.weights}), its weights cannot be trained; start from the bundle"
            f" that it was made from, decode it (openafm compress decode {bundle.name}), or train an adapter"
        )
    model, wanted = bundle.config, config.trainer.model
    if isinstance(wanted, LettersModelConfig) != isinstance(model, LettersModelConfig):
        raise UsageError(f"{recipe.name} cannot start from {bundle.name}, which is another kind of model; use another start")
    if isinstance(wanted, MultimodalConfig):
        if isinstance(model, MultimodalConfig):
            model = replace(model, modes=wanted.modes)
        else:
            model = type(wanted).of(model, wanted.vision, wanted.adapter, wanted.modes)
    if isinstance(wanted, RewardModelConfig) and not isinstance(model, RewardModelConfig):
        model = RewardModelConfig.of(model, num_grades=wanted.num_grades, has_cohesion=wanted.has_cohesion)
    if recipe.lengthens:
        model = replace(model, context_length=max(model.context_length, config.trainer.model.context_length))
    trainer = replace(
        config.trainer,
        from_bundle=str(bundle.path.resolve()),
        from_identity=bundle.identity,
        model=model,
        data=_within(config.trainer.data, model.context_length),
    )
    if trainer.adapter is not None and bundle.recovery_adapter is not None:
        trainer = replace(trainer, adapter=bundle.recovery_adapter.config)
    return replace(config, tokenizer=None, trainer=trainer)


def _resolved(config: RunConfig, default_teacher: str | None) -> RunConfig:
    """Return the run with the values that depend on its bundles: the upcycled model and the objective's teacher."""
    trainer: TrainerConfig = config.trainer
    if trainer.upcycle is not None and trainer.from_bundle is not None:
        dense = open_bundle(trainer.from_bundle).config
        trainer = replace(trainer, model=upcycled_config(dense, trainer.upcycle))
    objective = trainer.objective.resolved(trainer.from_bundle, default_teacher)
    return replace(config, trainer=replace(trainer, objective=objective))


def _with_vision(config: RunConfig, default: str | None) -> RunConfig:
    """Return the run with the bundle that its vision encoder starts from."""
    start = config.trainer.start
    if not isinstance(start, VisionStart) or (start.bundle is None and default is None):
        return config
    bundle = open_bundle(start.bundle or str(default))
    start = VisionStart(bundle=str(bundle.path.resolve()), identity=bundle.identity)
    return replace(config, trainer=replace(config.trainer, start=start))


def _within(loader: LoaderConfig, context_length: int) -> LoaderConfig:
    return replace(loader, row_tokens=min(loader.row_tokens, context_length))
