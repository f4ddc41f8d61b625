"""Inputs of answers: conversations, raw texts and images, their decoding, and their encoding as tokens."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from openafm.framework.backends.image_details import fewest_image_tokens, image_part, only_reads
from openafm.framework.backends.loaded_model import MAX_CALLS, LoadedModel
from openafm.framework.options import ImageDetail
from openafm.framework.transcripts.images import MAX_IMAGE_PIXELS, Image
from openafm.runtime.decoding.prefill import check_fits
from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig, SamplingConfig
from openafm.runtime.engines.image_cache import prompt_tokens
from openafm.runtime.engines.sequence import PromptTokens
from openafm.safety.guardrail import Allowed, Guardrail
from openafm.serving.errors import bad_request, unsupported
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import (
    ContentPart,
    ImagePart,
    JsonSchema,
    TextPart,
    ToolDefinition,
    Turn,
    UserTurn,
)

_DECODING = threading.Lock()
"""Images are decoded one request at a time: the pixels of one can need hundreds of megabytes."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How an answer is chosen and where it ends.

    Attributes:
        max_tokens: token limit; None: up to the context window.
        stop: texts before which the answer ends.
        bias: added to logits, by token.
        repetition_penalty: divides the logits of tokens that prompt or answer already have; 1 changes nothing.
        num_top: alternatives of each token with log probabilities; None computes no log probabilities.
    """

    sampling: SamplingConfig = field(default_factory=GreedyConfig)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    bias: Mapping[int, float] = field(default_factory=dict)
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    num_top: int | None = None

    def choice(self, index: int) -> Decoding:
        """Return the decoding of choice number `index`: with a seed, each choice has its own."""
        if not index or not isinstance(self.sampling, RandomConfig) or self.sampling.seed is None:
            return self
        return dataclasses.replace(self, sampling=dataclasses.replace(self.sampling, seed=self.sampling.seed + index))


@dataclass(frozen=True)
class ImageInput:
    """An image of a request: a data URL, and the resolution mode; None: the model's first one."""

    url: str
    detail: ImageDetail | None = None


@dataclass(frozen=True, kw_only=True)
class ChatInput:
    """A conversation to answer, and what the answer may be: text, JSON of `schema`, or calls of `tools`.

    Attributes:
        images: the images of the turns. Keys are the digests of their `ImagePart`, which `encode` replaces: it reads the
            images and counts their tokens.
    """

    turns: tuple[Turn, ...]
    images: Mapping[str, ImageInput] = field(default_factory=dict)
    schema: JsonSchema | None = None
    tools: tuple[ToolDefinition, ...] = ()
    must_call: bool = False
    max_calls: int = MAX_CALLS


@dataclass(frozen=True, kw_only=True)
class RawInput:
    """A text or tokens to continue, without a chat template."""

    text: str = ""
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EncodedInput:
    """The tokens of an input; the first `num_opening` are instructions and tools, which requests share.

    Attributes:
        images: the bytes of the images, by digest.
    """

    source: ChatInput | RawInput
    prompt: PromptTokens
    num_opening: int = 0
    images: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def tokens(self) -> list[int]:
        return self.prompt.tokens


def check_bias(model: LoadedModel, bias: Mapping[int, float]) -> None:
    """Raise if a biased token is outside the vocabulary.

    Raises:
        ApiError: it is.
    """
    size = model.tokenizer.vocab_size
    if any(token >= size for token in bias):
        raise bad_request(f"logit_bias has a token outside the vocabulary of {size}", param="logit_bias")


