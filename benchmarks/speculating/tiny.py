"""Random models of a few ten thousand parameters, drafts for them that agree always, often or never, and random requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from openafm.models.decoder import Decoder
from openafm.models.sizes import shared_kv_decoder
from openafm.runtime.decoding.draft_length import DraftLengthConfig
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.grammar import Grammar, GrammarCompiler
from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig
from openafm.runtime.decoding.speculation import Drafter
from openafm.runtime.engines.base import ContextWindowError
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.tokenizer.bpe import NUM_SPECIAL_TOKENS, Tokenizer

CONTEXT_LENGTH = 96
CALLS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"enum": ["open", "close"]}, "city": {"type": "string", "maxLength": 6}},
        "required": ["name", "city"],
        "additionalProperties": False,
    },
    "minItems": 1,
    "maxItems": 2,
}
WORD = {"type": "string", "pattern": "^[a-d]{2,3}$"}
LAWS = (RandomConfig(), RandomConfig(temperature=0.7, top_k=6), RandomConfig(temperature=1.3, top_p=0.8))


class TinyModels:
    """A target, drafts for it by name, and grammars (None: unconstrained)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.target = TorchEngine(self._decoder(5))
        drafts = {"same": (5, 0.0), "alike": (5, 0.05), "unlike": (5, 0.2), "another": (6, 0.0)}
        self.drafters = {
            name: Drafter(TorchEngine(self._decoder(*values)), length=DraftLengthConfig(cost=0.2))
            for name, values in drafts.items()
        }
        compiler = GrammarCompiler(tokenizer)
        self.grammars: list[Grammar | None] = [None, compiler.text(), compiler.json_schema(CALLS)]
        self.word = compiler.json_schema(WORD)

    def _decoder(self, seed: int, noise: float = 0.0) -> Decoder:
        model = shared_kv_decoder(
            vocab_size=self.tokenizer.vocab_size,
            dim=32,
            num_own_layers=2,
            num_shared_layers=2,
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
            hidden_dim=40,
            context_length=CONTEXT_LENGTH,
        ).build(seed)
        with torch.no_grad():
            for number, std in ((seed, 0.4), (seed + 100, noise)):
                generator = torch.Generator().manual_seed(number)
                model.embedding += std * torch.randn(model.embedding.shape, generator=generator)
        return model


def random_case(tiny: TinyModels, case: int) -> bool:
    """Whether a random request has the same greedy answer, end and sequence with and without a draft."""
    chance = np.random.default_rng([17, case])
    drafter = tiny.drafters[str(chance.choice(list(tiny.drafters)))]
    tokens = range(NUM_SPECIAL_TOKENS, tiny.tokenizer.vocab_size)
    at_the_edge = chance.random() < 0.1
    length = CONTEXT_LENGTH - int(chance.integers(1, 9)) if at_the_edge else int(chance.integers(1, 12))
    prompt = chance.choice(tokens, size=length).tolist()
    options: dict[str, Any] = {
        "sampling": GreedyConfig(),
        "grammar": tiny.grammars[chance.integers(len(tiny.grammars))],
        "stop_tokens": set(chance.choice(tokens, size=chance.integers(0, 40)).tolist()),
        "max_tokens": int(chance.integers(1, 24)),
    }
    outcomes = []
    for choice in (None, drafter):
        sequence, answer = tiny.target.new_sequence(), list[int]()
        try:
            generation = generate(tiny.target, sequence, prompt, drafter=choice, **options)
            answer += [event.token for event in generation]
            end: str = generation.summary.finish
        except ContextWindowError:
            end = "context window"
        outcomes.append((answer, end, sequence.tokens.tolist()))
    return outcomes[0] == outcomes[1]


def law_p_values(tiny: TinyModels, count: int) -> list[float]:
    """p-values of chi-square tests, by draft and sampling method, that a draft leaves the distribution of answers
    unchanged."""
    plain = {law: _sample(tiny, None, law, range(count)) for law in LAWS}
    return [
        _p_of_one_law(plain[law], _sample(tiny, drafter, law, range(10**6 * number, 10**6 * number + count)))
        for number, drafter in enumerate(tiny.drafters.values(), start=1)
        for law in LAWS
    ]


def _sample(tiny: TinyModels, drafter: Drafter | None, law: RandomConfig, seeds: range) -> Counter[tuple[int, ...]]:
    """Counts of the answers to one prompt, under the grammar of a short word."""
    prompt = [NUM_SPECIAL_TOKENS + 40]
    answers = Counter[tuple[int, ...]]()
    for seed in seeds:
        generation = generate(
            tiny.target, tiny.target.new_sequence(), prompt, sampling=replace(law, seed=seed), grammar=tiny.word,
            stop_tokens=(), drafter=drafter,
        )  # fmt: skip
        answers[tuple(event.token for event in generation)] += 1
    return answers


def _p_of_one_law(first: Counter[tuple[int, ...]], second: Counter[tuple[int, ...]]) -> float:
    """Compare two samples of one size; answers with fewer than ten occurrences are pooled."""
    frequent = [answer for answer in first | second if first[answer] + second[answer] >= 10]
    table = np.array([[*(sample[answer] for answer in frequent), 0.0] for sample in (first, second)])
    table[:, -1] = first.total() - table.sum(1)
    table = table[:, table.sum(0) > 0]
    statistic = float(((table[0] - table[1]) ** 2 / table.sum(0)).sum())
    freedom = torch.tensor(table.shape[1] - 1.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, torch.tensor(statistic / 2, dtype=torch.float64)))
