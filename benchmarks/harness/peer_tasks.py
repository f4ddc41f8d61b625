"""lm-evaluation-harness on local data: its own task files with the data set path replaced, and a scripted model."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

Answer = Callable[[str], str]


def scripted_model(answer: Answer) -> Any:
    """Return a model of lm-evaluation-harness whose answers and likelihoods are functions of the prompt."""
    from lm_eval.api.model import LM

    class Scripted(LM):
        def loglikelihood(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
            return [(scripted_likelihood(*request.args), False) for request in requests]

        def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
            raise NotImplementedError

        def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
            return [until(answer(request.args[0]), request.args[1].get("until", [])) for request in requests]

    return Scripted()


def scripted_likelihood(context: str, continuation: str) -> float:
    """Return a likelihood that is a function of the texts alone."""
    return -int.from_bytes(hashlib.sha256(f"{context}\0{continuation}".encode()).digest()[:6]) / 2**45


def until(text: str, stops: Sequence[str]) -> str:
    """Return the text before the first of the stop texts, as models return it."""
    ends = [text.find(stop) for stop in stops if stop and stop in text]
    return text[: min(ends)] if ends else text


def peer_task(file: str, splits: dict[str, Path], **changes: Any) -> Any:
    """Return a task of lm-evaluation-harness from its YAML file, reading local JSON Lines files as splits."""
    import lm_eval
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = dict(load_yaml(Path(lm_eval.__file__).parent / "tasks" / file, resolve_func=True))
    local = {
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(path) for split, path in splits.items()}},
    }
    for name in ("include", "tag", "group"):
        config.pop(name, None)
    return ConfigurableTask(config=config | local | changes)


def peer_scores(model: Any, tasks: list[Any], limit: int | None = None, **options: Any) -> dict[str, dict[str, Any]]:
    """Return lm-evaluation-harness's results by task."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    found = simple_evaluate(
        model=model,
        tasks=tasks,
        limit=limit,
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
        log_samples=False,
        **options,
    )
    return dict(found["results"])


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file, also gzipped."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def write_rows(path: Path, values: Sequence[dict[str, Any]]) -> Path:
    """Write a JSON Lines file."""
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values), encoding="utf-8")
    return path
