"""How a run is divided over processes, as data (report 4.3). Imports no tensor library."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from openafm.core.config import Config
from openafm.core.errors import UsageError
from openafm.models.attention.masks import CausalMask
from openafm.models.config import DecoderConfig
from openafm.models.feed_forward.experts_config import ExpertsConfig
from openafm.models.parallel.row_layout import ConsecutiveLayout, RowLayoutConfig
from openafm.models.vision.multimodal_config import MultimodalConfig


class MeshError(UsageError):
    """The axes do not fill the processes, do not divide the model, or cross slices."""


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """The sizes of all axes, from the one with the farthest processes to the one with the nearest."""

    slices: int
    replicate: int
    context: int = 1
    shard: int
    expert: int
    track: int
    context_layout: RowLayoutConfig = field(default_factory=ConsecutiveLayout)

    @property
    def axes(self) -> dict[str, int]:
        """Return the sizes by name, slowest axis first."""
        inner = {"shard": self.shard, "expert": self.expert, "track": self.track}
        return {"replicate": self.replicate, "context": self.context, **inner}

    @property
    def weight_axes(self) -> dict[str, int]:
        """Return the axes as weights are divided: copies along `replicate` and `context` are one axis."""
        return {"replicate": self.copies, "shard": self.shard, "expert": self.expert, "track": self.track}

    @property
    def copies(self) -> int:
        """Return the number of copies of the model."""
        return self.replicate * self.context

    @property
    def world(self) -> int:
        return self.copies * self.shard * self.expert * self.track

    @property
    def data_world(self) -> int:
        """Return the number of data ranks: groups along `context` and `track` read the same rows."""
        return self.replicate * self.shard * self.expert

    def reach(self, axis: str) -> int:
        """Return how many neighboring processes an axis spans, with those of all faster axes; of `a+b` the wider one."""
        sizes = list(self.axes.items())
        slowest = min(index for index, (name, _) in enumerate(sizes) if name in axis.split("+"))
        return prod(size for _, size in sizes[slowest:])

    def vocabulary_ranks(self, vocab_size: int) -> int:
        """Return over how many ranks the loss divides a vocabulary: those of `track`, if they divide it evenly."""
        return 1 if vocab_size % self.track else self.track

    def data_rank(self, rank: int) -> int:
        """Return which of the data ranks a process is."""
        within = self.shard * self.expert
        return rank // (self.context * within * self.track) * within + rank // self.track % within

    def context_rank(self, rank: int) -> int:
        """Return which part of the positions of its rows a process computes."""
        return rank // (self.shard * self.expert * self.track) % self.context


@dataclass(frozen=True, kw_only=True)
class ParallelConfig(Config):
    """The axes of the mesh of processes.

    Processes along `context` and `track` read the same rows, all others different ones.

    Attributes:
        replicate: copies of the model; None takes the remaining processes.
        context: processes that divide the positions of each row, with a copy of the weights each; for rows that are too
            long for one process.
        context_layout: which positions of a row each of them computes.
        shard: shards of weights, gradients and optimizer state (FSDP).
        expert: processes that divide the experts.
        track: processes that divide the tracks.
        slices: groups of machines, connected by a slow network that only `replicate` crosses: it carries one sum of
            gradients per step (report 4.3).
    """

    replicate: int | None = None
    context: int = 1
    context_layout: RowLayoutConfig = field(default_factory=ConsecutiveLayout)
    shard: int = 1
    expert: int = 1
    track: int = 1
    slices: int = 1

    def __post_init__(self) -> None:
        for name in ("replicate", "context", "shard", "expert", "track", "slices"):
            size = getattr(self, name)
            self.require(size is None or size > 0, f"{name} must be at least 1, got {size}")

    @property
    def divides_weights(self) -> bool:
        """Return True if a process holds less than the whole model."""
        return self.shard * self.expert * self.track > 1

    def shape(self, num_devices: int) -> MeshShape:
        """Return the mesh of `num_devices` processes, `num_devices / slices` in each slice.

        Raises:
            MeshError: the axes do not fill the processes, or one other than `replicate` would cross slices.
        """
        inner = self.context * self.shard * self.expert * self.track
        axes = f"shard {self.shard} x expert {self.expert} x track {self.track}"
        if self.context > 1:
            axes = f"context {self.context} x {axes}"
        if num_devices % self.slices:
            raise MeshError(
                f"{num_devices} processes do not divide into {self.slices} slices; start the same number in each"
            )
        if num_devices % inner:
            raise MeshError(
                f"{axes} takes a multiple of {inner} processes, there are {num_devices}; start {inner} "
                f"(torchrun --nproc-per-node {inner}) or lower an axis of trainer.parallel"
            )
        replicate = num_devices // inner if self.replicate is None else self.replicate
        if replicate * inner != num_devices:
            raise MeshError(
                f"replicate {replicate} x {axes} makes {replicate * inner} processes, there are {num_devices}; "
                "leave out trainer.parallel.replicate to take the remaining processes"
            )
        within = num_devices // self.slices
        if within % inner:
            raise MeshError(
                f"{axes} would cross slices of {within} processes and exchange weights or states between slices in every "
                f"layer; choose axes whose product divides {within}, so that only replicate crosses slices"
            )
        return MeshShape(
            slices=self.slices,
            replicate=replicate,
            context=self.context,
            shard=self.shard,
            expert=self.expert,
            track=self.track,
            context_layout=self.context_layout,
        )

    def check_model(self, model: DecoderConfig) -> None:
        """Check that the axes divide the model.

        Raises:
            MeshError: the tracks or experts do not divide, or the model has none; context with another mask than a causal
                one, or with images.
        """
        if self.context > 1:
            _check_context(model)
        if self.track > 1 and model.tracks is None:
            raise MeshError(f"trainer.parallel.track is {self.track}, but the model has no tracks; leave it at 1")
        if model.num_tracks % self.track:
            raise MeshError(
                f"{model.num_tracks} tracks do not divide over {self.track} processes; "
                "trainer.parallel.track must divide them"
            )
        kinds = {layer.feed_forward.num_experts for layer in model.layers if isinstance(layer.feed_forward, ExpertsConfig)}
        if self.expert > 1 and not kinds:
            raise MeshError(f"trainer.parallel.expert is {self.expert}, but the model has no experts; leave it at 1")
        for num_experts in sorted(kinds):
            if num_experts % self.expert:
                raise MeshError(
                    f"{num_experts} experts do not divide over {self.expert} processes; trainer.parallel.expert must divide "
                    "them"
                )


def _check_context(model: DecoderConfig) -> None:
    if isinstance(model, MultimodalConfig):
        raise MeshError(
            "trainer.parallel.context divides rows of text, but the model reads images, whose positions see later ones; "
            "leave context at 1 and use shard"
        )
    for layer in model.layers:
        if not isinstance(layer.attention.mask, CausalMask):
            raise MeshError(
                f"trainer.parallel.context needs causal attention, the model has a {type(layer.attention.mask).__name__}; "
                "leave context at 1"
            )
