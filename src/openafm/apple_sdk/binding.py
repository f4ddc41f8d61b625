"""The C interface of Apple's framework, as its Python SDK calls it, implemented by openafm.

This module replaces the SDK's private module of functions, handle types and callback types. Handles are integers
(`handles.py`), strings are returned as Python strings, requests run in a thread of openafm (`tasks.py`). An invalid handle
raises `FreedHandleError`, or sets the error outputs of functions that have them.
"""
# ruff: noqa: N802  # the interface defines the function names

from __future__ import annotations

import ctypes
import json
import warnings
from collections.abc import Callable, Coroutine
from enum import IntEnum
from typing import Any, TypeVar

from openafm.apple_sdk.bridged_session import BridgedSession
from openafm.apple_sdk.bridged_tool import BridgedTool
from openafm.apple_sdk.c_values import (
    ErrorsTo,
    free_text,
    read_handles,
    read_required_text,
    read_text,
    read_texts,
    write_int,
)
from openafm.apple_sdk.handles import HANDLES, Handle, Pointer
from openafm.apple_sdk.prompt_builder import PromptBuilder
from openafm.apple_sdk.schema_builder import PropertyBuilder, SchemaBuilder
from openafm.apple_sdk.tasks import (
    ContentCallback,
    CountCallback,
    Stream,
    Task,
    TextCallback,
    deliver_content,
    deliver_count,
    deliver_text,
)
from openafm.framework.backends.language_model import SystemLanguageModelUnavailableReason as Reason
from openafm.framework.backends.system_model import SystemLanguageModel, SystemLanguageModelUseCase
from openafm.framework.errors import DecodingFailureError, GenerationErrorCode
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.schema.guides import GenerationGuide
from openafm.framework.transcripts.prompt import PromptError
from openafm.framework.transcripts.transcript import Transcript
from openafm.safety.guardrail import SystemLanguageModelGuardrails
from openafm.tokenizer.schema_text import compact_json

CallbackT = TypeVar("CallbackT", bound=Callable[..., object])
EnumT = TypeVar("EnumT", bound=IntEnum)


def _plain(callback: CallbackT) -> CallbackT:
    """Return the callback unchanged: both sides are Python."""
    return callback


FMLanguageModelSessionResponseCallback = _plain
FMLanguageModelSessionStructuredResponseCallback = _plain
FMSystemLanguageModelTokenCountCallback = _plain
FMGeneratedContentRef = ctypes.c_void_p

FMComposedPromptAddImageErrorNone = 0
FMComposedPromptAddImageErrorUnsupportedOS = 1
FMComposedPromptAddImageErrorUnsupportedSDK = 2
FMComposedPromptAddImageErrorUnknown = 3

_KNOWN_REASONS = (Reason.APPLE_INTELLIGENCE_NOT_ENABLED, Reason.DEVICE_NOT_ELIGIBLE, Reason.MODEL_NOT_READY)


# Models


def FMSystemLanguageModelGetDefault() -> Handle:
    return HANDLES.new(SystemLanguageModel())


def FMSystemLanguageModelCreate(use_case: int, guardrails: int) -> Handle:
    chosen = _known(SystemLanguageModelUseCase, use_case), _known(SystemLanguageModelGuardrails, guardrails)
    return HANDLES.new(SystemLanguageModel(*chosen))


def FMSystemLanguageModelIsAvailable(model: Pointer, reason_out: Any = None) -> bool:
    is_available, reason = HANDLES.get(model, SystemLanguageModel).is_available()
    if reason is not None and reason_out is not None:
        known = reason if reason in (*_KNOWN_REASONS, Reason.UNKNOWN) else Reason.MODEL_NOT_READY
        write_int(reason_out, known)
    return is_available


def FMSystemLanguageModelGetContextSize(model: Pointer) -> int:
    return HANDLES.get(model, SystemLanguageModel).context_size


def FMSystemLanguageModelTokenCountForPrompt(
    model: Pointer, prompt: Pointer, user_info: Any, callback: CountCallback
) -> Handle:
    system_model, builder = HANDLES.get(model, SystemLanguageModel), HANDLES.get(prompt, PromptBuilder)
    return _count(lambda: system_model.token_count(builder.prompt_for(system_model)), user_info, callback)


