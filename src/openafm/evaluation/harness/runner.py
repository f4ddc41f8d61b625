"""Runs tasks: items in parallel threads, whose steps the model's scheduler combines; every sample stored.

A run that is killed continues: finished outputs are in the cache, and the files of a task are written when it is complete.
"""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from openafm import __version__
from openafm.core.config import to_dict
from openafm.core.files import atomic_file, write_json
from openafm.evaluation.harness.answerer import ANSWERED_WITH_FAILURE, Answerer, failure
from openafm.evaluation.harness.cache import OutputCache
from openafm.evaluation.harness.results import RESULTS, SAMPLES, Sample, TaskResult, task_result
from openafm.evaluation.harness.task import Item, Output, Prompt, TaskConfig, TaskDataError

NUM_THREADS = 16
"""Requests at once. A local engine combines their steps; an endpoint receives as many."""

OnItem = Callable[[str, int, int], None]
"""Called with the task, the number of its items that are done, and of all its items."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a run computes.

    Attributes:
        limit: the number of items of each language of a task; None for all.
        languages: languages to keep; empty for all.
        threads: the number of requests at once.
    """

    limit: int | None = None
    languages: tuple[str, ...] = ()
    threads: int = NUM_THREADS


def run_tasks(
    answerer: Answerer,
    tasks: Mapping[str, TaskConfig],
    data: Path,
    out: Path,
    cache: OutputCache,
    options: RunOptions | None = None,
    on_item: OnItem = lambda *_: None,
) -> dict[str, TaskResult]:
    """Run tasks and write `results.json` and `samples/TASK.jsonl` below `out`.

    Raises:
        TaskDataError: data of a task are missing. Checked for all tasks before the first request.
        OpenAFMError: the model cannot answer, or this machine cannot score a task.
    """
    options = options or RunOptions()
    chosen = {}
    for name, task in tasks.items():
        task.check()
        chosen[name] = selected(name, task.items(data), options)
    results: dict[str, TaskResult] = {}
    for name, task in tasks.items():
        samples = _run(name, task, chosen[name], answerer, cache, options.threads, on_item)
        _write_samples(out / SAMPLES / f"{file_name(name)}.jsonl", samples)
        results[name] = task_result(name, task.METRIC, samples)
        _write_results(out, answerer, tasks, results, options)
    return results


def selected(name: str, items: Iterable[Item], options: RunOptions) -> list[Item]:
    """Return the items of a run: the first of each language.

    Raises:
        TaskDataError: no item is left, or two items have one id.
    """
    counts: dict[str, int] = {}
    kept: list[Item] = []
    for item in items:
        if options.languages and item.language not in options.languages:
            continue
        counts[item.language] = counts.get(item.language, 0) + 1
        if options.limit is None or counts[item.language] <= options.limit:
            kept.append(item)
    if not kept:
        wanted = f" in {', '.join(options.languages)}" if options.languages else ""
        raise TaskDataError(f"the task '{name}' has no items{wanted}; check its data and --languages")
    if len({item.id for item in kept}) < len(kept):
        raise TaskDataError(f"the task '{name}' has two items with one id; ids must differ")
    return kept


def file_name(task: str) -> str:
    """Return the name of a task's files: `mmlu:lm_eval` becomes `mmlu.lm_eval`."""
    return task.replace(":", ".").replace("/", ".")


def _run(
    name: str, task: TaskConfig, items: Sequence[Item], answerer: Answerer, cache: OutputCache, threads: int, on_item: OnItem
) -> list[Sample]:
    stopped, lock, done = threading.Event(), threading.Lock(), [0]

    def one(item: Item) -> Sample:
        if stopped.is_set():
            raise InterruptedError
        output, was_cached = _answered(answerer, item.prompt, cache, stopped.is_set)
        verdict = task.failed(item, output) if output.error else task.judge(item, output)
        with lock:
            done[0] += 1
            on_item(name, done[0], len(items))
        return Sample.of(item, output, verdict, was_cached=was_cached)

    with ThreadPoolExecutor(max(1, threads), thread_name_prefix="openafm-evaluate") as pool:
        futures = [pool.submit(one, item) for item in items]
        try:
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()
        finally:  # after an error or Ctrl-C: the other threads end at their next token
            stopped.set()
            for future in futures:
                future.cancel()
    return [future.result() for future in futures]


def _answered(answerer: Answerer, prompt: Prompt, cache: OutputCache, cancelled: Callable[[], bool]) -> tuple[Output, bool]:
    known = cache.get(answerer.signature, prompt)
    if known is not None:
        return known, True
    try:
        output = answerer.answer(prompt, cancelled)
    except ANSWERED_WITH_FAILURE as error:
        output = failure(error)
    output = output.encodable()
    cache.put(answerer.signature, prompt, output)
    return output, False


def _write_samples(path: Path, samples: Sequence[Sample]) -> None:
    with atomic_file(path, "w") as file:
        for sample in samples:
            file.write(json.dumps(sample.to_dict(), ensure_ascii=False) + "\n")


def _write_results(
    out: Path,
    answerer: Answerer,
    tasks: Mapping[str, TaskConfig],
    results: Mapping[str, TaskResult],
    options: RunOptions,
) -> None:
    write_json(
        out / RESULTS,
        {
            "model": answerer.name,
            "signature": answerer.signature,
            "bits_per_weight": answerer.bits_per_weight,
            "openafm": __version__,
            "python": platform.python_version(),
            "limit": options.limit,
            "languages": list(options.languages),
            "tasks": {
                name: result.to_dict() | {"config": {"type": type(tasks[name]).__name__, **to_dict(tasks[name])}}
                for name, result in results.items()
            },
        },
    )
