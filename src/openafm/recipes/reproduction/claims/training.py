"""Claims of sections 4.2 to 5: pre-training, continued pre-training, post-training."""

from __future__ import annotations

from math import sqrt
from statistics import fmean, variance
from typing import Any

from openafm.recipes.reproduction.claims.claim import claim, learns


@claim("4.3", "pretraining/on_device.pretrain", "share of the time spent in steps", "93 % good output")
def _goodput(run: Any) -> tuple[str, bool]:
    return f"{run['goodput']:.0%} of one process", run["goodput"] >= 0.9


@claim("4.3", "server/server.pretrain", "training continues after a failure of hardware", "93 % good output")
def _killed(run: Any) -> tuple[str, bool]:
    share = f"{run['goodput']:.0%} of the time in steps, {run['lost_seconds']['rework']:.1f} s of rework"
    return f"{run['starts']} starts, {share}", run["starts"] > 1


@claim(
    "4.3",
    "distillation/on_device.upcycle_teacher",
    "upcycling makes the teacher cheaper than training it",
    "-90 %",
    beside="pretraining/on_device.pretrain",
)
def _teacher(teacher: Any, dense: Any) -> tuple[str, bool]:
    return f"{teacher['tokens'] / dense['tokens'] - 1:+.0%} of the tokens", teacher["tokens"] <= 0.1 * dense["tokens"]


@claim(
    "4.3",
    "distillation/on_device.distill",
    "distillation lowers the loss of the small model",
    "better",
    beside="pretraining/on_device.pretrain",
)
def _distilled(distilled: Any, dense: Any) -> tuple[str, bool]:
    before, after = dense["loss_last"], distilled["cross_entropy_last"]  # its loss has the divergence from the teacher too
    return f"training loss {before:.3f}, distilled {after:.3f} (cross entropy of the data)", after < before


@claim("5.3", "annotation/annotate", "annotators correct steps, and calls run again from there", "yes", trained=False)
def _annotated(done: Any) -> tuple[str, bool]:
    return f"{done['items']} items, {done['corrections']} corrections by a script", done["corrections"] > 0


@claim(
    "5.3",
    "annotation/stems",
    "main stems fine-tune, abandoned branches are preferences",
    "tree-structured dataset",
    beside="annotation/branches",
    trained=False,
)
def _trees(stems: Any, branches: Any) -> tuple[str, bool]:
    found = f"{stems['lines']} main stems that replay, {branches['lines']} abandoned branches"
    return found, stems["lines"] > 0 < branches["lines"] and not stems["skipped"]


@claim("5.2", "reward_model/prompts", "prompts with the highest cohesion in their neighborhood are chosen", "+4 to +10 %")
def _prompts(found: Any) -> tuple[str, bool]:
    chosen, mean = found["mean_cohesion_chosen"], found["mean_cohesion"]
    return f"{found['chosen']} of {found['prompts']}; cohesion {mean:.3f} to {chosen:.3f}", chosen > mean


@claim("5.2", "rlhf/report", "asynchronous RLOO raises the reward", "16 : 9 against SFT")
def _rewards(report: Any) -> tuple[str, bool]:
    """Steps have other prompts, so their rewards differ by more than a short training adds."""
    rewards = report["curves"]["reward"]
    part = max(len(rewards) // 4, 1)
    quarters = rewards[:part], rewards[-part:]
    first, last = map(fmean, quarters)
    if part == 1:
        return f"mean reward {first:.3f} to {last:.3f}", last > first
    error = sqrt(sum(variance(rows) / part for rows in quarters))
    is_noise = ", which is within the noise" if abs(last - first) < 2 * error else ""
    return f"mean reward {first:.3f} to {last:.3f}, the difference ± {error:.3f}{is_noise}", last > first + error


@claim(
    "5.2",
    "rlhf/asynchronous_report",
    "asynchronous against synchronous updates, on the same processes",
    "-37.5 % devices, -75 % compute time",
    beside="rlhf/synchronous_report",
)
def _asynchronous(run: Any, synchronous: Any) -> tuple[str, bool]:
    seconds, expected = run["seconds_per_update"], synchronous["seconds_per_update"]
    shown = f"{seconds:.2f} s for an update with samples up to 4 updates old, generators idle {_idle(run):.0%} of the time;"
    shown += f" synchronous {expected:.2f} s, idle {_idle(synchronous):.0%}"
    return f"{shown} ({seconds / expected - 1:+.0%})", seconds < expected


def _idle(run: Any) -> float:
    """Return the mean share of the time in which the generators of a run waited."""
    return fmean(part["idle_share"] for name, part in run["parts"].items() if name != "updater")


TRAINING_CLAIMS = (
    learns("4.2", "vision/vision.clip", "contrastive pre-training of the vision encoder", "6B pairs"),
    learns("4.2", "vision/vision.joint", "the vision encoder learns with a compact decoder", "302M decoder"),
    _goodput,
    learns("4.3", "server/server.pretrain", "the server model learns with tracks and experts on two processes", "yes"),
    _killed,
    _teacher,
    _distilled,
    learns("4.4", "continued/on_device.text_continued", "text and languages, 8 to 30 % multilingual", "better"),
    learns("4.4", "continued/on_device.multimodal", "multimodal adaptation learns", "yes"),
    learns("4.4", "continued/on_device.long_context", "longer context", "up to 65K tokens"),
    learns("5.1", "fine_tuning/on_device.sft", "supervised fine-tuning", "yes"),
    learns("5.1", "fine_tuning/on_device.multimodal_sft", "supervised fine-tuning on images", "yes"),
    _prompts,
    _rewards,
    _asynchronous,
    _annotated,
    _trees,
    learns("5.3", "annotation/tool_use", "tool-use data fine-tunes the model", "more reliable"),
)
