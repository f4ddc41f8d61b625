"""Nodes of a trajectory tree: queries of the user, steps with tool calls, answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from openafm.annotation.environments.host import CallResult
from openafm.annotation.errors import AnnotationError
from openafm.tokenizer.conversation import AssistantTurn, ToolCall, ToolTurn, Turn, UserTurn


class NodeKind(StrEnum):
    """What a node holds."""

    QUERY = "query"
    STEP = "step"
    """Tool calls, made in parallel, and their outputs."""
    ANSWER = "answer"


_FOLLOWS = {
    None: (NodeKind.QUERY,),
    NodeKind.QUERY: (NodeKind.STEP, NodeKind.ANSWER),
    NodeKind.STEP: (NodeKind.STEP, NodeKind.ANSWER),
    NodeKind.ANSWER: (NodeKind.QUERY,),
}


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a person or a model writes in a node."""

    kind: NodeKind
    text: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is NodeKind.STEP and not self.calls:
            raise AnnotationError("a step needs at least one tool call; write an answer instead")
        if self.kind is not NodeKind.STEP and (self.calls or not self.text.strip()):
            raise AnnotationError(f"the {self.kind} is empty; write a text")
        try:
            json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise AnnotationError(
                f"the {self.kind} cannot be stored as JSON in UTF-8: {error}; correct its values"
            ) from error

    def to_dict(self) -> dict[str, Any]:
        calls = [{"name": call.name, "arguments": call.arguments} for call in self.calls]
        return {"kind": self.kind.value, "text": self.text, "calls": calls}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Content:
        calls = tuple(ToolCall(name=call["name"], arguments=call["arguments"]) for call in values.get("calls", ()))
        return Content(kind=NodeKind(values["kind"]), text=values.get("text", ""), calls=calls)


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of a tree.

    Attributes:
        id: the sequence number of the event that made the node.
        parent: the node before it; 0 is the beginning.
        results: the outputs of the calls, as `CallResult.to_dict`.
        state: the key of the state after the node.
        num_calls: tool calls up to the end of this node.
        model: the name of the model that wrote the content; empty for a person.
        person: the id of the person who wrote it, or started the model.
    """

    id: int
    parent: int
    content: Content
    results: tuple[Mapping[str, Any], ...] = field(default=())
    state: str
    num_calls: int
    model: str = ""
    person: str | None = None
    time: float = 0.0

    @property
    def kind(self) -> NodeKind:
        return self.content.kind

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns of the conversation that the node stands for."""
        content = self.content
        match content.kind:
            case NodeKind.QUERY:
                return (UserTurn(text=content.text),)
            case NodeKind.ANSWER:
                return (AssistantTurn(text=content.text),)
        outputs = zip(content.calls, self.results, strict=True)
        return (
            AssistantTurn(text=content.text, tool_calls=content.calls),
            *(ToolTurn(name=call.name, text=result["text"]) for call, result in outputs),
        )

    def payload(self) -> dict[str, Any]:
        """Return the JSON form that an event stores."""
        return self.content.to_dict() | {
            "parent": self.parent,
            "results": list(self.results),
            "state": self.state,
            "num_calls": self.num_calls,
            "model": self.model,
        }


def check_order(kinds: Sequence[NodeKind]) -> None:
    """Check that nodes form a conversation: query, steps, answer, query and so on.

    Raises:
        AnnotationError: two neighbors do not fit.
    """
    before: NodeKind | None = None
    for kind in kinds:
        if kind not in _FOLLOWS[before]:
            place = "at the beginning" if before is None else f"after a {before}"
            allowed = " or ".join(_FOLLOWS[before])
            raise AnnotationError(f"{place} comes a {allowed}, not a {kind}; add or delete steps so that they fit")
        before = kind


def result_dicts(results: Sequence[CallResult]) -> tuple[dict[str, Any], ...]:
    """Return results as JSON."""
    return tuple(result.to_dict() for result in results)
