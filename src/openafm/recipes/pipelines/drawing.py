"""Models of the framework as writers of plotting code, for charts (`data/drawing/charts/model.py`)."""

from __future__ import annotations

from openafm.data.drawing.charts.model import CodeWriter
from openafm.framework.backends.language_model import LanguageModel
from openafm.framework.options import GenerationOptions, SamplingMode
from openafm.framework.session.session import LanguageModelSession

_INSTRUCTIONS = "You write short Python programs that draw charts with matplotlib."


def code_writer(model: LanguageModel, *, max_tokens: int = 2000, seed: int | None = None) -> CodeWriter:
    """Return a function that asks a model for code, each time in a session of its own.

    Args:
        max_tokens: limit of an answer.
        seed: of random sampling; None for greedy decoding.
    """
    sampling = SamplingMode.greedy() if seed is None else SamplingMode.random(seed=seed)
    options = GenerationOptions(sampling=sampling, maximum_response_tokens=max_tokens)

    def write(prompt: str) -> str:
        session = LanguageModelSession(model=model, instructions=_INSTRUCTIONS)
        return session.respond_blocking(prompt, options=options)

    return write
