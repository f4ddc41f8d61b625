"""A local bundle's side of a session: a KV cache of exactly the transcript, so that a request prefills only what is new.

A response may be sampled in other tokens than its text encodes to, or end inside a character. What differs is taken back,
and the next request prefills the tokens of the text in its place. What another session of the process began with, or a saved
session brought along, is not prefilled at all.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from collections.abc import Sequence as List

from openafm.framework.backends.language_model import (
    Answer,
    AnswerRequest,
    Event,
    LanguageModelExecutor,
    TextPiece,
    ToolCallPiece,
    Usage,
)
from openafm.framework.backends.loaded_model import LoadedModel
from openafm.framework.errors import DecodingFailureError, GenerationCancelledError
from openafm.framework.options import GenerationOptions, SamplingModeType
from openafm.runtime.decoding.generation import Summary, generate, prefill
from openafm.runtime.decoding.prefill import check_fits, num_prefill_steps
from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig, SamplingConfig
from openafm.runtime.engines.base import Engine, Sequence
from openafm.runtime.engines.snapshot import SnapshotCorruptedError, SnapshotMismatchError
from openafm.tokenizer.chat_template import MalformedAnswerError, opened
from openafm.tokenizer.conversation import AssistantTurn, Turn, UserTurn
from openafm.tokenizer.detokenizer import Detokenizer
from openafm.tokenizer.schema_text import compact_json


class LocalExecutor(LanguageModelExecutor):
    """A sequence of the engine, and the tokens of the transcript that are still to be fed to it.

    Args:
        snapshot: what `snapshot` of an executor gave, of the same conversation; used as far as it fits.
    """

    def __init__(self, model: LoadedModel, turns: Iterable[Turn], snapshot: bytes | memoryview | None = None) -> None:
        self._model = model
        turns = opened(turns)
        tokens = model.template.encode(model.tokenizer, turns).tokens
        self._sequence = _restored(model.engine, tokens, snapshot)  # its memory goes with it
        self._pending = tokens[self._sequence.length :]
        # Instructions and tools, which other sessions may have as well; and the conversation that was taken up, if one was.
        self._num_opening, self._num_taken_up = len(tokens), 0
        if len(turns) > 1:
            self._num_opening = len(model.template.encode_turn(model.tokenizer, turns[0]))
            self._num_taken_up = len(tokens)
        self._ahead: list[int] = []  # the last tokens of the sequence: the beginning of a prompt that may come

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        length, pending = self._sequence.length - len(self._ahead), self._pending
        try:
            yield
        except BaseException:
            self._model.engine.rollback(self._sequence, self._sequence.length - length)
            self._pending, self._ahead = pending, []
            raise

    def prefill(self, prompt_prefix: str, cancelled: Callable[[], bool]) -> None:
        model = self._model
        self._take_back_ahead([])
        self._begin(cancelled)
        if self._pending and prefill(model.engine, self._sequence, self._pending, cancelled) is not None:
            self._pending = []
            self._keep_conversation()
        if prompt_prefix and not self._pending:
            opening = model.template.encode_turn(model.tokenizer, UserTurn(text=prompt_prefix)).tokens[:-1]
            if prefill(model.engine, self._sequence, opening, cancelled) is not None:
                self._ahead = opening

    def answer(self, request: AnswerRequest) -> Generator[Event, None, Answer]:
        model = self._model
        new = model.template.encode(model.tokenizer, request.turns).tokens
        new = [*new, *model.template.generation_prompt(model.tokenizer)]
        check_fits(model.engine, self._sequence.length - len(self._ahead) + len(self._pending) + len(new) + 1)
        grammar = model.grammar(request.schema, request.tools, must_call=request.must_call)
        started = time.perf_counter()
        num_begun = self._begin(request.cancelled)
        begun_s = time.perf_counter() - started
        prompt = [*self._pending, *new]
        prompt = prompt[self._take_back_ahead(prompt[:-1]) :]
        num_cached = self._sequence.length - num_begun
        generation = generate(
            model.engine,
            self._sequence,
            prompt,
            sampling=_sampling(request.options),
            stop_tokens=model.template.stop_tokens(model.tokenizer),
            max_tokens=request.options.maximum_response_tokens,
            grammar=grammar,
            cancelled=request.cancelled,
            drafter=model.drafter,
        )
        spoken = _Spoken(model, may_call=bool(request.tools))
        with contextlib.closing(generation):
            for event in generation:
                if piece := spoken.push(event.token):
                    yield TextPiece(piece)
        if generation.summary.finish == "cancelled":
            raise GenerationCancelledError("the request was cancelled; the session is as it was before")
        if piece := spoken.finish():
            yield TextPiece(piece)
        turn = spoken.turn()
        for index, call in enumerate(turn.tool_calls):
            yield ToolCallPiece(index=index, name=call.name, arguments=compact_json(call.arguments))
        self._settle(spoken.tokens, turn)
        self._keep_conversation()
        return Answer(turn=turn, usage=_usage(generation.summary, num_cached, num_begun, begun_s))

    def snapshot(self) -> bytes:
        return self._model.engine.snapshot(self._sequence)

    def _begin(self, cancelled: Callable[[], bool]) -> int:
        """Begin with what another session has prefilled. Where none has, prefill instructions and tools: once for all.

        Returns how many tokens that were; none when cancelled.
        """
        model = self._model
        if self._sequence.length >= max(1, self._num_opening):
            return 0
        tokens = [*self._sequence.tokens, *self._pending]
        if not model.prefixes.may_keep(self._num_opening):
            self._take_over(model.prefixes.begin(tokens), tokens)
            return 0
        with model.prefixes.alone(tokens[: self._num_opening], cancelled):
            self._take_over(model.prefixes.begin(tokens), tokens)
            missing = tokens[self._sequence.length : self._num_opening]
            if not missing or prefill(model.engine, self._sequence, missing, cancelled) is None:
                return 0
            self._pending = tokens[self._num_opening :]
            model.prefixes.keep(self._sequence, self._num_opening, "opening")
        return len(missing)

    def _take_over(self, shared: Sequence, tokens: list[int]) -> None:
        if shared.length > self._sequence.length:
            self._sequence, self._pending = shared, tokens[shared.length :]

    def _keep_conversation(self) -> None:
        """Let who takes this conversation up find it computed; if that is a copy, only where it was taken up before."""
        length = self._sequence.length if self._model.engine.forks_share_memory else self._num_taken_up
        if length > self._num_opening:
            self._model.prefixes.keep(self._sequence, length, "conversation")
        self._num_taken_up = 0

    def _take_back_ahead(self, prompt: list[int]) -> int:
        """Keep what was prefilled ahead as far as it begins `prompt`; how many tokens that is."""
        num_equal = _num_equal(self._ahead, prompt)
        self._model.engine.rollback(self._sequence, len(self._ahead) - num_equal)
        self._ahead = []
        return num_equal

    def _settle(self, sampled: list[int], turn: AssistantTurn) -> None:
        """Keep of the sampled tokens, the last of the sequence, those that `turn` begins with."""
        model = self._model
        opening = len(model.template.generation_prompt(model.tokenizer))
        encoded = model.template.encode_turn(model.tokenizer, turn).tokens[opening:]
        num_equal = _num_equal(sampled, encoded)
        model.engine.rollback(self._sequence, len(sampled) - num_equal)
        self._pending = encoded[num_equal:]


def _restored(engine: Engine, tokens: list[int], snapshot: bytes | memoryview | None) -> Sequence:
    """A sequence that holds as many of the first of `tokens` as the snapshot has computed."""
    if snapshot is None:
        return engine.new_sequence()
    try:
        restored = engine.restore(snapshot)
    except (SnapshotCorruptedError, SnapshotMismatchError):
        return engine.new_sequence()  # it would have saved time, no more
    engine.rollback(restored, restored.length - _num_equal(restored.tokens, tokens))
    return restored if restored.num_computed == restored.length else engine.new_sequence()


class _Spoken:
    """The tokens of an answer as they come: text that can be shown, held back while it may turn out to be calls."""

    def __init__(self, model: LoadedModel, *, may_call: bool) -> None:
        self._model = model
        self._detokenizer = Detokenizer(model.tokenizer)
        self._is_calls: bool | None = None if may_call else False
        self._held, self._text = "", ""
        self.tokens: list[int] = []

    def push(self, token: int) -> str:
        """The text that can be shown now."""
        self.tokens.append(token)
        if self._is_calls is None:
            self._is_calls = self._model.template.is_calls(self._model.tokenizer, self.tokens)
        return self._shown(self._detokenizer.push(token), is_end=False)

    def finish(self) -> str:
        """The rest of the text."""
        return self._shown(self._detokenizer.finish(), is_end=True)

    def turn(self) -> AssistantTurn:
        """The whole answer.

        Raises:
            DecodingFailureError: it is calls, cut off by the limit on tokens.
        """
        if not self._is_calls:
            return AssistantTurn(text=self._text)
        try:
            return self._model.template.parse_assistant(self._model.tokenizer, self.tokens)
        except MalformedAnswerError as error:
            raise DecodingFailureError(
                "the calls of tools were cut off before their end; allow the response more tokens", raw_content=error.text
            ) from error

    def _shown(self, piece: str, *, is_end: bool) -> str:
        self._held += piece
        if self._is_calls or (self._is_calls is None and not is_end):
            return ""
        shown, self._held = self._held, ""
        self._text += shown
        return shown


def _num_equal(some: List[int], others: List[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False)))


def _sampling(options: GenerationOptions) -> SamplingConfig:
    mode, temperature = options.sampling, options.temperature
    is_greedy = mode is None if temperature is None else temperature == 0
    if is_greedy or (mode is not None and mode.mode_type is SamplingModeType.GREEDY):
        return GreedyConfig()
    temperature = 1.0 if temperature is None else temperature
    if mode is None:
        return RandomConfig(temperature=temperature)
    return RandomConfig(temperature=temperature, top_k=mode.top, top_p=mode.probability_threshold, seed=mode.seed)


def _usage(summary: Summary, num_cached: int, num_begun: int, begun_s: float) -> Usage:
    first_s = summary.time_to_first_token_s or 0.0
    rest_s = summary.total_s - first_s
    return Usage(
        prompt_tokens=num_cached + num_begun + summary.num_prompt_tokens,
        cached_tokens=num_cached,
        generated_tokens=summary.num_tokens,
        forced_tokens=summary.num_forced_tokens,
        model_steps=num_prefill_steps(num_begun) + summary.num_target_steps,
        drafted_tokens=summary.num_drafted,
        accepted_tokens=summary.num_accepted,
        ttft_ms=1000 * (begun_s + first_s),
        tokens_per_second=(summary.num_tokens - 1) / rest_s if summary.num_tokens > 1 and rest_s > 0 else 0.0,
    )
