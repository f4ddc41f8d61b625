"""The objective of reward models as data. Imports no tensor library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openafm.models.reward_config import RewardModelConfig
from openafm.training.objectives.config import ObjectiveConfig, RoutingLossConfig

if TYPE_CHECKING:
    from openafm.training.config import TrainerConfig
    from openafm.training.objectives.base import Objective


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig(ObjectiveConfig):
    """Preference loss of pairs plus single-sided grading as regularization (report 5.2.2), on `data/preferences.py`.

    A pair costs -log sigmoid(r_chosen - r_rejected - margin * (strength - 1)): stronger preferences ask for a larger
    difference. A graded answer costs `grade_weight` times the negative log-probability of its grade under the ordered logit
    of `RewardModel`. The report names both parts; their forms are ours.

    Attributes:
        margin: difference of rewards that each level of strength above the first one asks for.
        grade_weight: weight of the grades; 0 trains on pairs alone.
        cohesion_weight: weight of the loss of the cohesion heads, if the model has them. Their labels are computed from the
            model's own predictions, as in the report: ranking cohesion is 1 if the preference agrees with the order of the
            predicted grades; helpfulness cohesion is 1 if the grade agrees with the one that the reward predicts. The loss
            does not change the layers below, so that it costs no accuracy.
    """

    margin: float = 0.5
    grade_weight: float = 0.5
    cohesion_weight: float = 1.0
    routing: RoutingLossConfig = field(default_factory=RoutingLossConfig)

    def __post_init__(self) -> None:
        smallest = min(self.margin, self.grade_weight, self.cohesion_weight)
        self.require(smallest >= 0, f"margin and weights must be at least 0, got {smallest}")

    def build(self) -> Objective:
        from openafm.training.objectives.preference import Preference

        return Preference(self)

    def check(self, trainer: TrainerConfig) -> None:
        """Refuse a model without a reward head."""
        self.require(
            isinstance(trainer.model, RewardModelConfig),
            f"needs a RewardModelConfig as the model, got {type(trainer.model).__name__}",
        )
