"""The KV cache of a session: exactly the tokens of its transcript, so that a request prefills only what is new.

A response may be sampled in other tokens than its text encodes to, or end inside a character. What differs is taken back,
and the next request prefills the tokens of the text in its place.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from openafm.framework.errors import GenerationCancelledError
from openafm.framework.model import LoadedModel
from openafm.framework.options import GenerationOptions, SamplingModeType
from openafm.runtime.generation import Summary, generate
from openafm.runtime.sampling import GreedyConfig, RandomConfig, SamplingConfig
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import AssistantTurn, JsonSchema, Turn, UserTurn
from openafm.tokenizer.detokenizer import Detokenizer


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a request cost.

    Attributes:
        prompt_tokens: all that came before the response: the transcript and the prompt.
        cached_tokens: those of them that were in the cache already.
        generated_tokens: tokens of the response, the one that ends it included.
        forced_tokens: those of them that the schema left no choice about.
        ttft_ms: wall time from the request to the first token, in milliseconds.
        tokens_per_second: of the tokens after the first.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    ttft_ms: float = 0.0
    tokens_per_second: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The text of a response and what it cost."""

    text: str
    usage: Usage


class SessionCache:
    """A sequence of the engine, and the tokens of the transcript that are still to be fed to it."""

    def __init__(self, model: LoadedModel, turns: Iterable[Turn]) -> None:
        self._model = model
        self._sequence = model.engine.new_sequence()  # its memory goes with it
        self._pending = model.template.encode(model.tokenizer, opened(turns)).tokens

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Put the cache back to what it was before the block when the block does not come to its end."""
        length, pending = self._sequence.length, self._pending
        try:
            yield
        except BaseException:
            self._model.engine.rollback(self._sequence, self._sequence.length - length)
            self._pending = pending
            raise

    def answer(
        self, turn: UserTurn, schema: JsonSchema | None, options: GenerationOptions, cancelled: Callable[[], bool]
    ) -> Generator[str, None, Answer]:
        """Append a prompt and the response to it; yields the text of the response piece by piece.

        Raises:
            UnsupportedGuideError: the schema cannot be enforced.
            ContextWindowError: prompt and response do not fit.
            GenerationCancelledError: `cancelled` said so.
        """
        model, num_cached = self._model, self._sequence.length
        prompt = [
            *self._pending,
            *model.template.encode_turn(model.tokenizer, turn).tokens,
            *model.template.generation_prompt(model.tokenizer),
        ]
        generation = generate(
            model.engine,
            self._sequence,
            prompt,
            sampling=_sampling(options),
            stop_tokens=model.template.stop_tokens(model.tokenizer),
            max_tokens=options.maximum_response_tokens,
            grammar=model.grammar(schema),
            cancelled=cancelled,
        )
        detokenizer, tokens, pieces = Detokenizer(model.tokenizer), [], []
        with contextlib.closing(generation):
            for event in generation:
                tokens.append(event.token)
                pieces.append(detokenizer.push(event.token))
                yield pieces[-1]
        if generation.summary.finish == "cancelled":
            raise GenerationCancelledError("the request was cancelled; the session is as it was before")
        if rest := detokenizer.finish():
            pieces.append(rest)
            yield rest
        text = "".join(pieces)
        self._settle(tokens, text)
        return Answer(text=text, usage=_usage(generation.summary, num_cached))

    def _settle(self, sampled: list[int], text: str) -> None:
        """Keep of the sampled tokens, the last of the sequence, those that the turn of `text` begins with."""
        model = self._model
        opening = len(model.template.generation_prompt(model.tokenizer))
        turn = model.template.encode_turn(model.tokenizer, AssistantTurn(text=text)).tokens[opening:]
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(sampled, turn, strict=False))
        num_equal = sum(1 for _ in pairs)
        model.engine.rollback(self._sequence, len(sampled) - num_equal)
        self._pending = turn[num_equal:]


def _sampling(options: GenerationOptions) -> SamplingConfig:
    mode, temperature = options.sampling, options.temperature
    is_greedy = mode is None if temperature is None else temperature == 0
    if is_greedy or (mode is not None and mode.mode_type is SamplingModeType.GREEDY):
        return GreedyConfig()
    temperature = 1.0 if temperature is None else temperature
    if mode is None:
        return RandomConfig(temperature=temperature)
    return RandomConfig(temperature=temperature, top_k=mode.top, top_p=mode.probability_threshold, seed=mode.seed)


def _usage(summary: Summary, num_cached: int) -> Usage:
    first_s = summary.time_to_first_token_s or 0.0
    rest_s = summary.total_s - first_s
    return Usage(
        prompt_tokens=num_cached + summary.num_prompt_tokens,
        cached_tokens=num_cached,
        generated_tokens=summary.num_tokens,
        forced_tokens=summary.num_forced_tokens,
        ttft_ms=1000 * first_s,
        tokens_per_second=(summary.num_tokens - 1) / rest_s if summary.num_tokens > 1 and rest_s > 0 else 0.0,
    )
