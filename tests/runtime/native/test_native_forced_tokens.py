"""Forced tokens take one step of the native engine, with and without drafts."""

from __future__ import annotations

import atexit
import functools
import itertools
import shutil
import tempfile
from collections.abc import Sequence as List
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_bundles import CONFIG, write_compressed
from numpy.typing import NDArray
from tiny_tokenizer import TOKENIZER

from openafm.bundle import Bundle
from openafm.runtime.batching.pending import Pending
from openafm.runtime.decoding.draft_length import DraftLengthConfig
from openafm.runtime.decoding.generation import TokenEvent, generate
from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.runtime.decoding.sampling import RandomConfig
from openafm.runtime.decoding.speculation import Drafter
from openafm.runtime.engines.base import LogitsOf, StepInput
from openafm.runtime.native.engine import NativeEngine
from openafm.tokenizer.conversation import ToolDefinition
from openafm.tokenizer.tool_calls import tool_calls_schema

COMPILER = GrammarCompiler(TOKENIZER)
PROMPT = TOKENIZER.encode("noon")


@functools.cache
def bundle() -> Bundle:
    """Return an engine whose context window fits a long call."""
    folder = Path(tempfile.mkdtemp(prefix="openafm-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_compressed(folder / "long", config=replace(CONFIG, context_length=512))


class Counting(NativeEngine):
    """Records the rows of each step."""

    def __init__(self) -> None:
        super().__init__(bundle(), num_threads=1)
        self.rows: list[int] = []

    def step(self, batch: List[StepInput], logits: LogitsOf = "last") -> list[NDArray[np.float32]]:
        self.rows.append(sum(len(each[1]) for each in batch))
        return super().step(batch, logits)

    def begin(self, batch: List[StepInput], logits: LogitsOf = "last") -> Pending:
        self.rows.append(sum(len(each[1]) for each in batch))
        return super().begin(batch, logits)


def call(note: str) -> list[ToolDefinition]:
    properties = {"when": {"enum": ["a", "b"]}, "note": {"const": note}, "where": {"enum": ["x", "y"]}}
    parameters = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return [ToolDefinition(name="remind", description="Reminds.", parameters=parameters)]


def answered(note: str, drafter: Drafter | None, seed: int) -> tuple[list[TokenEvent], list[int]]:
    """Return the tokens of a tool call and the rows of its steps."""
    engine = Counting()
    schema: dict[str, Any] = tool_calls_schema(call(note)) | {"minItems": 1, "maxItems": 2}
    grammar = COMPILER.json_schema(schema)
    generation = generate(
        engine,
        engine.new_sequence(),
        PROMPT,
        sampling=RandomConfig(seed=seed),
        stop_tokens=(),
        grammar=grammar,
        drafter=drafter,
    )
    events = list(generation)
    assert generation.summary.num_target_steps == len(engine.rows)
    return events, engine.rows


def runs(events: list[TokenEvent]) -> list[int]:
    """Return the lengths of the forced start and of every choice with the tokens forced after it."""
    starts = [0, *(i for i, event in enumerate(events) if not event.is_forced), len(events)]
    return [b - a for a, b in itertools.pairwise(starts)]


@pytest.mark.parametrize("note", ["at", "the meeting of all of us starts at noon, bring " + "z" * 9])
@pytest.mark.parametrize("seed", range(3))
def test_each_choice_takes_one_step_with_the_tokens_forced_after_it(note: str, seed: int) -> None:
    events, rows = answered(note, None, seed)
    first, *lengths = runs(events)
    assert rows == [len(PROMPT) + first, *lengths]
    assert max(lengths) > len(note) // 3


@pytest.mark.parametrize("seed", range(3))
def test_a_long_forced_run_after_drafts_takes_at_most_one_more_step(seed: int) -> None:
    """All drafts are accepted. A step verifies at most 32 rows; a run that exceeds them needs another step."""
    drafter = Drafter(NativeEngine(bundle(), num_threads=1), num_tokens=8, length=DraftLengthConfig(cost=0.2))
    for note in ("at", "zq" * 6, "zq" * 20):
        plain_events, plain_rows = answered(note, None, seed)
        events, rows = answered(note, drafter, seed)
        assert events == plain_events
        lengths = np.array(runs(events)[1:])
        assert sum(rows) == sum(plain_rows)  # no rejected token was computed
        assert len(rows) <= 2 + -(-lengths.sum() // 16)
        assert len(rows) < len(plain_rows)
