"""Speculative decoding at the size of `on_device.base`: tokens per CPU second against plain decoding, by acceptance.

The target is the synthetic 2-bit bundle of that shape on the native engine, one thread, greedy. The draft model is
simulated: it proposes the next token of the plain answer with the given acceptance, another token otherwise. A step takes
the CPU time of a tenth of the target's step (`--cost`), plus a quarter of that for each further token in the same step.
Everything else is the production code: `generate` with a new `Drafter` for each acceptance, without earlier measurements.
A plain and a drafted answer to each prompt alternate token by token, and have the same tokens. The figure is the CPU time
of the process after the first token. It includes the draft model's prefill and the steps that measure draft lengths.

Required: never below 0.98 of plain. A real draft model for `on_device.nano` is measured by benchmarks/speculation.py.

    python benchmarks/drafting.py [--quick] [--json] [--cost 0.1] [--bundle-folder FOLDER]

A full run writes docs/benchmarks/drafting.json. `--quick` takes an eighth of the layers and few tokens, and claims nothing.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent / "native"))

import numpy as np
from numpy.typing import NDArray
from shared.reporting import benchmark_parser, hand_in
from synthetic import NUM_LAYERS, add_bundle_options, synthetic_bundle

from openafm.runtime.batching.pending import TokenChunk
from openafm.runtime.batching.step_costs import StepCosts
from openafm.runtime.decoding.draft_length import DraftLength, DraftLengthConfig
from openafm.runtime.decoding.generation import Generation, generate
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.runtime.decoding.speculation import Drafter
from openafm.runtime.engines.base import Cache, Engine
from openafm.runtime.native.engine import NativeEngine

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "drafting.json"
ACCEPTANCES = (0.0, 0.3, 0.5, 0.75, 0.9)
ROWS = (1, 2, 3, 4, 8)
MOST_DRAFTED, PROMPT_TOKENS, SEED = 5, 16, 0


@dataclass(frozen=True, kw_only=True)
class Amount:
    """Size of the benchmark, for each acceptance."""

    num_layers: int
    num_answers: int
    num_tokens: int
    num_steps: int


FULL = Amount(num_layers=NUM_LAYERS, num_answers=6, num_tokens=100, num_steps=15)
QUICK = Amount(num_layers=7, num_answers=3, num_tokens=80, num_steps=5)


class Replay(Engine):
    """A simulated draft model: right with a given probability, in a given CPU time."""

    class _Tokens(Cache):
        def copy(self, length: int) -> Replay._Tokens:
            copied = Replay._Tokens()
            copied.length = length
            return copied

        def memory(self) -> dict[int, int]:
            return {}

        def arrays(self) -> dict[str, NDArray[Any]]:
            return {}

        def load(self, arrays: Mapping[str, NDArray[Any]], length: int) -> None:
            self.length = length

    def __init__(self, target: Engine, acceptance: float, seconds: float) -> None:
        super().__init__(vocab_size=target.vocab_size, context_length=target.context_length, signature="replay")
        self.tokens: list[int] = []  # of the prompt and the plain answer to it
        self._acceptance, self._seconds = acceptance, seconds
        self._chance = np.random.default_rng(SEED)

    def _new_cache(self) -> Cache:
        return self._Tokens()

    def forward(self, chunks: Sequence[TokenChunk]) -> list[NDArray[np.float32]]:
        num_rows = sum(len(chunk.tokens) for chunk in chunks)
        until = process_time() + self._seconds * (0.75 + 0.25 * num_rows)
        outputs = [self._logits(chunk) for chunk in chunks]
        while process_time() < until:
            pass
        return outputs

    def _logits(self, chunk: TokenChunk) -> NDArray[np.float32]:
        logits_NV = np.zeros((chunk.num_wanted, self.vocab_size), np.float32)
        end = chunk.start + len(chunk.tokens)
        for row, position in enumerate(range(end - chunk.num_wanted + 1, end + 1)):
            token = self.tokens[position] if position < len(self.tokens) else 0
            if self._chance.random() >= self._acceptance:
                token = (token + 1) % self.vocab_size
            logits_NV[row, token] = 1.0
        return logits_NV


class CountedDraftLength(DraftLength):
    """Counts how many tokens were drafted for each verification."""

    def __init__(self, target: StepCosts, draft: StepCosts) -> None:
        super().__init__(None, target, draft)
        self.lengths: Counter[int] = Counter()

    def choose(self, most: int, num_rows: int, num_unseen: int, position: int, sharing: float = 1.0) -> int:
        number = super().choose(most, num_rows, num_unseen, position, sharing)
        if number:
            self.lengths[number] += 1
        return number


@dataclass(frozen=True, kw_only=True)
class CountedDraftLengthConfig(DraftLengthConfig):
    def build(self, target: StepCosts, draft: StepCosts) -> DraftLength:
        return CountedDraftLength(target, draft)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--cost", type=float, default=0.1, help="a step of the draft model, as a share of one of the target")
    add_bundle_options(parser)
    options = parser.parse_args()
    amount = QUICK if options.quick else FULL

    target = NativeEngine(synthetic_bundle(options.bundle_folder, num_layers=amount.num_layers), num_threads=1)
    costs = verification_costs(target, amount.num_steps)
    figures: dict[str, Any] = {f"cost_of_{n}_rows": round(costs[n] / costs[1], 3) for n in ROWS}
    figures["plain_step_ms"] = round(1000 * costs[1], 2)
    prompts = [random_prompt(target, number) for number in range(amount.num_answers)]
    answers = [[event.token for event in generation(target, prompt, amount.num_tokens, None)] for prompt in prompts]
    texts = [Text(prompt=prompt, answer=answer) for prompt, answer in zip(prompts, answers, strict=True)]
    compared = {acceptance: compare(target, acceptance, options.cost * costs[1], texts) for acceptance in ACCEPTANCES}
    figures["least_speed"] = min(result["speed"] for result in compared.values())
    for acceptance, result in compared.items():
        figures |= {f"{key}_at_{acceptance}": value for key, value in result.items()}
    report = {
        "figures": figures,
        "peer": "the same engine, prompts and tokens without drafts",
        "setting": vars(amount)
        | {
            "cost": options.cost,
            "most_drafted": MOST_DRAFTED,
            "prompt_tokens": PROMPT_TOKENS,
            "seed": SEED,
            "threads": 1,
            "clock": "CPU time of the process",
            "machine": platform.machine(),
        },
    }
    hand_in(report, REPORT, options)


def verification_costs(target: Engine, num_steps: int) -> dict[int, float]:
    """Median CPU seconds of a step by the number of tokens that it verifies; the numbers alternate."""
    sequence = target.new_sequence()
    target.step([(sequence, random_prompt(target, 0))])
    seconds: dict[int, list[float]] = {count: [] for count in ROWS}
    for number in range(-1, num_steps):  # the first warms up
        for count in ROWS:
            tokens = random_prompt(target, count)[:count]
            started = process_time()
            target.step([(sequence, tokens)], "all")
            if number >= 0:
                seconds[count].append(process_time() - started)
            target.rollback(sequence, count)
    return {count: statistics.median(taken) for count, taken in seconds.items()}


def compare(target: Engine, acceptance: float, seconds: float, texts: list[Text]) -> dict[str, Any]:
    """Plain and drafted answers side by side; speeds are tokens per CPU second to those of plain answers."""
    draft = Replay(target, acceptance, seconds)
    drafter = Drafter(draft, MOST_DRAFTED, CountedDraftLengthConfig())
    answers = []
    for text in texts:
        draft.tokens = text.prompt + text.answer
        answers.append(in_turns(target, text, drafter))
    length, later = drafter.length(target), answers[len(answers) // 2 :]
    assert isinstance(length, CountedDraftLength)
    return {
        "speed": round(sum(answer.plain_s for answer in answers) / sum(answer.drafted_s for answer in answers), 3),
        "speed_of_later_half": round(sum(answer.plain_s for answer in later) / sum(answer.drafted_s for answer in later), 3),
        "drafted": sum(answer.num_drafted for answer in answers),
        "accepted": sum(answer.num_accepted for answer in answers),
        "verifications_by_length": dict(sorted(length.lengths.items())),
    }


@dataclass(frozen=True, kw_only=True)
class Text:
    """A prompt and its plain greedy answer."""

    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """CPU seconds after the first token of the same answer, plain and drafted."""

    plain_s: float
    drafted_s: float
    num_drafted: int
    num_accepted: int


def in_turns(target: Engine, text: Text, drafter: Drafter) -> Timed:
    """Generate both answers, one token of each in turn, so that other load on the machine affects both."""
    plain, drafted = (generation(target, text.prompt, len(text.answer), choice) for choice in (None, drafter))
    tokens = {plain: [next(plain).token], drafted: [next(drafted).token]}
    seconds = {plain: 0.0, drafted: 0.0}
    for _ in range(len(text.answer)):  # and one more for the end
        for side in (plain, drafted):
            started = process_time()
            event = next(side, None)
            seconds[side] += process_time() - started
            tokens[side] += [] if event is None else [event.token]
    assert tokens[plain] == tokens[drafted] == text.answer, "drafts changed the answer"
    summary = drafted.summary
    return Timed(
        plain_s=seconds[plain],
        drafted_s=seconds[drafted],
        num_drafted=summary.num_drafted,
        num_accepted=summary.num_accepted,
    )


def generation(target: Engine, prompt: list[int], num_tokens: int, drafter: Drafter | None) -> Generation:
    return generate(
        target,
        target.new_sequence(),
        prompt,
        sampling=GreedyConfig(),
        stop_tokens=(),
        max_tokens=num_tokens,
        drafter=drafter,
    )


def random_prompt(target: Engine, number: int) -> list[int]:
    tokens: list[int] = np.random.default_rng([SEED, number]).integers(1000, target.vocab_size, size=PROMPT_TOKENS).tolist()
    return tokens


if __name__ == "__main__":
    main()
