"""One answer: prefill the prompt, then sample token by token under a grammar, feeding forced tokens as drafts.

A token that the grammar forces is not sampled and costs no step of its own: it joins the tokens that wait to be fed, and one
step feeds them all. Its acceptance is certain, since the mask allows nothing else (grammar.py). With a draft model the same
step feeds what that expects to follow (speculation.py).

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
from openafm.runtime.decoding.grammar import Grammar, Matcher
from openafm.runtime.decoding.prefill import check_fits, num_prefill_steps, roll_back_to
from openafm.runtime.decoding.prefill import prefill as prefill
from openafm.runtime.decoding.sampling import SamplingConfig
from openafm.runtime.decoding.speculation import Drafter, Drafting, Lookahead
from openafm.runtime.engines.base import ContextWindowError, Engine, Sequence, TokenError

Finish: TypeAlias = Literal["stop", "length", "cancelled"]


class GenerationRunningError(UsageError):
    """The summary of a generation that has not come to its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenEvent:
    """A token of the answer. `is_stop` marks the stop token, always the last, which renders as nothing."""

    token: int
    is_forced: bool
    is_stop: bool


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a generation ended and what it took. Times are wall time in seconds.

    Attributes:
        finish: a stop token came; or `max_tokens` were reached, which may cut a structure; or it was cancelled.
        num_prompt_tokens: tokens of the prompt.
        num_tokens: tokens of the answer, the stop token included.
        num_forced_tokens: how many of them the grammar forced, so that no step was needed to choose them.
        num_target_steps: steps of the model that answers, prefill included.
        num_drafted: tokens that a draft model chose, forced ones not counted.
        num_accepted: how many of them the model that answers chose as well.
        time_to_first_token_s: from the start to the first token; None if there was none.
        mask_s: time in the grammar, for the tokens of the answer; some of it during steps.
        draft_s: time with the draft model, its grammar included.
        total_s: all of it.
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
        """Share of the drafted tokens that came true; None if none was drafted."""
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
) -> Generation:
    """Append the prompt to the sequence and generate an answer, token by token as the result is iterated over.

    At its end the sequence holds its earlier tokens, the prompt and every token yielded, the stop token included; if
    cancelled while the prompt is prefilled, its earlier tokens only. A generation that does not come to its end, because
    something was raised or it was closed, leaves the sequence as it was before. Nobody else may use the sequence meanwhile.

    Args:
        stop_tokens: tokens that end the answer; under a grammar its stop token always does.
        max_tokens: most tokens of the answer, its stop token not counted. None: up to the context window.
        grammar: what the answer may be. Without one any token of the model may come, special ones included.
        drafter: a smaller model that drafts tokens, so that fewer steps are needed. The answer is the same with any and
            none: the same tokens under greedy sampling and under a seed, the same law without.
        cancelled: asked before each choice.

    Raises:
        ContextWindowError: the prompt and a first token do not fit; or, while iterating, the answer does not.
        DraftMismatchError: the drafter's vocabulary is not the engine's.
        TokenError: the prompt is empty.
    """
    if not prompt_tokens:
        raise TokenError("an answer needs a prompt of at least one token to follow")
    check_fits(engine, sequence.length + len(prompt_tokens) + 1)
    if drafter is not None:
        drafter.check_target(engine)
    request = _Request(
        engine=engine,
        sequence=sequence,
        prompt_tokens=list(prompt_tokens),
        sampling=sampling,
        stop_tokens=frozenset(stop_tokens) | ({grammar.stop_token} if grammar else set()),
        max_tokens=engine.context_length if max_tokens is None else max_tokens,
        grammar=grammar,
        drafter=drafter,
        cancelled=cancelled,
    )
    return Generation(request)


class Generation(Iterator[TokenEvent]):
    """The tokens of one answer as they come, made by `generate`. `summary` stands once they have."""

    def __init__(self, request: _Request) -> None:
        self._answering = _Answering(request)
        self._events = self._answering.run()  # does not know this object, and so is closed when that is let go

    def __next__(self) -> TokenEvent:
        return next(self._events)

    def close(self) -> None:
        """Give it up: unless it has ended, the sequence goes back to what it was before."""
        self._events.close()

    @property
    def summary(self) -> Summary:
        """How it ended and what it took.

        Raises:
            GenerationRunningError: it has not come to its end.
        """
        if self._answering.summary is None:
            raise GenerationRunningError("the generation has not come to its end; take its tokens first")
        return self._answering.summary


