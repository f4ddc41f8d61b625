"""Samples for tests of rewards, and rules that misbehave. Worker processes import this module."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openafm.rl.prompts import RLPrompt
from openafm.rl.rewards.rules import Rule, RuleConfig
from openafm.rl.trajectories import Sample
from openafm.tokenizer.conversation import AssistantTurn, Conversation, ToolCall, UserTurn


def sample(
    text: str,
    truth: Mapping[str, Any] | None = None,
    *,
    kind: str = "math",
    question: str = "What?",
    language: str = "",
    schema: dict[str, Any] | None = None,
    calls: tuple[ToolCall, ...] = (),
    num_tokens: int = 10,
    state: Mapping[str, Any] | None = None,
    is_truncated: bool = False,
) -> Sample:
    conversation = Conversation(turns=(UserTurn(text=question, response_format=schema),), language=language)
    turns = (AssistantTurn(text=text),) if not calls else (AssistantTurn(tool_calls=calls), AssistantTurn(text=text))
    return Sample(
        prompt=RLPrompt(conversation=conversation, kind=kind, truth=truth or {}),
        turns=turns,
        text=text,
        finish_reason="length" if is_truncated else "stop",
        num_tokens=num_tokens,
        state=state or {},
    )


@dataclass(frozen=True, kw_only=True)
class MisbehavingConfig(RuleConfig):
    """A rule that does what the answer says."""

    name: str = "misbehaving"

    def rule(self) -> Rule:
        return _obey


def _obey(sample: Sample) -> float:
    match sample.text:
        case "compute":
            while True:
                pass
        case "sleep":
            time.sleep(600)
        case "raise":
            raise RuntimeError("on purpose")
        case "exit":
            import os

            os._exit(3)
        case "allocate":
            return float(len(bytearray(1 << 33)))
        case "nan":
            return float("nan")
    return 1.0
