"""Names of tasks on the command line. A kind of a plugin is named by its class, with or without `Config`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from openafm.core.config import UnknownKindError, from_dict, nearest
from openafm.core.errors import UsageError
from openafm.evaluation.harness.task import TaskConfig
from openafm.evaluation.tasks.bfcl import BFCLConfig
from openafm.evaluation.tasks.choices import MMLUConfig, MMLULikelihoodConfig, MMMLUConfig
from openafm.evaluation.tasks.code import HumanEvalConfig, MBPPCompletionConfig, MBPPConfig
from openafm.evaluation.tasks.ifeval import IFEvalConfig
from openafm.evaluation.tasks.numbers import GSM8KCompletionConfig, GSM8KConfig, MGSMCompletionConfig, MGSMConfig
from openafm.evaluation.tasks.open_prompts import ArenaHardConfig, OwnPromptsConfig
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
    "arena_hard": ArenaHardConfig,
    "prompts": OwnPromptsConfig,
    "xstest": XSTestConfig,
}


def find_task(name: str) -> TaskConfig:
    """Return the task of a name, with its default values.

    Raises:
        UsageError: no task has this name; the message lists or suggests names.
    """
    if name in TASKS:
        return TASKS[name]()
    for kind in (name, f"{name}Config"):
        try:
            return from_dict(TaskConfig, {"type": kind})  # type: ignore[type-abstract]
        except UnknownKindError:
            continue
    raise UsageError(f"no task '{name}'{nearest(name, list(TASKS))}; load a task of your own with --plugins ./file.py")
