"""Early warnings of a run that collapses: no samples, low entropy, answers that grow or repeat themselves, no gradient."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping

_BASELINE_STEPS = 10
_RECENT_STEPS = 5
LOW_ENTROPY = 0.2  # of that of the first steps
LONG = 2.0  # times the length of the first steps
REPETITION = 0.3


class CollapseWatch:
    """Compare the latest steps with the first ones. Each warning appears once until its cause has ended."""

    def __init__(self) -> None:
        self._first: dict[str, list[float]] = {"entropy": [], "length": []}
        self._recent: deque[Mapping[str, float]] = deque(maxlen=_RECENT_STEPS)
        self._active: set[str] = set()

    def warnings(self, step: int, values: Mapping[str, float]) -> list[str]:
        """Return the new warnings after a step with the values of its line in the log."""
        self._recent.append(values)
        for name, baseline in self._first.items():
            if len(baseline) < _BASELINE_STEPS and name in values:
                baseline.append(values[name])
        causes = {cause: text for cause, text in self._causes(values).items() if text}
        new = [f"step {step}: {text}" for cause, text in causes.items() if cause not in self._active]
        self._active = set(causes)
        return new

    def _causes(self, values: Mapping[str, float]) -> dict[str, str]:
        causes = {"dropped": "", "equal": "", "entropy": "", "length": "", "repetition": ""}
        if self._trained_nothing():
            causes["dropped"] = (
                "every sample was dropped, so the weights do not change; the reasons are under 'errors' in metrics.jsonl"
            )
        if values.get("equal_groups", 0.0) == 1.0:
            causes["equal"] = (
                "the samples of each prompt all have the same reward, so there is no gradient; use easier or harder prompts,"
                " a finer reward or a larger group"
            )
        if len(self._recent) == _RECENT_STEPS and len(self._first["entropy"]) == _BASELINE_STEPS:
            entropy, length = self._mean("entropy"), self._mean("length")
            if entropy < LOW_ENTROPY * statistics.fmean(self._first["entropy"]):
                causes["entropy"] = f"the entropy fell to {entropy:.3f}; raise kl_weight or lower the learning rate"
            if length > LONG * statistics.fmean(self._first["length"]):
                causes["length"] = f"samples grew to {length:.0f} tokens; add a length term to the reward"
        if len(self._recent) == _RECENT_STEPS and self._mean("repetition") > REPETITION:
            causes["repetition"] = f"{self._mean('repetition'):.0%} of the 4-grams of a sample repeat earlier ones"
        return causes

    def _trained_nothing(self) -> bool:
        """Return True if samples were dropped in the latest step and none was trained on; the log has sums over steps."""
        before: Mapping[str, float] = self._recent[-2] if len(self._recent) > 1 else {}
        dropped, trained = (self._recent[-1].get(key, 0) - before.get(key, 0) for key in ("dropped", "trained"))
        return dropped > 0 and trained == 0

    def _mean(self, name: str) -> float:
        return statistics.fmean(values.get(name, 0.0) for values in self._recent)