def encode(model: LoadedModel, source: ChatInput | RawInput, guardrail: Guardrail | None) -> EncodedInput:
    """Return the tokens of an input, and compile its grammar, so that invalid requests fail before the first token.

    Raises:
        ContextWindowError: the input and one token exceed the context window.
        UnsupportedGuideError: a schema cannot be enforced.
        ApiError: the model cannot call tools, a token is unknown, or the guardrail blocks the prompt.
    """
    tokenizer, template = model.tokenizer, model.template
    if isinstance(source, RawInput):
        check_fits(model.engine, tokenizer.fewest_tokens(source.text) + 1)
        tokens = list(source.tokens) or [tokenizer.special.bos, *tokenizer.encode(source.text)]
        if any(not 0 <= token < tokenizer.vocab_size for token in tokens):
            raise bad_request(f"a token of the prompt is outside the vocabulary of {tokenizer.vocab_size}", param="prompt")
        _check_prompt(guardrail, tokenizer.decode(tokens))
        check_fits(model.engine, len(tokens) + 1)
        return EncodedInput(source=source, prompt=PromptTokens(tokens))
    turns, images = _with_images(model, opened(source.turns), source.images)
    if not template.can_call_tools and (source.tools or getattr(turns[0], "tools", ())):
        raise unsupported("tools", f"the model {model.bundle.name} cannot call tools; choose another model")
    check_fits(model.engine, template.fewest_tokens(tokenizer, turns) + 1)
    for turn in turns:
        if isinstance(turn, UserTurn):  # the client sends all of them, also those that look older
            _check_prompt(guardrail, turn.text)
    model.grammar(source.schema, source.tools, must_call=source.must_call, max_calls=source.max_calls)
    prompt = prompt_tokens(template.encode(tokenizer, turns)) + PromptTokens(template.generation_prompt(tokenizer))
    check_fits(model.engine, len(prompt) + 1)
    num_opening = len(template.encode_turn(tokenizer, turns[0]))
    return EncodedInput(source=source, prompt=prompt, num_opening=num_opening, images=images)


MOST_READ_IMAGES = 8
"""Images of a request whose text is read, which takes seconds each."""


def _with_images(
    model: LoadedModel, turns: Sequence[Turn], sources: Mapping[str, ImageInput]
) -> tuple[tuple[Turn, ...], dict[str, bytes]]:
    """Return the turns with the parts for their images, and the bytes of those that are no text, by digest."""
    parts = [part for turn in turns if isinstance(turn, UserTurn) for part in turn.images]
    least = {name: fewest_image_tokens(model.bundle, source.detail) for name, source in sources.items()}
    check_fits(model.engine, sum(least[part.digest] for part in parts) + 1)  # before any is decoded
    opened_images = {name: Image(source.url) for name, source in sources.items()}
    num_pixels = sum(image.num_pixels() for image in opened_images.values())
    if num_pixels > MAX_IMAGE_PIXELS:
        raise bad_request(
            f"the images of this request have {num_pixels:,} pixels; use at most {MAX_IMAGE_PIXELS:,} together",
            param="messages",
        )
    if only_reads(model.bundle) and len(sources) > MOST_READ_IMAGES:
        raise bad_request(
            f"this request has {len(sources)} images, of which the text is read; send at most {MOST_READ_IMAGES}",
            param="messages",
        )
    data: dict[str, bytes] = {}
    found: dict[str, ContentPart] = {}
    num_tokens = 1
    for name, image in opened_images.items():
        with _DECODING:
            data[name] = image.read()
            found[name] = image_part(model.bundle, data[name], sources[name].detail)
        if isinstance(part := found[name], TextPart):
            num_tokens += model.tokenizer.fewest_tokens(part.text)
            check_fits(model.engine, num_tokens)  # before the next one is read

    def read(turn: Turn) -> Turn:
        if not isinstance(turn, UserTurn) or not turn.images:
            return turn
        content = list(turn.content)
        for index, part in enumerate(content):
            if isinstance(part, ImagePart):
                content[index] = _on_its_own_lines(found[part.digest], is_first=not index, is_last=part is content[-1])
        return UserTurn(content=tuple(content), response_format=turn.response_format)

    images = {part.digest: data[name] for name, part in found.items() if isinstance(part, ImagePart)}
    return tuple(map(read, turns)), images


def _on_its_own_lines(part: ContentPart, *, is_first: bool, is_last: bool) -> ContentPart:
    """Return the text that was read in an image with line breaks around it; an image as it is."""
    if not isinstance(part, TextPart):
        return part
    return TextPart(text="\n" * (not is_first) + part.text + "\n" * (not is_last))


def _check_prompt(guardrail: Guardrail | None, text: str) -> None:
    if guardrail is not None and not isinstance(guardrail.check_input(text), Allowed):
        raise bad_request("the prompt was blocked by the guardrail of this server", param="messages", code="content_filter")
