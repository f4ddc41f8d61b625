"""A training run as one typed config, which `run.train` executes. Imports no tensor library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from openafm.adapters.config import LoRAConfig, ZeroStart
from openafm.compression.config import QATConfig
from openafm.core.config import Config
from openafm.data.loading.loader import LoaderConfig
from openafm.models.config import DecoderConfig
from openafm.models.feed_forward.experts_config import ExpertsConfig
from openafm.models.initialization.upcycling_config import UpcyclingConfig
from openafm.models.reward_config import RewardModelConfig as RewardModelConfig  # a kind of model, as the next ones
from openafm.models.vision import multimodal_config as multimodal_config  # its kinds of models are read from files
from openafm.training.budgets import BudgetConfig
from openafm.training.device import DeviceConfig
from openafm.training.distributed.config import ParallelConfig
from openafm.training.distributed.watchdog import WatchdogConfig
from openafm.training.objectives.config import NextTokenConfig, ObjectiveConfig
from openafm.training.objectives.preference_config import PreferenceConfig as PreferenceConfig  # a kind of objective
from openafm.training.observability.replicas import ReplicaCheckConfig
from openafm.training.observability.stragglers import StragglerConfig
from openafm.training.optimizer_config import AdamWConfig, MuonConfig, OptimizerConfig
from openafm.training.precision_config import BFloat16Config as BFloat16Config
from openafm.training.precision_config import DevicePrecisionConfig as DevicePrecisionConfig
from openafm.training.precision_config import Float8Config as Float8Config
from openafm.training.precision_config import Float32Config as Float32Config
from openafm.training.precision_config import PrecisionConfig as PrecisionConfig
from openafm.training.schedules import ScheduleConfig, WarmupCosine

if TYPE_CHECKING:
    from pathlib import Path

    from openafm.models.decoder import Decoder
    from openafm.training.observers import Observer


@dataclass(frozen=True, kw_only=True)
class StartConfig(Config, ABC):
    """Base of the changes to fresh weights before the first step."""

    @abstractmethod
    def apply(self, model: Decoder, seed: int) -> None:
        """Change the initialized weights in place."""

    def apply_to_bundle(self, model: Decoder, seed: int) -> None:
        """Change the weights of a model that starts from a bundle; by default the bundle's weights stay."""


@dataclass(frozen=True, kw_only=True)
class PlainStart(StartConfig):
    """Keep the weights as initialized."""

    def apply(self, model: Decoder, seed: int) -> None:
        """Change nothing."""


@dataclass(frozen=True, kw_only=True)
class InductionStart(StartConfig):
    """Write induction heads, which copy from the context, into the weights (models/initialization/induction.py)."""

    def apply(self, model: Decoder, seed: int) -> None:
        from openafm.models.initialization.induction import start_induction

        start_induction(model, seed)


@dataclass(frozen=True, kw_only=True)
class VisionStart(StartConfig):
    """Start the vision encoder with the weights of a bundle of contrastive or joint training (report 4.2, 4.4).

    The adapter is trained from scratch. Position embeddings are interpolated to the model's resolution. `identity`, if
    given, must equal the bundle's.
    """

    bundle: str | None = None
    identity: str | None = None

    def apply(self, model: Decoder, seed: int) -> None:
        from openafm.training.vision_start import start_vision

        if self.bundle is not None:
            start_vision(model, self.bundle, self.identity)

    def apply_to_bundle(self, model: Decoder, seed: int) -> None:
        self.apply(model, seed)


@dataclass(frozen=True, kw_only=True)
class EMAConfig(Config):
    """An exponential moving average of the weights, which are those of the run's final model.

    After update n the average moves by 1 - min(decay, n / (n + 9)) towards the weights: early updates count more, so that
    the average of a short run does not contain its random start.
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        self.require(0 < self.decay < 1, f"decay must lie in (0, 1), got {self.decay}")

    def decay_at(self, update: int) -> float:
        """Return the decay of update `update`, counted from 1."""
        return min(self.decay, update / (update + 9))


@dataclass(frozen=True, kw_only=True)
class CompileConfig(Config):
    """torch.compile of the feed-forwards. Attention over documents, whose lengths change each step, stays eager.

    On a CPU it gains up to 3 % of a step and costs half a minute and a C++ compiler at the start.
    """

    mode: str = "default"

    def apply(self, model: Decoder) -> None:
        """Compile the model's parts in place; compilation runs at their first use."""
        for layer in model.layers:
            layer.feed_forward.compile(mode=self.mode, dynamic=True)  # type: ignore[union-attr]


