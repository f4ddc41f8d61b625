"""The sizes of a reproduction, and the commands that train recipes at them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from openafm.recipes.reproduction.stages.stage import Command

SIZES = ("tiny", "micro", "nano")
"""`tiny` trains micro models for two steps: it shows that the stages fit together, and no effect."""

BUDGET = "trainer.budget"
_FEW_TEXTS, _FEW_DRAWINGS = 400, 40
_BUDGETS = {
    "micro": {
        "vision.clip": {"type": "StepBudget", "num_steps": 120},
        "on_device.text_continued": {"type": "StepBudget", "num_steps": 150},
        "on_device.long_context": {"type": "StepBudget", "num_steps": 30},
        "on_device.reward_model": {"type": "StepBudget", "num_steps": 60},
        "on_device.selection_model": {"type": "StepBudget", "num_steps": 60},
    },
    "nano": {
        "vision.clip": {"type": "TokenBudget", "num_tokens": 1_000_000},
        "vision.joint": {"type": "TokenBudget", "num_tokens": 1_500_000},
        "on_device.text_continued": {"type": "StepBudget", "num_steps": 200},
        "on_device.multimodal": {"type": "TokenBudget", "num_tokens": 1_500_000},
        "on_device.long_context": {"type": "StepBudget", "num_steps": 15},
        "on_device.sft": {"type": "TokenBudget", "num_tokens": 6_000_000},
        "on_device.multimodal_sft": {"type": "TokenBudget", "num_tokens": 1_500_000},
        "on_device.reward_model": {"type": "TokenBudget", "num_tokens": 1_000_000},
        "on_device.selection_model": {"type": "TokenBudget", "num_tokens": 1_000_000},
        "on_device.qat": {"type": "TokenBudget", "num_tokens": 2_000_000},
        "on_device.draft": {"type": "TokenBudget", "num_tokens": 2_000_000},
    },
}
"""Budgets in the place of the recipes': `micro` takes 60 to 90 minutes on two cores, `nano` a night."""


def by_size(size: str, tiny: int, micro: int, nano: int) -> str:
    """Return the number for a size, as a word of a command."""
    return str(dict(zip(SIZES, (tiny, micro, nano), strict=True))[size])


def recipe_size(size: str) -> str:
    """Return the size of the recipes' models."""
    return "micro" if size == "tiny" else size


def bundle_of(recipe: str, size: str) -> str:
    """Return the name of the bundle that `train` writes: the default one, which later recipes start from."""
    return f"{recipe}-{recipe_size(size)}"


def train(recipe: str, size: str, *more: str, kill_rank: bool = False, tiny_steps: int = 2) -> Command:
    """Return the training of a recipe."""
    words = ("train", recipe, "--size", recipe_size(size), "--output", f"{{here}}/{recipe}", "--json", *more)
    changed = _BUDGETS.get(size, {}).get(recipe)
    changes = (*(_changed(changed) if changed else ()), *budget(size, tiny_steps), *_few_documents(recipe, size))
    return Command(name=recipe, words=(*words, *changes), kill_rank=kill_rank)


def budget(size: str, tiny_steps: int = 2) -> tuple[str, ...]:
    """Return the change of a recipe's budget at a size."""
    return steps(tiny_steps) if size == "tiny" else ()


def steps(number: int) -> tuple[str, ...]:
    """Return the change of a recipe's budget to a number of steps."""
    return _changed({"type": "StepBudget", "num_steps": number})


def _changed(value: Mapping[str, object]) -> tuple[str, ...]:
    return ("--set", f"{BUDGET}={json.dumps(value)}")


def _few_documents(recipe: str, size: str) -> tuple[str, ...]:
    """Return the changes that make the corpora of a recipe as small as two steps need."""
    if size != "tiny":
        return ()
    from openafm.recipes.catalog import build_run

    words: list[str] = []
    for corpus in build_run(recipe, recipe_size(size)).corpora:
        if hasattr(corpus, "num_examples"):
            words += ["--set", f"corpora.{corpus.name}.num_examples={_FEW_TEXTS}"]
        if hasattr(corpus, "drawing"):
            words += ["--set", f"corpora.{corpus.name}.drawing.count={_FEW_DRAWINGS}"]
    return tuple(words)
