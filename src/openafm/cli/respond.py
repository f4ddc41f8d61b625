"""`openafm respond`: answer one prompt. Also the options that it shares with `openafm chat`."""

from __future__ import annotations

import dataclasses
import json as json_library
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openafm.cli.options import PluginsOption
from openafm.cli.output import counted, print_json
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.terminal import escaped

if TYPE_CHECKING:
    from openafm.framework.backends.system_model import SystemLanguageModel
    from openafm.framework.transcripts.prompt import PromptLike


class ImageDetailChoice(StrEnum):
    """Resolution modes of images (`GenerationOptions.image_detail`)."""

    HIGH = "high"
    BALANCED = "balanced"
    RAPID = "rapid"


ModelOption = Annotated[str | None, typer.Option("--model", "-m", help="Bundle name or path; default: the current model.")]
AdapterOption = Annotated[str | None, typer.Option(help="Adapter: the name of an installed one, or a path.")]
DraftOption = Annotated[str | None, typer.Option(help="Bundle of a draft model; the same answers in fewer steps.")]
InstructionsOption = Annotated[
    str | None, typer.Option("--instructions", "-i", help="Instructions; default: today's date and the coming week.")
]
SchemaOption = Annotated[
    Path | None, typer.Option(help="JSON Schema file, - for standard input; the answer is JSON that satisfies it.")
]
TemperatureOption = Annotated[float | None, typer.Option(help="Sampling temperature; default: greedy.")]
TopKOption = Annotated[int | None, typer.Option(min=1, help="Sample from the most likely tokens, this many.")]
TopPOption = Annotated[
    float | None, typer.Option(min=0, max=1, help="Sample from the fewest tokens that have this probability together.")
]
SeedOption = Annotated[int | None, typer.Option(help="Seed of sampling. The same seed gives the same answer.")]
TokensOption = Annotated[int | None, typer.Option("--max-tokens", help="Token limit of an answer; default: 512.")]

ImagesOption = Annotated[
    list[Path] | None, typer.Option("--image", metavar="PATH", help="An image for the prompt. May be repeated.")
]
ImageDetailOption = Annotated[
    ImageDetailChoice | None,
    typer.Option("--image-detail", help="high: tiles and an overview, most tokens; balanced; rapid: fewest tokens."),
]

MAX_TOKENS = 512
"""Default token limit of an answer; small models may not stop by themselves."""


def respond(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; default or -: standard input.")] = None,
    schema: SchemaOption = None,
    image: ImagesOption = None,
    image_detail: ImageDetailOption = None,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    draft: DraftOption = None,
    instructions: InstructionsOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    max_tokens: TokensOption = None,
    plugins: PluginsOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print content and usage as JSON.")] = False,
) -> None:
    """Answer one prompt, about images if some are given. With --schema the answer always satisfies the schema."""
    from openafm.framework.backends.language_model import FinishReason
    from openafm.framework.backends.system_model import SystemLanguageModel
    from openafm.framework.session.session import LanguageModelSession

    text = read_prompt(prompt, schema)
    json_schema = read_schema(schema)
    limit = MAX_TOKENS if max_tokens is None else max_tokens
    options = generation_options(temperature, seed, limit, image_detail, top_k=top_k, top_p=top_p)
    if adapter is None and (adapter := _pages_adapter(model, image)) is not None:
        options = dataclasses.replace(options, copies_lines=schema is not None)
    described = SystemLanguageModel(bundle=model, adapter=adapter, draft=draft)
    session = LanguageModelSession(default_instructions() if instructions is None else instructions, described)
    response = session.respond_full_blocking(with_images(text, image or ()), json_schema=json_schema, options=options)
    content = response.content
    if response.finish_reason is FinishReason.LENGTH:
        print(
            f"note: the answer was ended at {options.maximum_response_tokens} tokens; --max-tokens changes that",
            file=sys.stderr,
        )
    answer: Any = content if isinstance(content, str) else json_library.loads(content.to_json())
    if json:
        print_json({"content": answer, "finish_reason": response.finish_reason.value, "usage": session.usage.to_dict()})
    elif not isinstance(answer, str):
        print_json(answer)
    elif not answer.strip():
        raise OpenAFMError(
            f"{described.name} gave an empty answer. Small models need a task such as extraction or labels: pass a"
            " --schema, or use a larger model with --model"
        )
    else:
        print(escaped(answer))
        if (note := purpose_note(described)) is not None:
            print(note, file=sys.stderr)


