"""The kinds of rewards that come with openafm: importing this module makes them known to the registry."""

from openafm.rl.rewards.code_execution import CodeExecutionConfig
from openafm.rl.rewards.exact import ExactMatchConfig
from openafm.rl.rewards.instructions import InstructionsConfig
from openafm.rl.rewards.judge import JudgeConfig
from openafm.rl.rewards.math_answer import MathAnswerConfig
from openafm.rl.rewards.reward_model import LearnedRewardConfig
from openafm.rl.rewards.structured import FieldsConfig, FinalStateConfig, JsonSchemaConfig, ToolCallsConfig
from openafm.rl.rewards.sum import SumConfig
from openafm.rl.rewards.text import LanguageConsistencyConfig, LengthConfig, RepetitionConfig

__all__ = [
    "CodeExecutionConfig",
    "ExactMatchConfig",
    "FieldsConfig",
    "FinalStateConfig",
    "InstructionsConfig",
    "JsonSchemaConfig",
    "JudgeConfig",
    "LanguageConsistencyConfig",
    "LearnedRewardConfig",
    "LengthConfig",
    "MathAnswerConfig",
    "RepetitionConfig",
    "SumConfig",
    "ToolCallsConfig",
]
