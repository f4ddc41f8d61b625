"""Log-likelihoods of texts and of choices, and raw continuations: the interface of evaluation harnesses and classifiers.

Contexts are texts without a chat template, choices follow the tokens of any prompt.

Shapes: N tokens of a window or an answer, V tokens of the tokenizer, C choices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.logits import RepetitionPenalty
from openafm.runtime.decoding.sampling import GreedyConfig, SamplingConfig
from openafm.runtime.engines.base import ContextWindowError

if TYPE_CHECKING:
    from openafm.runtime.engines.base import Engine
    from openafm.runtime.engines.base import Sequence as EngineSequence
    from openafm.tokenizer.bpe import Tokenizer


CHUNK_TOKENS = 256
"""Positions whose logits are in memory at once."""
CHOICES_AT_ONCE = 16
"""Choices that are computed in one step, with their logits in memory."""


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """The log probability of a continuation in nats, its number of tokens, and whether greedy decoding would give it."""

    log_probability: float
    num_tokens: int
    is_greedy: bool


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """Computes likelihoods with an engine and its tokenizer. Unused vocabulary rows are excluded."""

    engine: Engine
    tokenizer: Tokenizer

    def loglikelihood(self, context: str, continuation: str) -> Likelihood:
        """Return the likelihood of `continuation` after `context`.

        The text is encoded as a whole, and spaces at the end of the context count as part of the continuation. A context
        that is too long loses its first tokens.
        """
        stripped = context.rstrip(" ")
        whole = self._encoded(context + continuation)
        num_context = min(len(self._encoded(stripped)), len(whole) - 1)
        log_p_N, is_greedy_N = self.token_scores(whole[-self.engine.context_length :])
        count = min(len(whole) - num_context, len(log_p_N))
        return Likelihood(
            log_probability=float(log_p_N[-count:].sum()), num_tokens=count, is_greedy=bool(is_greedy_N[-count:].all())
        )

    def loglikelihood_rolling(self, text: str) -> Likelihood:
        """Return the likelihood of a whole text, in windows of the context length; each token is scored once."""
        length, tokens = self.engine.context_length, self._encoded(text)
        scores = [self.token_scores(tokens[start : start + length]) for start in range(0, len(tokens) - 1, length - 1)]
        return Likelihood(
            log_probability=float(sum(log_p_N.sum() for log_p_N, _ in scores)),
            num_tokens=len(tokens) - 1,
            is_greedy=all(is_greedy_N.all() for _, is_greedy_N in scores),
        )

    def generate_until(self, context: str, until: Sequence[str] = (), max_tokens: int = 256) -> str:
        """Return the greedy continuation of `context` up to the first of the `until` texts, which is not included."""
        text = ""
        for text in self.continuations(context, max_tokens=max_tokens):
            ends = [text.index(stop) for stop in until if stop and stop in text]
            if ends:
                return text[: min(ends)]
        return text

    def continuations(
        self, context: str, *, max_tokens: int, sampling: SamplingConfig | None = None, repetition_penalty: float = 1.0
    ) -> Iterator[str]:
        """Yield the continuation of `context` after each token. A context that is too long loses its first tokens."""
        special = self.tokenizer.special
        room = max(1, self.engine.context_length - max_tokens)
        prompt = self._encoded(context)[-room:]
        generation = generate(
            self.engine,
            self.engine.new_sequence(),
            prompt,
            sampling=sampling or GreedyConfig(),
            stop_tokens={special.eos},
            max_tokens=max_tokens,
            processors=[] if repetition_penalty == 1 else [RepetitionPenalty(repetition_penalty, prompt)],
        )
        tokens: list[int] = []
        for event in generation:
            if event.token == special.eos:
                return
            tokens.append(event.token)
            text = self.tokenizer.decode(tokens)
            if not text.endswith("\ufffd"):  # a character that is not complete yet
                yield text

    def choice_scores(
        self, sequence: EngineSequence, prompt: Sequence[int], choices: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        """Return the log probability of each choice of tokens after a prompt, [C].

        `sequence` holds a beginning of the prompt, without its last token, and afterwards all of it: the prompt is computed
        once for all choices.

        Raises:
            ContextWindowError: the prompt and a choice do not fit into the context window.
        """
        num_tokens = len(prompt) + max(map(len, choices)) - 1
        if num_tokens > self.engine.context_length:
            raise ContextWindowError(num_tokens, self.engine.context_length)
        (logits_V,) = self.engine.step([(sequence, prompt[sequence.length :])])
        first_log_p_1V = self._log_softmax(logits_V[None])
        scores: list[float] = []
        for start in range(0, len(choices), CHOICES_AT_ONCE):
            scores += self._continued(sequence, first_log_p_1V, choices[start : start + CHOICES_AT_ONCE])
        return np.asarray(scores, dtype=np.float64)

    def _continued(
        self, sequence: EngineSequence, first_log_p_1V: NDArray[np.float64], choices: Sequence[Sequence[int]]
    ) -> Iterator[float]:
        """Yield the log probability of each choice; `first_log_p_1V` is that of the tokens after the sequence."""
        with contextlib.ExitStack() as stack:
            steps = []
            for choice in choices:
                if len(choice) > 1:
                    fork = self.engine.fork(sequence)
                    stack.callback(self.engine.close, fork)
                    steps.append((fork, list(choice[:-1])))
            rests = iter(self.engine.step(steps, "all") if steps else ())
            for choice in choices:
                log_p_NV = first_log_p_1V
                if len(choice) > 1:
                    log_p_NV = np.concatenate([first_log_p_1V, self._log_softmax(next(rests))])
                yield float(log_p_NV[np.arange(len(choice)), np.asarray(choice)].sum())

    def token_scores(self, tokens: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the log probability of each token but the first, and whether it is the most likely one.

        Raises:
            ContextWindowError: the tokens do not fit into the context window.
        """
        if len(tokens) < 2:
            return np.zeros(0), np.zeros(0, dtype=np.bool_)
        if len(tokens) - 1 > self.engine.context_length:  # before any step: the first chunks of a long text do fit
            raise ContextWindowError(len(tokens) - 1, self.engine.context_length)
        sequence, log_p, is_greedy = self.engine.new_sequence(), [], []
        for start in range(0, len(tokens) - 1, CHUNK_TOKENS):  # all logits of a long text do not fit into memory
            stop = min(start + CHUNK_TOKENS, len(tokens) - 1)
            (logits_NV,) = self.engine.step([(sequence, list(tokens[start:stop]))], "all")
            log_p_NV = self._log_softmax(logits_NV)
            targets_N = np.asarray(tokens[start + 1 : stop + 1])
            log_p.append(np.take_along_axis(log_p_NV, targets_N[:, None], axis=1)[:, 0])
            is_greedy.append(log_p_NV.argmax(axis=1) == targets_N)
        return np.concatenate(log_p), np.concatenate(is_greedy)

    def _log_softmax(self, logits_NV: NDArray[np.float32]) -> NDArray[np.float64]:
        shifted_NV = logits_NV[:, : self.tokenizer.vocab_size].astype(np.float64)
        shifted_NV -= shifted_NV.max(axis=1, keepdims=True)
        log_p_NV: NDArray[np.float64] = shifted_NV - np.log(np.exp(shifted_NV).sum(axis=1, keepdims=True))
        return log_p_NV

    def _encoded(self, text: str) -> list[int]:
        return [self.tokenizer.special.bos, *self.tokenizer.encode(text)]