def _pages_adapter(model: str | None, images: Sequence[Path] | None) -> str | None:
    """Return the name of the model's adapter for the text of images, if there are images and it has one."""
    from openafm.bundle import open_bundle, resolve_model
    from openafm.bundle.files import PAGES_ADAPTER

    has_one = images and open_bundle(model or resolve_model()).pages_adapter is not None
    return PAGES_ADAPTER if has_one else None


def purpose_note(model: SystemLanguageModel) -> str | None:
    """Return what to use the model for instead of free text: a sentence for the shipped one, None for all others."""
    from openafm.bundle.store import shipped_bundle

    if model.described().path != shipped_bundle():
        return None
    return f"note: {model.name} is made for typed answers, labels and tool calls, not for free text; pass a --schema"


def read_prompt(prompt: str | None, schema: Path | None = None, *, example: str = 'openafm respond "Dinner at 7"') -> str:
    """Return the prompt, from standard input if it is `-` or not given and standard input is not a terminal.

    Raises:
        UsageError: no prompt is given, prompt and schema are both read from standard input, or that is not UTF-8.
    """
    if prompt not in (None, "-"):
        return str(prompt)
    if schema is not None and str(schema) == "-":
        raise UsageError("standard input can hold the prompt or the schema; pass one of them as an argument")
    if prompt is None and sys.stdin.isatty():
        raise UsageError(f"no text; pass one, as in {example}, or pipe it to standard input")
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input: {undecodable(error)}") from error
    if not text.strip():
        raise UsageError(f"standard input is empty; pass a text, as in {example}")
    return text


def with_images(text: str, paths: Sequence[Path]) -> PromptLike:
    """Return a prompt with images before its text, as in training.

    Raises:
        ImagePromptError: an image cannot be read.
    """
    from openafm.framework.transcripts.images import Image
    from openafm.framework.transcripts.prompt import Prompt

    images = []
    for path in paths:
        images.append(Image(path))
        if (num_frames := images[-1].num_frames()) > 1:
            frames = counted(num_frames, "frame")
            print(f"note: {escaped(str(path))} has {frames}; the model sees the first", file=sys.stderr)
    return Prompt(*images, text) if images else text


def undecodable(error: UnicodeDecodeError) -> str:
    """Return which byte is not text, and how to convert it."""
    byte = error.object[error.start]
    return f"the byte 0x{byte:02X} is not UTF-8; convert the text, such as with iconv -f latin1 -t utf-8"


def read_schema(file: Path | None) -> dict[str, Any] | None:
    """Return the JSON Schema in a file, or on standard input for `-`.

    Raises:
        UsageError: the file cannot be read, or is not a JSON object.
    """
    if file is None:
        return None
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        schema = json_library.loads(text)
    except OSError as error:
        raise UsageError(f"the schema {file} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{file} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise UsageError(f"{file} must hold a JSON Schema object, got {type(schema).__name__}")
    return schema


def default_instructions() -> str:
    """Return the reference week that the built-in corpus uses: today's date and the coming days."""
    import datetime

    from openafm.data.synthetic import reference_week

    return reference_week(datetime.date.today())


def generation_options(
    temperature: float | None,
    seed: int | None,
    max_tokens: int | None,
    image_detail: ImageDetailChoice | None = None,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Any:
    """Return the options of a request; greedy without an option of sampling.

    Raises:
        UsageError: a value is out of range.
    """
    from openafm.framework.options import GenerationOptions, SamplingMode

    if top_k is not None and top_p is not None:
        raise UsageError("--top-k and --top-p exclude each other; pass one of them")
    is_greedy = temperature is None and seed is None and top_k is None and top_p is None
    try:
        sampling = SamplingMode.greedy() if is_greedy else SamplingMode.random(top_k, top_p, seed)
        return GenerationOptions(
            sampling=sampling,
            temperature=temperature,
            maximum_response_tokens=max_tokens,
            image_detail=None if image_detail is None else image_detail.value,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
