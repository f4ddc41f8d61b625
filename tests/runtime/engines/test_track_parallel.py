"""A server model on two processes answers like one process; each has its share of weights, keys and values."""

from __future__ import annotations

import json
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tiny_runs import exit_code, in_child

from openafm.bundle import Bundle, write_bundle
from openafm.models.sizes import parallel_track_decoder
from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig, SamplingConfig
from openafm.runtime.engines.kv_cache import TorchCache
from openafm.runtime.engines.selection import open_engine
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

pytestmark = pytest.mark.xdist_group("track_parallel")

TEXT = 'the cat {"name":"Mo","age":3} and the dog sat on the mat, no: the log. '
PROMPT = [5, 9, 2, 40, 11, 7, 33, 8, 21]
NUM_TOKENS = 24
SAMPLERS: dict[str, SamplingConfig] = {
    "greedy": GreedyConfig(),
    "seeded": RandomConfig(temperature=1.2, seed=7),
    "unseeded": RandomConfig(temperature=3.0),
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    torch.set_num_threads(1)
    config = parallel_track_decoder(
        vocab_size=400,
        dim=32,
        num_tracks=4,
        num_layers=4,
        block_depth=2,
        num_heads=2,
        head_dim=8,
        window=6,
        dense_dim=24,
        num_experts=4,
        expert_dim=16,
        context_length=64,
    )
    decoder = config.build(seed=1)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name.endswith(("output.weight", "down", "down.weight")):
                parameter.mul_(30)  # otherwise the most likely token is always the last one
    return write_bundle(
        tmp_path_factory.mktemp("bundles") / "tracks",
        config=config,
        tokenizer=train_tokenizer(TokenizerConfig(vocab_size=340), [TEXT * 30]),
        template=ChatTemplate(),
        tensors={name: tensor.detach().numpy().astype(np.float32) for name, tensor in decoder.state_dict().items()},
    )


def answers(bundle: Bundle) -> dict[str, Any]:
    """Tokens by sampling method, and the bytes of a sequence's cache."""
    engine = open_engine(bundle)
    found: dict[str, Any] = {}
    for name, config in SAMPLERS.items():
        sampler, sequence, tokens = config.build(), engine.new_sequence(), list[int]()
        (logits_V,) = engine.step([(sequence, PROMPT)])
        for position in range(NUM_TOKENS):
            tokens.append(sampler.sample(logits_V, position))
            (logits_V,) = engine.step([(sequence, tokens[-1:])])
        found[name] = tokens
        found["kv_bytes"] = sum(array.nbytes for array in cast(TorchCache, sequence.cache).arrays().values())
        restored = engine.restore(engine.snapshot(sequence))
        (again_V,) = engine.step([(restored, [3])])
        (logits_V,) = engine.step([(sequence, [3])])
        assert (again_V == logits_V).all()
    found["signature"] = engine.signature
    found["parameters"] = sum(parameter.numel() for parameter in cast(Any, engine).decoder.parameters())
    return found


def in_processes(num_processes: int, bundle: Bundle, folder: Path) -> list[dict[str, Any]]:
    """Return the answers of each process; they are forked with the environment that torchrun sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    def work(rank: int) -> None:
        places = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update(places | {"WORLD_SIZE": str(num_processes)})
        (folder / f"{rank}.json").write_text(json.dumps(answers(bundle)))
        torch.distributed.destroy_process_group()

    children = [in_child(partial(work, rank)) for rank in range(num_processes)]
    assert [exit_code(child) for child in children] == [0] * num_processes
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_processes)]


@pytest.fixture(scope="module")
def together(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return in_processes(2, bundle, tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="module")
def alone(bundle: Bundle) -> dict[str, Any]:
    found = answers(bundle)
    assert not torch.distributed.is_initialized()
    return found


@pytest.mark.long
@pytest.mark.parametrize("sampling", ["greedy", "seeded"])
def test_processes_that_share_tracks_choose_the_tokens_of_one(
    sampling: str, alone: dict[str, Any], together: list[dict[str, Any]]
) -> None:
    assert len(set(alone[sampling])) > 4
    assert [found[sampling] for found in together] == [alone[sampling]] * 2


def test_unseeded_processes_choose_the_same_tokens(together: list[dict[str, Any]]) -> None:
    assert together[0]["unseeded"] == together[1]["unseeded"]


def test_each_process_has_its_share_of_weights_and_caches(alone: dict[str, Any], together: list[dict[str, Any]]) -> None:
    assert [2 * found["kv_bytes"] for found in together] == [alone["kv_bytes"]] * 2
    outside = 400 * 32 + 32
    assert [2 * (found["parameters"] - outside) for found in together] == [alone["parameters"] - outside] * 2


def test_signatures_differ_between_shares(alone: dict[str, Any], together: list[dict[str, Any]]) -> None:
    assert len({alone["signature"], *(found["signature"] for found in together)}) == 3
