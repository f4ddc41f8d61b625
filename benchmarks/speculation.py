"""Speculative decoding: answers with a draft model are unchanged, and need fewer steps of the target.

Identity: greedy answers with and without a draft on random tiny models (the draft is the same model, a similar one or
another one; free, text and JSON grammars; token limits, stop tokens and windows in the middle of drafts), and on held-out
conversations. Distribution: answers of a tiny model sampled with each draft and without, under different seeds, compared by
chi-square tests of two samples; the smallest p-value times their number. Steps: `on_device.nano` and a draft model of its
own size, which the script first distills from it on the built-in corpus (`--run` stores that run; `--draft` uses an existing
draft model), on held-out conversations of each task, and on tool calls alone. Passes are steps of the target per token of an
answer, including prefill; plain decoding computes forced tokens in one step, as always. Passes are counted with drafting
from the first token on, independent of measured times (`DraftLengthConfig(cost=0.2)`); CPU time also with draft lengths
chosen by costs measured during the run, as in sessions (`by_the_clock`).

    python benchmarks/speculation.py [--quick] [--json] [--target BUNDLE] [--draft BUNDLE] [--run FOLDER]

A full run writes docs/benchmarks/speculation.json. `--quick` runs the same code at a small size and claims nothing.
"""

from __future__ import annotations

import os
import platform
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from shared.reporting import benchmark_parser, hand_in
from speculating.tiny import TinyModels, law_p_values, random_case

from openafm.bundle import Bundle, open_bundle, shipped_bundle
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.evaluation.answers import Answerer, DraftedAnswer, Question, questions
from openafm.models.accounting import num_parameters
from openafm.recipes.drafting import draft_report, draft_run
from openafm.recipes.run import run_recipe
from openafm.recipes.sources.corpora import CorpusConfig, SyntheticCorpusConfig
from openafm.runtime.decoding.draft_length import DraftLengthConfig
from openafm.runtime.decoding.speculation import Drafter
from openafm.runtime.engines.selection import open_engine
from openafm.training.budgets import StepBudget

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "speculation.json"
MAX_TOKENS = 120
TASKS = {"event": 0.5, "tool": 0.2, "form": 0.15, "label": 0.05, "lookup": 0.05, "arithmetic": 0.05}


@dataclass(frozen=True, kw_only=True)
class Amount:
    """Size of the benchmark."""

    tiny_cases: int
    answers: int
    calls: int
    samples: int
    steps: int
    examples: int


