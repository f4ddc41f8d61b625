"""A training run as one typed config. Imports no tensor library; `run.train` carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from openafm.adapters.config import LoRAConfig, ZeroStart
from openafm.compression.config import QATConfig
from openafm.core.config import Config, ConfigError, to_dict
from openafm.data.loader import LoaderConfig
from openafm.models.config import DecoderConfig
from openafm.models.upcycling_config import UpcyclingConfig
from openafm.training.distributed.config import ParallelConfig
from openafm.training.distributed.watchdog import WatchdogConfig
from openafm.training.objectives.config import NextTokenConfig, ObjectiveConfig
from openafm.training.schedules import ScheduleConfig, WarmupCosine

if TYPE_CHECKING:
    import torch
    from torch.nn import Parameter
    from torch.optim import Optimizer

    from openafm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config):
    """Base of the optimizers. Weight decay falls on matrices only, not on norms and biases.

    `gradient_clip` bounds the norm of the whole gradient; None leaves it alone.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    gradient_clip: float | None = 1.0

    def __post_init__(self) -> None:
        self.require(self.learning_rate > 0, f"learning_rate must be above 0, got {self.learning_rate}")
        self.require(self.weight_decay >= 0, f"weight_decay must not be negative, got {self.weight_decay}")
        self.require(
            self.gradient_clip is None or self.gradient_clip > 0, f"gradient_clip must be above 0, got {self.gradient_clip}"
        )

    def build(self, parameters: Mapping[str, Parameter]) -> tuple[Optimizer, ...]:
        """The optimizers that share the parameters out among themselves. Schedules scale each group's `initial_lr`."""
        raise ConfigError(f"{type(self).__name__} is abstract; use AdamWConfig or MuonConfig")


@dataclass(frozen=True, kw_only=True)
class AdamWConfig(OptimizerConfig):
    """AdamW (arXiv 1711.05101)."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(all(0 <= beta < 1 for beta in self.betas), f"betas must lie in [0, 1), got {self.betas}")

    def build(self, parameters: Mapping[str, Parameter]) -> tuple[Optimizer, ...]:
        from openafm.training.optimizers import adamw

        return (adamw(self, parameters),)


@dataclass(frozen=True, kw_only=True)
class MuonConfig(OptimizerConfig):
    """Muon (Jordan et al. 2024) for the matrices inside the layers; AdamW for the embedding, the head, norms and biases.

    The updates of a matrix are orthogonalized momentum. At the same learning rate they are as large as AdamW's (arXiv
    2502.16982).
    """

    momentum: float = 0.95
    adamw: AdamWConfig = AdamWConfig(weight_decay=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.momentum < 1, f"momentum must lie in [0, 1), got {self.momentum}")

    def build(self, parameters: Mapping[str, Parameter]) -> tuple[Optimizer, ...]:
        from openafm.training.optimizers import muon

        return muon(self, parameters)


@dataclass(frozen=True, kw_only=True)
class StartConfig(Config):
    """Base of what is written into fresh weights before the first step."""

    def apply(self, model: Decoder, seed: int) -> None:
        raise ConfigError(f"{type(self).__name__} is abstract; use PlainStart or InductionStart")


@dataclass(frozen=True, kw_only=True)
class PlainStart(StartConfig):
    """Weights as the model initializes them."""

    def apply(self, model: Decoder, seed: int) -> None:
        """Nothing to change."""


@dataclass(frozen=True, kw_only=True)
class InductionStart(StartConfig):
    """A head start for copying from the context: models/induction.py."""

    def apply(self, model: Decoder, seed: int) -> None:
        from openafm.models.induction import start_induction

        start_induction(model, seed)


@dataclass(frozen=True, kw_only=True)
class EMAConfig(Config):
    """An exponential moving average of the weights, which is what the run hands on.

    After update number n the average moves by 1 - min(decay, n / (n + 9)) towards the weights: early on it follows
    quickly, so that a short run is not an average with its random start.
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        self.require(0 < self.decay < 1, f"decay must lie in (0, 1), got {self.decay}")

    def decay_at(self, update: int) -> float:
        """The decay of update number `update`, counted from 1."""
        return min(self.decay, update / (update + 9))


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig(Config):
    """Base of the compute precisions. Master weights, gradients and optimizer state are fp32 in all of them."""

    @property
    def compute_dtype(self) -> torch.dtype:
        raise ConfigError(f"{type(self).__name__} is abstract; use Float32Config or BFloat16Config")