@dataclass(frozen=True, kw_only=True)
class ActivationCheckpointingConfig(Config):
    """Recompute activations in the backward pass: a layer keeps its input and its keys and values only.

    `every_layers` n recomputes layers 0, n, 2n, ...; 1 recomputes all. Losses and gradients are bit-identical; a step takes
    up to a third more operations. With `keep_attention` a layer also keeps the outputs of its attention kernel: in long
    documents they are most of the recomputed operations and little memory.
    """

    every_layers: int = 1
    keep_attention: bool = False

    def __post_init__(self) -> None:
        self.require(self.every_layers > 0, f"every_layers must be at least 1, got {self.every_layers}")

    def recomputes(self, layer: int) -> bool:
        """Return True if the activations of this layer are recomputed."""
        return layer % self.every_layers == 0

    def apply(self, model: Decoder) -> None:
        """Install recomputation in the model's layers, in place."""
        from openafm.training.activation_checkpointing import recompute_layers

        layers = [index for index in range(len(model.layers)) if self.recomputes(index)]
        recompute_layers(model, layers, keep_attention=self.keep_attention)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Config):
    """When to save, in addition to the end of the run, and which checkpoints to keep. None switches a trigger off.

    Attributes:
        keep: the newest checkpoints to keep, from which a run resumes.
        keep_every_steps: also keep those of steps that this number divides, which are saved for it.
        keep_best: also keep that many with the lowest held-out losses; an evaluation that reaches one is saved.
    """

    every_steps: int | None = None
    every_seconds: float | None = 120.0
    keep: int = 2
    keep_every_steps: int | None = None
    keep_best: int = 0

    def __post_init__(self) -> None:
        self.require(self.every_steps is None or self.every_steps > 0, "every_steps must be at least 1")
        self.require(self.every_seconds is None or self.every_seconds > 0, "every_seconds must be above 0")
        self.require(self.keep > 0, f"keep must be at least 1, got {self.keep}")
        every = self.keep_every_steps
        self.require(every is None or every > 0, f"keep_every_steps must be at least 1, got {every}")
        self.require(self.keep_best >= 0, f"keep_best must not be negative, got {self.keep_best}")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Config):
    """Evaluate the first `num_batches` held-out batches before the first step, every `every_steps` steps, and at the end."""

    data: LoaderConfig
    every_steps: int = 200
    num_batches: int = 8

    def __post_init__(self) -> None:
        self.require(self.every_steps > 0 and self.num_batches > 0, "every_steps and num_batches must be at least 1")


@dataclass(frozen=True, kw_only=True)
class CallbackConfig(Config, ABC):
    """Base of further observers of a run, on rank 0: other loggers, early stopping, samples during training."""

    @abstractmethod
    def build(self, folder: Path) -> Observer:
        """Return the observer of a run in `folder`."""


@dataclass(frozen=True, kw_only=True)
class WandbHistoryConfig(CallbackConfig):
    """Write the log also to `wandb-history.jsonl`, in the format of the history that `wandb` keeps of a run."""

    def build(self, folder: Path) -> Observer:
        from openafm.training.observability.reporting import WandbHistory

        return WandbHistory(folder / "wandb-history.jsonl")


@dataclass(frozen=True, kw_only=True)
class PrintedLinesConfig(CallbackConfig):
    """Print a line of the log to standard output at most every `seconds`, and those with held-out losses."""

    seconds: float = 10.0

    def build(self, folder: Path) -> Observer:
        from openafm.training.observability.reporting import PrintedLines

        return PrintedLines(self.seconds)