def FMSystemLanguageModelTokenCountForInstructions(
    model: Pointer, instructions: Any, user_info: Any, callback: CountCallback
) -> Handle:
    system_model, text = HANDLES.get(model, SystemLanguageModel), read_required_text(instructions)
    return _count(lambda: system_model.token_count(instructions=text), user_info, callback)


def FMSystemLanguageModelTokenCountForTools(
    model: Pointer, tools: Any, count: int, user_info: Any, callback: CountCallback
) -> Handle:
    system_model, bridged = HANDLES.get(model, SystemLanguageModel), _tools(tools, count)
    return _count(lambda: system_model.token_count(bridged), user_info, callback)


def FMSystemLanguageModelTokenCountForSchema(
    model: Pointer, schema: Pointer, user_info: Any, callback: CountCallback
) -> Handle:
    system_model, builder = HANDLES.get(model, SystemLanguageModel), HANDLES.get(schema, SchemaBuilder)
    return _count(lambda: system_model.token_count(builder.build()), user_info, callback)


def FMSystemLanguageModelTokenCountForTranscript(
    model: Pointer, session: Pointer, user_info: Any, callback: CountCallback
) -> Handle:
    system_model, transcript = HANDLES.get(model, SystemLanguageModel), _session(session).session.transcript
    return _count(lambda: system_model.token_count(transcript), user_info, callback)


# Prompts


def FMComposedPromptInitialize() -> Handle:
    return HANDLES.new(PromptBuilder())


def FMComposedPromptAddText(prompt: Pointer, text: Any) -> None:
    HANDLES.get(prompt, PromptBuilder).add_text(read_required_text(text))


def FMComposedPromptAddAttachment(prompt: Pointer, path: Any, label: Any = None, error_out: Any = None) -> bool:
    try:
        HANDLES.get(prompt, PromptBuilder).add_image(read_required_text(path), read_text(label))
    except PromptError:
        if error_out is not None:
            write_int(error_out, FMComposedPromptAddImageErrorUnknown)
        return False
    return True


def FMComposedPromptAddImage(prompt: Pointer, path: Any, error_out: Any = None) -> bool:
    return FMComposedPromptAddAttachment(prompt, path, None, error_out)


def FMComposedPromptAddIdentifiedImage(prompt: Pointer, path: Any, label: Any, error_out: Any = None) -> bool:
    return FMComposedPromptAddAttachment(prompt, path, label, error_out)


# Sessions


def FMLanguageModelSessionCreateDefault() -> Handle:
    return HANDLES.new(BridgedSession.opened())


def FMLanguageModelSessionCreateFromSystemLanguageModel(
    model: Pointer, instructions: Any, tools: Any, tool_count: int
) -> Handle:
    return HANDLES.new(BridgedSession.opened(read_text(instructions), _model(model), _tools(tools, tool_count)))


def FMLanguageModelSessionCreateFromTranscript(session: Pointer, model: Pointer, tools: Any, tool_count: int) -> Handle:
    transcript = Transcript(_session(session).session.transcript)
    return HANDLES.new(BridgedSession.resumed(transcript, _model(model), _tools(tools, tool_count)))


def FMLanguageModelSessionIsResponding(session: Pointer) -> bool:
    return _session(session).session.is_responding


def FMLanguageModelSessionReset(session: Pointer) -> None:
    """Check the handle only. The SDK calls this after a failed request, which leaves our sessions unchanged."""
    _session(session)


def FMLanguageModelSessionRespond(
    session: Pointer, prompt: Pointer, options_json: Any, user_info: Any, callback: TextCallback
) -> Handle:
    bridged, builder, options = _session(session), HANDLES.get(prompt, PromptBuilder), read_text(options_json)
    return _task(deliver_text(lambda: bridged.respond(builder, options), user_info, callback))


def FMLanguageModelSessionRespondWithSchema(
    session: Pointer, prompt: Pointer, schema: Pointer, options_json: Any, user_info: Any, callback: ContentCallback
) -> Handle:
    bridged, builder, options = _session(session), HANDLES.get(prompt, PromptBuilder), read_text(options_json)
    schema_builder = HANDLES.get(schema, SchemaBuilder)
    return _task(deliver_content(lambda: bridged.respond(builder, options, schema_builder.build), user_info, callback))