@dataclass(frozen=True, kw_only=True)
class Float32Config(PrecisionConfig):
    """Compute in fp32."""

    @property
    def compute_dtype(self) -> torch.dtype:
        import torch

        return torch.float32


@dataclass(frozen=True, kw_only=True)
class BFloat16Config(PrecisionConfig):
    """Compute in bf16; norms, rotation, softmax and loss in fp32."""

    @property
    def compute_dtype(self) -> torch.dtype:
        import torch

        return torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class BudgetConfig(Config):
    """Base of how long a run may take."""


@dataclass(frozen=True, kw_only=True)
class StepBudget(BudgetConfig):
    """A run of this many optimizer steps."""

    num_steps: int

    def __post_init__(self) -> None:
        self.require(self.num_steps > 0, f"num_steps must be at least 1, got {self.num_steps}")


@dataclass(frozen=True, kw_only=True)
class TimeBudget(BudgetConfig):
    """As many steps as fit into `seconds` on this machine.

    The pace is measured once, on `measured_steps` steps that are thrown away, and the number of steps is then written down:
    the schedule knows its end and a resumed run is the same run. `reserve` is the share of the time kept back for
    checkpoints, evaluation and a busy machine.
    """

    seconds: float
    measured_steps: int = 8
    reserve: float = 0.1

    def __post_init__(self) -> None:
        self.require(self.seconds > 0, f"seconds must be above 0, got {self.seconds}")
        self.require(self.measured_steps > 0, f"measured_steps must be at least 1, got {self.measured_steps}")
        self.require(0 <= self.reserve < 1, f"reserve must lie in [0, 1), got {self.reserve}")


@dataclass(frozen=True, kw_only=True)
class CompileConfig(Config):
    """torch.compile of the feed-forwards; attention over documents, of ever new lengths, stays eager.

    Seldom worth it on a CPU, where it gains up to 3 % of a step and costs half a minute and a C++ compiler at the start.
    """

    mode: str = "default"

    def apply(self, model: Decoder) -> None:
        """Compile the model's parts in place, on their first use."""
        for layer in model.layers:
            layer.feed_forward.compile(mode=self.mode, dynamic=True)  # type: ignore[union-attr]


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Config):
    """When to save, beside the end of the run, and how many checkpoints to keep. None switches a trigger off."""

    every_steps: int | None = None
    every_seconds: float | None = 120.0
    keep: int = 2

    def __post_init__(self) -> None:
        self.require(self.every_steps is None or self.every_steps > 0, "every_steps must be at least 1")
        self.require(self.every_seconds is None or self.every_seconds > 0, "every_seconds must be above 0")
        self.require(self.keep > 0, f"keep must be at least 1, got {self.keep}")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Config):
    """The objective on held-out data, every `every_steps` steps and at the end, on the first `num_batches` batches."""

    data: LoaderConfig
    every_steps: int = 200
    num_batches: int = 8

    def __post_init__(self) -> None:
        self.require(self.every_steps > 0 and self.num_batches > 0, "every_steps and num_batches must be at least 1")


