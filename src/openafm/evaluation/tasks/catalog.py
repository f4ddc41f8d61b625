"""Names of tasks on the command line. A kind of a plugin is named by its class, with or without `Config`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from openafm.core.config import UnknownKindError, from_dict, nearest
from openafm.core.errors import UsageError
from openafm.evaluation.features.base import FeatureConfig
from openafm.evaluation.features.flyers import FlyersEventConfig
from openafm.evaluation.features.languages import OutputLanguageConfig
from openafm.evaluation.features.needles import NeedlesConfig
from openafm.evaluation.features.texts import KINDS, TextsConfig
from openafm.evaluation.features.worlds import ToolWorldConfig
from openafm.evaluation.features.written import SETS, WrittenCasesConfig
from openafm.evaluation.harness.task import TaskConfig
from openafm.evaluation.tasks.bfcl import BFCLConfig
from openafm.evaluation.tasks.bfcl_multi_turn import BFCLMultiTurnConfig
from openafm.evaluation.tasks.choices import MMLUConfig, MMLULikelihoodConfig, MMMLUConfig
from openafm.evaluation.tasks.code import HumanEvalConfig, MBPPCompletionConfig, MBPPConfig
from openafm.evaluation.tasks.ifeval import IFEvalConfig
from openafm.evaluation.tasks.numbers import GSM8KCompletionConfig, GSM8KConfig, MGSMCompletionConfig, MGSMConfig
from openafm.evaluation.tasks.open_prompts import ArenaHardConfig, OwnPromptsConfig
from openafm.evaluation.tasks.safety import SafetyConfig
from openafm.evaluation.tasks.xstest import XSTestConfig

TASKS: Mapping[str, Callable[[], TaskConfig]] = {
    "mmlu": MMLUConfig,
    "mmlu:lm_eval": MMLULikelihoodConfig,
    "mmmlu": MMMLUConfig,
    "mgsm": MGSMConfig,
    "mgsm:lm_eval": MGSMCompletionConfig,
    "gsm8k": GSM8KConfig,
    "gsm8k:lm_eval": GSM8KCompletionConfig,
    "ifeval": IFEvalConfig,
    "humaneval": HumanEvalConfig,
    "mbpp": MBPPConfig,
    "mbpp:lm_eval": MBPPCompletionConfig,
    "bfcl": BFCLConfig,
    "bfcl_multi_turn": BFCLMultiTurnConfig,
    "arena_hard": ArenaHardConfig,
    "prompts": OwnPromptsConfig,
    "xstest": XSTestConfig,
    "safety": SafetyConfig,
}

FEATURES: Mapping[str, Callable[[], FeatureConfig]] = {
    **{name: partial(WrittenCasesConfig, set=name) for name in SETS},
    **{kind: partial(TextsConfig, kind=kind) for kind in KINDS},
    "output_language": OutputLanguageConfig,
    "needles": NeedlesConfig,
    "tools": ToolWorldConfig,
    "flyers": FlyersEventConfig,
}
"""Tasks on our own sets, which come with the package or are drawn."""

NEEDS_VISION = ("flyers",)
"""Features of models that see images."""


def find_task(name: str) -> TaskConfig:
    """Return the task of a name, with its default values.

    Raises:
        UsageError: no task has this name; the message lists or suggests names.
    """
    known = {**TASKS, **FEATURES}
    if name in known:
        return known[name]()
    for kind in (name, f"{name}Config"):
        try:
            return from_dict(TaskConfig, {"type": kind})  # type: ignore[type-abstract]
        except UnknownKindError:
            continue
    raise UsageError(f"no task '{name}'{nearest(name, list(known))}; load a task of your own with --plugins ./file.py")
