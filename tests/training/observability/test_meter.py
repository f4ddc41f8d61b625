"""The meter of a run: throughput per rank, expert loads, and their plot."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_runs import VOCAB_SIZE, step_result, tiny_run, write_corpus

from openafm.models.sizes import parallel_track_decoder
from openafm.training.distributed.config import MeshShape
from openafm.training.observability.curves import CurveError, draw, plot_experts
from openafm.training.observability.goodput import Goodput
from openafm.training.observability.meter import ExpertLoads, RunMeter, expert_loads
from openafm.training.observability.metrics import read_metrics
from openafm.training.run import train

SHAPE = MeshShape(slices=1, replicate=2, shard=2, expert=1, track=2)


def test_loads_are_relative_to_an_even_share_of_the_track() -> None:
    tokens_TE = {1: torch.tensor([[2, 2], [3, 1]]), 3: torch.tensor([[40, 0], [10, 30]])}
    assert expert_loads(tokens_TE) == ExpertLoads(highest=2.0, lowest=0.0, unused=1)


def test_without_experts_or_tokens_there_are_no_loads() -> None:
    assert expert_loads({}) is None
    assert expert_loads({1: torch.zeros(2, 2)}) is None


def test_a_line_has_the_throughput_per_rank() -> None:
    meter = RunMeter(torch.float32, "cpu", SHAPE, lambda: Goodput(productive=9.0))
    meter.on_step(step_result(num_tokens=600, expert_tokens={1: torch.tensor([[3, 1]])}))
    meter.on_step(step_result(num_tokens=200, expert_tokens={1: torch.tensor([[1, 3]])}))
    assert meter.expert_tokens == {"1": [[4, 4]]}
    values = meter.take()
    assert values["tokens_per_second_per_data_rank"] == pytest.approx(values["tokens_per_second"] / 4)
    assert values["tokens_per_second_per_device"] == pytest.approx(values["tokens_per_second"] / 8)
    assert (values["expert_load_max"], values["expert_load_min"], values["experts_unused"]) == (1, 1, 0)
    assert values["goodput"] == 1
    assert meter.expert_tokens == {}, "the next line starts empty"


def test_the_status_shows_only_known_values() -> None:
    meter = RunMeter(torch.float32, "cpu", SHAPE, lambda: Goodput(productive=3.0, lost={"start": 1.0}))
    assert meter.status(3.0) == "loss 3.000"
    meter.on_step(step_result(num_tokens=600, expert_tokens={1: torch.tensor([[3, 0, 0]])}))
    status = meter.status(3.0)
    assert "a data rank" in status
    assert "experts 0.00 to 3.00 of even, 2 unused" in status
    meter.take()
    assert meter.status(2.0) == "loss 2.000, goodput 75 %"


@pytest.mark.long
def test_a_run_with_experts_logs_and_draws_their_loads(tmp_path: Path) -> None:
    model = parallel_track_decoder(
        vocab_size=VOCAB_SIZE,
        dim=16,
        num_tracks=2,
        num_layers=4,
        block_depth=2,
        num_heads=2,
        head_dim=8,
        window=8,
        dense_dim=16,
        num_experts=3,
        expert_dim=8,
        context_length=64,
    )
    train(tiny_run(write_corpus(tmp_path / "corpus"), num_steps=3, model=model), tmp_path / "run")
    lines = [line for line in read_metrics(tmp_path / "run") if "loss" in line]
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        counts = torch.tensor([line["expert_tokens"][layer] for layer in ("1", "3")])
        assert counts.shape == (2, 2, 3)
        assert line["expert_load_max"] >= 1 >= line["expert_load_min"] >= 0
        assert line["experts_unused"] == int((counts == 0).sum())
        assert 0 < line["goodput"] <= 1
    pytest.importorskip("matplotlib")
    pictures = draw(tmp_path / "run")
    assert [picture.name for picture in pictures] == ["loss.png", "experts.png"]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)


def test_a_run_without_experts_has_no_plot_of_them(tmp_path: Path) -> None:
    train(tiny_run(write_corpus(tmp_path / "corpus"), num_steps=1), tmp_path / "run")
    assert "expert_tokens" not in read_metrics(tmp_path / "run")[0]
    with pytest.raises(CurveError):
        plot_experts(tmp_path / "run")
