"""Answers of two runs to the same prompts."""

from __future__ import annotations

from openafm.evaluation.harness.results import Run, RunFolderError


def answer_pairs(a: Run, b: Run, task: str) -> list[tuple[str, str, str, str, str, str]]:
    """Return (id, language, group, prompt, answer of a, answer of b) for the items of a task that both runs have.

    An answer that failed is empty. Items where both failed are left out.

    Raises:
        RunFolderError: a run lacks the task, or they have no item in common.
    """
    for run in (a, b):
        if task not in run.tasks:
            raise RunFolderError(f"{run.path} has no task '{task}', it has {', '.join(run.tasks)}; choose one with --task")
    others = {sample.id: sample for sample in b.samples(task)}
    pairs = []
    for sample in a.samples(task):
        other = others.get(sample.id)
        if other is not None and other.prompt == sample.prompt and (sample.output.text or other.output.text):
            texts = (str(sample.prompt["text"]), sample.output.text, other.output.text)
            pairs.append((sample.id, sample.language, sample.group, *texts))
    if not pairs:
        raise RunFolderError(f"{a.path} and {b.path} have no answers to the same prompts of '{task}'")
    return pairs
