"""What a run takes from the bundles that it starts from and learns from, once all its values are known."""

from __future__ import annotations

from dataclasses import replace

from openafm.bundle import Bundle, open_bundle
from openafm.models.upcycling_config import upcycled_config
from openafm.recipes.config import RunConfig
from openafm.training.objectives.config import CachedDistillationConfig, TeacherError


def settled(config: RunConfig, teacher: str | None) -> RunConfig:
    """The run with the upcycled model of its bundle, and with its teacher: the one it names, else `teacher`, if any.

    Raises:
        UpcyclingError: the bundle's model cannot be upcycled.
        TeacherError: the teacher reads another vocabulary than the student.
    """
    trainer = config.trainer
    if trainer.upcycle is not None and trainer.from_bundle is not None:
        dense = open_bundle(trainer.from_bundle).config
        trainer = replace(trainer, model=upcycled_config(dense, trainer.upcycle))
    objective = trainer.objective
    if isinstance(objective, CachedDistillationConfig):
        named = objective.teacher or teacher
        if named is not None:
            trainer = replace(trainer, objective=_taught(objective, open_bundle(named), config.start))
    return replace(config, trainer=trainer)


def _taught(objective: CachedDistillationConfig, teacher: Bundle, student: str | None) -> CachedDistillationConfig:
    if student is not None and open_bundle(student).tokenizer.digest != teacher.tokenizer.digest:
        raise TeacherError(
            f"the teacher {teacher.name} reads another vocabulary than {student}; train it from a bundle with the same"
            " tokenizer"
        )
    return replace(
        objective,
        teacher=str(teacher.path.resolve()),
        identity=objective.identity or teacher.identity,
        num_tokens=teacher.tokenizer.vocab_size,
    )
