"""openafm: an open implementation of Apple Intelligence Foundation Language Models: Tech Report 2025.

App developers write `import openafm as fm` and find the framework (report 7) here. A name is imported when it is first used,
so that importing openafm costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openafm.framework.content import GeneratedContent as GeneratedContent
    from openafm.framework.errors import AssetsUnavailableError as AssetsUnavailableError
    from openafm.framework.errors import ConcurrentRequestsError as ConcurrentRequestsError
    from openafm.framework.errors import DecodingFailureError as DecodingFailureError
    from openafm.framework.errors import ExceededContextWindowSizeError as ExceededContextWindowSizeError
    from openafm.framework.errors import FoundationModelsError as FoundationModelsError
    from openafm.framework.errors import GenerationCancelledError as GenerationCancelledError
    from openafm.framework.errors import GenerationError as GenerationError
    from openafm.framework.errors import GuardrailViolationError as GuardrailViolationError
    from openafm.framework.errors import InvalidGenerationSchemaError as InvalidGenerationSchemaError
    from openafm.framework.errors import RateLimitedError as RateLimitedError
    from openafm.framework.errors import RefusalError as RefusalError
    from openafm.framework.errors import UnsupportedGuideError as UnsupportedGuideError
    from openafm.framework.errors import UnsupportedLanguageOrLocaleError as UnsupportedLanguageOrLocaleError
    from openafm.framework.formats import Snapshot as Snapshot
    from openafm.framework.generable import Generable as Generable
    from openafm.framework.generable import generable as generable
    from openafm.framework.generation_id import GenerationID as GenerationID
    from openafm.framework.guides import GenerationGuide as GenerationGuide
    from openafm.framework.guides import GuideType as GuideType
    from openafm.framework.guides import guide as guide
    from openafm.framework.model import SystemLanguageModel as SystemLanguageModel
    from openafm.framework.language_model import SystemLanguageModelUnavailableReason as SystemLanguageModelUnavailableReason
    from openafm.framework.options import GenerationOptions as GenerationOptions
    from openafm.framework.options import SamplingMode as SamplingMode
    from openafm.framework.options import SamplingModeType as SamplingModeType
    from openafm.framework.response_stream import ResponseStream as ResponseStream
    from openafm.framework.schema import GenerationSchema as GenerationSchema
    from openafm.framework.session import LanguageModelSession as LanguageModelSession
    from openafm.framework.language_model import Usage as Usage
    from openafm.framework.transcript import Transcript as Transcript

_MODULES = {
    "AssetsUnavailableError": "errors",
    "ConcurrentRequestsError": "errors",
    "DecodingFailureError": "errors",
    "ExceededContextWindowSizeError": "errors",
    "FoundationModelsError": "errors",
    "Generable": "generable",
    "GeneratedContent": "content",
    "GenerationCancelledError": "errors",
    "GenerationError": "errors",
    "GenerationGuide": "guides",
    "GenerationID": "generation_id",
    "GenerationOptions": "options",
    "GenerationSchema": "schema",
    "GuardrailViolationError": "errors",
    "GuideType": "guides",
    "InvalidGenerationSchemaError": "errors",
    "LanguageModelSession": "session",
    "RateLimitedError": "errors",
    "RefusalError": "errors",
    "ResponseStream": "response_stream",
    "SamplingMode": "options",
    "SamplingModeType": "options",
    "Snapshot": "formats",
    "SystemLanguageModel": "model",
    "SystemLanguageModelUnavailableReason": "language_model",
    "Transcript": "transcript",
    "UnsupportedGuideError": "errors",
    "UnsupportedLanguageOrLocaleError": "errors",
    "Usage": "language_model",
    "generable": "generable",
    "guide": "guides",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'openafm' has no attribute '{name}'")
    return getattr(import_module(f"openafm.framework.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