def FMLanguageModelSessionRespondWithSchemaFromJSON(
    session: Pointer, prompt: Pointer, schema_json: Any, options_json: Any, user_info: Any, callback: ContentCallback
) -> Handle:
    bridged, builder, options = _session(session), HANDLES.get(prompt, PromptBuilder), read_text(options_json)
    schema = read_required_text(schema_json)
    return _task(deliver_content(lambda: bridged.respond(builder, options, lambda: schema), user_info, callback))


def FMLanguageModelSessionStreamResponse(session: Pointer, prompt: Pointer, options_json: Any) -> Handle:
    bridged, builder, options = _session(session), HANDLES.get(prompt, PromptBuilder), read_text(options_json)
    return HANDLES.new(Stream(lambda: bridged.stream(builder, options)))


def FMLanguageModelSessionResponseStreamIterate(stream: Pointer, user_info: Any, callback: TextCallback) -> None:
    HANDLES.get(stream, Stream).iterate(user_info, callback)


# Transcripts


def FMTranscriptCreateFromJSONString(text: Any, code_out: Any = None, description_out: Any = None) -> Handle | None:
    with ErrorsTo(code_out, description_out, GenerationErrorCode.DECODING_FAILURE):
        transcript = Transcript.parse(json.loads(read_required_text(text)))
        return HANDLES.new(BridgedSession.resumed(transcript))
    return None


def FMLanguageModelSessionGetTranscriptJSONString(
    session: Pointer, code_out: Any = None, description_out: Any = None
) -> str | None:
    with ErrorsTo(code_out, description_out):
        return compact_json(_session(session).session.transcript.as_dict())
    return None


# Schemas


def FMGenerationSchemaCreate(name: Any, description: Any = None) -> Handle:
    return HANDLES.new(SchemaBuilder(read_required_text(name), read_text(description)))


def FMGenerationSchemaPropertyCreate(name: Any, description: Any, type_name: Any, is_optional: bool = False) -> Handle:
    return HANDLES.new(
        PropertyBuilder(read_required_text(name), read_text(description), read_required_text(type_name), bool(is_optional))
    )


def FMGenerationSchemaPropertyAddAnyOfGuide(prop: Pointer, choices: Any, count: int, wrapped: bool = False) -> None:
    texts = read_texts(choices, count)
    _add_guide(prop, lambda: GenerationGuide.anyOf(texts), wrapped)


def FMGenerationSchemaPropertyAddCountGuide(prop: Pointer, count: int, wrapped: bool = False) -> None:
    _add_guide(prop, lambda: GenerationGuide.count(count), wrapped)


def FMGenerationSchemaPropertyAddMaximumGuide(prop: Pointer, maximum: float, wrapped: bool = False) -> None:
    _add_guide(prop, lambda: GenerationGuide.maximum(maximum), wrapped)


def FMGenerationSchemaPropertyAddMinimumGuide(prop: Pointer, minimum: float, wrapped: bool = False) -> None:
    _add_guide(prop, lambda: GenerationGuide.minimum(minimum), wrapped)


def FMGenerationSchemaPropertyAddMinItemsGuide(prop: Pointer, count: int, wrapped: bool = False) -> None:
    _add_guide(prop, lambda: GenerationGuide.min_items(count), wrapped)


def FMGenerationSchemaPropertyAddMaxItemsGuide(prop: Pointer, count: int, wrapped: bool = False) -> None:
    _add_guide(prop, lambda: GenerationGuide.max_items(count), wrapped)


def FMGenerationSchemaPropertyAddRangeGuide(prop: Pointer, minimum: float, maximum: float, wrapped: bool = False) -> None:
    _add_guide(prop, lambda: GenerationGuide.range((minimum, maximum)), wrapped)


def FMGenerationSchemaPropertyAddRegex(prop: Pointer, pattern: Any, wrapped: bool = False) -> None:
    text = read_required_text(pattern)
    _add_guide(prop, lambda: GenerationGuide.regex(text), wrapped)


