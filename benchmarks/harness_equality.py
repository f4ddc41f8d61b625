"""Scores of openafm's harness and of lm-evaluation-harness on the same data and the same scripted answers.

The answers are functions of the prompt, so that equal scores need equal prompts, examples, extraction and aggregation.

    python benchmarks/harness_equality.py [--data ../shared/data/evaluation] [--quick] [--json]

A full run writes docs/benchmarks/harness_equality.json. `--quick` compares 100 items of each task. `largest_difference` is
over all metrics of GSM8K, MGSM, MMLU and IFEval.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from harness.ifeval_peer import peer
from harness.peer_tasks import peer_scores, peer_task, rows, scripted_likelihood, scripted_model, until, write_rows
from shared.reporting import benchmark_parser, hand_in

from openafm.evaluation.harness.answerer import RecordedAnswerer
from openafm.evaluation.harness.cache import OutputCache
from openafm.evaluation.harness.runner import RunOptions, run_tasks
from openafm.evaluation.harness.task import Output, Prompt
from openafm.evaluation.tasks.catalog import find_task
from openafm.evaluation.tasks.numbers import LANGUAGES

DATA = Path(__file__).parents[2] / "shared" / "data" / "evaluation"
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "harness_equality.json"
SUBJECTS = ("anatomy", "world_religions", "college_physics")


def main() -> None:
    parser = benchmark_parser(__doc__, "100 items of each task")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the evaluation sets")
    options = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        report = measure(options.data, 100 if options.quick else None)
    hand_in(report, REPORT, options)


def measure(data: Path, limit: int | None) -> dict[str, Any]:
    """Scores of both harnesses by task and metric, and their largest difference."""
    logging.disable(logging.WARNING)
    answers = gold_answers(data)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cut_mmlu(data, folder)
        tasks = [*gsm8k_tasks(data), *mgsm_tasks(data, folder), *mmlu_tasks(folder), *ifeval_tasks(data, folder)]
        theirs = peer_scores(scripted_model(lambda prompt: scripted(prompt, answers)), tasks, limit)
        ours = own_scores(data, folder, answers, limit)
    figures: dict[str, Any] = {}
    for task, metrics in ours.items():
        for metric, score in metrics.items():
            key = metric if "," in metric else f"{metric},none"
            figures[f"{task} {metric}"] = {"openafm": score, "lm_eval": float(theirs[task][key])}
    differences = [abs(each["openafm"] - each["lm_eval"]) for each in figures.values()]
    return {"largest_difference": max(differences), "scores_compared": len(figures), "figures": figures}


def own_scores(data: Path, folder: Path, answers: dict[str, str], limit: int | None) -> dict[str, dict[str, float]]:
    """Scores of openafm's harness under lm-evaluation-harness's names of tasks."""

    def answer(prompt: Prompt) -> Output:
        if prompt.kind == "choice":
            return Output(log_likelihoods=tuple(scripted_likelihood(prompt.text, each) for each in prompt.continuations))
        return Output(text=until(scripted(prompt.text, answers), prompt.stop))

    scores: dict[str, dict[str, float]] = {}
    answerer, cache = RecordedAnswerer(answer), OutputCache(folder / "outputs.sqlite")
    own = {"gsm8k:lm_eval": data, "mgsm:lm_eval": data, "ifeval": data, "mmlu:lm_eval": folder}
    for name, source in own.items():
        tasks = {name: find_task(name)}
        options = RunOptions(limit=None if name.startswith("mmlu") else limit, threads=1)
        result = run_tasks(answerer, tasks, source, folder / "out", cache, options)[name]
        if name == "mgsm:lm_eval":
            samples = own_samples(folder / "out", name)
            for language in LANGUAGES:
                of_language = [each for each in samples if each["language"] == language]
                scores[f"mgsm_direct_{language}"] = {
                    metric: sum(each["scores"][metric] for each in of_language) / len(of_language)
                    for metric in of_language[0]["scores"]
                }
        elif name == "mmlu:lm_eval":
            samples = own_samples(folder / "out", name)
            for subject in SUBJECTS:
                values = [each["scores"]["acc"] for each in samples if each["group"] == subject][:limit]
                scores[f"mmlu_{subject}"] = {"acc": sum(values) / len(values)}
        else:
            scores[name.partition(":")[0]] = {metric: score.mean for metric, score in result.metrics.items()}
    cache.close()
    return scores


def own_samples(out: Path, name: str) -> list[dict[str, Any]]:
    return rows(out / "samples" / f"{name.replace(':', '.')}.jsonl")


def scripted(prompt: str, answers: dict[str, str]) -> str:
    """An answer that is a function of the prompt: the right one, a wrong one or another form of it."""
    choice = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4])
    asked = (re.split(r"[:：] ?", line, maxsplit=1)[-1] for line in reversed(prompt.split("\n")))
    gold = next((answers[question] for question in asked if question in answers), str(choice % 90))
    forms = (
        f" Steps.\n#### {gold}",
        f" {gold}",
        f" It is {int(gold.replace(',', '')) + 1}.",
        f" The answer is ${gold}.00, since 3 + 4 = 7 and so on",
        " I do not know",
        f" {gold}\n\nQuestion: next",
        f'<<Title>>\n"{prompt[:80]}"\n\n* one\n* two\n\nP.S. {gold}',
        prompt.lower().replace(",", ""),
    )
    return forms[choice % len(forms)]


def gold_answers(data: Path) -> dict[str, str]:
    """Numbers of the questions of GSM8K and MGSM."""
    found = {row["question"]: row["answer"].rpartition("#### ")[2] for row in rows(data / "gsm8k" / "test.jsonl")}
    for language in LANGUAGES:
        found |= dict(tsv(data / "mgsm" / f"mgsm_{language}.tsv"))
    return found


def tsv(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line:
            question, _, answer = line.partition("\t")
            yield question, answer.strip()


def gsm8k_tasks(data: Path) -> list[Any]:
    files = {split: next((data / "gsm8k").glob(f"{split}.jsonl*")) for split in ("train", "test")}
    return [peer_task("gsm8k/gsm8k.yaml", files)]


def mgsm_tasks(data: Path, folder: Path) -> list[Any]:
    tasks = []
    for language in LANGUAGES:
        values = [
            {"question": question, "answer": None, "answer_number": int(answer.replace(",", ""))}
            for question, answer in tsv(data / "mgsm" / f"mgsm_{language}.tsv")
        ]
        path = write_rows(folder / f"mgsm_{language}.jsonl", values)
        tasks.append(peer_task(f"mgsm/direct/mgsm_direct_{language}.yaml", {"test": path, "train": path}))
    return tasks


def mmlu_tasks(folder: Path) -> list[Any]:
    tasks = []
    for subject in SUBJECTS:
        files = {}
        for split in ("dev", "test"):
            values = [row | {"answer": "ABCD".index(row["answer"])} for row in rows(folder / f"{split}.jsonl")]
            of_subject = [row for row in values if row["subject"] == subject]
            files[split] = write_rows(folder / f"mmlu_{subject}_{split}.jsonl", of_subject)
        tasks.append(peer_task(f"mmlu/default/mmlu_{subject}.yaml", files, num_fewshot=5))
    return tasks


def cut_mmlu(data: Path, folder: Path) -> None:
    """Write the rows of the compared subjects."""
    for split in ("dev", "test"):
        found = rows(next((data / "mmlu").glob(f"{split}.jsonl*")))
        write_rows(folder / f"{split}.jsonl", [row for row in found if row["subject"] in SUBJECTS])


def ifeval_tasks(data: Path, folder: Path) -> list[Any]:
    peer()
    values = rows(data / "ifeval" / "input_data.jsonl")
    names = sorted({key for row in values for each in row["kwargs"] for key in each})
    # One set of columns for all rows: the loader infers a table, and its checkers drop what is null.
    table = [row | {"kwargs": [{name: each.get(name) for name in names} for each in row["kwargs"]]} for row in values]
    return [peer_task("ifeval/ifeval.yaml", {"train": write_rows(folder / "ifeval.jsonl", table)})]


if __name__ == "__main__":
    main()
