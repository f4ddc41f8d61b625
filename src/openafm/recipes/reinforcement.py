"""Reinforcement-learning recipes: resolve one, run it, write the bundle of its policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.bundle import Bundle, open_bundle, write_bundle
from openafm.bundle.store import bundle_place
from openafm.compression.errors import UncompressibleModelError
from openafm.core.config import nearest, override
from openafm.core.errors import OpenAFMError
from openafm.core.executors import ExecutorConfig
from openafm.models.accounting import num_parameters
from openafm.recipes.config import UnknownRecipeError, summary_of
from openafm.recipes.on_device.rlhf import rlhf
from openafm.recipes.prepare import default_bundle
from openafm.recipes.run import RunInterruptedError, StartBundleError
from openafm.recipes.trained_weights import trained_weights
from openafm.rl.config import RLConfig
from openafm.training.observability.metrics import read_metrics

if TYPE_CHECKING:
    from openafm.rl.run import RLResult

_REASONS = 3


@dataclass(frozen=True, kw_only=True)
class RLRecipe:
    """A named run in several sizes, the default size last. `starts_from` names the recipe whose bundle it starts from."""

    name: str
    sizes: tuple[str, ...]
    starts_from: str
    build: Callable[[str], RLConfig]

    @property
    def summary(self) -> str:
        """Return the first line of the recipe's docstring."""
        return summary_of(self.build)


RL_RECIPES = (RLRecipe(name="on_device.rlhf", sizes=("micro", "nano"), starts_from="on_device.sft", build=rlhf),)


class NoSamplesError(OpenAFMError):
    """A run trained on no sample, so its policy is the one that it started from."""


@dataclass(frozen=True, kw_only=True)
class PolicyResult:
    """The bundle of a finished run and the figures of its last step."""

    bundle: str
    signature: str
    run_folder: str
    steps: int
    seconds: float
    replaced: int
    figures: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        return asdict(self)


def find_rl_recipe(name: str) -> RLRecipe:
    """Return a recipe by name.

    Raises:
        UnknownRecipeError: no such recipe; the message gives the nearest one.
    """
    by_name = {recipe.name: recipe for recipe in RL_RECIPES}
    if name not in by_name:
        raise UnknownRecipeError(f"unknown recipe '{name}'{nearest(name, list(by_name))}")
    return by_name[name]


def build_rl_run(name: str, size: str | None = None) -> RLConfig:
    """Return the config of a recipe at a size, by default its largest.

    Raises:
        UnknownRecipeError: no such recipe, or not at this size.
    """
    recipe = find_rl_recipe(name)
    chosen = size or recipe.sizes[-1]
    if chosen not in recipe.sizes:
        raise UnknownRecipeError(f"recipe '{name}' has no size '{chosen}'; sizes: {', '.join(recipe.sizes)}")
    return recipe.build(chosen)


def prepare_rl_run(
    name: str,
    size: str | None = None,
    *,
    start: str | None = None,
    lag: int | None = None,
    changes: Mapping[str, str] | None = None,
    plugins: Sequence[str] = (),
) -> RLConfig:
    """Return the resolved config of a recipe. `start` is the bundle of the policy; `changes` replace values by dotted key.

    Raises:
        UnknownRecipeError, UnknownKeyError, ConfigError: the message names the nearest valid name.
        StartBundleError: there is no bundle to start from.
        UncompressibleModelError: the bundle is compressed.
    """
    recipe = find_rl_recipe(name)
    config = build_rl_run(name, size)
    found = start or default_bundle(recipe.starts_from, size or recipe.sizes[-1])
    if found is None:
        raise StartBundleError(
            f"{name} starts from a bundle of {recipe.starts_from}: name one with --from BUNDLE, or train that recipe first"
        )
    bundle = open_bundle(found)
    if bundle.numerics.is_compressed:
        raise UncompressibleModelError(
            f"{bundle.name} is compressed ({bundle.numerics.weights}), its weights cannot be trained; start from the bundle"
            f" that it was made from, or decode it: openafm compress decode {bundle.name}"
        )
    row_tokens = min(config.trainer.data.row_tokens, bundle.config.context_length)
    trainer = replace(
        config.trainer,
        from_bundle=str(bundle.path.resolve()),
        from_identity=bundle.identity,
        model=bundle.config,
        data=replace(config.trainer.data, row_tokens=row_tokens),
    )
    config = replace(config, trainer=trainer, plugins=tuple(plugins), lag=config.lag if lag is None else lag)
    return override(config, changes or {})