@dataclass(frozen=True, kw_only=True)
class TrainerConfig(Config):
    """A whole run. Equal configs, data and machine give equal weights, to the bit, however often the run is interrupted.

    `microbatch_rows` cuts a step's rows into pieces whose gradients add up, to save memory; the update is the same.
    `num_threads` are torch's threads on a CPU, all by default: the bits depend on it, and the operations of a very small
    model are too short to share out. `from_bundle` is the folder of a bundle whose weights to start from, and
    `from_identity`, where given, the identity that it must have; None starts from fresh weights, changed by `start`. With
    `upcycle` the bundle is dense and `model` is what it becomes. `qat` simulates few bits over the weights; `adapter`
    freezes them, compressed or not, and trains low-rank matrices beside them.
    """

    ANY_VALUE_RESUMES: ClassVar[tuple[str, ...]] = ("checkpoint", "log_every", "evaluation", "watchdog", "parallel")
    """Keys that change nothing in the weights, but for rounding: a run may be resumed with other values of them."""

    model: DecoderConfig
    data: LoaderConfig
    budget: BudgetConfig
    objective: ObjectiveConfig = field(default_factory=NextTokenConfig)
    optimizer: OptimizerConfig = AdamWConfig()
    schedule: ScheduleConfig = field(default_factory=WarmupCosine)
    ema: EMAConfig | None = None
    precision: PrecisionConfig = Float32Config()
    compile: CompileConfig | None = None
    evaluation: EvaluationConfig | None = None
    checkpoint: CheckpointConfig = CheckpointConfig()
    watchdog: WatchdogConfig | None = field(default_factory=WatchdogConfig)
    microbatch_rows: int | None = None
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
        self.require(
            self.microbatch_rows is None or self.microbatch_rows > 0,
            f"microbatch_rows must be at least 1, got {self.microbatch_rows}",
        )
        self.require(
            self.num_threads is None or self.num_threads > 0, f"num_threads must be at least 1, got {self.num_threads}"
        )
        self.require(self.log_every > 0, f"log_every must be at least 1, got {self.log_every}")
        self.require(
            self.data.row_tokens <= self.model.context_length,
            f"rows of {self.data.row_tokens} tokens do not fit the model's context of {self.model.context_length}",
        )
        self.require(
            self.upcycle is None or self.adapter is None, "upcycle and adapter are two runs: train the one, then the other"
        )
        kinds = {
            "Muon": isinstance(self.optimizer, MuonConfig),
            "compile": self.compile is not None,
            "qat": self.qat is not None,
            "an adapter": self.adapter is not None,
        }
        undivided = [name for name, is_used in kinds.items() if is_used]
        self.require(
            not undivided or not self.parallel.divides_weights,
            f"{' and '.join(undivided)} cannot train weights that are divided over processes; use parallel.replicate alone",
        )
        self.require(self.qat is None or self.adapter is None, "qat and adapter are two runs: train the one, then the other")
        self.require(
            self.adapter is None or isinstance(self.adapter.start, ZeroStart),
            "an adapter is trained from zero or from what its bundle carries; singular vectors move into one in compression",
        )


def first_difference(found: Config, expected: Config, ignored: tuple[str, ...] = ()) -> str | None:
    """The first dotted key at which two configs differ, with both values, as in `optimizer.eps is 1e-08, not 1e-06`.

    Keys at the top that are `ignored` do not count. None if there is no difference.
    """
    found_tree, expected_tree = (
        {key: value for key, value in to_dict(config).items() if key not in ignored} for config in (found, expected)
    )
    return _first_difference("", found_tree, expected_tree)


def _first_difference(path: str, found: Any, expected: Any) -> str | None:
    if isinstance(found, list) and isinstance(expected, list):
        if len(found) != len(expected):
            return f"{path.lstrip('.')} has {len(found)} items, not {len(expected)}"
        found, expected = ({f"[{i}]": item for i, item in enumerate(items)} for items in (found, expected))
    if not (isinstance(found, dict) and isinstance(expected, dict)):
        return None if found == expected else f"{path.lstrip('.')} is {_brief(found)}, not {_brief(expected)}"
    for key in found | expected:
        below = path + (key if key.startswith("[") else f".{key}")
        difference = _first_difference(below, found.get(key, "absent"), expected.get(key, "absent"))
        if difference is not None:
            return difference
    return None


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
