"""What a model can be trained for, as data. Imports no tensor library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openafm.core.config import Config, ConfigError
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.adapters.package import Adapter
    from openafm.bundle import Bundle
    from openafm.models.decoder import Decoder
    from openafm.training.config import TrainerConfig
    from openafm.training.objectives.base import Objective


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Config):
    """Base of what can be trained for; `build` returns a function (model, batch) -> losses."""

    def build(self) -> Objective:
        raise ConfigError(
            f"{type(self).__name__} is abstract; use NextTokenConfig, DistillationConfig or CachedDistillationConfig"
        )

    def check(self, trainer: TrainerConfig) -> None:
        """Refuse a run that this objective cannot be trained in, before its first step."""


@dataclass(frozen=True, kw_only=True)
class RoutingLossConfig(Config):
    """Weights of the auxiliary losses of routers, beside the objective; of no effect on a model without experts."""

    balance_weight: float = 0.01
    z_weight: float = 0.001

    def __post_init__(self) -> None:
        self.require(self.balance_weight >= 0 and self.z_weight >= 0, "balance_weight and z_weight must not be negative")


@dataclass(frozen=True, kw_only=True)
class NextTokenConfig(ObjectiveConfig):
    """Cross entropy of the next token at the positions that the data marks to learn."""

    routing: RoutingLossConfig = RoutingLossConfig()

    def build(self) -> Objective:
        from openafm.training.objectives.base import NextToken

        return NextToken(self.routing)


class TeacherError(UsageError):
    """A teacher that was not named, has changed since the run began, or reads another vocabulary than the data."""


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A bundle to learn from, under its own adapter or another."""

    bundle: Bundle
    adapter: Adapter | None

    @property
    def identity(self) -> str:
        return teacher_identity(self.bundle, self.adapter)

    def load(self) -> Decoder:
        """Its decoder, computing in the bundle's numerics.

        Raises:
            BundleError, AdapterError: it cannot be read.
        """
        from openafm.bundle.decoder import load_decoder

        return load_decoder(self.bundle, adapter=self.adapter or self.bundle.recovery_adapter)

    def check_vocabulary(self, trainer: TrainerConfig) -> None:
        """Refuse to teach a run whose data was made with another tokenizer.

        Raises:
            TeacherError: it was.
        """
        from openafm.data.shards import read_manifest

        for source in trainer.data.sources:
            if read_manifest(Path(source.path)).tokenizer_digest != self.bundle.tokenizer.digest:
                raise TeacherError(
                    f"the teacher {self.bundle.path} reads another vocabulary than {source.path} was made with; "
                    "choose a teacher with the student's tokenizer"
                )


def teacher_identity(bundle: Bundle, adapter: Adapter | None) -> str:
    """What tells two teachers apart by what they teach."""
    return bundle.identity if adapter is None else f"{bundle.signature} {adapter.digest}"


@dataclass(frozen=True, kw_only=True)
class BaseDistillationConfig(ObjectiveConfig):
    """Agreement with the bundle `teacher`, in its numerics, under its own adapter or the one at `adapter`.

    `identity`, where given, is what the bundle's must be, with the digest of `adapter`. `hard_weight` of the data's own
    tokens is added. Only the first `num_tokens` rows of the vocabulary count; None for all.
    """

    teacher: str | None = None
    adapter: str | None = None
    identity: str | None = None
    hard_weight: float = 0.1
    num_tokens: int | None = None
    routing: RoutingLossConfig = RoutingLossConfig()

    def __post_init__(self) -> None:
        self.require(self.hard_weight >= 0, f"hard_weight must not be negative, got {self.hard_weight}")

    def open(self) -> Teacher:
        """The teacher.

        Raises:
            TeacherError: there is none, or it has changed.
            BundleError, AdapterError: it cannot be read.
        """
        from openafm.adapters.package import open_adapter
        from openafm.bundle import open_bundle

        if self.teacher is None:
            raise TeacherError(self.without_teacher)
        teacher = Teacher(
            bundle=open_bundle(self.teacher), adapter=None if self.adapter is None else open_adapter(Path(self.adapter))
        )
        if self.identity not in (None, teacher.identity):
            raise TeacherError(
                f"{teacher.bundle.path} is {teacher.identity}, the run began with {self.identity}; restore it or start the"
                " run anew in another folder"
            )
        return teacher

    @property
    def without_teacher(self) -> str:
        """What to say where no teacher was named."""
        raise ConfigError(f"{type(self).__name__} is abstract; use DistillationConfig or CachedDistillationConfig")


@dataclass(frozen=True, kw_only=True)
class DistillationConfig(BaseDistillationConfig):
    """From a teacher that computes while the student trains: all of its law, nothing stored."""

    def build(self) -> Objective:
        """Load the teacher; see `open`."""
        from openafm.training.objectives.distillation import Distillation

        return Distillation(self.open().load(), self.hard_weight, self.num_tokens, self.routing)

    def check(self, trainer: TrainerConfig) -> None:
        """See that there is a teacher, and that it reads the run's vocabulary.

        Raises:
            TeacherError: there is none, it has changed, or it reads another one.
        """
        self.open().check_vocabulary(trainer)

    @property
    def without_teacher(self) -> str:
        return "a draft model learns from a target: give its bundle with --from BUNDLE"


@dataclass(frozen=True, kw_only=True)
class CachedDistillationConfig(BaseDistillationConfig):
    """From the likeliest `num_logits` tokens and the tail's mass, which a teacher has left in the folder `cache`.

    `teacher_logits.write_teacher_logits` lets it compute them, once, for all that the run will see.
    """

    cache: str = "teacher_logits"
    num_logits: int = 64
    hard_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.num_logits > 0, f"num_logits must be at least 1, got {self.num_logits}")

    def build(self) -> Objective:
        """Open the cache.

        Raises:
            TeacherLogitsError: there is none, or it is damaged.
        """
        from openafm.training.objectives.cached_distillation import CachedDistillation
        from openafm.training.objectives.teacher_logits import open_teacher_logits

        return CachedDistillation(open_teacher_logits(Path(self.cache)), self.hard_weight, self.routing)

    def check(self, trainer: TrainerConfig) -> None:
        """Compare what the cache was made of with what the run wants.

        Raises:
            TeacherLogitsError: there is no cache, or one of another teacher, of other data or with other logits.
        """
        from openafm.training.objectives.teacher_logits import check_teacher_logits

        check_teacher_logits(self, trainer)

    @property
    def without_teacher(self) -> str:
        return (
            "distillation needs a teacher: train on_device.upcycle_teacher first, or name a bundle with"
            " --set trainer.objective.teacher=BUNDLE"
        )
