"""A policy of tool calls: confirmation, provenance of arguments, marks around outputs (an optional layer)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from openafm.core.config import Config
from openafm.safety.provenance import Canary, Provenance, Source, divided, marked
from openafm.tokenizer.conversation import Instructions, ToolCall, ToolTurn, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

Decision: TypeAlias = Literal["allow", "confirm", "deny"]


@dataclass(frozen=True, kw_only=True)
class ToolRule(Config):
    """What a tool may do.

    Attributes:
        calls: whether calls are allowed, confirmed or denied.
        untrusted_arguments: the same for calls with an argument from an untrusted text.
        is_trusted: whether its outputs count as the user's words; False for anything that others can write to.
    """

    calls: Decision = "allow"
    untrusted_arguments: Decision = "deny"
    is_trusted: bool = False


@dataclass(frozen=True, kw_only=True)
class ProposedCall:
    """A call that waits for confirmation. `untrusted` has the source of each untrusted argument by its path."""

    call: ToolCall
    untrusted: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ToolPolicy:
    """Check the tool calls of a session before they run.

    A denied call does not run; the model reads a fixed sentence instead of an output. Decisions need no model.

    Attributes:
        rules: rules by the name of the tool.
        default: the rule of other tools.
        confirm: asked before calls whose rule says so, from the thread of the request; None: such calls are denied.
        marks_outputs: put marks around outputs of untrusted tools, so that the model can tell them from the user's words.
        canary: calls with this word in an argument are denied.
        observed: called with every denied call and the reason.
    """

    rules: Mapping[str, ToolRule] = field(default_factory=dict)
    default: ToolRule = field(default_factory=ToolRule)
    confirm: Callable[[ProposedCall], bool] | None = None
    marks_outputs: bool = True
    canary: Canary | None = None
    observed: Callable[[ToolCall, str], None] | None = None

    def denial(self, call: ToolCall, turns: Iterable[Turn]) -> str | None:
        """Return why a call may not run after these turns; None: it may."""
        reason = self._denial(call, turns)
        if reason is not None and self.observed is not None:
            self.observed(call, reason)
        return reason

    def output(self, turn: ToolTurn) -> ToolTurn:
        """Return the output of a tool as the model reads it."""
        if not self.marks_outputs or self._rule(turn.name).is_trusted or turn.images:
            return turn
        return ToolTurn(name=turn.name, text=marked(turn.text, _source_name(turn.name)))

    def _denial(self, call: ToolCall, turns: Iterable[Turn]) -> str | None:
        rule = self._rule(call.name)
        if self.canary is not None and self.canary.is_in(compact_json(dict(call.arguments))):
            return "an argument has the canary of the instructions"
        untrusted = self._provenance(turns).untrusted_arguments(call.arguments)
        decisions = {rule.calls, rule.untrusted_arguments} if untrusted else {rule.calls}
        if "deny" in decisions:
            found = ", ".join(f"'{path}' is from {source}" for path, source in untrusted.items())
            return f"untrusted arguments: {found}" if rule.calls != "deny" else "the policy denies this tool"
        if "confirm" in decisions and (
            self.confirm is None or not self.confirm(ProposedCall(call=call, untrusted=untrusted))
        ):
            return "it was not confirmed"
        return None

    def _provenance(self, turns: Iterable[Turn]) -> Provenance:
        trusted: list[str] = []
        untrusted: list[Source] = []
        for turn in turns:
            match turn:
                case Instructions():
                    trusted += [turn.text, *(name for tool in turn.tools for name in _names(tool.parameters))]
                case UserTurn():
                    text, sources = divided(turn.text)
                    trusted.append(text)
                    untrusted += sources
                case ToolTurn() if self._rule(turn.name).is_trusted:
                    trusted.append(turn.text)
                case ToolTurn():
                    untrusted.append(Source(name=turn.name, text=turn.text))
        return Provenance(trusted, untrusted)

    def _rule(self, name: str) -> ToolRule:
        return self.rules.get(name, self.default)


def _names(schema: Any) -> Iterator[str]:
    """Yield the names of arguments that a schema declares."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            yield from properties
        schema = tuple(schema.values())
    if isinstance(schema, list | tuple):
        for each in schema:
            yield from _names(each)


def _source_name(tool: str) -> str:
    """Return the name of a tool as it is written in marks."""
    return "".join(character for character in tool if character != "]")[:64] or "tool"


def denied_text(reason: str) -> str:
    """Return what the model reads instead of the output of a denied call."""
    return compact_json({"error": f"the call was denied and did not run: {reason}"})
