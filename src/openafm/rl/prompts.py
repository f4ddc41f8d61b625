"""Prompts of reinforcement learning: a conversation to answer and what its rewards compare the answer with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from openafm.tokenizer.conversation import Conversation, ConversationError, ToolTurn, UserTurn


@dataclass(frozen=True, kw_only=True)
class RLPrompt:
    """A conversation whose next turn the policy generates.

    On disk a prompt is a line of chat JSONL (`Conversation.to_dict`) with the further keys `kind` and `truth`. If the last
    turn has a `response_format`, the answer is generated under the grammar of that schema.

    Attributes:
        kind: the task or environment, such as "math". It chooses the rewards and groups the metrics.
        truth: what rewards compare with, such as `{"answer": "42"}`; JSON values.
    """

    conversation: Conversation
    kind: str
    truth: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        turns = self.conversation.turns
        if not turns or not isinstance(turns[-1], (UserTurn, ToolTurn)):
            raise ConversationError("a prompt ends with a turn of the user or of a tool, which the policy answers")

    @cached_property
    def digest(self) -> str:
        """Identify the prompt by its content."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """Return the form of a line of chat JSONL."""
        return self.conversation.to_dict() | {"kind": self.kind, "truth": dict(self.truth)}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> RLPrompt:
        """Read a line of chat JSONL.

        Raises:
            ConversationError: the line is not a conversation, or `kind` or `truth` has the wrong type.
        """
        if not isinstance(values, Mapping):
            raise ConversationError(f"a prompt is an object, got {type(values).__name__}")
        kind, truth = values.get("kind"), values.get("truth", {})
        if not isinstance(kind, str) or not isinstance(truth, dict):
            raise ConversationError("a prompt needs a string under 'kind' and an object under 'truth'")
        rest = {key: value for key, value in values.items() if key not in ("kind", "truth")}
        return RLPrompt(conversation=Conversation.from_dict(rest), kind=kind, truth=truth)
