"""Uses the shipped model in many ways and prints which tensor libraries were imported."""

from __future__ import annotations

import sys
from pathlib import Path

import openafm as fm
from openafm.cli.main import run
from openafm.runtime.native.engine import NativeEngine

SHORT = fm.GenerationOptions(maximum_response_tokens=40)
CALLS = fm.GenerationOptions(
    fm.SamplingMode.random(seed=1), maximum_response_tokens=160, tool_calling_mode=fm.ToolCallingMode.REQUIRED
)


@fm.generable
class Meeting:
    title: str
    guests: list[str]


@fm.tool
def tell_time(city: str) -> str:
    """Tell the time in a city."""
    return f"noon in {city}"


def main(adapter: Path) -> None:
    assert run(["respond", "Hello", "--max-tokens", "8"]) == 0
    model = fm.SystemLanguageModel()
    assert isinstance(model.load().engine, NativeEngine)
    session = fm.LanguageModelSession("Be brief.", model)
    assert session.respond_blocking("Plan lunch with Ann", generating=Meeting).title is not None
    assert list(session.stream_blocking("And then?", options=SHORT))
    with_tools = fm.LanguageModelSession(None, model, tools=[tell_time])
    try:
        with_tools.respond_blocking("What time is it in Oslo?", options=CALLS)
    except fm.GenerationError as error:  # a small model that calls without end
        print(f"after calls: {error}")
    adapted = fm.SystemLanguageModel(bundle=model.load().bundle.path, adapter=adapter)
    assert isinstance(adapted.load().engine, NativeEngine)
    fm.LanguageModelSession(None, adapted).respond_blocking("Hello", options=SHORT)
    print("imported:", [name for name in ("torch", "transformers", "jax", "tensorflow") if name in sys.modules])


main(Path(sys.argv[1]))
