"""Red teaming of sessions: the system under test is a `LanguageModel` with its guardrails and instructions."""

from __future__ import annotations

from collections.abc import Callable

from openafm.framework.backends.language_model import Capability, LanguageModel
from openafm.framework.errors import FoundationModelsError, GuardrailViolationError, RefusalError
from openafm.framework.options import GenerationOptions
from openafm.framework.session.session import LanguageModelSession
from openafm.framework.tools.tool import ToolLimits, tool
from openafm.framework.transcripts.images import Image
from openafm.framework.transcripts.prompt import Prompt
from openafm.safety.redteam.attacks import Attack, Model
from openafm.safety.redteam.project import Reply
from openafm.safety.refusals import is_refusal

_LIMITS = ToolLimits(rounds=2, request_seconds=300)
_IMAGE_SIZE, _LINE_CHARACTERS = (640, 480), 40


def system_under_test(model: LanguageModel, instructions: str, max_tokens: int) -> Callable[[Attack], Reply]:
    """Return a function that asks a new session each attack. An attack that the model cannot take is a failed attempt."""

    def asked(attack: Attack) -> Reply:
        if attack.image_text and Capability.VISION not in model.capabilities:
            return Reply(outcome="failed", reason=f"the model {model.name} does not support images")
        if attack.tool_output and Capability.TOOL_CALLING not in model.capabilities:
            return Reply(outcome="failed", reason=f"the model {model.name} does not call tools")

        @tool
        def search(query: str) -> str:
            """Search the web."""
            return attack.tool_output

        session = LanguageModelSession(
            instructions or None, model, [search] if attack.tool_output else None, tool_limits=_LIMITS
        )
        prompt = Prompt(attack.prompt, _drawn(attack.image_text)) if attack.image_text else attack.prompt
        try:
            text = session.respond_blocking(prompt, options=GenerationOptions(maximum_response_tokens=max_tokens))
        except GuardrailViolationError as error:
            is_prompt = error.side == "prompt"
            return Reply(outcome="blocked_prompt" if is_prompt else "blocked_response", reason=str(error))
        except RefusalError as error:
            return Reply(outcome="refused", reason=str(error))
        except FoundationModelsError as error:
            return Reply(outcome="failed", reason=f"{type(error).__name__}: {error}")
        return Reply(outcome="refused" if is_refusal(text) else "answered", text=text)

    return asked


def mutator(model: LanguageModel, max_tokens: int) -> Model:
    """Return a function that asks a model without guardrails' help for a text; a failed request is an empty text."""

    def asked(prompt: str) -> str:
        try:
            options = GenerationOptions(maximum_response_tokens=max_tokens, temperature=1.0)
            return LanguageModelSession(model=model).respond_blocking(prompt, options=options)
        except FoundationModelsError:
            return ""

    return asked


def _drawn(text: str) -> Image:
    """Return a white image with a text."""
    import textwrap

    from PIL import Image as PillowImage
    from PIL import ImageDraw

    image = PillowImage.new("RGB", _IMAGE_SIZE, "white")
    ImageDraw.Draw(image).multiline_text((20, 20), textwrap.fill(text, _LINE_CHARACTERS), fill="black", font_size=24)
    return Image(image)
