"""Fresh weights of a divided model: equal to those of one process in every layout, with memory for a part only."""

from __future__ import annotations

import json
import resource
from functools import partial
from pathlib import Path

import pytest
import torch
from forked_processes import together
from parallel_runs import track_model, whole_tensor
from tiny_runs import tiny_run, write_corpus

from openafm.models.config import DecoderConfig
from openafm.models.initialization.streamed import stream_initial_weights
from openafm.models.sizes import named_size, shared_kv_decoder
from openafm.training.config import BFloat16Config, EMAConfig, TrainerConfig
from openafm.training.distributed.config import ParallelConfig
from openafm.training.distributed.parallel import Parallelism
from openafm.training.distributed.processes import Processes
from openafm.training.initialization import fresh_state

LAYOUTS = {
    2: ({"shard": 2}, {"expert": 2}, {"track": 2}),
    4: ({"shard": 4}, {"shard": 2, "track": 2}, {"expert": 2, "track": 2}, {"replicate": 2, "shard": 2}),
}


@pytest.mark.parametrize("config", [track_model(), named_size("server.nano"), named_size("on_device.nano")])
def test_streamed_weights_are_those_of_a_model_in_memory(config: DecoderConfig) -> None:
    expected = config.build(seed=3).state_dict()
    with torch.device("meta"):
        model = config.build()
    found: dict[str, torch.Tensor] = {}
    stream_initial_weights(model, 3, found.__setitem__)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def _check_layouts(config: TrainerConfig, processes: Processes) -> None:
    expected = config.model.build(config.seed).state_dict()
    for axes in LAYOUTS[processes.world]:
        for precision in (config.precision, BFloat16Config()):
            divided = ParallelConfig(**axes)
            parallelism = Parallelism(divided, config.model, processes)
            changes = {"parallel": divided, "precision": precision}
            state = fresh_state(TrainerConfig(**{**vars(config), **changes}), "cpu", parallelism)
            assert state.ema is not None
            for name, parameter in state.parameters.items():
                assert torch.equal(state.ema[name], parameter)
                assert torch.equal(whole_tensor(parallelism, name, parameter), expected[name]), (axes, name)


@pytest.mark.parametrize("num_processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_weights_do_not_depend_on_the_layout(num_processes: int, tmp_path: Path) -> None:
    config = tiny_run(write_corpus(tmp_path), model=track_model(), ema=EMAConfig(), seed=5)
    together(num_processes, partial(_check_layouts, config))


def _measure(config: TrainerConfig, folder: Path, processes: Processes) -> None:
    parallelism = Parallelism(config.parallel, config.model, processes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fresh_state(config, "cpu", parallelism)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    (folder / f"{processes.rank}.json").write_text(json.dumps(grown))


@pytest.mark.long
def test_a_process_needs_memory_for_its_part(tmp_path: Path) -> None:
    model = shared_kv_decoder(
        vocab_size=97,
        dim=512,
        num_own_layers=6,
        num_shared_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        hidden_dim=2048,
        context_length=64,
    )
    whole = 4 * sum(parameter.numel() for parameter in model.build().parameters())
    config = tiny_run(write_corpus(tmp_path / "corpus"), model=model, parallel=ParallelConfig(shard=2))
    together(2, partial(_measure, config, tmp_path))
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) < 0.75 * whole
