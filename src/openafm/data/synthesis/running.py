"""Run stages of synthesis over a file of prompts. Every prompt is kept or counted with its reason."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from openafm.core.config import Config
from openafm.core.files import atomic_file
from openafm.core.progress import progress
from openafm.data.synthesis.base import Draft, Dropped, Functions, Stage, SynthesisStageConfig
from openafm.data.synthesis.verification import with_response
from openafm.tokenizer.conversation import Conversation, ConversationError, ToolTurn, UserTurn

_ERROR = "/error"


@dataclass(frozen=True, kw_only=True)
class SynthesisConfig(Config):
    """Stages in order. `num_requests` prompts are processed at once; at most `keep` responses of each are written."""

    stages: tuple[SynthesisStageConfig, ...]
    num_requests: int = 4
    keep: int = 1

    def __post_init__(self) -> None:
        self.require(bool(self.stages), "stages must not be empty")
        self.require(self.num_requests > 0 and self.keep > 0, "num_requests and keep must be at least 1")


@dataclass(frozen=True, kw_only=True)
class SynthesisReport:
    """Counts of a run: `num_prompts` is the number of those kept plus all of `dropped`, by "stage/reason".

    `errors` are the first messages of drops with the reason "error", by stage.
    """

    num_prompts: int
    num_kept: int
    num_written: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


def synthesize(config: SynthesisConfig, prompts: Path, out: Path, functions: Functions) -> SynthesisReport:
    """Read prompts from chat JSONL and write the verified conversations, one line for each response that is kept.

    A prompt is a line with `messages` that end with the user, and optionally `truth`, an object. A last turn of the
    assistant is taken as its first response, so that existing data can be verified, too. A stage that raises an error drops
    its prompt with the reason "error".

    Raises:
        ConversationError: a line is not a prompt; the message has its number.
        SynthesisError: a stage needs a function that is missing.
    """
    stages = [stage.build(functions) for stage in config.stages]
    names = [type(stage).__name__.removesuffix("Config") for stage in config.stages]
    counts: Counter[str] = Counter()
    errors: dict[str, str] = {}
    num_prompts = num_kept = num_written = 0
    total = 0
    for number, line in _lines(prompts):
        _draft(prompts, number, line)  # a damaged line is an error before the first request
        total += 1
    with (
        atomic_file(out, "w") as file,
        ThreadPoolExecutor(config.num_requests, thread_name_prefix="openafm-synthesis") as threads,
        progress(f"synthesize {out}", total) as bar,
    ):
        drafts = (_draft(prompts, number, line) for number, line in _lines(prompts))
        while batch := list(islice(drafts, 4 * config.num_requests)):
            for found in threads.map(lambda draft: _applied(draft, stages, names), batch):
                num_prompts += 1
                if isinstance(found, Dropped):
                    counts[found.reason] += 1
                    if found.reason.endswith(_ERROR):
                        errors.setdefault(found.reason.removesuffix(_ERROR), found.detail)
                    continue
                num_kept += 1
                for response in dict.fromkeys(found.responses[: config.keep]):
                    file.write(json.dumps(with_response(found, response).to_dict(), ensure_ascii=False) + "\n")
                    num_written += 1
            bar.update(num_prompts, f"{num_kept:,} kept")
    return SynthesisReport(
        num_prompts=num_prompts, num_kept=num_kept, num_written=num_written, dropped=dict(counts), errors=errors
    )


def _applied(draft: Draft, stages: list[Stage], names: list[str]) -> Draft | Dropped:
    """Return the draft after all stages, or the stage and the reason of its drop as one reason."""
    for name, stage in zip(names, stages, strict=True):
        try:
            found = stage.apply(draft)
            if isinstance(found, Draft):
                json.dumps([found.prompt.to_dict(), *found.responses], ensure_ascii=False).encode()  # as it is written
        except Exception as error:  # models and sandboxes fail in many ways; each costs one prompt and is counted
            return Dropped(reason=f"{name}{_ERROR}", detail=f"{type(error).__name__}: {error}")
        if isinstance(found, Dropped):
            return Dropped(reason=f"{name}/{found.reason}", detail=found.detail)
        draft = found
    return draft


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8") as file:
        yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())


def _draft(path: Path, number: int, line: str) -> Draft:
    try:
        values: Any = json.loads(line)
        if not isinstance(values, dict):
            raise ConversationError(f"expected an object, got {line[:100]!r}")
        truth = values.pop("truth", {})
        conversation = Conversation.from_dict(values)
        json.dumps(values, ensure_ascii=False).encode()  # half of a surrogate pair has no UTF-8 form
    except (ValueError, RecursionError, ConversationError) as error:
        raise ConversationError(f"{path}:{number}: {error}") from error
    if not isinstance(truth, dict):
        raise ConversationError(f"{path}:{number}: 'truth' is an object, got {truth!r:.100}")
    *before, last = conversation.turns
    if isinstance(last, UserTurn | ToolTurn):
        return Draft(prompt=conversation, truth=truth)
    if not before or not isinstance(before[-1], UserTurn | ToolTurn):
        raise ConversationError(f"{path}:{number}: the prompt ends with a turn of the user or of a tool")
    prompt = Conversation(
        turns=tuple(before), task=conversation.task, language=conversation.language, extra=conversation.extra
    )
    return Draft(prompt=prompt, truth=truth, responses=(last.text,))
