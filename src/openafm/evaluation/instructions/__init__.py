"""Verifiable instructions (IFEval, arXiv 2311.07911): each kind of instruction as a config that checks a response."""

from openafm.evaluation.instructions.base import InstructionConfig, InstructionError
from openafm.evaluation.instructions.reading import follows_all, follows_loosely, instruction_ids, read_instructions

__all__ = [
    "InstructionConfig",
    "InstructionError",
    "follows_all",
    "follows_loosely",
    "instruction_ids",
    "read_instructions",
]
