"""A trace as OpenTelemetry spans, named by the conventions for generative AI (v1.37).

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from openafm.core.errors import UsageError
from openafm.framework.profiling.spans import Span, SpanKind, Trace

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

_REQUEST = {  # attribute of openafm -> convention
    "temperature": "gen_ai.request.temperature",
    "max_tokens": "gen_ai.request.max_tokens",
    "top_k": "gen_ai.request.top_k",
    "top_p": "gen_ai.request.top_p",
    "seed": "gen_ai.request.seed",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "generated_tokens": "gen_ai.usage.output_tokens",
}


def export_spans(trace: Trace, provider: TracerProvider) -> None:
    """Pass the spans of a trace, with their recorded times, to a provider.

    Raises:
        UsageError: OpenTelemetry is not installed.
    """
    try:
        import opentelemetry.trace  # noqa: F401
    except ImportError as error:
        raise UsageError("the export of spans needs OpenTelemetry; install openafm[trace]") from error
    tracer = provider.get_tracer("openafm")
    for number, session in enumerate(trace.sessions):
        conversation = f"{trace.started_at:.6f}-{number}"
        for request in session.children:
            _export(request, tracer, trace.started_at, conversation)


def _export(span: Span, tracer: Tracer, origin: float, conversation: str) -> None:
    from opentelemetry.trace import SpanKind as TelemetryKind
    from opentelemetry.trace import Status, StatusCode, use_span

    name, attributes = _named(span)
    exported = tracer.start_span(
        name,
        kind=TelemetryKind.CLIENT if span.kind is SpanKind.INFERENCE else TelemetryKind.INTERNAL,
        attributes=attributes | {"gen_ai.conversation.id": conversation},
        start_time=_nanoseconds(origin + span.start),
    )
    if span.error is not None:
        exported.set_attribute("error.type", span.error)
        exported.set_status(Status(StatusCode.ERROR, span.content.get("error")))
    with use_span(exported):
        for child in span.children:
            _export(child, tracer, origin, conversation)
    exported.end(_nanoseconds(origin + span.stop))


def _named(span: Span) -> tuple[str, dict[str, Any]]:
    """Return the name and the attributes of a span."""
    values, content = span.attributes, span.content
    match span.kind:
        case SpanKind.INFERENCE:
            found = {convention: values[name] for name, convention in _REQUEST.items() if name in values}
            found |= {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openafm", "gen_ai.request.model": span.name}
            found["gen_ai.output.type"] = "json" if values.get("is_guided") else "text"
            if "finish_reason" in values:
                found["gen_ai.response.finish_reasons"] = (values["finish_reason"],)
            messages = {"prompt": ("gen_ai.input.messages", "user"), "answer": ("gen_ai.output.messages", "assistant")}
            for name, (convention, role) in messages.items():
                if name in content:
                    parts = [{"type": "text", "content": content[name]}]
                    found[convention] = json.dumps([{"role": role, "parts": parts}], ensure_ascii=False)
            return f"chat {span.name}", found
        case SpanKind.TOOL:
            found = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": span.name, "gen_ai.tool.type": "function"}
            texts = {"arguments": "gen_ai.tool.call.arguments", "output": "gen_ai.tool.call.result"}
            found |= {convention: content[name] for name, convention in texts.items() if name in content}
            return f"execute_tool {span.name}", found
    prefix = f"openafm.{span.kind.value}"
    return prefix, {f"{prefix}.{name}": value for name, value in values.items() if value is not None}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
