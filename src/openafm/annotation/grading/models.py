"""Models that answer or judge: opened by name, asked with a whole conversation and images."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.core.errors import UsageError
from openafm.core.regular_files import read_document
from openafm.framework.backends.language_model import AnswerRequest, LanguageModel
from openafm.framework.options import GenerationOptions
from openafm.framework.transcripts.images import Image
from openafm.framework.transcripts.prompt import Prompt, prompt_content
from openafm.tokenizer.conversation import AssistantTurn, Instructions, ToolTurn, Turn, UserTurn

if TYPE_CHECKING:
    from openafm.annotation.grading.items import Item


def open_model(name: str, key_variable: str = "OPENAI_API_KEY") -> LanguageModel:
    """Return a model: a bundle by name or folder, or an endpoint's model as http://HOST/v1#NAME.

    Raises:
        UsageError: an endpoint lacks the name of its model.
    """
    if not name.startswith(("http://", "https://")):
        from openafm.framework.backends.system_model import SystemLanguageModel

        return SystemLanguageModel(bundle=name)
    from openafm.framework.backends.openai_model import OpenAICompatibleModel

    base_url, _, model = name.partition("#")
    if not model:
        raise UsageError(f"{name} has no name of a model; pass it after #, as in http://localhost:8000/v1#nano")
    return OpenAICompatibleModel(base_url, model, os.environ.get(key_variable))


def answer(
    model: LanguageModel,
    prompt: Sequence[tuple[str, str]],
    *,
    images: Sequence[Path] = (),
    schema: dict[str, Any] | None = None,
    max_tokens: int = 512,
) -> str:
    """Return the greedy answer to a prompt of (role, text); images belong to its last message.

    Raises:
        GenerationError: the model gave no answer.
        OSError: an image cannot be read.
    """
    *before, last = (_turn(role, text) for role, text in prompt)
    content, found = prompt_content(Prompt(*(Image(read_document(path)) for path in images), last.text), model.image_part)
    if images:
        last = UserTurn(content=content)
    request = AnswerRequest(
        turns=(last,),
        schema=schema,
        tools=(),
        must_call=False,
        options=GenerationOptions(temperature=0.0, maximum_response_tokens=max_tokens),
        cancelled=lambda: False,
        images=found,
    )
    events = model.executor(tuple(before)).answer(request)
    while True:
        try:
            next(events)
        except StopIteration as end:
            text: str = end.value.turn.text
            return text


def image_paths(folder: Path, item: Item) -> list[Path]:
    """Return the paths of an item's images."""
    return [folder / name for name in item.images]


def _turn(role: str, text: str) -> Turn:
    kinds: Mapping[str, Turn] = {
        "system": Instructions(text=text),
        "user": UserTurn(text=text),
        "assistant": AssistantTurn(text=text),
        "tool": ToolTurn(name="tool", text=text),
    }
    return kinds[role]
