"""Training objectives as data. Imports no tensor library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from openafm.core.config import Config
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.adapters.package import AdapterPackage
    from openafm.bundle import Bundle
    from openafm.models.decoder import Decoder
    from openafm.training.config import TrainerConfig
    from openafm.training.objectives.base import Objective


class TeacherError(UsageError):
    """The teacher is missing, has changed since the run began, or has another vocabulary than the data."""


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A bundle to learn from, with its recovery adapter or with `adapter`."""

    bundle: Bundle
    adapter: AdapterPackage | None

    @property
    def identity(self) -> str:
        """Return the key that identifies the teacher's outputs."""
        return teacher_identity(self.bundle, self.adapter)

    def load(self) -> Decoder:
        """Return the teacher's decoder, which computes in the numerics of its bundle.

        Raises:
            BundleError, AdapterError: the teacher cannot be read.
        """
        from openafm.bundle.decoder import load_decoder

        return load_decoder(self.bundle, adapter=self.adapter or self.bundle.recovery_adapter)

    def check_vocabulary(self, trainer: TrainerConfig) -> None:
        """Check that the run's data was packed with the teacher's tokenizer.

        Raises:
            TeacherError: a source was packed with another tokenizer.
        """
        from openafm.data.shards.token_shards import read_manifest

        for source in trainer.data.sources:
            if read_manifest(source.path).tokenizer_digest != self.bundle.tokenizer.digest:
                raise TeacherError(
                    f"{source.path} was packed with another tokenizer than that of the teacher {self.bundle.path}; "
                    "choose a teacher with the student's tokenizer"
                )


def teacher_identity(bundle: Bundle, adapter: AdapterPackage | None) -> str:
    """Return the key that identifies a teacher's outputs; cached logits are stored under it."""
    return bundle.identity if adapter is None else f"{bundle.signature} {adapter.digest}"


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Config, ABC):
    """Base of the training objectives.

    A subclass implements `build`. The other methods are hooks that a run calls in the order below. Their defaults do
    nothing; an objective with a teacher or with prepared data overrides them. `DIVIDES_ROWS` is True if the losses of parts
    of the positions of rows add up to those of whole rows.
    """

    DIVIDES_ROWS: ClassVar[bool] = False

    @abstractmethod
    def build(self) -> Objective:
        """Return the objective: a function (model, batch) -> losses."""

    def with_teacher(
        self, trainer: TrainerConfig, bundle: Bundle, adapter: AdapterPackage | None = None
    ) -> TrainerConfig | None:
        """Return `trainer` with the bundle of `--from` as its teacher; None if the run starts from that bundle's weights."""
        return None

    def resolved(self, student: str | None, default_teacher: str | None) -> ObjectiveConfig:
        """Return the objective with every value set that depends on a bundle.

        `student` is the bundle that the run starts from. `default_teacher` is the bundle to learn from if the config names
        none.
        """
        return self

    def start_bundle(self) -> str | None:
        """Return the bundle whose tokenizer and chat template the run uses; None if the trainer's start decides."""
        return None

    def located(self, folder: Path) -> ObjectiveConfig:
        """Return the objective with relative paths resolved against the run folder."""
        return self

    def check_inputs(self) -> None:
        """Refuse inputs that are missing or changed. Called before the data is packed, which may take minutes."""

    def prepare(self, trainer: TrainerConfig, device: str = "cpu") -> None:
        """Write the files that the objective reads, computed on `device`.

        Called once, in the main process, after the data is packed.
        """

    def check(self, trainer: TrainerConfig) -> None:
        """Refuse a run that this objective cannot train. Called in every process, before the first step."""

    def draft_target(self) -> Teacher | None:
        """Return the model that the trained one drafts for; the run then measures the acceptance. None for other models."""
        return None


@dataclass(frozen=True, kw_only=True)
class RoutingLossConfig(Config):
    """Weights of the auxiliary losses of routers, which are added to the objective. No effect without experts."""

    balance_weight: float = 0.01
    z_weight: float = 0.001

    def __post_init__(self) -> None:
        self.require(self.balance_weight >= 0 and self.z_weight >= 0, "balance_weight and z_weight must be at least 0")


@dataclass(frozen=True, kw_only=True)
class NextTokenConfig(ObjectiveConfig):
    """Cross entropy of the next token at the positions of the loss mask."""

    DIVIDES_ROWS: ClassVar[bool] = True

    routing: RoutingLossConfig = RoutingLossConfig()

    def build(self) -> Objective:
        from openafm.training.objectives.base import NextToken

        return NextToken(self.routing)