def FMGenerationSchemaAddProperty(schema: Pointer, prop: Pointer) -> None:
    HANDLES.get(schema, SchemaBuilder).properties.append(HANDLES.get(prop, PropertyBuilder))


def FMGenerationSchemaAddReferenceSchema(schema: Pointer, reference: Pointer) -> None:
    HANDLES.get(schema, SchemaBuilder).references.append(HANDLES.get(reference, SchemaBuilder))


def FMGenerationSchemaGetJSONString(schema: Pointer, code_out: Any = None, description_out: Any = None) -> str | None:
    with ErrorsTo(code_out, description_out, GenerationErrorCode.INVALID_SCHEMA):
        return compact_json(HANDLES.get(schema, SchemaBuilder).build().to_dict())
    return None


# Generated content


def FMGeneratedContentCreateFromJSON(text: Any, code_out: Any = None, description_out: Any = None) -> Handle | None:
    with ErrorsTo(code_out, description_out):
        return HANDLES.new(GeneratedContent.from_json(read_required_text(text)))
    return None


def FMGeneratedContentGetJSONString(content: Pointer) -> str:
    return HANDLES.get(content, GeneratedContent).to_json()


def FMGeneratedContentGetPropertyValue(
    content: Pointer, name: Any, code_out: Any = None, description_out: Any = None
) -> str | None:
    with ErrorsTo(code_out, description_out):
        key = read_required_text(name)
        value = HANDLES.get(content, GeneratedContent).value(for_property=key)
        if not isinstance(value, str):
            raise DecodingFailureError(f"the property '{key}' is not text, but {value!r}")
        return value
    return None


def FMGeneratedContentIsComplete(content: Pointer) -> bool:
    return HANDLES.get(content, GeneratedContent).is_complete


# Tools


def FMBridgedToolCreate(
    name: Any,
    description: Any,
    parameters: Pointer,
    callback: Callable[[int, int], object],
    code_out: Any = None,
    description_out: Any = None,
) -> Handle | None:
    with ErrorsTo(code_out, description_out):
        schema = HANDLES.get(parameters, SchemaBuilder).build()
        return HANDLES.new(BridgedTool(read_required_text(name), read_required_text(description), schema, callback))
    return None


def FMBridgedToolFinishCall(tool: Pointer, call_id: int, output: Any) -> None:
    HANDLES.get(tool, BridgedTool).finish_call(call_id, read_required_text(output))


# Memory and tasks


def FMTaskCancel(task: Pointer) -> None:
    HANDLES.get(task, Task).cancel()


def FMRetain(pointer: Pointer) -> None:
    HANDLES.retain(pointer)


def FMRelease(pointer: Pointer) -> None:
    HANDLES.release(pointer)


def FMFreeString(text: Any) -> None:
    free_text(text)


def _session(session: Pointer) -> BridgedSession:
    return HANDLES.get(session, BridgedSession)


def _model(model: Pointer) -> SystemLanguageModel | None:
    return HANDLES.get(model, SystemLanguageModel) if model else None


def _known(kind: type[EnumT], number: int) -> EnumT:
    """Return the enum member of a number. Warn and return the first member if it is unknown: the call cannot fail."""
    try:
        return kind(number)
    except ValueError:
        default = next(iter(kind))
        warnings.warn(f"{number} is not a value of {kind.__name__}; {default.name} is used", stacklevel=3)
        return default


def _tools(tools: Any, count: int) -> list[BridgedTool]:
    """Return the tools of an array. Of tools with equal names, only the first is used."""
    bridged = [HANDLES.get(pointer, BridgedTool) for pointer in read_handles(tools, count)]
    return list({tool.name: tool for tool in reversed(bridged)}.values())[::-1]


def _add_guide(prop: Pointer, guide: Callable[[], GenerationGuide], wrapped: bool) -> None:
    HANDLES.get(prop, PropertyBuilder).add_guide(guide, wrapped)


def _task(work: Coroutine[Any, Any, None]) -> Handle:
    return HANDLES.new(Task(work))


def _count(count: Callable[[], Coroutine[Any, Any, int]], user_info: Any, callback: CountCallback) -> Handle:
    return _task(deliver_count(count, user_info, callback))


__all__ = [name for name in globals() if name.startswith("FM")]
