"""What a claim of the report is, and how one is measured from the outputs of a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Figures: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The outputs of commands by stage name and command name."""
Measure: TypeAlias = Callable[[Figures], tuple[str, bool]]
"""Return our figure as text, and True if the claim holds in shape; raise KeyError if an output lacks a value."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the report.

    Attributes:
        section: the section of the report.
        stage: the stage whose outputs have our figure.
        command: the name of the command whose output has it.
        reported: the report's words or figure.
        trained: False if the figure does not depend on the size of the reproduction.
    """

    section: str
    stage: str
    command: str
    text: str
    reported: str
    measured: Measure
    trained: bool = True


@dataclass(frozen=True, kw_only=True)
class MeasuredClaim:
    """A claim with our figure, the scale at which it was measured and the command that measured it.

    `holds` is None if it was not measured, and `ours` has the reason.
    """

    section: str
    text: str
    reported: str
    ours: str
    holds: bool | None
    scale: str = ""
    command: str = ""


def claim(
    section: str, place: str, text: str, reported: str, *, beside: str = "", trained: bool = True
) -> Callable[[Callable[..., tuple[str, bool]]], Claim]:
    """Turn a function of one command's output into a claim.

    Args:
        place: STAGE/COMMAND.
        beside: another command; its output is the function's second argument.
    """
    stage, command = place.split("/")
    places = [each.split("/") for each in (place, beside) if each]

    def wrap(function: Callable[..., tuple[str, bool]]) -> Claim:
        return Claim(
            section=section,
            stage=stage,
            command=command,
            text=text,
            reported=reported,
            measured=lambda figures: function(*(figures[stage][command] for stage, command in places)),
            trained=trained,
        )

    return wrap


def learns(section: str, place: str, text: str, reported: str) -> Claim:
    """Return the claim that the loss of a training falls."""

    @claim(section, place, text, reported)
    def falls(run: Any) -> tuple[str, bool]:
        losses = f"loss {run['loss_first']:.2f} to {run['loss_last']:.2f} in {run['steps']:,} steps"
        held_out = run.get("held_out_loss")
        return losses if held_out is None else f"{losses}; held-out {held_out:.2f}", run["loss_last"] < run["loss_first"]

    return falls


def shorten(text: str, length: int = 80) -> str:
    """Return a text of at most `length` characters."""
    return text if len(text) <= length else f"{text[: length - 3]}..."
