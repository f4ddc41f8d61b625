"""One RLOO step against TRL's RLOOTrainer on a CPU: tokens generated and trained per CPU-second.

The same weights (TRL loads our export), prompts, number of samples, answer lengths, temperature and KL divergence. Both
train with AdamW in fp32; TRL's other settings are its defaults. Both generate exactly the same number of tokens: no stop
token ends an answer. Steps of both alternate. Process CPU time, one thread, median of the steps after the first.

    PYTHONPATH=FOLDER_WITH_TRL python benchmarks/rloo_step.py [--quick] [--json]

Needs TRL 1.16: `pip install --target FOLDER trl==1.16.0 datasets`. The exit code without it is 3.
A full run takes minutes and writes docs/benchmarks/rloo_step.json; `--quick` runs one small case and claims nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from shared.policies import write_policy
from shared.reporting import hand_in

from openafm.bundle import Bundle, open_bundle
from openafm.bundle.hugging_face.exporter import export_hugging_face
from openafm.data.loading.batch import Batch
from openafm.rl.batches import step_batch
from openafm.rl.config import replay_data
from openafm.rl.decoding import GroupDecoder, GroupRequest
from openafm.rl.generator import sample_seed, with_reference
from openafm.rl.prompts import RLPrompt
from openafm.rl.trajectories import Group, Score
from openafm.runtime.engines.selection import open_engine
from openafm.tokenizer.conversation import Conversation, UserTurn
from openafm.training.budgets import StepBudget
from openafm.training.config import TrainerConfig
from openafm.training.initialization import fresh_state
from openafm.training.objectives.policy_config import RLOOConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.trainer import Trainer

KL_WEIGHT, GROUP_SIZE, NUM_PROMPTS = 0.05, 4, 4
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "rloo_step.json"


@dataclass(frozen=True, kw_only=True)
class Case:
    """The size of the policy and the tokens of an answer; `num_steps` are timed."""

    dim: int
    num_layers: int
    num_tokens: int
    num_steps: int


CASES = (Case(dim=64, num_layers=2, num_tokens=32, num_steps=40), Case(dim=256, num_layers=8, num_tokens=64, num_steps=8))
QUICK = (Case(dim=64, num_layers=2, num_tokens=16, num_steps=2),)


def reward(text: str) -> float:
    """Return the share of letters."""
    return sum(map(str.isalpha, text)) / max(len(text), 1)


def prompts(count: int) -> list[str]:
    return [f"the cat and the dog {number}" for number in range(count)]


class NoSource:
    """A source without batches: the benchmark passes them to the trainer by itself."""

    digest, max_rows = "", 0

    def batches(self, start_step: int) -> Generator[Batch]:
        yield from ()


class Ours:
    """Our step: sample groups, score, reference, update, new weights to the engine."""

    def __init__(self, bundle: Bundle, case: Case) -> None:
        self._case, self._bundle = case, bundle
        self._engine = open_engine(
            bundle, num_threads=1, full_precision="native"
        )  # as a generator of `RLConfig.engine` "fastest"
        self._reference = open_engine(bundle, num_threads=1, full_precision="native")
        self._decoder = GroupDecoder(
            self._engine, bundle.tokenizer, bundle.template, temperature=1.0, max_tokens=case.num_tokens, max_turns=1
        )
        self._decoder.stop_tokens = frozenset()
        self._objective = RLOOConfig(kl_weight=KL_WEIGHT, num_tokens=bundle.tokenizer.vocab_size)
        config = TrainerConfig(
            model=bundle.config,
            data=replay_data(GROUP_SIZE * NUM_PROMPTS, row_tokens=bundle.config.context_length),
            budget=StepBudget(num_steps=case.num_steps + 1),
            objective=self._objective,
            optimizer=AdamWConfig(learning_rate=1e-6, weight_decay=0.0),
            num_threads=1,
            from_bundle=str(bundle.path),
        )
        self._state = fresh_state(config, "cpu")
        self._trainer = Trainer(config, self._state, NoSource())
        self.losses: list[float] = []

    def step(self) -> None:
        number, seeds = self._state.step, range(GROUP_SIZE)
        requests = [
            GroupRequest(
                number=index,
                prompt=RLPrompt(conversation=Conversation(turns=(UserTurn(text=text),)), kind="words"),
                environments=[None] * GROUP_SIZE,
                seeds=[sample_seed(number, index, seed) for seed in seeds],
            )
            for index, text in enumerate(prompts(NUM_PROMPTS))
        ]
        groups = []
        for group in self._decoder.decode(requests, max_rows=GROUP_SIZE * NUM_PROMPTS):
            trajectories = [replace(each, score=Score(reward=reward(each.sample.text))) for each in group.trajectories()]
            scored = tuple(with_reference(trajectories, self._reference, self._objective))
            groups.append(Group(number=group.request.number, trajectories=scored, tokenizer=""))
        assert all(len(each.tokens_N) == self._case.num_tokens for group in groups for each in group.trajectories)
        row_tokens = self._bundle.config.context_length
        assembled = step_batch(groups, self._objective, group_size=GROUP_SIZE, step=number, lag=0, row_tokens=row_tokens)
        self.losses.append(self._trainer.update(assembled.batch).loss)
        self._engine.update_weights(self._state.parameters, self._state.step)


def train_with_trl(folder: Path, case: Case, work: Path, after_step: Callable[[], None]) -> None:
    """Train with TRL; call `after_step` after each step."""
    import datasets
    import trl
    from transformers import TrainerCallback

    config = trl.RLOOConfig(
        output_dir=str(work),
        per_device_train_batch_size=GROUP_SIZE * NUM_PROMPTS,
        num_generations=GROUP_SIZE,
        max_completion_length=case.num_tokens,
        generation_kwargs={"min_new_tokens": case.num_tokens},
        beta=KL_WEIGHT,
        learning_rate=1e-6,
        max_steps=case.num_steps + 1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    rows = datasets.Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in prompts(NUM_PROMPTS)]})

    class AfterStep(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            after_step()

    def score(completions: list[list[dict[str, str]]], **_: object) -> list[float]:
        return [reward(completion[0]["content"]) for completion in completions]

    trl.RLOOTrainer(model=str(folder), reward_funcs=score, args=config, train_dataset=rows, callbacks=[AfterStep()]).train()


def measure(case: Case) -> dict[str, float]:
    """Return tokens per CPU-second of both, and the ratio."""
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        write_policy(root / "policy", dim=case.dim, num_layers=case.num_layers)
        export_hugging_face(open_bundle(root / "policy"), root / "export")
        ours, times, peer_times = Ours(open_bundle(root / "policy"), case), list[float](), list[float]()
        started = time.process_time()

        def step_of_ours() -> None:
            nonlocal started
            ended = time.process_time()
            peer_times.append(ended - started)
            ours.step()
            started = time.process_time()
            times.append(started - ended)

        train_with_trl(root / "export", case, root / "trl", step_of_ours)
    seconds, peer_seconds = (statistics.median(each[1:]) for each in (times, peer_times))
    tokens = GROUP_SIZE * NUM_PROMPTS * case.num_tokens
    return {
        "seconds": seconds,
        "trl_seconds": peer_seconds,
        "tokens_per_second": tokens / seconds,
        "trl_tokens_per_second": tokens / peer_seconds,
        "ratio": peer_seconds / seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if importlib.util.find_spec("trl") is None or importlib.util.find_spec("datasets") is None:
        print("TRL is not installed: pip install --target FOLDER trl==1.16.0 datasets", file=sys.stderr)
        return 3
    torch.set_num_threads(1)
    cases = QUICK if options.quick else CASES
    with contextlib.redirect_stdout(sys.stderr):  # transformers prints there
        found = {f"{case.dim}x{case.num_layers}, {case.num_tokens} tokens": measure(case) for case in cases}
    ratios = {name: round(values["ratio"], 3) for name, values in found.items()}
    report = {"figures": {"ratio": min(ratios.values())} | ratios, "ratio": min(ratios.values()), "cases": found}
    hand_in(report, REPORT, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
