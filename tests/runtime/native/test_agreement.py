"""The native engine chooses what torch's does, on the shipped model. For 1,000 prompts: benchmarks/native/agreement.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from native_bundles import compressed_bundle
from numpy.typing import NDArray
from tiny_engines import random_tokens

from openafm.bundle import open_bundle, shipped_bundle
from openafm.runtime.agreement import agreement
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.torch_engine import TorchEngine
from openafm.tokenizer.conversation import AssistantTurn, Instructions, UserTurn

LARGEST_MARGIN = 0.25  # of two candidates that may be taken for one another, in logits
TEXTS = (
    ("What is the capital of Norway?", "The capital of Norway is Oslo."),
    ("Write a short note to Ann about lunch on Friday at noon.", "Hi Ann, shall we have lunch on Friday at noon?"),
    ("Fasse zusammen: Der Zug nach Bern hat heute zehn Minuten Verspätung.", "Der Zug nach Bern kommt zehn Minuten später."),
)


def test_it_chooses_as_torch_does_on_the_shipped_model() -> None:
    torch.set_num_threads(1)
    path = shipped_bundle()
    assert path is not None
    bundle = open_bundle(path)
    sequences = [
        bundle.template.encode(
            bundle.tokenizer, (Instructions(text="Be brief."), UserTurn(text=asked), AssistantTurn(text=answered))
        ).tokens
        for asked, answered in TEXTS
    ]
    found = agreement(TorchEngine.open(bundle), NativeEngine(bundle, num_threads=1), sequences)
    assert found.num_positions > 80
    assert found.share > 0.97  # of so few
    assert found.largest_margin < LARGEST_MARGIN


def test_choices_that_differ_are_counted_with_their_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (NativeEngine(compressed_bundle(), num_threads=1) for _ in range(2))
    texts = [random_tokens(40, seed) for seed in range(3)]
    same = agreement(one, other, texts)
    assert (same.num_sequences, same.num_identical, same.num_positions, same.share) == (3, 3, 120, 1.0)
    assert same.largest_margin == 0
    forward = NativeEngine._forward

    def swapped(engine: NativeEngine, *arguments: object) -> list[NDArray[np.float32]]:
        """The best two of the second engine's, at the first position of a step, changed for each other."""
        outputs = forward(engine, *arguments)
        if engine is other:
            second, first = outputs[0][0].argsort()[-2:]
            outputs[0][0, [first, second]] = outputs[0][0, [second, first]]
        return outputs

    monkeypatch.setattr(NativeEngine, "_forward", swapped)
    found = agreement(one, other, texts)
    assert (found.num_identical, found.num_positions - found.num_equal) == (0, 6)  # steps take 32 tokens
    assert len(found.margins) == 6
    assert min(found.margins) > 0
