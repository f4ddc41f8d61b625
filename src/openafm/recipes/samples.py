"""Texts that a model generates during its training, from prompts of the held-out data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from openafm.core.config import Config
from openafm.data.loading.loader import LoaderConfig
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.template import BaseChatTemplate

if TYPE_CHECKING:
    from openafm.models.decoder import Decoder
    from openafm.training.observability.samples import Sample, Sampler

PROMPT_TOKENS = 16
"""Length of a prompt from a document that is learned from its first token."""


@dataclass(frozen=True, kw_only=True)
class SamplesConfig(Config):
    """Generate greedy samples every `every_steps` steps and at the end of the run.

    `prompts` are texts to continue, without a chat template. By default the prompts are the beginnings of the first `count`
    held-out documents: up to the first answer of a conversation, 16 tokens of a text.
    """

    every_steps: int
    prompts: tuple[str, ...] = ()
    count: int = 3
    max_tokens: int = 48

    def __post_init__(self) -> None:
        numbers = (self.every_steps, self.count, self.max_tokens)
        self.require(min(numbers) > 0, f"every_steps, count and max_tokens must be at least 1, got {numbers}")

    def build(self, loader: LoaderConfig, tokenizer: Tokenizer, template: BaseChatTemplate) -> Sampler:
        """Return the sampler of a run that is evaluated on the rows of `loader`."""
        from openafm.training.observability.samples import Sampler

        stops = frozenset({tokenizer.special.eos, *template.stop_tokens(tokenizer)})
        begun = [_Beginning([tokenizer.special.bos, *tokenizer.encode(prompt)]) for prompt in self.prompts]
        prompts = begun or list(itertools.islice(_held_out(loader), self.count))
        return Sampler(
            every_steps=self.every_steps,
            generate=lambda model: [_sample(model, prompt, tokenizer, stops, self.max_tokens) for prompt in prompts],
        )


@dataclass(frozen=True)
class _Beginning:
    """The tokens of a prompt, and those that follow in the data."""

    tokens: Sequence[int]
    expected: Sequence[int] = ()


def _held_out(loader: LoaderConfig) -> Iterator[_Beginning]:
    """Yield the beginnings of the documents of the first batch."""
    batch = loader.build().batch(0)
    for row, start, stop in batch.documents:
        tokens = batch.tokens_BS[row, start:stop].tolist()
        learned = np.flatnonzero(batch.loss_mask_BS[row, start:stop])  # position i predicts token i + 1
        if not len(learned):
            continue
        begin = int(learned[0]) + 1 if learned[0] > 0 else min(PROMPT_TOKENS, len(tokens) // 2)
        after = learned[learned >= begin - 1]
        gaps = np.flatnonzero(np.diff(after) > 1)
        num_expected = int(gaps[0]) + 1 if len(gaps) else len(after)
        if begin:
            yield _Beginning(tokens[:begin], tokens[begin : begin + num_expected])


def _sample(model: Decoder, prompt: _Beginning, tokenizer: Tokenizer, stops: frozenset[int], max_tokens: int) -> Sample:
    from openafm.runtime.decoding.generation import generate
    from openafm.runtime.decoding.sampling import GreedyConfig
    from openafm.runtime.engines.torch_engine import TorchEngine
    from openafm.training.observability.samples import Sample

    engine = TorchEngine(model)
    tokens = prompt.tokens[: engine.context_length - 1]
    generation = generate(
        engine,
        engine.new_sequence(),
        tokens,
        sampling=GreedyConfig(),
        stop_tokens=stops,
        max_tokens=min(max_tokens, engine.context_length - len(tokens)),
    )
    text = tokenizer.decode(event.token for event in generation if event.token < tokenizer.vocab_size)
    return Sample(prompt=tokenizer.decode(tokens), text=text, expected=tokenizer.decode(prompt.expected[:max_tokens]))