def run_rl_recipe(
    config: RLConfig, folder: Path, name: str, *, num_generators: int = 0, executor: ExecutorConfig | None = None
) -> PolicyResult:
    """Train to the end in `folder` and write the bundle `name`. A run in `folder` continues from its last checkpoint.

    Under torchrun all processes update the policy and return the same result; rank 0 generates and writes.

    Raises:
        StartBundleError: `name` is the bundle that the run starts from.
        RunInterruptedError: SIGTERM or Ctrl-C stopped the run; its state is saved.
        NoSamplesError: every sample was dropped. No bundle is written.
        Errors of `train_policy`.
    """
    from openafm.rl.run import train_policy, updater_device
    from openafm.training.distributed.processes import open_processes

    start = config.trainer.from_bundle
    if start is not None and Path(start).resolve() == bundle_place(name).resolve():
        raise StartBundleError(f"the run starts from the bundle '{name}' and must not overwrite it; choose another --name")
    with open_processes(config=updater_device(config)) as ranks:
        result = train_policy(config, folder, num_generators=num_generators, executor=executor, processes=ranks)
        if not result.finished:
            raise RunInterruptedError(folder, result)
        return ranks.run_on_main(lambda: _finish(config, folder, name, result))


def _finish(config: RLConfig, folder: Path, name: str, result: RLResult) -> PolicyResult:
    _check_trained(folder)
    bundle = _write(config, folder, name)
    return PolicyResult(
        bundle=str(bundle.path),
        signature=bundle.signature,
        run_folder=str(folder),
        steps=result.step,
        seconds=result.seconds,
        replaced=result.replaced,
        figures={} if result.figures is None else asdict(result.figures),
    )


def _check_trained(folder: Path) -> None:
    """Check that a finished run has trained on samples."""
    lines = read_metrics(folder)
    if not lines or lines[-1].get("trained", 0):
        return
    reasons: Counter[str] = Counter()
    for line in lines:
        reasons.update(line.get("errors", {}))
    most = "; ".join(f"{count:,} times: {reason}" for reason, count in reasons.most_common(_REASONS))
    stale = f" and {lines[-1]['stale']:,} were too old" if lines[-1].get("stale") else ""
    raise NoSamplesError(
        f"the run trained on no sample: {reasons.total():,} of {lines[-1]['generated']:,} were dropped{stale}; no bundle is"
        f" written. {most or 'No reason is stored'}"
    )


def _write(config: RLConfig, folder: Path, name: str) -> Bundle:
    from openafm.training.run import load_trained

    assert config.trainer.from_bundle is not None
    start = open_bundle(config.trainer.from_bundle)
    weights = trained_weights(config.trainer, load_trained(folder))
    return write_bundle(
        bundle_place(name),
        config=start.config,
        tokenizer=start.tokenizer,
        template=start.template,
        tensors=weights.tensors,
        numerics=weights.numerics,
        recovery=weights.recovery,
        card=_card(config, start, name),
    )


def _card(config: RLConfig, start: Bundle, name: str) -> str:
    objective = config.objective
    return f"""# {name}

A decoder of {num_parameters(start.config):,} parameters, trained with reinforcement learning by the recipe `{config.recipe}`
from `{start.name}`.

- objective: {type(objective).__name__}, weight of the KL divergence from `{start.name}`: {objective.kl_weight:g}
- prompts: {type(config.prompts).__name__}, {config.prompts_per_step} a step, {config.group_size} samples each
- reward: {type(config.reward).__name__}

A model of this size can only do what its data shows: it has no knowledge of the world, does not reason and cannot hold a
conversation. Structured answers always satisfy their schema, whether their values are right or wrong.
"""
