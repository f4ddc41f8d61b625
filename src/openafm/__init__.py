"""openafm: an open implementation of Apple Intelligence Foundation Language Models: Tech Report 2025.

App developers write `import openafm as fm` and find the framework (report 7) here. A name is imported when it is first used,
so that importing openafm costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openafm import tools as tools
    from openafm.framework.adapter import Adapter as Adapter
    from openafm.framework.adapter import AssetError as AssetError
    from openafm.framework.adapter import CompatibleAdapterNotFoundError as CompatibleAdapterNotFoundError
    from openafm.framework.adapter import InvalidAdapterNameError as InvalidAdapterNameError
    from openafm.framework.adapter import InvalidAssetError as InvalidAssetError
    from openafm.framework.condense import first_and_last as first_and_last
    from openafm.framework.condense import rolling_window as rolling_window
    from openafm.framework.condense import rolling_window_blocking as rolling_window_blocking
    from openafm.framework.condense import summarized as summarized
    from openafm.framework.condense import summarized_blocking as summarized_blocking
    from openafm.framework.content import ConvertibleFromGeneratedContent as ConvertibleFromGeneratedContent
    from openafm.framework.content import ConvertibleToGeneratedContent as ConvertibleToGeneratedContent
    from openafm.framework.content import GeneratedContent as GeneratedContent
    from openafm.framework.dynamic_schema import DuplicatePropertyError as DuplicatePropertyError
    from openafm.framework.dynamic_schema import DuplicateTypeError as DuplicateTypeError
    from openafm.framework.dynamic_schema import DynamicGenerationSchema as DynamicGenerationSchema
    from openafm.framework.dynamic_schema import DynamicProperty as DynamicProperty
    from openafm.framework.dynamic_schema import EmptyTypeChoicesError as EmptyTypeChoicesError
    from openafm.framework.dynamic_schema import UndefinedReferencesError as UndefinedReferencesError
    from openafm.framework.errors import AssetsUnavailableError as AssetsUnavailableError
    from openafm.framework.errors import ConcurrentRequestsError as ConcurrentRequestsError
    from openafm.framework.errors import DecodingFailureError as DecodingFailureError
    from openafm.framework.errors import ExceededContextWindowSizeError as ExceededContextWindowSizeError
    from openafm.framework.errors import FoundationModelsError as FoundationModelsError
    from openafm.framework.errors import GenerationCancelledError as GenerationCancelledError
    from openafm.framework.errors import GenerationError as GenerationError
    from openafm.framework.errors import GenerationErrorCode as GenerationErrorCode
    from openafm.framework.errors import GuardrailViolationError as GuardrailViolationError
    from openafm.framework.errors import InvalidGenerationSchemaError as InvalidGenerationSchemaError
    from openafm.framework.errors import RateLimitedError as RateLimitedError
    from openafm.framework.errors import RefusalError as RefusalError
    from openafm.framework.errors import RequestTimeoutError as RequestTimeoutError
    from openafm.framework.errors import ToolCallError as ToolCallError
    from openafm.framework.errors import TranscriptMutationError as TranscriptMutationError
    from openafm.framework.errors import UnsupportedCapabilityError as UnsupportedCapabilityError
    from openafm.framework.errors import UnsupportedGuideError as UnsupportedGuideError
    from openafm.framework.errors import UnsupportedLanguageOrLocaleError as UnsupportedLanguageOrLocaleError
    from openafm.framework.feedback import FeedbackCategory as FeedbackCategory
    from openafm.framework.feedback import FeedbackIssue as FeedbackIssue
    from openafm.framework.feedback import Sentiment as Sentiment
    from openafm.framework.formats import Snapshot as Snapshot
    from openafm.framework.formats import TextSnapshot as TextSnapshot
    from openafm.framework.formatted_types import URL as URL
    from openafm.framework.generable import Generable as Generable
    from openafm.framework.generable import generable as generable
    from openafm.framework.generation_id import GenerationID as GenerationID
    from openafm.framework.guides import GenerationGuide as GenerationGuide
    from openafm.framework.guides import GuideType as GuideType
    from openafm.framework.guides import guide as guide
    from openafm.framework.http_lines import EndpointError as EndpointError
    from openafm.framework.http_lines import EndpointTimeoutError as EndpointTimeoutError
    from openafm.framework.language_model import Answer as Answer
    from openafm.framework.language_model import AnswerRequest as AnswerRequest
    from openafm.framework.language_model import Capability as Capability
    from openafm.framework.language_model import LanguageModel as LanguageModel
    from openafm.framework.language_model import LanguageModelExecutor as LanguageModelExecutor
    from openafm.framework.language_model import SystemLanguageModelUnavailableReason as SystemLanguageModelUnavailableReason
    from openafm.framework.language_model import TextPiece as TextPiece
    from openafm.framework.language_model import ToolCallPiece as ToolCallPiece
    from openafm.framework.language_model import Usage as Usage
    from openafm.framework.model import SystemLanguageModel as SystemLanguageModel
    from openafm.framework.model import SystemLanguageModelUseCase as SystemLanguageModelUseCase
    from openafm.framework.openai_model import OpenAICompatibleModel as OpenAICompatibleModel
    from openafm.framework.options import GenerationOptions as GenerationOptions
    from openafm.framework.options import SamplingMode as SamplingMode
    from openafm.framework.options import SamplingModeType as SamplingModeType
    from openafm.framework.options import ToolCallingMode as ToolCallingMode
    from openafm.framework.prompt import Attachment as Attachment
    from openafm.framework.prompt import ImageAttachment as ImageAttachment
    from openafm.framework.prompt import ImagePromptError as ImagePromptError
    from openafm.framework.prompt import Prompt as Prompt
    from openafm.framework.prompt import PromptComponent as PromptComponent
    from openafm.framework.prompt import PromptError as PromptError
    from openafm.framework.prompt import UnsupportedAttachmentError as UnsupportedAttachmentError
    from openafm.framework.request import Response as Response
    from openafm.framework.response_stream import ResponseStream as ResponseStream
    from openafm.framework.schema import GenerationSchema as GenerationSchema
    from openafm.framework.session import LanguageModelSession as LanguageModelSession
    from openafm.framework.tool import Tool as Tool
    from openafm.framework.tool import ToolLimits as ToolLimits
    from openafm.framework.tool import tool as tool
    from openafm.framework.tool_runner import ToolOutputError as ToolOutputError
    from openafm.framework.tool_runner import ToolTimeoutError as ToolTimeoutError
    from openafm.framework.transcript import InstructionsEntry as InstructionsEntry
    from openafm.framework.transcript import PromptEntry as PromptEntry
    from openafm.framework.transcript import ResponseEntry as ResponseEntry
    from openafm.framework.transcript import ToolCallsEntry as ToolCallsEntry
    from openafm.framework.transcript import ToolOutputEntry as ToolOutputEntry
    from openafm.framework.transcript import Transcript as Transcript
    from openafm.framework.transcript import TranscriptEntry as TranscriptEntry
    from openafm.framework.transcript_wire import TranscriptError as TranscriptError
    from openafm.safety.guardrail import Allowed as Allowed
    from openafm.safety.guardrail import Guardrail as Guardrail
    from openafm.safety.guardrail import Refused as Refused
    from openafm.safety.guardrail import Violation as Violation
    from openafm.safety.guardrails import SystemLanguageModelGuardrails as SystemLanguageModelGuardrails

_MODULES = {
    "Adapter": "framework.adapter",
    "Allowed": "safety.guardrail",
    "Answer": "framework.language_model",
    "AnswerRequest": "framework.language_model",
    "AssetError": "framework.adapter",
    "AssetsUnavailableError": "framework.errors",
    "Attachment": "framework.prompt",
    "Capability": "framework.language_model",
    "CompatibleAdapterNotFoundError": "framework.adapter",
    "ConcurrentRequestsError": "framework.errors",
    "ConvertibleFromGeneratedContent": "framework.content",
    "ConvertibleToGeneratedContent": "framework.content",
    "DecodingFailureError": "framework.errors",
    "DuplicatePropertyError": "framework.dynamic_schema",
    "DuplicateTypeError": "framework.dynamic_schema",
    "DynamicGenerationSchema": "framework.dynamic_schema",
    "DynamicProperty": "framework.dynamic_schema",
    "EmptyTypeChoicesError": "framework.dynamic_schema",
    "EndpointError": "framework.http_lines",
    "EndpointTimeoutError": "framework.http_lines",
    "ExceededContextWindowSizeError": "framework.errors",
    "FeedbackCategory": "framework.feedback",
    "FeedbackIssue": "framework.feedback",
    "FoundationModelsError": "framework.errors",
    "Generable": "framework.generable",
    "GeneratedContent": "framework.content",
    "GenerationCancelledError": "framework.errors",
    "GenerationError": "framework.errors",
    "GenerationErrorCode": "framework.errors",
    "GenerationGuide": "framework.guides",
    "GenerationID": "framework.generation_id",
    "GenerationOptions": "framework.options",
    "GenerationSchema": "framework.schema",
    "Guardrail": "safety.guardrail",
    "GuardrailViolationError": "framework.errors",
    "GuideType": "framework.guides",
    "ImageAttachment": "framework.prompt",
    "ImagePromptError": "framework.prompt",
    "InstructionsEntry": "framework.transcript",
    "InvalidAdapterNameError": "framework.adapter",
    "InvalidAssetError": "framework.adapter",
    "InvalidGenerationSchemaError": "framework.errors",
    "LanguageModel": "framework.language_model",
    "LanguageModelExecutor": "framework.language_model",
    "LanguageModelSession": "framework.session",
    "OpenAICompatibleModel": "framework.openai_model",
    "Prompt": "framework.prompt",
    "PromptComponent": "framework.prompt",
    "PromptEntry": "framework.transcript",
    "PromptError": "framework.prompt",
    "RateLimitedError": "framework.errors",
    "RefusalError": "framework.errors",
    "Refused": "safety.guardrail",
    "RequestTimeoutError": "framework.errors",
    "Response": "framework.request",
    "ResponseEntry": "framework.transcript",
    "ResponseStream": "framework.response_stream",
    "SamplingMode": "framework.options",
    "SamplingModeType": "framework.options",
    "Sentiment": "framework.feedback",
    "Snapshot": "framework.formats",
    "SystemLanguageModel": "framework.model",
    "SystemLanguageModelGuardrails": "safety.guardrails",
    "SystemLanguageModelUnavailableReason": "framework.language_model",
    "SystemLanguageModelUseCase": "framework.model",
    "TextPiece": "framework.language_model",
    "TextSnapshot": "framework.formats",
    "Tool": "framework.tool",
    "ToolCallError": "framework.errors",
    "ToolCallPiece": "framework.language_model",
    "ToolCallingMode": "framework.options",
    "ToolCallsEntry": "framework.transcript",
    "ToolLimits": "framework.tool",
    "ToolOutputEntry": "framework.transcript",
    "ToolOutputError": "framework.tool_runner",
    "ToolTimeoutError": "framework.tool_runner",
    "Transcript": "framework.transcript",
    "TranscriptEntry": "framework.transcript",
    "TranscriptError": "framework.transcript_wire",
    "TranscriptMutationError": "framework.errors",
    "URL": "framework.formatted_types",
    "UndefinedReferencesError": "framework.dynamic_schema",
    "UnsupportedAttachmentError": "framework.prompt",
    "UnsupportedCapabilityError": "framework.errors",
    "UnsupportedGuideError": "framework.errors",
    "UnsupportedLanguageOrLocaleError": "framework.errors",
    "Usage": "framework.language_model",
    "Violation": "safety.guardrail",
    "first_and_last": "framework.condense",
    "generable": "framework.generable",
    "guide": "framework.guides",
    "rolling_window": "framework.condense",
    "rolling_window_blocking": "framework.condense",
    "summarized": "framework.condense",
    "summarized_blocking": "framework.condense",
    "tool": "framework.tool",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name == "tools":  # openafm.tools, which `import openafm as fm` alone would not give
        return import_module("openafm.tools")
    if name not in _MODULES:
        raise AttributeError(f"module 'openafm' has no attribute '{name}'")
    return getattr(import_module(f"openafm.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