@dataclass(frozen=True, kw_only=True)
class ContrastiveConfig(ObjectiveConfig):
    """CLIP: each image picks its text among those of the step, and each text its image (arXiv 2103.00020).

    Of every document with an image, the first image and the text after it are a pair. The model is a `ClipConfig`. Of each
    image a random share `kept` of the patches is encoded (FLIP, arXiv 2212.00794); the last steps, a share `unmasked_share`
    of the run, encode all, as evaluation does.
    """

    kept: float = 1.0
    unmasked_share: float = 0.0

    def __post_init__(self) -> None:
        self.require(0 < self.kept <= 1, f"kept is a share above 0 to 1, got {self.kept}")
        self.require(0 <= self.unmasked_share <= 1, f"unmasked_share is a share from 0 to 1, got {self.unmasked_share}")

    def build(self) -> Objective:
        from openafm.training.objectives.contrastive import Contrastive

        return Contrastive(self)

    def check(self, trainer: TrainerConfig) -> None:
        """Refuse a model without two towers, and masked patches of an encoder without layers."""
        from openafm.models.vision.multimodal_config import ClipConfig

        model = trainer.model
        self.require(isinstance(model, ClipConfig), f"needs a ClipConfig as the model, got {type(model).__name__}")
        self.require(
            self.kept == 1 or not isinstance(model, ClipConfig) or bool(model.vision.layers),
            f"convolutions encode the whole image; set kept to 1, got {self.kept}",
        )


@dataclass(frozen=True, kw_only=True)
class SigmoidContrastiveConfig(ContrastiveConfig):
    """SigLIP: each pair of an image and a text of the step is classified by itself (arXiv 2303.15343)."""

    def build(self) -> Objective:
        from openafm.training.objectives.contrastive import SigmoidContrastive

        return SigmoidContrastive(self)


@dataclass(frozen=True, kw_only=True)
class LettersConfig(ObjectiveConfig):
    """The class of each cell of a view, for a `LettersModelConfig` and documents that are packed as `letters`.

    `data/images/letters.py` gives the classes. The loss is summed over all cells and divided by the letters and spaces, of
    which each document must fit into a row.
    """

    def build(self) -> Objective:
        from openafm.training.objectives.letters import Letters

        return Letters()

    def check(self, trainer: TrainerConfig) -> None:
        """Refuse a model of another kind, and weights that are divided over processes."""
        from openafm.models.vision.multimodal_config import LettersModelConfig

        model = trainer.model
        self.require(
            isinstance(model, LettersModelConfig), f"needs a LettersModelConfig as the model, got {type(model).__name__}"
        )
        self.require(not trainer.parallel.divides_weights, "cannot train divided weights; use parallel.replicate alone")


@dataclass(frozen=True, kw_only=True)
class BaseDistillationConfig(ObjectiveConfig):
    """Base of distillation from the bundle `teacher`, in its numerics, with its recovery adapter or the one at `adapter`.

    `identity`, if given, must equal the teacher's. The loss is the KL divergence from the teacher plus `hard_weight` times
    the cross entropy of the data. Only the first `num_tokens` rows of the vocabulary count; None for all.
    """

    MISSING_TEACHER: ClassVar[str]
    """The error message for a config without a teacher."""

    teacher: str | None = None
    adapter: str | None = None
    identity: str | None = None
    hard_weight: float = 0.1
    num_tokens: int | None = None
    routing: RoutingLossConfig = RoutingLossConfig()

    def __post_init__(self) -> None:
        self.require(self.hard_weight >= 0, f"hard_weight must be at least 0, got {self.hard_weight}")

    def open(self) -> Teacher:
        """Return the teacher.

        Raises:
            TeacherError: no teacher is named, or the teacher has changed.
            BundleError, AdapterError: the teacher cannot be read.
        """
        from openafm.adapters.package import open_adapter
        from openafm.bundle import open_bundle

        if self.teacher is None:
            raise TeacherError(self.MISSING_TEACHER)
        teacher = Teacher(
            bundle=open_bundle(self.teacher), adapter=None if self.adapter is None else open_adapter(Path(self.adapter))
        )
        if self.identity not in (None, teacher.identity):
            raise TeacherError(
                f"the teacher {teacher.bundle.path} is {teacher.identity}, the run began with {self.identity}; restore it or"
                " start a new run in another folder"
            )
        return teacher