FULL = Amount(tiny_cases=1_000, answers=70, calls=30, samples=1_000, steps=600, examples=8_000)
QUICK = Amount(tiny_cases=20, answers=6, calls=2, samples=30, steps=2, examples=5)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--target", help="the bundle that answers; by default the shipped one")
    parser.add_argument("--draft", help="a draft model's bundle; by default one is distilled from the target")
    parser.add_argument("--run", type=Path, help="folder of the run that distills it; an existing run is resumed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    amount = QUICK if options.quick else FULL
    target = open_bundle(options.target or shipped_bundle())

    with tempfile.TemporaryDirectory() as folder:
        draft = open_bundle(options.draft) if options.draft else distilled(target, options.run or Path(folder), amount)
        figures = measured(target, draft, amount)
        report = {
            "figures": figures,
            "peer": "the same target, sampler and grammar without a draft model",
            "setting": vars(amount)
            | {
                "target": f"{target.name} {target.identity}",
                "draft": f"{num_parameters(draft.config):,} parameters, {'given' if options.draft else 'distilled here'}",
                "threads": 1,
                "torch": torch.__version__,
                "machine": platform.machine(),
            },
        }
    hand_in(report, REPORT, options)


def distilled(target: Bundle, run: Path, amount: Amount) -> Bundle:
    """Return a draft model trained by the recipe on fewer examples."""
    os.environ["OPENAFM_HOME"] = str(run / "home")
    config = draft_run(target)
    corpora = tuple(replace(corpus, num_examples=amount.examples) for corpus in map(with_tasks, config.corpora))
    trainer = replace(config.trainer, budget=StepBudget(num_steps=amount.steps), evaluation=None)
    return open_bundle(run_recipe(replace(config, corpora=corpora, trainer=trainer), run, "draft").bundle)


def with_tasks(corpus: CorpusConfig) -> Any:
    """Return the corpus restricted to the tasks that this benchmark evaluates, if it has tasks."""
    if not isinstance(corpus, SyntheticCorpusConfig):
        return corpus
    return replace(corpus, synthetic=replace(corpus.synthetic, tasks=TASKS))


def measured(target: Bundle, draft: Bundle, amount: Amount) -> dict[str, Any]:
    answerer, engine = Answerer(target), open_engine(draft)
    drafter, timed = Drafter(engine, length=DraftLengthConfig(cost=0.2)), Drafter(engine)
    tiny = TinyModels(target.tokenizer)
    tiny_equal = [random_case(tiny, case) for case in range(amount.tiny_cases)]
    asked, asked_calls = held_out(amount.answers), held_out_calls(amount.calls)
    answers = compared(answerer, drafter, asked, must_call=False)
    calls = compared(answerer, drafter, asked_calls, must_call=True)
    by_the_clock = compared(answerer, timed, asked + asked_calls, must_call=False)
    tests = law_p_values(tiny, amount.samples)
    equal = tiny_equal + answers.equal + calls.equal + by_the_clock.equal
    return {
        "greedy_identical": sum(equal) / len(equal),
        "cases": len(equal),
        "chi_square_p": min(1.0, min(tests) * len(tests)),
        "chi_square_tests": len(tests),
        **answers.figures(""),
        **calls.figures("_tool_calls"),
        **by_the_clock.figures("_by_the_clock"),
    }


def held_out(count: int) -> list[Question]:
    """Held-out questions, equally many of each task."""
    asked = []
    for task in TASKS:
        conversations = generate(SyntheticConfig(tasks={task: 1.0}, split="held_out"), count)
        asked += [q for conversation in conversations for q in questions(conversation)][: max(1, count // len(TASKS))]
    return asked


def held_out_calls(count: int) -> list[Question]:
    conversations = generate(SyntheticConfig(tasks={"arithmetic": 0.5, "tool": 0.5}, split="held_out"), 20 * count)
    return [q for conversation in conversations for q in questions(conversation) if q.is_call][:count]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The same questions answered with and without a draft model; CPU seconds of both."""

    drafted: list[DraftedAnswer]
    plain: list[DraftedAnswer]
    plain_s: float
    drafted_s: float

    @property
    def equal(self) -> list[bool]:
        return [drafted.tokens == plain.tokens for drafted, plain in zip(self.drafted, self.plain, strict=True)]

    def figures(self, suffix: str) -> dict[str, Any]:
        report, plain = (draft_report([answer.summary for answer in answers]) for answers in (self.drafted, self.plain))
        return {
            f"target_passes_per_token{suffix}": round(report.target_passes_per_token, 4),
            f"plain_passes_per_token{suffix}": round(plain.target_passes_per_token, 4),
            f"fewer_passes{suffix}": round(plain.target_passes_per_token / report.target_passes_per_token, 3),
            f"fewer_passes_than_tokens{suffix}": round(1 / report.target_passes_per_token, 3),
            f"acceptance{suffix}": round(report.acceptance, 4),
            f"tokens{suffix}": report.num_tokens,
            f"cpu_time_ratio{suffix}": round(self.drafted_s / self.plain_s, 3),
        }


def compared(answerer: Answerer, drafter: Drafter, asked: list[Question], *, must_call: bool) -> Comparison:
    answers: dict[bool, list[DraftedAnswer]] = {True: [], False: []}
    seconds = {True: 0.0, False: 0.0}
    for number, question in enumerate(asked):
        for is_drafted in (True, False) if number % 2 else (False, True):
            choice = drafter if is_drafted else None
            started = process_time()
            answers[is_drafted].append(answerer.answer(question, choice, max_tokens=MAX_TOKENS, must_call=must_call))
            seconds[is_drafted] += process_time() - started
    return Comparison(drafted=answers[True], plain=answers[False], plain_s=seconds[False], drafted_s=seconds[True])


if __name__ == "__main__":
    main()
