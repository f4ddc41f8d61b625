"""The executor of local bundles: keeps the KV cache of the transcript, so that a request prefills new tokens only.

A response can be sampled as other tokens than its text encodes to, or end inside a character. The cache is then rolled back
to the common prefix, and the next request prefills the tokens of the text. Prefixes that other sessions of the process have
computed, and restored snapshots, are not prefilled again.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from collections.abc import Sequence as List

from openafm.framework.backends.image_details import check_fits
from openafm.framework.backends.language_model import (
    Answer,
    AnswerRequest,
    Event,
    FinishReason,
    LanguageModelExecutor,
    TextPiece,
    ToolCallPiece,
    Usage,
)
from openafm.framework.backends.loaded_model import LoadedModel
from openafm.framework.backends.truncation import truncation_error
from openafm.framework.errors import GenerationCancelledError
from openafm.framework.options import GenerationOptions, SamplingModeType
from openafm.framework.profiling.spans import SpanKind
from openafm.framework.schema.copied_lines import with_copied_lines
from openafm.runtime.decoding.generation import Summary, generate, prefill
from openafm.runtime.decoding.prefill import num_prefill_steps
from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig, SamplingConfig
from openafm.runtime.engines.base import Engine, Sequence
from openafm.runtime.engines.image_cache import prompt_tokens
from openafm.runtime.engines.sequence import PromptTokens
from openafm.runtime.engines.snapshot import SnapshotCorruptedError, SnapshotMismatchError
from openafm.tokenizer.chat_template import MalformedAnswerError, opened
from openafm.tokenizer.conversation import AssistantTurn, ContentTurn, Turn, UserTurn
from openafm.tokenizer.detokenizer import Detokenizer
from openafm.tokenizer.schema_text import compact_json


class LocalExecutor(LanguageModelExecutor):
    """Hold an engine sequence and the tokens of the transcript that it has not computed yet.

    Args:
        snapshot: the result of `snapshot` for the same conversation; the common prefix of its tokens is reused. The
            restored sequence is never added to the prefix cache: a wrong snapshot must not affect other sessions.
    """

    def __init__(self, model: LoadedModel, turns: Iterable[Turn], snapshot: bytes | memoryview | None = None) -> None:
        self._model = model
        turns = opened(turns)
        given = [turn for turn in turns if not isinstance(turn, AssistantTurn)]  # of calls, the text may not be encoded
        self._check_fits(model.template.fewest_tokens(model.tokenizer, given))
        tokens = prompt_tokens(model.template.encode(model.tokenizer, turns))
        self._sequence = _restored(model.engine, tokens, snapshot)
        self._pending = tokens[self._sequence.length :]
        self._is_restored = self._sequence.length > 0
        # Token counts of the instructions with tools, which sessions share, and of a continued conversation.
        self._num_opening, self._num_continued = len(tokens), 0
        if len(turns) > 1:
            self._num_opening = len(model.template.encode_turn(model.tokenizer, turns[0]))
            self._num_continued = len(tokens)
        self._texts = _texts(turns)  # of prompts and outputs of tools, the newest first
        self._prewarmed: list[int] = []  # the last tokens of the sequence: the expected beginning of the next prompt

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        length, pending, texts = self._sequence.length - len(self._prewarmed), self._pending, self._texts
        try:
            yield
        except BaseException:
            self._texts = texts
            self._model.engine.rollback(self._sequence, self._sequence.length - length)
            self._pending, self._prewarmed = pending, []
            raise

    def prefill(self, prompt_prefix: str, cancelled: Callable[[], bool]) -> None:
        model = self._model
        self._roll_back_prewarmed([])
        self._prefill_opening(cancelled)
        # The bytes of images come with the next request.
        text = self._pending[: min((each.start for each in self._pending.insertions), default=len(self._pending))]
        if text and prefill(model.engine, self._sequence, text.tokens, cancelled) is not None:
            self._pending = self._pending[len(text) :]
            self._keep_conversation()
        if prompt_prefix and not self._pending:
            opening = model.template.encode_turn(model.tokenizer, UserTurn(text=prompt_prefix)).tokens[:-1]
            if prefill(model.engine, self._sequence, opening, cancelled) is not None:
                self._prewarmed = opening

    def answer(self, request: AnswerRequest) -> Generator[Event, None, Answer]:
        model = self._model
        num_old = self._sequence.length - len(self._prewarmed) + len(self._pending)
        # Encoding takes seconds where texts are thousands of times too long for the window.
        self._check_fits(num_old + model.template.fewest_tokens(model.tokenizer, request.turns), request.turns)
        new = prompt_tokens(model.template.encode(model.tokenizer, request.turns))
        new += PromptTokens(model.template.generation_prompt(model.tokenizer))
        self._check_fits(num_old + len(new) + 1, request.turns)
        with request.span.child(SpanKind.GRAMMAR, "compile"):
            prior = model.prior(request.turns, request.schema, request.tools, continues=bool(self._texts))
            schema = request.schema
            if schema is not None and request.options.copies_lines:
                schema = with_copied_lines(schema, "\n".join([*_texts(request.turns), *self._texts]))
            grammar = model.grammar(schema, prior.tools, must_call=request.must_call, max_calls=request.max_calls)
        started = time.perf_counter()
        num_opening = self._prefill_opening(request.cancelled)
        prompt = self._pending + new
        prompt = prompt[self._roll_back_prewarmed(prompt.tokens[:-1]) :]
        inserted = model.embeddings(prompt, request.images)
        opening_s = time.perf_counter() - started
        num_cached = self._sequence.length - num_opening
        generation = generate(
            model.engine,
            self._sequence,
            prompt.tokens,
            inserted=inserted,
            sampling=_sampling(request.options),
            stop_tokens=model.template.stop_tokens(model.tokenizer),
            max_tokens=request.options.maximum_response_tokens,
            grammar=grammar,
            cancelled=request.cancelled,
            drafter=model.drafter,
            # A closed tool call would be made with truncated arguments.
            closes=request.options.closes_at_limit is not False and request.schema is not None and not request.tools,
            processors=prior.processors,
        )
        text = _AnswerText(model, may_call=bool(request.tools))
        with contextlib.closing(generation):
            for event in request.span.tokens(generation, since=started):
                if piece := text.push(event.token):
                    yield TextPiece(piece)
        if generation.summary.finish == "cancelled":
            raise GenerationCancelledError("the request was cancelled; the session is unchanged")
        if piece := text.finish():
            yield TextPiece(piece)
        turn = text.turn(request.options.maximum_response_tokens)
        finish_reason = FinishReason.LENGTH if generation.summary.finish == "length" else FinishReason.STOP
        for index, call in enumerate(turn.tool_calls):
            yield ToolCallPiece(index=index, name=call.name, arguments=compact_json(call.arguments))
        if request.span.is_recorded:
            request.span.set(kv_bytes=sum(model.engine.memory(self._sequence).values()), **_times(generation.summary))
        self._keep_common_prefix(text.tokens, turn)
        self._keep_conversation()
        self._texts = [*_texts(request.turns), *self._texts]
        usage = _usage(generation.summary, num_cached, num_opening, opening_s)
        return Answer(turn=turn, usage=usage, finish_reason=finish_reason)

    def snapshot(self) -> bytes:
        return self._model.engine.snapshot(self._sequence)

    def _prefill_opening(self, cancelled: Callable[[], bool]) -> int:
        """Reuse the longest cached prefix; prefill the instructions and tools if they are not cached, and cache them.

        Returns the number of tokens prefilled here; 0 if cancelled.
        """
        model = self._model
        if self._sequence.length >= max(1, self._num_opening):
            return 0
        tokens = self._sequence.content + self._pending
        if not model.prefixes.may_keep(self._num_opening):
            self._adopt(model.prefixes.begin(tokens), tokens)
            return 0
        with model.prefixes.alone(tokens[: self._num_opening], cancelled):
            self._adopt(model.prefixes.begin(tokens), tokens)
            missing = tokens[self._sequence.length : self._num_opening]
            if not missing or prefill(model.engine, self._sequence, missing.tokens, cancelled) is None:
                return 0
            self._pending = tokens[self._num_opening :]
            if not self._is_restored:
                model.prefixes.keep(self._sequence, self._num_opening, "opening")
        return len(missing)

    def _adopt(self, shared: Sequence, tokens: PromptTokens) -> None:
        if shared.length > self._sequence.length:
            self._sequence, self._pending, self._is_restored = shared, tokens[shared.length :], False

    def _keep_conversation(self) -> None:
        """Add the conversation to the prefix cache; if forks are copies, only the part continued from a transcript."""
        length = self._sequence.length if self._model.engine.forks_share_memory else self._num_continued
        if length > self._num_opening and not self._is_restored:
            self._model.prefixes.keep(self._sequence, length, "conversation")
        self._num_continued = 0

    def _roll_back_prewarmed(self, prompt: list[int]) -> int:
        """Roll back prewarmed tokens that `prompt` does not begin with. Return the number of tokens kept."""
        num_equal = _num_equal(self._prewarmed, prompt)
        self._model.engine.rollback(self._sequence, len(self._prewarmed) - num_equal)
        self._prewarmed = []
        return num_equal

    def _keep_common_prefix(self, sampled: list[int], turn: AssistantTurn) -> None:
        """Roll the sequence back to the common prefix of the sampled tokens and the encoding of `turn`."""
        model = self._model
        opening = len(model.template.generation_prompt(model.tokenizer))
        encoded = model.template.encode_turn(model.tokenizer, turn).tokens[opening:]
        num_equal = _num_equal(sampled, encoded)
        model.engine.rollback(self._sequence, len(sampled) - num_equal)
        self._pending = PromptTokens(encoded[num_equal:])

    def _check_fits(self, token_count: int, turns: Iterable[Turn] = ()) -> None:
        check_fits(token_count, self._model.engine.context_length, turns, self._model.image_modes)


def _texts(turns: Iterable[Turn]) -> list[str]:
    """Return the texts of prompts and of outputs of tools, the last one first."""
    return [turn.text for turn in turns if isinstance(turn, ContentTurn)][::-1]


def _restored(engine: Engine, tokens: PromptTokens, snapshot: bytes | memoryview | None) -> Sequence:
    """Return a sequence restored from the snapshot and rolled back to its common prefix with `tokens`, else a new one."""
    if snapshot is None:
        return engine.new_sequence()
    try:
        restored = engine.restore(snapshot)
    except (SnapshotCorruptedError, SnapshotMismatchError):
        return engine.new_sequence()
    engine.rollback(restored, restored.length - restored.content.num_common(tokens))
    return restored if restored.num_computed == restored.length else engine.new_sequence()


class _AnswerText:
    """Detokenize an answer. Text is held back until it is known not to be tool calls."""

    def __init__(self, model: LoadedModel, *, may_call: bool) -> None:
        self._model = model
        self._detokenizer = Detokenizer(model.tokenizer)
        self._is_calls: bool | None = None if may_call else False
        self._buffer, self._text = "", ""
        self.tokens: list[int] = []

    def push(self, token: int) -> str:
        """Append a token and return the text that can be shown."""
        self.tokens.append(token)
        if self._is_calls is None:
            self._is_calls = self._model.template.is_calls(self._model.tokenizer, self.tokens)
        return self._shown(self._detokenizer.push(token), is_end=False)

    def finish(self) -> str:
        """Return the rest of the text."""
        return self._shown(self._detokenizer.finish(), is_end=True)

    def turn(self, max_tokens: int | None) -> AssistantTurn:
        """Return the whole answer.

        Raises:
            DecodingFailureError: the token limit cut off tool calls.
        """
        if not self._is_calls:
            return AssistantTurn(text=self._text)
        try:
            return self._model.template.parse_assistant(self._model.tokenizer, self.tokens)
        except MalformedAnswerError as error:
            raise truncation_error(error.text, max_tokens, subject="a tool call") from error

    def _shown(self, piece: str, *, is_end: bool) -> str:
        self._buffer += piece
        if self._is_calls or (self._is_calls is None and not is_end):
            return ""
        shown, self._buffer = self._buffer, ""
        self._text += shown
        return shown


def _num_equal(one: List[int], other: List[int]) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _sampling(options: GenerationOptions) -> SamplingConfig:
    mode, temperature = options.sampling, options.temperature
    is_greedy = mode is None if temperature is None else temperature == 0
    if is_greedy or (mode is not None and mode.mode_type is SamplingModeType.GREEDY):
        return GreedyConfig()
    temperature = 1.0 if temperature is None else temperature
    if mode is None:
        return RandomConfig(temperature=temperature)
    return RandomConfig(temperature=temperature, top_k=mode.top, top_p=mode.probability_threshold, seed=mode.seed)


def _times(summary: Summary) -> dict[str, float]:
    """Return the times of a generation that overlap with its steps."""
    return {"grammar_ms": 1000 * summary.mask_s, "draft_ms": 1000 * summary.draft_s}


def _usage(summary: Summary, num_cached: int, num_opening: int, opening_s: float) -> Usage:
    first_s = summary.time_to_first_token_s or 0.0
    rest_s = summary.total_s - first_s
    return Usage(
        prompt_tokens=num_cached + num_opening + summary.num_prompt_tokens,
        cached_tokens=num_cached,
        generated_tokens=summary.num_tokens,
        forced_tokens=summary.num_forced_tokens,
        model_steps=num_prefill_steps(num_opening) + summary.num_target_steps,
        drafted_tokens=summary.num_drafted,
        accepted_tokens=summary.num_accepted,
        ttft_ms=1000 * (opening_s + first_s),
        tokens_per_second=(summary.num_tokens - 1) / rest_s if summary.num_tokens > 1 and rest_s > 0 else 0.0,
    )
