"""Answers of stateless requests: generate with a loaded model, and yield text with scores, calls and usage.

Runs in worker threads. The engine's scheduler combines the steps of all threads.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from openafm.framework.backends.loaded_model import LoadedModel
from openafm.framework.profiling.recorder import SpanRecorder, begin_request
from openafm.framework.profiling.spans import SpanKind
from openafm.runtime.decoding.generation import Generation, TokenEvent, generate, prefill
from openafm.runtime.decoding.logits import (
    LogitBias,
    LogitsProcessor,
    OccurrencePenalty,
    RepetitionPenalty,
    ScoreRecorder,
)
from openafm.runtime.decoding.steps import Step, compute
from openafm.runtime.decoding.stop_texts import StopTexts
from openafm.runtime.engines.base import Sequence as EngineSequence
from openafm.safety.guardrail import Guardrail
from openafm.serving.checked_text import CheckedText, ScoredToken, TextDelta
from openafm.serving.errors import ApiError
from openafm.serving.inputs import ChatInput, Decoding, EncodedInput
from openafm.tokenizer.chat_template import MalformedAnswerError
from openafm.tokenizer.conversation import (
    AssistantTurn,
    ToolCall,
)
from openafm.tokenizer.detokenizer import Detokenizer

Finish: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]


@dataclass(frozen=True, slots=True)
class CallsDelta:
    """All tool calls of the answer."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """The end of an answer.

    Attributes:
        num_cached: prompt tokens whose keys and values were in the prefix cache.
        num_generated: tokens of the answer, the stop token included.
        stop_text: the stop text that ended it.
        first_token_s: seconds from the start of the computation to the first token.
        seconds: seconds of the whole computation.
    """

    finish: Finish
    num_prompt: int
    num_cached: int
    num_generated: int
    stop_text: str | None
    first_token_s: float
    seconds: float


Delta: TypeAlias = TextDelta | CallsDelta | Ended


class AnswerCancelledError(Exception):
    """The client went away, or the deadline passed."""


class Answer:
    """One answer, which `deltas` generates.

    Args:
        cancelled: returns True once the answer is not needed.
    """

    def __init__(
        self,
        model: LoadedModel,
        prompt: EncodedInput,
        decoding: Decoding,
        guardrail: Guardrail | None,
        cancelled: Callable[[], bool],
    ) -> None:
        self._model, self._prompt, self._decoding, self._cancelled = model, prompt, decoding, cancelled
        source = prompt.source
        self._may_call = isinstance(source, ChatInput) and bool(source.tools)
        self._is_calls: bool | None = None if self._may_call else False
        self._detokenizer = Detokenizer(model.tokenizer)
        self._stops = StopTexts(decoding.stop)
        self._checked = CheckedText(guardrail)
        self._scores = None if decoding.num_top is None else ScoreRecorder(model.tokenizer.vocab_size)
        self._tokens: list[int] = []
        self._held = ""  # text before it is known whether the answer is calls
        self._num_cached = len(prompt.tokens)  # until the prefix cache has been read

    @property
    def num_computed(self) -> int:
        """Tokens computed so far: of the prompt without its cached prefix, and of the answer."""
        return len(self._prompt.tokens) - self._num_cached + len(self._tokens)

    def deltas(self) -> Generator[Delta]:
        """Yield text and calls, then `Ended`.

        Raises:
            AnswerCancelledError: `cancelled` returned True.
            OpenAFMError: the answer cannot be computed.
        """
        with contextlib.closing(self.parts()) as parts:
            for part in parts:
                if isinstance(part, Step):
                    compute((part,))
                else:
                    yield part

    def parts(self) -> Generator[Delta | Step]:
        """As `deltas`, with the decode steps, each of which must be computed before the next part."""
        name = self._model.bundle.name
        with begin_request(None, "answer", model=name) as request, request.child(SpanKind.INFERENCE, name) as span:
            yield from self._deltas(span)

    def _deltas(self, span: SpanRecorder) -> Generator[Delta | Step]:
        started, first = time.perf_counter(), 0.0
        sequence = self._begin()
        finish: Finish = "content_filter"
        with contextlib.closing(self._generation(sequence)) as generation:
            for event in span.tokens(generation.with_steps(), since=started, is_token=_is_token):
                if isinstance(event, Step):
                    yield event
                    continue
                first = first or time.perf_counter()
                self._tokens.append(event.token)
                delta = self._checked.push(self._text(event.token, is_stop=event.is_stop))
                if self._checked.is_blocked:
                    break
                if delta is not None:
                    yield delta
                if self._stops.found is not None:
                    finish = "stop"
                    if (delta := self._checked.finish(is_cut=True)) is not None:
                        yield delta
                    break
            else:
                summary = generation.summary.finish
                if summary == "cancelled":
                    raise AnswerCancelledError
                yield from self._rest()
                finish = "length" if summary == "length" else ("tool_calls" if self._is_calls else "stop")
                self._model.prefixes.keep(sequence, sequence.length, "conversation")
        if self._checked.is_blocked:
            finish = "content_filter"
        ended = Ended(
            finish=finish,
            num_prompt=len(self._prompt.tokens),
            num_cached=self._num_cached,
            num_generated=len(self._tokens),
            stop_text=self._stops.found,
            first_token_s=(first or time.perf_counter()) - started,
            seconds=time.perf_counter() - started,
        )
        if span.is_recorded:
            self._record(span, ended)
        yield ended

    def _record(self, span: SpanRecorder, ended: Ended) -> None:
        """Record counts and texts for profiles."""
        speed = (ended.num_generated - 1) / rest if (rest := ended.seconds - ended.first_token_s) > 0 else 0.0
        span.set(
            prompt_tokens=ended.num_prompt,
            cached_tokens=ended.num_cached,
            generated_tokens=ended.num_generated,
            ttft_ms=1000 * ended.first_token_s,
            tokens_per_second=speed,
            finish_reason=ended.finish,
        )
        tokenizer = self._model.tokenizer
        span.set_content(prompt=tokenizer.decode(self._prompt.tokens), answer=tokenizer.decode(self._tokens))

    def _begin(self) -> EngineSequence:
        """Return a sequence with the longest cached prefix of the prompt, or with the opening, which is computed once."""
        model, prompt = self._model, self._prompt.prompt
        if not model.prefixes.may_keep(self._prompt.num_opening):
            sequence = model.prefixes.begin(prompt[:-1])
            self._num_cached = sequence.length
            return sequence
        opening = prompt.tokens[: self._prompt.num_opening]
        with model.prefixes.alone(opening, self._cancelled):
            sequence = model.prefixes.begin(prompt[:-1])
            self._num_cached = sequence.length
            missing = opening[sequence.length :]
            if missing:
                if prefill(model.engine, sequence, missing, self._cancelled) is None:
                    raise AnswerCancelledError
                model.prefixes.keep(sequence, len(opening), "opening")
        return sequence

    def _generation(self, sequence: EngineSequence) -> Generation:
        model, source, decoding = self._model, self._prompt.source, self._decoding
        room = model.engine.context_length - len(self._prompt.tokens)
        most = room if decoding.max_tokens is None else min(decoding.max_tokens, room)
        if isinstance(source, ChatInput):
            stop_tokens = model.template.stop_tokens(model.tokenizer)
            prior = model.prior(source.turns, source.schema, source.tools)
            grammar = model.grammar(source.schema, prior.tools, must_call=source.must_call, max_calls=source.max_calls)
            processors = prior.processors
            closes = source.schema is not None and not source.tools
        else:
            stop_tokens, grammar, closes = frozenset((model.tokenizer.special.eos,)), model.grammar(None), False
            processors = ()
        prompt = self._prompt.prompt[sequence.length :]
        return generate(
            model.engine,
            sequence,
            prompt.tokens,
            inserted=model.embeddings(prompt, self._prompt.images),
            sampling=decoding.sampling,
            stop_tokens=stop_tokens,
            max_tokens=most,
            grammar=grammar,
            drafter=model.drafter,
            cancelled=self._cancelled,
            closes=closes,
            processors=[*self._processors(prompt.tokens), *processors],
        )

    def _processors(self, prompt: list[int]) -> list[LogitsProcessor]:
        decoding, processors = self._decoding, list[LogitsProcessor]()
        if self._scores is not None:
            processors.append(self._scores)
        if decoding.repetition_penalty != 1:
            processors.append(RepetitionPenalty(decoding.repetition_penalty, prompt))
        if decoding.frequency_penalty or decoding.presence_penalty:
            processors.append(OccurrencePenalty(frequency=decoding.frequency_penalty, presence=decoding.presence_penalty))
        if decoding.bias:
            processors.append(LogitBias(decoding.bias))
        return processors

    def _scores_of(self, token: int) -> ScoredToken | None:
        if self._scores is None:
            return None
        score, top = self._scores.scores(len(self._tokens) - 1, token, self._decoding.num_top or 0)
        to_bytes = self._model.tokenizer.token_bytes
        return ScoredToken(to_bytes(token), score, tuple((to_bytes(each.token), each) for each in top))

    def _text(self, token: int, *, is_stop: bool) -> str:
        """Return the text that can be shown after `token`, if the guardrail allows it."""
        if self._is_calls is None:
            self._is_calls = self._model.template.is_calls(self._model.tokenizer, self._tokens)
        text = self._detokenizer.push(token)
        self._checked.add_token(None if is_stop else self._scores_of(token), text)
        self._held += text
        if self._is_calls or self._is_calls is None:
            return ""
        text, self._held = self._held, ""
        return self._stops.push(text)

    def _rest(self) -> Generator[Delta]:
        """Yield what was held back: the end of the text, or the calls."""
        if self._is_calls:
            turn = self._calls()
            arguments = [json.dumps(call.arguments, ensure_ascii=False) for call in turn.tool_calls]
            self._checked.check([turn.text, *arguments])
            if self._checked.is_blocked:
                return
            if turn.text:
                yield TextDelta(turn.text)
            yield CallsDelta(turn.tool_calls)
            return
        text = self._stops.push(self._held + self._detokenizer.finish()) + self._stops.finish()
        if (delta := self._checked.finish(text)) is not None:
            yield delta

    def _calls(self) -> AssistantTurn:
        try:
            return self._model.template.parse_assistant(self._model.tokenizer, self._tokens)
        except MalformedAnswerError as error:
            raise ApiError(
                400,
                "a tool call was cut off by max_tokens or the context window; raise max_tokens",
                code="tool_call_truncated",
                param="max_tokens",
            ) from error


def _is_token(event: TokenEvent | Step) -> bool:
    return isinstance(event, TokenEvent)
