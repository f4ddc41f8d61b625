"""`openafm respond` and `openafm chat`: use a model from a terminal."""

from __future__ import annotations

import json as json_library
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openafm.cli.options import PluginsOption
from openafm.cli.output import print_json
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.framework.backends.system_model import SystemLanguageModel
    from openafm.framework.session.session import LanguageModelSession

ModelOption = Annotated[str | None, typer.Option("--model", "-m", help="Bundle name or path; default: the current model.")]
AdapterOption = Annotated[str | None, typer.Option(help="Adapter: the name of an installed one, or a path.")]
DraftOption = Annotated[str | None, typer.Option(help="Bundle of a draft model; the same answers in fewer steps.")]
InstructionsOption = Annotated[
    str | None, typer.Option("--instructions", "-i", help="Instructions; default: today's date and the coming week.")
]
TemperatureOption = Annotated[float | None, typer.Option(help="Sampling temperature; default: greedy.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of sampling. The same seed gives the same answer.")]
TokensOption = Annotated[int | None, typer.Option("--max-tokens", help="Token limit of an answer; default: 512.")]

MAX_TOKENS = 512
"""Default token limit of an answer; small models may not stop by themselves."""


class SchemaFileError(UsageError):
    """The file given with --schema is not a JSON Schema object."""


class SamplingOptionError(UsageError):
    """The value of --temperature or --max-tokens is out of range."""


def respond(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads standard input.")],
    schema: Annotated[Path | None, typer.Option(help="JSON Schema file; the answer is JSON that satisfies it.")] = None,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    draft: DraftOption = None,
    instructions: InstructionsOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    max_tokens: TokensOption = None,
    plugins: PluginsOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print content and usage as JSON.")] = False,
) -> None:
    """Answer one prompt. With --schema the answer always satisfies the schema."""
    from openafm.framework.backends.system_model import SystemLanguageModel

    session = _session(instructions, SystemLanguageModel(bundle=model, adapter=adapter, draft=draft))
    options = _options(temperature, seed, MAX_TOKENS if max_tokens is None else max_tokens)
    text = sys.stdin.read() if prompt == "-" else prompt
    content = session.respond_blocking(text, json_schema=_read_schema(schema), options=options)
    answer: Any = content if isinstance(content, str) else json_library.loads(content.to_json())
    if json:
        print_json({"content": answer, "usage": session.usage.to_dict()})
    else:
        print(answer) if isinstance(answer, str) else print_json(answer)


def chat(
    model: ModelOption = None,
    adapter: AdapterOption = None,
    draft: DraftOption = None,
    instructions: InstructionsOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    max_tokens: TokensOption = None,
    plugins: PluginsOption = None,
) -> None:
    """Chat with a model turn by turn. Ctrl-D ends the chat."""
    from openafm.framework.backends.system_model import SystemLanguageModel
    from openafm.framework.errors import GenerationError

    described = SystemLanguageModel(bundle=model, adapter=adapter, draft=draft)
    described.load()  # raises for a missing model before the first prompt
    session = _session(instructions, described)
    options = _options(temperature, seed, MAX_TOKENS if max_tokens is None else max_tokens)
    while (prompt := _read_prompt()) is not None:
        shown = ""
        try:
            for snapshot in session.stream_blocking(prompt, options=options):
                print(snapshot.content[len(shown) :], end="", flush=True)
                shown = snapshot.content
            print()
        except GenerationError as error:  # the session is unchanged
            print(f"\nopenafm: {error}", file=sys.stderr)


def _read_prompt() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _session(instructions: str | None, model: SystemLanguageModel) -> LanguageModelSession:
    import datetime

    from openafm.data.synthetic import reference_week
    from openafm.framework.session.session import LanguageModelSession

    if instructions is None:
        instructions = reference_week(datetime.date.today())
    return LanguageModelSession(instructions, model)


def _options(temperature: float | None, seed: int | None, max_tokens: int | None) -> Any:
    from openafm.framework.options import GenerationOptions, SamplingMode

    sampling = SamplingMode.greedy() if temperature is None and seed is None else SamplingMode.random(seed=seed)
    try:
        return GenerationOptions(sampling=sampling, temperature=temperature, maximum_response_tokens=max_tokens)
    except ValueError as error:
        raise SamplingOptionError(str(error)) from error


def _read_schema(file: Path | None) -> dict[str, Any] | None:
    if file is None:
        return None
    try:
        schema = json_library.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SchemaFileError(f"{file} cannot be read as JSON ({error})") from error
    if not isinstance(schema, dict):
        raise SchemaFileError(f"{file} must hold a JSON Schema object, got {type(schema).__name__}")
    return schema
