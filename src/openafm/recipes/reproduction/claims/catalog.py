"""The report's claims beside our figures, computed from the outputs of stages; never typed by hand."""

from __future__ import annotations

from collections.abc import Sequence

from openafm.recipes.reproduction.claims.claim import Claim, MeasuredClaim
from openafm.recipes.reproduction.claims.model import DATA_CLAIMS, MODEL_CLAIMS
from openafm.recipes.reproduction.claims.training import TRAINING_CLAIMS
from openafm.recipes.reproduction.claims.use import USE_CLAIMS
from openafm.recipes.reproduction.results import StageResult
from openafm.recipes.reproduction.sizes import recipe_size
from openafm.recipes.reproduction.stages.stage import Stage

CLAIMS: tuple[Claim, ...] = (*MODEL_CLAIMS, *DATA_CLAIMS, *TRAINING_CLAIMS, *USE_CLAIMS)
"""In the order of the report."""


def measured_claims(results: Sequence[StageResult], stages: Sequence[Stage], size: str) -> list[MeasuredClaim]:
    """Return all claims with what the stages measured, in the order of the report."""
    by_name = {result.name: result for result in results}
    figures = {result.name: result.figures for result in results}
    commands = {
        (stage.name, command.name): f"openafm {' '.join(command.words)}" for stage in stages for command in stage.commands
    }
    found = []
    for claim in CLAIMS:
        ours, holds = "not measured: the stage was not run", None
        result = by_name.get(claim.stage)
        if result is not None and result.reason:
            ours = f"not measured: {result.reason}"
        elif result is not None:
            try:
                ours, holds = claim.measured(figures)
            except (KeyError, IndexError, TypeError, ZeroDivisionError) as error:
                ours = f"not measured: {'; '.join(result.notes) or f'the output of {claim.stage} has no {error}'}"
        found.append(
            MeasuredClaim(
                section=claim.section,
                text=claim.text,
                reported=claim.reported,
                ours=ours,
                holds=holds,
                scale=_scale(size) if claim.trained else "independent of the size",
                command=commands.get((claim.stage, claim.command), ""),
            )
        )
    return sorted(found, key=lambda claim: [int(part) for part in claim.section.split(".")])


def _scale(size: str) -> str:
    return "micro models, two steps" if size == "tiny" else f"{recipe_size(size)} models"
