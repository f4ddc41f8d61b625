"""Generation of one answer: prefill the prompt, then sample token by token under a grammar.

A token that the grammar forces is not sampled and needs no step of its own: the next step feeds it together with the others
that wait. It is always accepted, because the mask allows nothing else (grammar.py). With a draft model the same step also
feeds the drafts (speculation.py).

Shapes: V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.core.errors import UsageError
from openafm.runtime.decoding.grammar import Grammar
from openafm.runtime.decoding.logits import LogitsProcessor
from openafm.runtime.decoding.matcher import Matcher
from openafm.runtime.decoding.prefill import check_fits, num_prefill_steps, roll_back_to
from openafm.runtime.decoding.prefill import prefill as prefill
from openafm.runtime.decoding.sampling import GreedyConfig, SamplingConfig
from openafm.runtime.decoding.speculation import Drafter, Drafting, Lookahead
from openafm.runtime.decoding.steps import Step, compute
from openafm.runtime.engines.base import ContextWindowError, Engine, InsertedEmbeddings, Sequence, TokenError

Finish: TypeAlias = Literal["stop", "length", "cancelled"]


class GenerationRunningError(UsageError):
    """The summary was requested before the generation ended."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token of the answer.

    Attributes:
        is_forced: the grammar allowed no other token.
        is_stop: a stop token, always the last one; it is not part of the text.
        log_probability: natural log of the token's probability under temperature, top-k, top-p and the grammar's mask; 0
            for forced tokens and greedy sampling. None unless `generate` was called with `log_probabilities=True`.
    """

    token: int
    is_forced: bool
    is_stop: bool
    log_probability: float | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a generation ended, its token counts and its times in seconds of wall time.

    Attributes:
        finish: "stop" at a stop token; "length" at `max_tokens`, which may truncate a structure, or where the grammar ended
            the answer because of that limit; or "cancelled".
        num_prompt_tokens: tokens of the prompt.
        num_tokens: tokens of the answer, the stop token included.
        num_forced_tokens: tokens of the answer that the grammar forced.
        num_target_steps: steps of the target model, prefill included.
        num_drafted: tokens that the draft model chose, forced ones not counted.
        num_accepted: drafted tokens that the target chose too.
        time_to_first_token_s: from the start to the first token; None if there was none.
        mask_s: time in the grammar for the tokens of the answer; part of it overlaps with steps.
        draft_s: time in the draft model, its grammar included.
        total_s: time from start to end.
    """

    finish: Finish
    num_prompt_tokens: int
    num_tokens: int
    num_forced_tokens: int
    num_target_steps: int
    num_drafted: int
    num_accepted: int
    time_to_first_token_s: float | None
    mask_s: float
    draft_s: float
    total_s: float

    @property
    def acceptance(self) -> float | None:
        """Share of the drafted tokens that were accepted; None if none was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None


def generate(
    engine: Engine,
    sequence: Sequence,
    prompt_tokens: List[int],
    *,
    sampling: SamplingConfig,
    stop_tokens: Collection[int],
    max_tokens: int | None = None,
    grammar: Grammar | None = None,
    drafter: Drafter | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    log_probabilities: bool = False,
    closes: bool = False,
    inserted: List[InsertedEmbeddings] = (),
    processors: List[LogitsProcessor] = (),
) -> Generation:
    """Return an iterator that appends the prompt to the sequence and generates an answer token by token.

    At the end the sequence holds its earlier tokens, the prompt and every token yielded, the stop token included; if
    cancelled during the prefill, its earlier tokens only. A generation that raises or is closed early restores the sequence.
    The sequence must not be used otherwise meanwhile.

    Args:
        stop_tokens: tokens that end the answer, besides the grammar's stop token.
        max_tokens: most tokens of the answer, its stop token not counted. None: up to the context window.
        grammar: constrains the answer. Without one any token may be generated, special tokens included.
        drafter: a draft model for speculative decoding. It changes the number of steps, never the tokens of a greedy or
            seeded answer, nor the distribution of an unseeded one.
        cancelled: called before each choice; True ends the generation.
        log_probabilities: compute `TokenEvent.log_probability`.
        closes: let the grammar end a JSON answer before `max_tokens` or the context window truncates it (`Grammar.matcher`).
        inserted: embeddings that replace those of prompt tokens, by index in `prompt_tokens`.
        processors: applied in order to the logits of each choice, before the mask. Forced tokens have no choice. Greedy
            answers with a `ChatTemplate` that may be text or tool calls have `LikelyCalls` after them.

    Raises:
        ContextWindowError: the prompt and one token do not fit; or, while iterating, the answer does not.
        DraftMismatchError: drafter and engine have different vocabularies.
        TokenError: the prompt is empty.
    """
    if not prompt_tokens:
        raise TokenError("the prompt is empty; generation needs at least one prompt token")
    check_fits(engine, sequence.length + len(prompt_tokens) + 1)
    if drafter is not None:
        drafter.check_target(engine)
    if grammar is not None and grammar.likely_calls is not None and isinstance(sampling, GreedyConfig):
        processors = (*processors, grammar.likely_calls)
    options = _Options(
        engine=engine,
        sequence=sequence,
        prompt_tokens=list(prompt_tokens),
        sampling=sampling,
        stop_tokens=frozenset(stop_tokens) | ({grammar.stop_token} if grammar else set()),
        max_tokens=engine.context_length if max_tokens is None else max_tokens,
        grammar=grammar,
        drafter=drafter,
        cancelled=cancelled,
        log_probabilities=log_probabilities,
        closes=closes,
        inserted=tuple(inserted),
        processors=tuple(processors),
    )
    return Generation(options)


class Generation(Iterator[TokenEvent]):
    """Iterator over the tokens of one answer, made by `generate`. `summary` is set at its end.

    It computes its decode steps itself. `with_steps` leaves them to the caller.
    """

    def __init__(self, options: _Options) -> None:
        self._loop = _GenerationLoop(options)
        self._events = self._loop.run()  # holds no reference to this object, so dropping this object closes it

    def __next__(self) -> TokenEvent:
        while isinstance(event := next(self._events), Step):
            compute((event,))
        return event

    def with_steps(self) -> Iterator[TokenEvent | Step]:
        """Return an iterator over the tokens and the decode steps, each of which must be computed before the next item.

        So one thread computes the steps of many generations together (`steps.compute`). The iterator itself computes the
        prefill and drafts.
        """
        return self._events

    def close(self) -> None:
        """Stop early. Unless the generation has ended, the sequence is restored."""
        self._events.close()

    @property
    def summary(self) -> Summary:
        """How the generation ended, its counts and times.

        Raises:
            GenerationRunningError: the generation has not ended.
        """
        if self._loop.summary is None:
            raise GenerationRunningError("the generation has not ended; iterate over its tokens first")
        return self._loop.summary


class _GenerationLoop:
    """State of one generation. `summary` is set at the end."""

    def __init__(self, options: _Options) -> None:
        request = self._options = options
        self._sampler = request.sampling.build()
        # Tokens of an answer that fit the context window after the prompt.
        self._room = request.engine.context_length - request.sequence.length - len(request.prompt_tokens)
        most = min(request.max_tokens, self._room - 1) if request.closes else None
        self._matcher = None if request.grammar is None else request.grammar.matcher(most)
        self._drafting = None if request.drafter is None else self._draft_with(request.drafter)
        self._lookahead = Lookahead(request.engine, request.sequence, self._drafting)
        self._num_tokens = self._num_forced = self._num_prefill_steps = 0
        self._answer_tokens: list[int] = []
        self._time_to_first_token_s: float | None = None
        self._mask_s = 0.0
        self._needs_mask = True  # the latest choice needed the whole mask of the grammar
        self.summary: Summary | None = None
        self._started = time.perf_counter()

    def run(self) -> Generator[TokenEvent | Step]:
        """Yield the tokens. Restores the sequence when closed early."""
        request, drafting, self._started = self._options, self._drafting, time.perf_counter()
        length = request.sequence.length
        try:
            finish = yield from self._answer()
            self._lookahead.close()
            self.summary = Summary(
                finish=finish,
                num_prompt_tokens=len(request.prompt_tokens),
                num_tokens=self._num_tokens,
                num_forced_tokens=self._num_forced,
                num_target_steps=self._num_prefill_steps + self._lookahead.num_steps,
                num_drafted=0 if drafting is None else drafting.num_drafted,
                num_accepted=0 if drafting is None else drafting.num_accepted,
                time_to_first_token_s=self._time_to_first_token_s,
                mask_s=self._mask_s,
                draft_s=0.0 if drafting is None else drafting.seconds,
                total_s=time.perf_counter() - self._started,
            )
        finally:
            if self.summary is None:
                roll_back_to(request.engine, request.sequence, length)

    def _answer(self) -> Generator[TokenEvent | Step, None, Finish]:
        run = self._next_run(None)  # tokens that the grammar forces at the start are prefilled with the prompt
        logits_V = self._prefill(run.tokens)
        if logits_V is None:
            return "cancelled"
        yield from self._emit(run)
        while run.finish is None:
            if self._options.cancelled():
                return "cancelled"
            run = self._next_run(logits_V)
            yield from self._emit(run)
            if run.events:
                most_ahead = 0 if run.finish else min(self._options.max_tokens, self._room) - self._num_tokens
                logits_V = yield from self._lookahead.feed(run.tokens, self._num_tokens, most_ahead, self._beside())
        return run.finish

    def _draft_with(self, drafter: Drafter) -> Drafting:
        request = self._options
        return Drafting(
            drafter,
            request.engine,
            request.sequence,
            sampler=self._sampler,
            matcher=self._matcher,
            stop_tokens=request.stop_tokens,
            cancelled=request.cancelled,
        )

    def _prefill(self, forced: List[int]) -> NDArray[np.float32] | None:
        request = self._options
        tokens = [*request.prompt_tokens, *forced]
        self._num_prefill_steps = num_prefill_steps(len(tokens))
        return prefill(request.engine, request.sequence, tokens, request.cancelled, self._beside(), request.inserted)

    def _next_run(self, logits_V: NDArray[np.float32] | None) -> _TokenRun:
        """Return the tokens up to the next choice: one sampled if there are logits, and those forced after it."""
        events: list[TokenEvent] = []
        while True:
            position = self._num_tokens + len(events)
            if position >= self._room:
                return self._out_of_room(events, position)
            forced = self._forced()
            if not forced and (logits_V is None or events):
                return _TokenRun(events, None)
            token = forced[0] if forced or logits_V is None else self._sample(logits_V, position)
            is_stop = token in self._options.stop_tokens
            if position >= self._options.max_tokens and not is_stop:
                return _TokenRun(events, "length")
            log_probability = self._log_probability(None if forced else logits_V, token)
            self._accept(token)
            events.append(TokenEvent(token, bool(forced), is_stop, log_probability))
            if is_stop:
                is_closed = self._matcher is not None and self._matcher.is_closed
                return _TokenRun(events, "length" if is_closed else "stop")

    def _out_of_room(self, events: list[TokenEvent], position: int) -> _TokenRun:
        if position >= self._options.max_tokens:
            return _TokenRun(events, "length")
        if events:
            return _TokenRun(events, None)
        context_length = self._options.engine.context_length
        raise ContextWindowError(context_length + 1, context_length)

    def _emit(self, run: _TokenRun) -> Iterator[TokenEvent]:
        if run.events and self._time_to_first_token_s is None:
            self._time_to_first_token_s = time.perf_counter() - self._started
        for event in run.events:
            self._num_tokens += 1
            self._num_forced += event.is_forced
            yield event

    def _forced(self) -> tuple[int, ...]:
        return () if self._matcher is None else self._matcher.forced()

    def _log_probability(self, logits_V: NDArray[np.float32] | None, token: int) -> float | None:
        """Return the log-probability of a token that was chosen from masked logits, or forced (None)."""
        if not self._options.log_probabilities:
            return None
        return 0.0 if logits_V is None else self._sampler.log_probability(logits_V, token)

    def _sample(self, logits_V: NDArray[np.float32], position: int) -> int:
        for processor in self._options.processors:
            processor.process(logits_V, self._answer_tokens)
        if self._matcher is None:
            return self._sampler.sample(logits_V, position)
        started = time.perf_counter()
        token = self._choose(self._matcher, logits_V, position)
        self._mask_s += time.perf_counter() - started
        return token

    def _choose(self, matcher: Matcher, logits_V: NDArray[np.float32], position: int) -> int:
        """Return a token that the grammar allows. Most models choose one anyway; then no mask is computed."""
        if not self._options.log_probabilities:
            token = self._sampler.sample_allowed(logits_V[: matcher.vocab_size], position, matcher.allows)
            self._needs_mask = token is None
            if token is not None:
                return token
        matcher.apply(logits_V)
        return self._sampler.sample(logits_V[: matcher.vocab_size], position)

    def _beside(self) -> Callable[[], None] | None:
        """Return work to do during a step: the next mask does not depend on the step's logits."""
        if self._matcher is None or not self._needs_mask:
            return None
        return partial(self._prepare, self._matcher)

    def _prepare(self, matcher: Matcher) -> None:
        started = time.perf_counter()
        matcher.prepare()
        self._mask_s += time.perf_counter() - started

    def _accept(self, token: int) -> None:
        self._answer_tokens.append(token)
        if self._matcher is not None:
            started = time.perf_counter()
            self._matcher.accept((token,))
            self._mask_s += time.perf_counter() - started


@dataclass(frozen=True, kw_only=True)
class _Options:
    engine: Engine
    sequence: Sequence
    prompt_tokens: list[int]
    sampling: SamplingConfig
    stop_tokens: frozenset[int]
    max_tokens: int
    grammar: Grammar | None
    drafter: Drafter | None
    cancelled: Callable[[], bool]
    log_probabilities: bool
    closes: bool
    inserted: tuple[InsertedEmbeddings, ...]
    processors: tuple[LogitsProcessor, ...]


@dataclass(frozen=True)
class _TokenRun:
    """Tokens chosen before the next step, and how the answer ends if it ends with them."""

    events: list[TokenEvent]
    finish: Finish | None

    @property
    def tokens(self) -> list[int]:
        return [event.token for event in self.events]
