"""Verifiable instructions (IFEval) as a reward."""

from __future__ import annotations

from dataclasses import dataclass

from openafm.evaluation.instructions import follows_all, follows_loosely, read_instructions
from openafm.rl.rewards.base import TruthError
from openafm.rl.rewards.rules import Rule, RuleConfig
from openafm.rl.trajectories import Sample


@dataclass(frozen=True, kw_only=True)
class InstructionsConfig(RuleConfig):
    """The share of the instructions that the answer follows; `truth` has IFEval's `instruction_id_list` and `kwargs`.

    Attributes:
        is_loose: count an instruction that the answer follows without its first or last line, or without asterisks.
        all_or_nothing: give 1 if the answer follows all, else 0.
    """

    name: str = "instructions"
    is_loose: bool = False
    all_or_nothing: bool = False

    def rule(self) -> Rule:
        def score(sample: Sample) -> float:
            instructions = read_instructions(sample.prompt.truth)
            if not instructions:
                raise TruthError("'instruction_id_list' is empty; name at least one instruction")
            found = (follows_loosely if self.is_loose else follows_all)(instructions, sample.text)
            return float(all(found)) if self.all_or_nothing else sum(found) / len(found)

        return score
