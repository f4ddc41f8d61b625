"""What the grammar forces goes through the native engine in one step, with and without drafts before it."""

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
from openafm.runtime.engines.base import LogitsOf, Sequence
from openafm.runtime.native.engine import NativeEngine
from openafm.tokenizer.conversation import ToolDefinition
from openafm.tokenizer.tool_calls import tool_calls_schema

COMPILER = GrammarCompiler(TOKENIZER)
PROMPT = TOKENIZER.encode("noon")


@functools.cache
def bundle() -> Bundle:
    """One whose window holds a long call."""
    folder = Path(tempfile.mkdtemp(prefix="openafm-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_compressed(folder / "long", config=replace(CONFIG, context_length=512))


class Counting(NativeEngine):
    """Notes how many rows each step has."""

    def __init__(self) -> None:
        super().__init__(bundle(), num_threads=1)
        self.rows: list[int] = []

    def step(self, batch: List[tuple[Sequence, List[int]]], logits: LogitsOf = "last") -> list[NDArray[np.float32]]:
        self.rows.append(sum(len(tokens) for _, tokens in batch))
        return super().step(batch, logits)

    def begin(self, batch: List[tuple[Sequence, List[int]]], logits: LogitsOf = "last") -> Pending:
        self.rows.append(sum(len(tokens) for _, tokens in batch))
        return super().begin(batch, logits)


def call(note: str) -> list[ToolDefinition]:
    properties = {"when": {"enum": ["a", "b"]}, "note": {"const": note}, "where": {"enum": ["x", "y"]}}
    parameters = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return [ToolDefinition(name="remind", description="Reminds.", parameters=parameters)]


def answered(note: str, drafter: Drafter | None, seed: int) -> tuple[list[TokenEvent], list[int]]:
    """The tokens of calls of one tool, and the rows of the steps they took."""
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
    """Lengths: what is forced at the start, then every choice with what is forced after it."""
    starts = [0, *(i for i, event in enumerate(events) if not event.is_forced), len(events)]
    return [b - a for a, b in itertools.pairwise(starts)]


@pytest.mark.parametrize("note", ["at", "the meeting of all of us starts at noon, bring " + "z" * 9])
@pytest.mark.parametrize("seed", range(3))
def test_without_drafts_each_choice_takes_one_step_however_much_is_forced_after_it(note: str, seed: int) -> None:
    events, rows = answered(note, None, seed)
    first, *lengths = runs(events)
    assert rows == [len(PROMPT) + first, *lengths]
    assert max(lengths) > len(note) // 3


@pytest.mark.parametrize("seed", range(3))
def test_a_long_run_behind_drafts_goes_with_them_or_in_one_step_more(seed: int) -> None:
    """Drafts that are all right. A step verifies 32 rows at the most; a run that is cut there needs one more."""
    drafter = Drafter(NativeEngine(bundle(), num_threads=1), num_tokens=8, length=DraftLengthConfig(cost=0.2))
    for note in ("at", "zq" * 6, "zq" * 20):
        plain_events, plain_rows = answered(note, None, seed)
        events, rows = answered(note, drafter, seed)
        assert events == plain_events
        lengths = np.array(runs(events)[1:])
        assert sum(rows) == sum(plain_rows)  # nothing was computed that did not come
        assert len(rows) <= 2 + -(-lengths.sum() // 16)
        assert len(rows) < len(plain_rows)
