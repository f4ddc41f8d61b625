"""openafm: an open implementation of Apple Intelligence Foundation Language Models: Tech Report 2025.

`import openafm as fm` exports the framework (report 7). A name is imported on first use, so `import openafm` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openafm import tools as tools
    from openafm.data.synthetic import reference_week as reference_week
    from openafm.framework.backends.adapter import Adapter as Adapter
    from openafm.framework.backends.adapter import AssetError as AssetError
    from openafm.framework.backends.adapter import CompatibleAdapterNotFoundError as CompatibleAdapterNotFoundError
    from openafm.framework.backends.adapter import InvalidAdapterNameError as InvalidAdapterNameError
    from openafm.framework.backends.adapter import InvalidAssetError as InvalidAssetError
    from openafm.framework.backends.http_lines import EndpointError as EndpointError
    from openafm.framework.backends.http_lines import EndpointTimeoutError as EndpointTimeoutError
    from openafm.framework.backends.language_model import Answer as Answer
    from openafm.framework.backends.language_model import AnswerRequest as AnswerRequest
    from openafm.framework.backends.language_model import Capability as Capability
    from openafm.framework.backends.language_model import FinishReason as FinishReason
    from openafm.framework.backends.language_model import LanguageModel as LanguageModel
    from openafm.framework.backends.language_model import LanguageModelExecutor as LanguageModelExecutor
    from openafm.framework.backends.language_model import (
        SystemLanguageModelUnavailableReason as SystemLanguageModelUnavailableReason,
    )
    from openafm.framework.backends.language_model import TextPiece as TextPiece
    from openafm.framework.backends.language_model import ToolCallPiece as ToolCallPiece
    from openafm.framework.backends.language_model import Usage as Usage
    from openafm.framework.backends.openai_model import OpenAICompatibleModel as OpenAICompatibleModel
    from openafm.framework.backends.system_model import SystemLanguageModel as SystemLanguageModel
    from openafm.framework.backends.system_model import SystemLanguageModelUseCase as SystemLanguageModelUseCase
    from openafm.framework.classification import Classification as Classification
    from openafm.framework.classification import Classifier as Classifier
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
    from openafm.framework.options import GenerationOptions as GenerationOptions
    from openafm.framework.options import SamplingMode as SamplingMode
    from openafm.framework.options import SamplingModeType as SamplingModeType
    from openafm.framework.options import ToolCallingMode as ToolCallingMode
    from openafm.framework.profiling.profile import ContentWarning as ContentWarning
    from openafm.framework.profiling.profile import Profile as Profile
    from openafm.framework.profiling.profile import profile as profile
    from openafm.framework.profiling.spans import Span as Span
    from openafm.framework.profiling.spans import Trace as Trace
    from openafm.framework.schema.content import ConvertibleFromGeneratedContent as ConvertibleFromGeneratedContent
    from openafm.framework.schema.content import ConvertibleToGeneratedContent as ConvertibleToGeneratedContent
    from openafm.framework.schema.content import GeneratedContent as GeneratedContent
    from openafm.framework.schema.dynamic_schema import DuplicatePropertyError as DuplicatePropertyError
    from openafm.framework.schema.dynamic_schema import DuplicateTypeError as DuplicateTypeError
    from openafm.framework.schema.dynamic_schema import DynamicGenerationSchema as DynamicGenerationSchema
    from openafm.framework.schema.dynamic_schema import DynamicProperty as DynamicProperty
    from openafm.framework.schema.dynamic_schema import EmptyTypeChoicesError as EmptyTypeChoicesError
    from openafm.framework.schema.dynamic_schema import UndefinedReferencesError as UndefinedReferencesError
    from openafm.framework.schema.generable import Generable as Generable
    from openafm.framework.schema.generable import generable as generable
    from openafm.framework.schema.generation_id import GenerationID as GenerationID
    from openafm.framework.schema.guides import GenerationGuide as GenerationGuide
    from openafm.framework.schema.guides import GuideType as GuideType
    from openafm.framework.schema.guides import guide as guide
    from openafm.framework.schema.schema import GenerationSchema as GenerationSchema
    from openafm.framework.schema.types.formatted import URL as URL
    from openafm.framework.session.condense import first_and_last as first_and_last
    from openafm.framework.session.condense import rolling_window as rolling_window
    from openafm.framework.session.condense import rolling_window_blocking as rolling_window_blocking
    from openafm.framework.session.condense import summarized as summarized
    from openafm.framework.session.condense import summarized_blocking as summarized_blocking
    from openafm.framework.session.formats import Snapshot as Snapshot
    from openafm.framework.session.formats import TextSnapshot as TextSnapshot
    from openafm.framework.session.request import Response as Response
    from openafm.framework.session.response_stream import ResponseStream as ResponseStream
    from openafm.framework.session.session import LanguageModelSession as LanguageModelSession
    from openafm.framework.tools.policy import ProposedCall as ProposedCall
    from openafm.framework.tools.policy import ToolPolicy as ToolPolicy
    from openafm.framework.tools.policy import ToolRule as ToolRule
    from openafm.framework.tools.runner import ToolOutputError as ToolOutputError
    from openafm.framework.tools.runner import ToolTimeoutError as ToolTimeoutError
    from openafm.framework.tools.tool import Tool as Tool
    from openafm.framework.tools.tool import ToolLimits as ToolLimits
    from openafm.framework.tools.tool import tool as tool
    from openafm.framework.transcripts.feedback import FeedbackCategory as FeedbackCategory
    from openafm.framework.transcripts.feedback import FeedbackIssue as FeedbackIssue
    from openafm.framework.transcripts.feedback import Sentiment as Sentiment
    from openafm.framework.transcripts.images import Image as Image
    from openafm.framework.transcripts.images import ImageAttachment as ImageAttachment
    from openafm.framework.transcripts.prompt import Attachment as Attachment
    from openafm.framework.transcripts.prompt import ImagePromptError as ImagePromptError
    from openafm.framework.transcripts.prompt import Prompt as Prompt
    from openafm.framework.transcripts.prompt import PromptComponent as PromptComponent
    from openafm.framework.transcripts.prompt import PromptError as PromptError
    from openafm.framework.transcripts.prompt import PromptLike as PromptLike
    from openafm.framework.transcripts.prompt import UnsupportedAttachmentError as UnsupportedAttachmentError
    from openafm.framework.transcripts.transcript import InstructionsEntry as InstructionsEntry
    from openafm.framework.transcripts.transcript import PromptEntry as PromptEntry
    from openafm.framework.transcripts.transcript import ResponseEntry as ResponseEntry
    from openafm.framework.transcripts.transcript import ToolCallsEntry as ToolCallsEntry
    from openafm.framework.transcripts.transcript import ToolOutputEntry as ToolOutputEntry
    from openafm.framework.transcripts.transcript import Transcript as Transcript
    from openafm.framework.transcripts.transcript import TranscriptEntry as TranscriptEntry
    from openafm.framework.transcripts.wire import TranscriptError as TranscriptError
    from openafm.safety.guardrail import Allowed as Allowed
    from openafm.safety.guardrail import Guardrail as Guardrail
    from openafm.safety.guardrail import Refused as Refused
    from openafm.safety.guardrail import SystemLanguageModelGuardrails as SystemLanguageModelGuardrails
    from openafm.safety.guardrail import Violation as Violation
    from openafm.tokenizer.conversation import AssistantTurn as AssistantTurn
    from openafm.tokenizer.conversation import ImagePart as ImagePart
    from openafm.tokenizer.conversation import Instructions as Instructions
    from openafm.tokenizer.conversation import TextPart as TextPart
    from openafm.tokenizer.conversation import ToolCall as ToolCall
    from openafm.tokenizer.conversation import ToolDefinition as ToolDefinition
    from openafm.tokenizer.conversation import ToolTurn as ToolTurn
    from openafm.tokenizer.conversation import UserTurn as UserTurn

_MODULES = {
    "Adapter": "framework.backends.adapter",
    "Allowed": "safety.guardrail",
    "Answer": "framework.backends.language_model",
    "AnswerRequest": "framework.backends.language_model",
    "AssetError": "framework.backends.adapter",
    "AssetsUnavailableError": "framework.errors",
    "AssistantTurn": "tokenizer.conversation",
    "Attachment": "framework.transcripts.prompt",
    "Capability": "framework.backends.language_model",
    "Classification": "framework.classification",
    "Classifier": "framework.classification",
    "CompatibleAdapterNotFoundError": "framework.backends.adapter",
    "ConcurrentRequestsError": "framework.errors",
    "ContentWarning": "framework.profiling.profile",
    "ConvertibleFromGeneratedContent": "framework.schema.content",
    "ConvertibleToGeneratedContent": "framework.schema.content",
    "DecodingFailureError": "framework.errors",
    "DuplicatePropertyError": "framework.schema.dynamic_schema",
    "DuplicateTypeError": "framework.schema.dynamic_schema",
    "DynamicGenerationSchema": "framework.schema.dynamic_schema",
    "DynamicProperty": "framework.schema.dynamic_schema",
    "EmptyTypeChoicesError": "framework.schema.dynamic_schema",
    "EndpointError": "framework.backends.http_lines",
    "EndpointTimeoutError": "framework.backends.http_lines",
    "ExceededContextWindowSizeError": "framework.errors",
    "FeedbackCategory": "framework.transcripts.feedback",
    "FeedbackIssue": "framework.transcripts.feedback",
    "FinishReason": "framework.backends.language_model",
    "FoundationModelsError": "framework.errors",
    "Generable": "framework.schema.generable",
    "GeneratedContent": "framework.schema.content",
    "GenerationCancelledError": "framework.errors",
    "GenerationError": "framework.errors",
    "GenerationErrorCode": "framework.errors",
    "GenerationGuide": "framework.schema.guides",
    "GenerationID": "framework.schema.generation_id",
    "GenerationOptions": "framework.options",
    "GenerationSchema": "framework.schema.schema",
    "Guardrail": "safety.guardrail",
    "GuardrailViolationError": "framework.errors",
    "GuideType": "framework.schema.guides",
    "Image": "framework.transcripts.images",
    "ImageAttachment": "framework.transcripts.images",
    "ImagePart": "tokenizer.conversation",
    "ImagePromptError": "framework.transcripts.prompt",
    "Instructions": "tokenizer.conversation",
    "InstructionsEntry": "framework.transcripts.transcript",
    "InvalidAdapterNameError": "framework.backends.adapter",
    "InvalidAssetError": "framework.backends.adapter",
    "InvalidGenerationSchemaError": "framework.errors",
    "LanguageModel": "framework.backends.language_model",
    "LanguageModelExecutor": "framework.backends.language_model",
    "LanguageModelSession": "framework.session.session",
    "OpenAICompatibleModel": "framework.backends.openai_model",
    "Profile": "framework.profiling.profile",
    "Prompt": "framework.transcripts.prompt",
    "PromptComponent": "framework.transcripts.prompt",
    "PromptEntry": "framework.transcripts.transcript",
    "PromptError": "framework.transcripts.prompt",
    "PromptLike": "framework.transcripts.prompt",
    "ProposedCall": "framework.tools.policy",
    "RateLimitedError": "framework.errors",
    "RefusalError": "framework.errors",
    "Refused": "safety.guardrail",
    "RequestTimeoutError": "framework.errors",
    "Response": "framework.session.request",
    "ResponseEntry": "framework.transcripts.transcript",
    "ResponseStream": "framework.session.response_stream",
    "SamplingMode": "framework.options",
    "SamplingModeType": "framework.options",
    "Sentiment": "framework.transcripts.feedback",
    "Snapshot": "framework.session.formats",
    "Span": "framework.profiling.spans",
    "SystemLanguageModel": "framework.backends.system_model",
    "SystemLanguageModelGuardrails": "safety.guardrail",
    "SystemLanguageModelUnavailableReason": "framework.backends.language_model",
    "SystemLanguageModelUseCase": "framework.backends.system_model",
    "TextPart": "tokenizer.conversation",
    "TextPiece": "framework.backends.language_model",
    "TextSnapshot": "framework.session.formats",
    "Tool": "framework.tools.tool",
    "ToolCall": "tokenizer.conversation",
    "ToolCallError": "framework.errors",
    "ToolCallPiece": "framework.backends.language_model",
    "ToolCallingMode": "framework.options",
    "ToolCallsEntry": "framework.transcripts.transcript",
    "ToolDefinition": "tokenizer.conversation",
    "ToolLimits": "framework.tools.tool",
    "ToolOutputEntry": "framework.transcripts.transcript",
    "ToolOutputError": "framework.tools.runner",
    "ToolPolicy": "framework.tools.policy",
    "ToolRule": "framework.tools.policy",
    "ToolTimeoutError": "framework.tools.runner",
    "ToolTurn": "tokenizer.conversation",
    "Trace": "framework.profiling.spans",
    "Transcript": "framework.transcripts.transcript",
    "TranscriptEntry": "framework.transcripts.transcript",
    "TranscriptError": "framework.transcripts.wire",
    "TranscriptMutationError": "framework.errors",
    "URL": "framework.schema.types.formatted",
    "UndefinedReferencesError": "framework.schema.dynamic_schema",
    "UnsupportedAttachmentError": "framework.transcripts.prompt",
    "UnsupportedCapabilityError": "framework.errors",
    "UnsupportedGuideError": "framework.errors",
    "UnsupportedLanguageOrLocaleError": "framework.errors",
    "Usage": "framework.backends.language_model",
    "UserTurn": "tokenizer.conversation",
    "Violation": "safety.guardrail",
    "first_and_last": "framework.session.condense",
    "generable": "framework.schema.generable",
    "guide": "framework.schema.guides",
    "profile": "framework.profiling.profile",
    "reference_week": "data.synthetic",
    "rolling_window": "framework.session.condense",
    "rolling_window_blocking": "framework.session.condense",
    "summarized": "framework.session.condense",
    "summarized_blocking": "framework.session.condense",
    "tool": "framework.tools.tool",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("openafm")
    if name == "tools":  # a submodule, which `import openafm` does not import
        return import_module("openafm.tools")
    if name not in _MODULES:
        raise AttributeError(f"module 'openafm' has no attribute '{name}'")
    return getattr(import_module(f"openafm.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
