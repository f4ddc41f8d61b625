"""Reward models as data: a decoder with a scalar head. Imports no tensor library."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

from openafm.core.config import ConfigError
from openafm.models.config import DecoderConfig

if TYPE_CHECKING:
    from openafm.models.reward import RewardModel


@dataclass(frozen=True, kw_only=True)
class RewardModelConfig(DecoderConfig):
    """A decoder whose head gives the reward of a conversation (report 5.2.2).

    Attributes:
        num_grades: absolute grades of single answers, 1 to `num_grades`, which the reward predicts through thresholds.
        has_cohesion: a selection model: two further heads predict, from the prompt alone, the cohesion of its labels.
    """

    num_grades: int = 5
    has_cohesion: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.num_grades >= 2, f"num_grades must be at least 2, got {self.num_grades}")

    @classmethod
    def of(cls, decoder: DecoderConfig, *, num_grades: int = 5, has_cohesion: bool = False) -> Self:
        """Return a reward model with the layers of a decoder.

        Raises:
            ConfigError: the decoder has further parts, such as a vision encoder, which a reward model does not keep.
        """
        if type(decoder) is not DecoderConfig:
            raise ConfigError(f"a reward model starts from a DecoderConfig, got {type(decoder).__name__}; use a text model")
        values = {each.name: getattr(decoder, each.name) for each in fields(DecoderConfig)}
        return cls(**values, num_grades=num_grades, has_cohesion=has_cohesion)

    @property
    def decoder(self) -> DecoderConfig:
        """The decoder alone."""
        return DecoderConfig(**{each.name: getattr(self, each.name) for each in fields(DecoderConfig)})

    def other_parameters(self) -> int:
        return self.dim + self.num_grades - 1 + (2 * self.dim if self.has_cohesion else 0)

    def build(self, seed: int = 0) -> RewardModel:
        """Return the module with freshly initialized weights, or without storage under `torch.device("meta")`."""
        from openafm.models.reward import RewardModel

        return RewardModel(self, seed)
