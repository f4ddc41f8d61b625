"""Raw text without a chat template: completions, and log-likelihoods of continuations. Prefixes are computed once.

Shapes: V tokens of the vocabulary, N tokens of a continuation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from openafm.evaluation.harness.task import Output, Prompt
from openafm.framework.backends.loaded_model import LoadedModel
from openafm.framework.errors import GenerationCancelledError
from openafm.runtime.decoding.generation import generate, prefill
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.runtime.engines import base
from openafm.tokenizer.detokenizer import Detokenizer

_STARTS = ("<|bos|>", "<|begin_of_text|>", "<s>", "<bos>")
_ENDS = ("<|eos|>", "<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>")
"""Tokens that begin and end a text, in models of openafm and of other families. Some families have no first token."""


class RawText:
    """Continue texts with a loaded model and score continuations. Texts are encoded as lm-evaluation-harness encodes them.

    A context that is too long loses its first tokens.
    """

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        special = model.tokenizer.special_ids
        self._start = [special[name] for name in _STARTS if name in special][:1]
        ends = {special[name] for name in _ENDS if name in special}
        self._ends = ends | set(model.template.stop_tokens(model.tokenizer))

    def answer(self, prompt: Prompt, cancelled: Callable[[], bool]) -> Output:
        """Return the output for a prompt of kind `completion` or `choice`."""
        return self._completion(prompt, cancelled) if prompt.kind == "completion" else self._choice(prompt, cancelled)

    def _completion(self, prompt: Prompt, cancelled: Callable[[], bool]) -> Output:
        engine, tokenizer = self._model.engine, self._model.tokenizer
        room = max(1, engine.context_length - prompt.max_tokens)
        tokens = self._encoded(prompt.text)[-room:]
        sequence = self._begun(tokens[:-1], self._encoded(prompt.prefix) if prompt.prefix else [], cancelled)
        generation = generate(
            engine,
            sequence,
            tokens[sequence.length :],
            sampling=GreedyConfig(),
            stop_tokens=self._ends,
            max_tokens=prompt.max_tokens,
            cancelled=cancelled,
        )
        text, detokenizer, count, finish = "", Detokenizer(tokenizer), 0, "stop"
        longest = max(map(len, prompt.stop), default=0)
        for event in generation:
            count += 1
            if event.token in self._ends:
                break
            piece = detokenizer.push(event.token)
            text += piece
            start = max(0, len(text) - len(piece) - longest)
            ends = [end for stop in prompt.stop if stop and (end := text.find(stop, start)) >= 0]
            if ends:
                text = text[: min(ends)]
                break
        else:
            text += detokenizer.finish()
            if generation.summary.finish == "cancelled":
                raise GenerationCancelledError("the run was interrupted", text)
            finish = "length"
        generation.close()
        return Output(text=text, prompt_tokens=len(tokens), generated_tokens=count, finish=finish)

    def _choice(self, prompt: Prompt, cancelled: Callable[[], bool]) -> Output:
        """Score continuations. Those of one context share its step; longer ones continue from forks."""
        engine = self._model.engine
        stripped = self._encoded(prompt.text.rstrip(" "))
        pairs = [self._pair(prompt.text, len(stripped), continuation) for continuation in prompt.continuations]
        prefix = self._encoded(prompt.prefix) if prompt.prefix else []
        found: list[float] = [0.0] * len(pairs)
        for context, of_context in itertools.groupby(range(len(pairs)), key=lambda index: pairs[index][0]):
            indices = list(of_context)
            sequence = self._begun(list(context[:-1]), prefix, cancelled)
            (logits_V,) = engine.step([(sequence, list(context[sequence.length :]))])
            first_V = self._log_probabilities(logits_V[None])[0]
            for index in indices:
                tokens = pairs[index][1]
                found[index] = float(first_V[tokens[0]]) + self._rest(sequence, tokens)
        return Output(
            log_likelihoods=tuple(found),
            prompt_tokens=len(pairs[0][0]),
            generated_tokens=sum(len(each) for _, each in pairs),
        )

    def _rest(self, context: base.Sequence, tokens: Sequence[int]) -> float:
        """Return the log probability of the tokens after the first."""
        if len(tokens) == 1:
            return 0.0
        sequence = self._model.engine.fork(context)
        (logits_NV,) = self._model.engine.step([(sequence, list(tokens[:-1]))], "all")
        log_p_NV = self._log_probabilities(logits_NV)
        return float(np.take_along_axis(log_p_NV, np.asarray(tokens[1:])[:, None], axis=1).sum())

    def _pair(self, context: str, num_context: int, continuation: str) -> tuple[tuple[int, ...], list[int]]:
        """Return the tokens of a context, cut at the left to fit the window, and those of its continuation."""
        whole = self._encoded(context + continuation)
        if not num_context:  # an empty context of a model without a first token
            whole, num_context = [min(self._ends), *whole], 1
        num_context = min(num_context, len(whole) - 1)
        rest = whole[num_context:][-(self._model.engine.context_length - 1) :]
        room = self._model.engine.context_length - len(rest)
        return tuple(whole[:num_context][-room:]), rest

    def _begun(self, tokens: list[int], prefix: list[int], cancelled: Callable[[], bool]) -> base.Sequence:
        """Return a sequence with the longest computed beginning of `tokens`. The shared prefix is computed and kept."""
        prefixes, engine = self._model.prefixes, self._model.engine
        equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prefix, tokens, strict=False)))
        if not prefixes.may_keep(equal):
            return engine.new_sequence()
        shared = tokens[:equal]
        with prefixes.alone(shared, cancelled):
            sequence = prefixes.begin(tokens)
            if sequence.length < equal and prefill(engine, sequence, tokens[sequence.length : equal], cancelled) is not None:
                prefixes.keep(sequence, equal, "opening")
        return sequence

    def _log_probabilities(self, logits_NV: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return log probabilities over the tokenizer's vocabulary; unused rows of the model are excluded."""
        logits = logits_NV[:, : self._model.tokenizer.vocab_size].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))

    def _encoded(self, text: str) -> list[int]:
        return [*self._start, *self._model.tokenizer.encode(text)]