@dataclass(frozen=True, kw_only=True)
class TrainerConfig(Config):
    """A whole run. Equal configs, data and machine give bit-identical weights, however often the run is interrupted.

    Attributes:
        device: where to compute. Types of devices round differently; on one type a resumed run is bit-identical, except for
            operations that torch documents as nondeterministic on CUDA: sums over repeated indices (embedding, experts) and
            the backward pass of flash attention.
        microbatch_rows: split a step's rows to save memory; gradients add up to the same update.
        activation_checkpointing: recompute activations to save memory; the update is bit-identical.
        num_threads: torch's threads on a CPU, all by default. Results depend on it in the last bits, and very small models
            are faster with one.
        from_bundle: a bundle to start from, by name or folder; None starts from fresh weights, changed by `start`.
        from_identity: the identity that this bundle must have, if given.
        upcycle: the bundle is dense, and `model` is the upcycled model.
        qat: train with simulated quantization.
        adapter: freeze the weights, compressed or not, and train low-rank matrices.
        log_every: steps per line of the log, whose losses are means over these steps.
    """

    NEUTRAL: ClassVar[tuple[str, ...]] = (
        "checkpoint",
        "log_every",
        "evaluation",
        "watchdog",
        "replica_check",
        "stragglers",
        "activation_checkpointing",
        "callbacks",
    )
    """Keys that do not change the weights: a run may be resumed with other values."""

    ROUNDING: ClassVar[tuple[str, ...]] = ("device", "parallel", "microbatch_rows", "num_threads")
    """Keys that change the weights by rounding only: a run may be resumed with other values, which it notes."""

    LOCATIONS: ClassVar[tuple[str, ...]] = ("data.sources.*.path", "objective.cache")
    """Paths of files that are verified by their content: a run may be moved."""

    IDENTIFIED: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "from_identity": ("from_bundle",),
        "objective.identity": ("objective.teacher", "objective.adapter"),
    }
    """Locations that may change if the identity of their content is given."""

    model: DecoderConfig
    data: LoaderConfig
    budget: BudgetConfig
    objective: ObjectiveConfig = field(default_factory=NextTokenConfig)
    optimizer: OptimizerConfig = field(default_factory=AdamWConfig)
    schedule: ScheduleConfig = field(default_factory=WarmupCosine)
    ema: EMAConfig | None = None
    precision: PrecisionConfig = field(default_factory=Float32Config)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    compile: CompileConfig | None = None
    evaluation: EvaluationConfig | None = None
    checkpoint: CheckpointConfig = CheckpointConfig()
    callbacks: tuple[CallbackConfig, ...] = ()
    watchdog: WatchdogConfig | None = field(default_factory=WatchdogConfig)
    replica_check: ReplicaCheckConfig | None = field(default_factory=ReplicaCheckConfig)
    stragglers: StragglerConfig | None = field(default_factory=StragglerConfig)
    microbatch_rows: int | None = None
    activation_checkpointing: ActivationCheckpointingConfig | None = None
    from_bundle: str | None = None
    from_identity: str | None = None
    upcycle: UpcyclingConfig | None = None
    qat: QATConfig | None = None
    adapter: LoRAConfig | None = None
    start: StartConfig = PlainStart()
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    num_threads: int | None = None
    log_every: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        rows = self.microbatch_rows
        self.require(rows is None or rows > 0, f"microbatch_rows must be at least 1, got {rows}")
        threads = self.num_threads
        self.require(threads is None or threads > 0, f"num_threads must be at least 1, got {threads}")
        self.require(self.log_every > 0, f"log_every must be at least 1, got {self.log_every}")
        self.require(
            self.data.row_tokens <= self.model.context_length,
            f"rows of {self.data.row_tokens} tokens do not fit the model's context of {self.model.context_length}",
        )
        self._check_context()
        self.require(
            self.checkpoint.keep_best == 0 or self.evaluation is not None,
            "checkpoint.keep_best compares held-out losses, and the run has no evaluation; set evaluation or leave it at 0",
        )
        experts = [layer.feed_forward for layer in self.model.layers if isinstance(layer.feed_forward, ExpertsConfig)]
        self.require(
            self.adapter is not None or all(one.router.learns_from_loss for one in experts),
            "a TopKRouterConfig with num_chosen 1 gives its expert the weight 1, so that the loss has no gradient for the "
            "router; set num_chosen to 2 or more",
        )
        self.require(
            self.compile is None or not experts or not isinstance(self.precision, Float32Config),
            "compile does not support experts in fp32; use BFloat16Config, or leave out compile",
        )
        self.require(
            self.upcycle is None or self.adapter is None, "upcycle and adapter exclude each other: run one after the other"
        )
        kinds = {
            "Muon": isinstance(self.optimizer, MuonConfig),
            "compile": self.compile is not None,
            "qat": self.qat is not None,
            "an adapter": self.adapter is not None,
        }
        whole_only = [name for name, is_used in kinds.items() if is_used]
        self.require(
            not whole_only or not self.parallel.divides_weights,
            f"{' and '.join(whole_only)} cannot train weights that are divided over processes; use parallel.replicate alone",
        )
        self.require(
            not isinstance(self.precision, Float8Config) or (self.qat is None and self.adapter is None),
            "Float8Config computes the products that qat and adapters change; use BFloat16Config with them",
        )
        self.require(self.qat is None or self.adapter is None, "qat and adapter exclude each other: run one after the other")
        self.require(
            self.adapter is None or isinstance(self.adapter.start, ZeroStart),
            "adapter.start must be ZeroStart: training starts from zero or from the bundle's adapter, and only compression "
            "starts adapters from singular vectors",
        )

    def _check_context(self) -> None:
        """Check that the rows of the run can be divided."""
        context = self.parallel.context
        if context == 1:
            return
        self.require(
            self.objective.DIVIDES_ROWS,
            f"parallel.context divides rows, and {type(self.objective).__name__} needs whole rows; leave context at 1, or "
            "train with NextTokenConfig",
        )
        for loader in (self.data, *([] if self.evaluation is None else [self.evaluation.data])):
            chunks = self.parallel.context_layout.num_chunks(context)
            self.require(
                loader.row_tokens % chunks == 0,
                f"rows of {loader.row_tokens} tokens do not divide into {chunks} equal parts; choose row_tokens and "
                "parallel.context that divide",
            )
