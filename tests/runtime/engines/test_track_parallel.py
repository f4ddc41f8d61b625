"""A server model on two processes answers like one process; each has its share of weights, keys and values."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from track_runs import answers

from openafm.bundle import Bundle, write_bundle
from openafm.models.sizes import parallel_track_decoder
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

pytestmark = pytest.mark.xdist_group("track_parallel")

HERE = Path(__file__).parents[1]
TIMEOUT_S = 240
TEXT = 'the cat {"name":"Mo","age":3} and the dog sat on the mat, no: the log. '


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


def in_processes(num_processes: int, bundle: Bundle) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(num_processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, HERE / "track_runs.py", bundle.path],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_processes)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * num_processes, "\n".join(error for _, error in outputs)
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.fixture(scope="module")
def together(bundle: Bundle) -> list[dict[str, Any]]:
    return in_processes(2, bundle)


@pytest.fixture(scope="module")
def alone(bundle: Bundle) -> dict[str, Any]:
    found = answers(bundle)
    assert not torch.distributed.is_initialized()
    return found


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