@dataclass(frozen=True, kw_only=True)
class DistillationConfig(BaseDistillationConfig):
    """Online distillation from the teacher's full distribution. Nothing is stored."""

    MISSING_TEACHER = "a draft model learns from its target: name the target's bundle with --from BUNDLE"

    def build(self) -> Objective:
        """Load the teacher and return the objective. Errors as `open`."""
        from openafm.training.objectives.distillation import Distillation

        return Distillation(self.open().load(), self.hard_weight, self.num_tokens, self.routing)

    def with_teacher(self, trainer: TrainerConfig, bundle: Bundle, adapter: AdapterPackage | None = None) -> TrainerConfig:
        """Return the run with `bundle` as its teacher. The student gets its vocabulary size and context length.

        Raises:
            AdapterMismatchError: `adapter` was trained on another base.
        """
        if adapter is not None:
            adapter.check_base(bundle.signature)
        objective = replace(
            self,
            teacher=str(bundle.path.resolve()),
            adapter=None if adapter is None else str(adapter.path.resolve()),
            identity=teacher_identity(bundle, adapter),
            num_tokens=bundle.tokenizer.vocab_size,
        )
        context_length = bundle.config.context_length
        model = replace(trainer.model, vocab_size=bundle.config.vocab_size, context_length=context_length)
        data = replace(trainer.data, row_tokens=min(trainer.data.row_tokens, context_length))
        return replace(trainer, objective=objective, model=model, data=data)

    def start_bundle(self) -> str | None:
        return self.teacher

    def check(self, trainer: TrainerConfig) -> None:
        """Check that the teacher exists and has the run's vocabulary.

        Raises:
            TeacherError: no teacher is named, it has changed, or it has another vocabulary.
        """
        self.open().check_vocabulary(trainer)

    def draft_target(self) -> Teacher | None:
        return None if self.teacher is None else self.open()


@dataclass(frozen=True, kw_only=True)
class CachedDistillationConfig(BaseDistillationConfig):
    """Offline distillation from cached logits: the teacher's `num_logits` likeliest tokens and the mass of all others.

    `prepare` computes them once, into the folder `cache`, for every position that the run reads.
    """

    MISSING_TEACHER = (
        "distillation needs a teacher: train on_device.upcycle_teacher first, or name a bundle with"
        " --set trainer.objective.teacher=BUNDLE"
    )

    cache: str = "teacher_logits"
    num_logits: int = 64
    hard_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.num_logits > 0, f"num_logits must be at least 1, got {self.num_logits}")

    def build(self) -> Objective:
        """Open the cache and return the objective.

        Raises:
            TeacherLogitsError: the cache is missing or damaged.
        """
        from openafm.training.objectives.cached_distillation import CachedDistillation
        from openafm.training.objectives.teacher_logits import open_teacher_logits

        return CachedDistillation(open_teacher_logits(Path(self.cache)), self.hard_weight, self.routing)

    def resolved(self, student: str | None, default_teacher: str | None) -> CachedDistillationConfig:
        """Return the objective with the teacher's path, identity and vocabulary.

        Raises:
            TeacherError: the teacher has another tokenizer than the student.
        """
        from openafm.bundle import open_bundle

        name = self.teacher or default_teacher
        if name is None:
            return self
        teacher = open_bundle(name)
        if student is not None and open_bundle(student).tokenizer.digest != teacher.tokenizer.digest:
            raise TeacherError(
                f"the teacher {teacher.name} has another tokenizer than the student {student}; train the teacher from a"
                " bundle with the student's tokenizer"
            )
        return replace(
            self,
            teacher=str(teacher.path.resolve()),
            identity=self.identity or teacher.identity,
            num_tokens=teacher.tokenizer.vocab_size,
        )

    def located(self, folder: Path) -> CachedDistillationConfig:
        return replace(self, cache=str((folder / self.cache).resolve()))

    def check_inputs(self) -> None:
        self.open()

    def prepare(self, trainer: TrainerConfig, device: str = "cpu") -> None:
        """Compute the teacher's logits; see `write_teacher_logits`."""
        from openafm.training.objectives.teacher_logits import write_teacher_logits

        write_teacher_logits(trainer, device=device)

    def check(self, trainer: TrainerConfig) -> None:
        """Check that the cache belongs to this run.

        Raises:
            TeacherLogitsError: the cache is missing, or has another teacher, other data or other logits.
        """
        from openafm.training.objectives.teacher_logits import check_teacher_logits

        check_teacher_logits(self, trainer)
