"""Items per CPU second of openafm's harness and of lm-evaluation-harness with transformers: same model, prompts and CPU.

The model has the shape of a small Qwen3 and random weights in float32. Two tables: `choice`, MMLU with five examples, four
likelihoods an item; `generation`, MBPP with three examples, up to 32 tokens an item. Scores must be equal for `choice`.
Ours runs on the native engine (OPENAFM_ENGINE=native).

    python benchmarks/harness_throughput.py [--data ../shared/data/evaluation] [--quick] [--json]

A full run writes docs/benchmarks/harness_throughput.json. `ratio` is the geometric mean of both tables' ratios.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from harness.peer_tasks import peer_scores, peer_task, rows, write_rows
from harness.random_qwen import save_random_qwen
from shared.reporting import benchmark_parser, hand_in

import openafm as fm
from openafm.bundle.hugging_face import import_hugging_face
from openafm.evaluation.harness.answerer import ModelAnswerer
from openafm.evaluation.harness.cache import OutputCache
from openafm.evaluation.harness.runner import RunOptions, run_tasks
from openafm.evaluation.harness.task import Item, Output, Prompt, Verdict
from openafm.evaluation.tasks.choices import MMLULikelihoodConfig
from openafm.evaluation.tasks.code import MBPPCompletionConfig, mbpp_prompt, read_mbpp

DATA = Path(__file__).parents[2] / "shared" / "data" / "evaluation"
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "harness_throughput.json"
SUBJECT = "professional_medicine"
MAX_TOKENS = 32


class GenerationOnlyConfig(MBPPCompletionConfig):
    """MBPP's prompts without running the code."""

    def check(self) -> None:
        """Need no sandbox."""

    def judge(self, item: Item, output: Output) -> Verdict:
        return Verdict(scores={"pass@1": 0.0}, extraction=output.text)


def main() -> None:
    parser = benchmark_parser(__doc__, "fewer items and a smaller model")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the evaluation sets")
    options = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        report = measure(options.data, quick=options.quick)
    hand_in(report, REPORT, options)


def measure(data: Path, *, quick: bool) -> dict[str, Any]:
    """Time both harnesses on both tables, after one item each that loads everything."""
    import torch

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    os.environ["OPENAFM_THREADS"] = "1"
    os.environ["OPENAFM_ENGINE"] = "native"  # models in full precision run on torch otherwise
    num_choices, num_generations = (24, 8) if quick else (100, 40)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_random_qwen(folder / "qwen", data, dim=128 if quick else 256, layers=4 if quick else 8)
        model = import_hugging_face(folder / "qwen", folder / "bundle").bundle.path
        answerer = ModelAnswerer(fm.SystemLanguageModel(bundle=model))
        peer_model = transformers_model(folder / "qwen")
        figures = {
            "choice": choice(data, folder, answerer, peer_model, num_choices),
            "generation": generation(data, folder, answerer, peer_model, num_generations),
        }
    ratio = math.exp(sum(math.log(each["ratio"]) for each in figures.values()) / len(figures))
    return {"ratio": round(ratio, 2), "threads": 1, "figures": figures}


def transformers_model(folder: Path) -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=8, backend="causal", max_length=4096)


def choice(data: Path, folder: Path, answerer: ModelAnswerer, peer_model: Any, count: int) -> dict[str, Any]:
    files = {}
    for split in ("dev", "test"):
        found = rows(next((data / "mmlu").glob(f"{split}.jsonl*")))
        values = [row for row in found if row["subject"] == SUBJECT][: count + 1 if split == "test" else None]
        write_rows(folder / f"{split}.jsonl", values)
        numbered = [row | {"answer": "ABCD".index(row["answer"])} for row in values]
        files[split] = write_rows(folder / f"peer_{split}.jsonl", numbered)
    task = peer_task(f"mmlu/default/mmlu_{SUBJECT}.yaml", files, num_fewshot=5)
    ours, own = timed_own(answerer, MMLULikelihoodConfig(), folder, folder, count)
    theirs, peers = timed_peer(peer_model, task, count)
    return {
        "items": count,
        "openafm_items_per_s": round(count / ours, 3),
        "lm_eval_items_per_s": round(count / theirs, 3),
        "ratio": theirs / ours,
        "scores": [own.score.mean, peers[f"mmlu_{SUBJECT}"]["acc,none"]],
    }


def generation(data: Path, folder: Path, answerer: ModelAnswerer, peer_model: Any, count: int) -> dict[str, Any]:
    known = {row.id: row for row in read_mbpp(data)}
    prefix = "".join(f"{mbpp_prompt(known[id])}{known[id].code}\n[DONE]\n\n" for id in (2, 3, 4))
    prompts = [{"prompt": prefix + mbpp_prompt(known[id]), "answer": ""} for id in range(11, 11 + count + 1)]
    file = write_rows(folder / "mbpp_prompts.jsonl", prompts)
    config: dict[str, Any] = {
        "task": "mbpp_prompts",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["[DONE]"], "do_sample": False, "max_gen_toks": MAX_TOKENS},
        "num_fewshot": 0,
        "fewshot_config": None,
    }
    task = peer_task("gsm8k/gsm8k.yaml", {"test": file}, training_split=None, fewshot_split=None, **config)
    ours, _ = timed_own(answerer, GenerationOnlyConfig(max_tokens=MAX_TOKENS), data, folder, count)
    theirs, _ = timed_peer(peer_model, task, count)
    return {
        "items": count,
        "openafm_items_per_s": round(count / ours, 3),
        "lm_eval_items_per_s": round(count / theirs, 3),
        "ratio": theirs / ours,
    }


def timed_own(answerer: ModelAnswerer, task: Any, data: Path, folder: Path, count: int) -> tuple[float, Any]:
    answerer.answer(Prompt(kind="completion", text="This loads everything.", max_tokens=4), lambda: False)
    cache = OutputCache(folder / f"{type(task).__name__}.sqlite")
    started = time.process_time()
    results = run_tasks(answerer, {"task": task}, data, folder / "out", cache, RunOptions(limit=count))
    seconds = time.process_time() - started
    cache.close()
    return seconds, results["task"]


def timed_peer(model: Any, task: Any, count: int) -> tuple[float, dict[str, Any]]:
    peer_scores(model, [task], 1)
    started = time.process_time()
    results = peer_scores(model, [task], count)
    return time.process_time() - started, results


if __name__ == "__main__":
    main()