class _Answering:
    """One answer under way. `summary` stands at its end."""

    def __init__(self, request: _Request) -> None:
        self._request = request
        self._sampler = request.sampling.build()
        self._matcher = None if request.grammar is None else request.grammar.matcher()
        self._drafting = None if request.drafter is None else self._draft_with(request.drafter)
        self._lookahead = Lookahead(request.engine, request.sequence, self._drafting)
        # How many tokens of an answer the window holds after the prompt.
        self._room = request.engine.context_length - request.sequence.length - len(request.prompt_tokens)
        self._num_tokens = self._num_forced = self._num_prefill_steps = 0
        self._time_to_first_token_s: float | None = None
        self._mask_s = 0.0
        self.summary: Summary | None = None
        self._started = time.perf_counter()

    def run(self) -> Generator[TokenEvent]:
        """Its tokens. Closed before its end, the sequence goes back to what it was."""
        request, drafting, self._started = self._request, self._drafting, time.perf_counter()
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

    def _answer(self) -> Generator[TokenEvent, None, Finish]:
        run = self._next_run(None)  # what the grammar forces at the start is prefilled with the prompt
        logits_V = self._prefill(run.tokens)
        if logits_V is None:
            return "cancelled"
        yield from self._told(run)
        while run.finish is None:
            if self._request.cancelled():
                return "cancelled"
            run = self._next_run(logits_V)
            yield from self._told(run)
            if run.events:
                most_ahead = 0 if run.finish else min(self._request.max_tokens, self._room) - self._num_tokens
                logits_V = self._lookahead.feed(run.tokens, self._num_tokens, most_ahead, self._beside())
        return run.finish

    def _draft_with(self, drafter: Drafter) -> Drafting:
        request = self._request
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
        request = self._request
        tokens = [*request.prompt_tokens, *forced]
        self._num_prefill_steps = num_prefill_steps(len(tokens))
        return prefill(request.engine, request.sequence, tokens, request.cancelled, self._beside())

    def _next_run(self, logits_V: NDArray[np.float32] | None) -> _Run:
        """The tokens before the next choice: one sampled where there are logits, and what the grammar forces after it."""
        events: list[TokenEvent] = []
        while True:
            position = self._num_tokens + len(events)
            if position >= self._room:
                return self._out_of_room(events, position)
            forced = self._forced()
            if not forced and (logits_V is None or events):
                return _Run(events, None)
            token = forced[0] if forced or logits_V is None else self._sample(logits_V, position)
            is_stop = token in self._request.stop_tokens
            if position >= self._request.max_tokens and not is_stop:
                return _Run(events, "length")
            self._accept(token)
            events.append(TokenEvent(token=token, is_forced=bool(forced), is_stop=is_stop))
            if is_stop:
                return _Run(events, "stop")

    def _out_of_room(self, events: list[TokenEvent], position: int) -> _Run:
        if position >= self._request.max_tokens:
            return _Run(events, "length")
        if events:
            return _Run(events, None)
        context_length = self._request.engine.context_length
        raise ContextWindowError(context_length + 1, context_length)

    def _told(self, run: _Run) -> Iterator[TokenEvent]:
        if run.events and self._time_to_first_token_s is None:
            self._time_to_first_token_s = time.perf_counter() - self._started
        for event in run.events:
            self._num_tokens += 1
            self._num_forced += event.is_forced
            yield event

    def _forced(self) -> tuple[int, ...]:
        return () if self._matcher is None else self._matcher.forced()

    def _sample(self, logits_V: NDArray[np.float32], position: int) -> int:
        if self._matcher is not None:
            started = time.perf_counter()
            self._matcher.apply(logits_V)
            self._mask_s += time.perf_counter() - started
        return self._sampler.sample(logits_V, position)

    def _beside(self) -> Callable[[], None] | None:
        """What to do during a step: the mask of a choice does not depend on the logits that it computes."""
        return None if self._matcher is None else partial(self._prepare, self._matcher)

    def _prepare(self, matcher: Matcher) -> None:
        started = time.perf_counter()
        matcher.prepare()
        self._mask_s += time.perf_counter() - started

    def _accept(self, token: int) -> None:
        if self._matcher is not None:
            started = time.perf_counter()
            self._matcher.accept((token,))
            self._mask_s += time.perf_counter() - started


@dataclass(frozen=True, kw_only=True)
class _Request:
    engine: Engine
    sequence: Sequence
    prompt_tokens: list[int]
    sampling: SamplingConfig
    stop_tokens: frozenset[int]
    max_tokens: int
    grammar: Grammar | None
    drafter: Drafter | None
    cancelled: Callable[[], bool]


@dataclass(frozen=True)
class _Run:
    """Tokens chosen before the next step, and whether the answer ends with them."""

    events: list[TokenEvent]
    finish: Finish | None

    @property
    def tokens(self) -> list[int]:
        return [event.token for event in self.events]
