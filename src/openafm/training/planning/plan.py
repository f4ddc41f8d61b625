"""Plan a run on many devices: layout, memory, time of a step. Imports no tensor library.

Memory comes from `footprint`, operations from `models/accounting.py`, time from peak rates without a measured efficiency: a
real step takes longer. Experts are assumed to be evenly loaded.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from openafm.core.errors import UsageError
from openafm.models.accounting import flops_per_token, training_flops
from openafm.models.activations import Microbatch
from openafm.models.config import DecoderConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.training.config import ActivationCheckpointingConfig, EMAConfig
from openafm.training.distributed.config import MeshShape
from openafm.training.optimizer_config import AdamWConfig, OptimizerConfig
from openafm.training.planning.chips import NUMBER_BYTES, Chip, Precision
from openafm.training.planning.collectives import VOCABULARY, Collective, collectives
from openafm.training.planning.device_memory import Memory, device_memory
from openafm.training.planning.footprint import DecoderFootprint, DeviceShare, decoder_footprint, decoder_weights


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The work of a step.

    Attributes:
        rows_per_step: over all devices; None is one row per group of devices with all tracks.
        document_tokens: tokens of the documents that fill a row; None is one document per row.
        microbatch_rows: rows of a microbatch on one device; None is as many as fit.
        row_images: images of a row, in the model's default resolution mode; their tokens are part of the row.
    """

    rows_per_step: int | None = None
    row_tokens: int = 4096
    document_tokens: int | None = None
    microbatch_rows: int | None = None
    row_images: int = 0
    precision: Precision = "bfloat16"
    optimizer: OptimizerConfig = field(default_factory=AdamWConfig)
    ema: EMAConfig | None = None
    activation_checkpointing: ActivationCheckpointingConfig | None = None

    def __post_init__(self) -> None:
        for name in ("rows_per_step", "row_tokens", "document_tokens", "microbatch_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        if self.row_images < 0:
            raise UsageError(f"row_images must not be negative, got {self.row_images}")

    def check_images(self, model: DecoderConfig) -> None:
        """Check that the model takes images, and that those of a row fit it.

        Raises:
            UsageError: they do not.
        """
        if self.row_images == 0:
            return
        if not isinstance(model, MultimodalConfig):
            raise UsageError("images of a row need a model with vision, such as on_device.base_multimodal")
        needed = self.row_images * model.image_modes[0].num_tokens
        if needed > self.row_tokens:
            raise UsageError(f"{self.row_images} images take {needed} tokens, more than the {self.row_tokens} of a row")

    def rows(self, model: DecoderConfig, num_devices: int) -> int:
        return self.rows_per_step or max(1, num_devices // model.num_tracks)

    def microbatch(self, num_rows: int, chip: Chip, parts: int = 1, chunks: int = 1) -> Microbatch:
        """Return what a device computes at once, of rows whose positions are divided into `parts` of `chunks` each."""
        number_bytes = NUMBER_BYTES[self.precision]
        row_tokens = self.row_tokens // parts
        return Microbatch(
            num_rows=num_rows,
            row_tokens=row_tokens,
            document_tokens=min(self.document_tokens or row_tokens, row_tokens),
            parts=parts,
            chunks=chunks,
            number_bytes=number_bytes,
            attention_bytes=4 if chip.attends_in_fp32 else number_bytes,
            has_whole_softmax=not chip.attends_in_fp32,
            row_images=self.row_images,
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A layout of a run: memory of each device, and time of a step at peak rates.

    Attributes:
        microbatch_rows: rows of a microbatch, of which a step has `num_microbatches`.
        why: the reason for the choice of the layout.
    """

    model: DecoderConfig
    chip: Chip
    shape: MeshShape
    workload: Workload
    rows_per_step: int
    microbatch_rows: int
    why: str = "all axes were given"

    @property
    def rows_per_device(self) -> int:
        return self.rows_per_step // self.shape.data_world

    @property
    def num_microbatches(self) -> int:
        return -(-self.rows_per_device // self.microbatch_rows)

    @property
    def tokens_per_step(self) -> int:
        return self.rows_per_step * self.workload.row_tokens

    @cached_property
    def footprint(self) -> DecoderFootprint:
        part = DeviceShare(
            tracks=self.model.num_tracks // self.shape.track,
            expert_ranks=self.shape.expert,
            vocabulary_ranks=self.vocabulary_ranks,
        )
        return decoder_footprint(self.model, part, self._microbatch, self.workload.activation_checkpointing)

    @property
    def _microbatch(self) -> Microbatch:
        chunks = self.shape.context_layout.num_chunks(self.shape.context) // self.shape.context
        return self.workload.microbatch(self.microbatch_rows, self.chip, self.shape.context, chunks)

    @cached_property
    def memory(self) -> Memory:
        """The memory of one device."""
        return device_memory(
            self.model,
            self.footprint,
            self.shape,
            optimizer=self.workload.optimizer,
            has_average=self.workload.ema is not None,
            has_several_microbatches=self.num_microbatches > 1,
            number_bytes=NUMBER_BYTES[self.workload.precision],
            allocator_share=self.chip.allocator_share,
        )

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        return collectives(
            self.model,
            self.footprint,
            self.shape,
            batch=self._microbatch,
            recomputing=self.workload.activation_checkpointing,
            num_microbatches=self.num_microbatches,
        )

    @property
    def flops_per_token(self) -> float:
        """Return the operations of a forward pass per token, which attends to half of its document on average."""
        return flops_per_token(self.model, (self.workload.document_tokens or self.workload.row_tokens) / 2)

    @cached_property
    def flops_of_a_row(self) -> tuple[int, int]:
        """Operations of a forward and backward pass of a row: of the layers, and of the head and the images."""
        return _flops_of_a_row(self.model, self.workload.microbatch(1, self.chip))

    @property
    def flops_per_step(self) -> int:
        """Return the model's operations over all devices, without recomputation."""
        return self.rows_per_step * sum(self.flops_of_a_row)

    @property
    def compute_seconds(self) -> float:
        """Return the computing time of one device: the layers of its tracks, and the head, for all its rows.

        With context parallelism it is the last device of the axis, whose positions see the most keys in every layout.
        """
        layers, head = self._flops_of_the_last_part(self.workload)
        recomputing = self.workload.activation_checkpointing
        num_layers = len(self.model.layers)
        num_recomputed = 0 if recomputing is None else sum(map(recomputing.recomputes, range(num_layers)))
        again = layers
        if recomputing is not None and recomputing.keep_attention:  # operations of a row of documents of one token each
            again, _ = self._flops_of_the_last_part(replace(self.workload, document_tokens=1))
        layers_again = layers + again * num_recomputed / num_layers / 3
        of_device = layers_again / self.shape.track + head
        return self.rows_per_device * of_device / self.peak_flops - self._undivided_head_seconds

    @property
    def vocabulary_ranks(self) -> int:
        """Return over how many ranks the loss divides the vocabulary."""
        return self.shape.vocabulary_ranks(self.model.vocab_size)

    @property
    def _undivided_head_seconds(self) -> float:
        """Return the computing time that a device would add if it computed the logits of the whole vocabulary."""
        tokens = self.rows_per_device * self.workload.row_tokens / self.shape.context
        whole = head_training_flops(self.model, tokens) / self.peak_flops
        return whole * (1 - 1 / self.vocabulary_ranks)

    @property
    def vocabulary_seconds_saved(self) -> float:
        """Return what a step saves because the ranks of `track` divide the vocabulary, less their collectives."""
        exchanged = sum(self.seconds(c) for c in self.collectives if c.what == VOCABULARY)
        return self._undivided_head_seconds - exchanged

    def _flops_of_the_last_part(self, workload: Workload) -> tuple[int, int]:
        """Return the operations of layers, and of head and images, for the last part of the positions of a row."""
        row, parts = workload.microbatch(1, self.chip), self.shape.context
        layers, head = _flops_of_a_row(self.model, row)
        if parts == 1:
            return layers, head
        in_ranges = (
            _flops_of_a_row(self.model, replace(row, row_tokens=one.stop))[0]
            - _flops_of_a_row(self.model, replace(row, row_tokens=one.start))[0]
            for one in self.shape.context_layout.ranges(parts - 1, parts, row.row_tokens)
        )
        return sum(in_ranges), head // parts

    @property
    def peak_flops(self) -> float:
        return self.chip.flops[self.workload.precision]

    def seconds(self, collective: Collective) -> float:
        """Return the time at the rates of the links. Axes that reach beyond a chip's domain use the network."""
        reach = self.shape.reach(collective.axis)
        within = self.chip.inside if self.chip.domain is None or reach <= self.chip.domain else self.chip.across
        return collective.inside / within + collective.across / self.chip.across

    @cached_property
    def step_seconds(self) -> float:
        """The time at peak rates, if collectives of weights and gradients overlap with computing.

        They share the device's links, so that one waits for another.
        """
        return max(self.compute_seconds, self._link_seconds(overlaps=True)) + self._link_seconds(overlaps=False)

    def _link_seconds(self, *, overlaps: bool) -> float:
        return sum(self.seconds(collective) for collective in self.collectives if collective.overlaps == overlaps)

    @property
    def bound(self) -> str:
        """Return what bounds the step: computing, or the axis whose overlapping collectives take longest."""
        if self.compute_seconds >= self._link_seconds(overlaps=True):
            return "computing"
        seconds: dict[str, float] = {}
        for collective in self.collectives:
            if collective.overlaps:
                seconds[collective.axis] = seconds.get(collective.axis, 0.0) + self.seconds(collective)
        return f"communication along {max(seconds, key=seconds.__getitem__)}"

    @cached_property
    def serial_seconds(self) -> float:
        """The time at peak rates, if nothing overlaps."""
        return self.compute_seconds + sum(map(self.seconds, self.collectives))

    @property
    def model_flops_utilization(self) -> float:
        """Return the utilization that `step_seconds` implies, from 0 to 1."""
        return self.flops_per_step / (self.step_seconds * self.shape.world * self.peak_flops)

    @property
    def fits(self) -> bool:
        return self.memory.peak <= self.chip.memory

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for JSON, in bytes, seconds and numbers."""
        weights = decoder_weights(self.model)
        idle = self.model.num_tracks * sum(layer.feed_forward.idle_parameters(self.model.dim) for layer in self.model.layers)
        return {
            "parameters": weights.total,
            "active_parameters": weights.total - idle,
            "chip": asdict(self.chip),
            "devices": self.shape.world,
            "slices": self.shape.slices,
            "mesh": self.shape.axes,
            "why": self.why,
            "rows_per_step": self.rows_per_step,
            "row_tokens": self.workload.row_tokens,
            "row_images": self.workload.row_images,
            "tokens_per_step": self.tokens_per_step,
            "rows_per_device": self.rows_per_device,
            "microbatch_rows": self.microbatch_rows,
            "microbatches": self.num_microbatches,
            "precision": self.workload.precision,
            "recompute": self.workload.activation_checkpointing is not None,
            "memory_per_device": self.memory.to_dict(),
            "fits": self.fits,
            "flops_per_token": self.flops_per_token,
            "training_flops_per_token": self.flops_per_step / self.tokens_per_step,
            "flops_per_step": self.flops_per_step,
            "collectives": [asdict(c) | {"seconds": self.seconds(c)} for c in self.collectives],
            "compute_seconds": self.compute_seconds,
            "step_seconds": self.step_seconds,
            "bound": self.bound,
            "step_seconds_without_overlap": self.serial_seconds,
            "vocabulary_seconds_saved": self.vocabulary_seconds_saved,
            "model_flops_utilization": self.model_flops_utilization,
            "tokens_per_second": self.tokens_per_step / self.step_seconds,
        }


def head_training_flops(model: DecoderConfig, num_tokens: float) -> float:
    """Return the operations of forward and backward pass of the head."""
    return 3 * 2 * num_tokens * model.vocab_size * model.dim


@lru_cache
def _flops_of_a_row(model: DecoderConfig, row: Microbatch) -> tuple[int, int]:
    head = round(head_training_flops(model, row.num_tokens))
    images = 0
    if isinstance(model, MultimodalConfig):
        images = round(3 * row.row_images * model.image_flops(model.image_modes[0]))
    return training_flops(model, row.documents, row.num_tokens) - head, head + images
