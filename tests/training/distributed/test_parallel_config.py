"""Meshes: allowed ones, and refused ones with the reason."""

from __future__ import annotations

import pytest
from parallel_runs import track_model
from tiny_runs import tiny_model

from openafm.core.config import ConfigError
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.models.parallel.row_layout import BalancedLayout
from openafm.models.sizes import named_size
from openafm.training.budgets import StepBudget
from openafm.training.config import CompileConfig, TrainerConfig
from openafm.training.distributed.config import MeshError, ParallelConfig
from openafm.training.objectives.preference_config import PreferenceConfig
from openafm.training.optimizer_config import AdamWConfig, MuonConfig


def test_the_world_is_the_product_of_the_axes() -> None:
    shape = ParallelConfig(shard=2, expert=2, track=2, slices=2).shape(32)
    assert list(shape.axes.items()) == [("replicate", 4), ("context", 1), ("shard", 2), ("expert", 2), ("track", 2)]
    assert (shape.world, shape.data_world) == (32, 16)


def test_ranks_along_context_and_track_read_the_same_rows() -> None:
    shape = ParallelConfig(context=2, shard=2, track=2).shape(16)
    assert (shape.copies, shape.data_world) == (4, 4)
    assert [shape.data_rank(rank) for rank in range(16)] == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3]
    assert [shape.context_rank(rank) for rank in range(16)] == 2 * [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("axes", "num_devices", "reason"),
    [
        ({"track": 4}, 2, "takes a multiple of 4 processes, there are 2"),
        ({"shard": 3}, 4, "takes a multiple of 3 processes, there are 4"),
        ({"replicate": 2, "track": 2}, 8, "makes 4 processes, there are 8"),
        ({"slices": 3}, 4, "do not divide into 3 slices"),
        ({"track": 4, "slices": 2}, 4, "would cross slices of 2 processes"),
        ({"shard": 4, "track": 2, "slices": 2}, 8, "would cross slices of 4 processes"),
        ({"context": 4, "slices": 2}, 4, "context 4 x shard 1 .* would cross slices of 2 processes"),
        ({"context": 3, "shard": 2}, 4, "takes a multiple of 6 processes, there are 4"),
        ({"context": 2, "slices": 2}, 8, None),
        ({"shard": 3, "slices": 2}, 12, None),
        ({"shard": 2, "track": 2, "slices": 2}, 8, None),
    ],
)
def test_only_copies_cross_slices(axes: dict[str, int], num_devices: int, reason: str | None) -> None:
    config = ParallelConfig(**axes)
    if reason is None:
        shape = config.shape(num_devices)
        assert shape.replicate % shape.slices == 0
        return
    with pytest.raises(MeshError, match=reason):
        config.shape(num_devices)


def test_axes_divide_the_model() -> None:
    ParallelConfig(track=2, expert=4).check_model(track_model())
    with pytest.raises(MeshError, match="4 tracks do not divide over 3 processes"):
        ParallelConfig(track=3).check_model(track_model())
    with pytest.raises(MeshError, match="4 experts do not divide over 3 processes"):
        ParallelConfig(expert=3).check_model(track_model())
    with pytest.raises(MeshError, match="the model has no experts"):
        ParallelConfig(expert=2).check_model(tiny_model())
    with pytest.raises(MeshError, match="the model has no tracks"):
        ParallelConfig(track=2).check_model(tiny_model())
    ParallelConfig(context=2).check_model(tiny_model())
    with pytest.raises(MeshError, match="divides rows of text, but the model reads images"):
        ParallelConfig(context=2).check_model(named_size("on_device.nano_multimodal"))


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_are_at_least_one(size: int) -> None:
    with pytest.raises(ConfigError, match="shard must be at least 1"):
        ParallelConfig(shard=size)


def config(parallel: ParallelConfig, **changes: object) -> TrainerConfig:
    loader = LoaderConfig(sources=(SourceConfig(name="a", path="a"),), rows_per_step=4, row_tokens=48)
    return TrainerConfig(
        model=tiny_model(),
        data=loader,
        budget=StepBudget(num_steps=1),
        parallel=parallel,
        **changes,  # type: ignore[arg-type]
    )


def test_rows_that_cannot_be_divided_are_refused() -> None:
    config(ParallelConfig(context=4), optimizer=MuonConfig())
    with pytest.raises(ConfigError, match="rows of 48 tokens do not divide into 5 equal parts"):
        config(ParallelConfig(context=5))
    with pytest.raises(ConfigError, match="rows of 48 tokens do not divide into 32 equal parts"):
        config(ParallelConfig(context=16, context_layout=BalancedLayout()))
    with pytest.raises(ConfigError, match="PreferenceConfig needs whole rows; leave context at 1"):
        config(ParallelConfig(context=2), objective=PreferenceConfig())


def test_what_needs_whole_weights_is_refused_where_they_are_divided() -> None:
    config(ParallelConfig(replicate=2), optimizer=MuonConfig(), compile=CompileConfig())
    config(ParallelConfig(shard=2), optimizer=AdamWConfig())
    with pytest.raises(ConfigError, match="Muon cannot train weights that are divided"):
        config(ParallelConfig(shard=2), optimizer=MuonConfig())
    with pytest.raises(ConfigError, match="compile cannot train weights that are divided"):
        config(ParallelConfig(track=2), compile=CompileConfig())
