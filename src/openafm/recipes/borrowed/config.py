"""What to train in the minutes of a borrowed machine. Imports no tensor library."""

from __future__ import annotations

from dataclasses import dataclass, field

from openafm.core.config import Config


@dataclass(frozen=True, kw_only=True)
class BorrowedConfig(Config):
    """Stages of recipes that share a machine's minutes, and the pieces that come back.

    Attributes:
        minutes: wall time of the whole call, after which everything is written.
        end_seconds: what is left of it for the last bundle and its pieces.
        size: the size of the recipes.
        model: a named size of decoder (models/sizes.py); by default the recipes'.
        tokenizer: the bundle whose tokenizer the models use; its vocabulary is that of the models.
        stages: recipes in order, each from the bundle of the one before, with their shares of the time.
        num_examples: examples of the built-in corpus; 0 as many as the cores generate in `generate_seconds`.
        num_drawings: training drawings of each kind; 0 is the recipe's number.
        natural: the folder of requests that people wrote, for the recipes that use them.
        rows: rows of a step of the stages that come back; 0 is `gpu_rows` on CUDA and the recipe's elsewhere.
        changes: values of the stages that come back, by dotted key.
        piece_mb: MiB of a file that comes back, at most.
        num_pieces: files that come back, without digests and figures.
    """

    minutes: float = 8.0
    end_seconds: float = 20.0
    size: str = "nano"
    model: str = ""
    tokenizer: str = "nano"
    stages: dict[str, float] = field(default_factory=lambda: {"on_device.pretrain": 0.12, "on_device.sft": 0.88})
    num_examples: int = 0
    generate_seconds: float = 45.0
    num_drawings: int = 0
    natural: str = ""
    rows: int = 0
    gpu_rows: int = 64
    changes: dict[str, str] = field(default_factory=dict)
    piece_mb: float = 15.5
    num_pieces: int = 4

    def __post_init__(self) -> None:
        self.require(
            60 * self.minutes > self.end_seconds, f"minutes must be above {self.end_seconds:g} s, got {self.minutes}"
        )
        self.require(len(self.stages) > 0, "stages must not be empty")
        self.require(min(self.stages.values(), default=1) > 0, f"shares of the time must be above 0, got {self.stages}")
        self.require(
            min(self.num_examples, self.num_drawings, self.rows) >= 0,
            "num_examples, num_drawings and rows must not be negative",
        )
        self.require(self.piece_mb > 0 and self.num_pieces > 0, "piece_mb and num_pieces must be above 0")

    @property
    def piece_bytes(self) -> int:
        return int(self.piece_mb * (1 << 20))

    @property
    def kept_stages(self) -> tuple[str, ...]:
        """The stages whose bundles come back: all but the first, which the next ones train further."""
        return tuple(self.stages)[1:] or tuple(self.stages)
