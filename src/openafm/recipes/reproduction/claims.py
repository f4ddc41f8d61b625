"""The report's claims beside our figures, computed from the outputs of stages; never typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from openafm.recipes.reproduction.runner import StageResult
from openafm.recipes.reproduction.stages import recipe_size

Figures: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The outputs of a stage's commands by stage name and command name."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the report.

    Attributes:
        section: the section of the report.
        stage: the stage whose outputs have our figure.
        reported: the report's words or figure.
        measured: returns our figure as text, and True if the claim holds in shape; raises KeyError if a figure is absent.
    """

    section: str
    stage: str
    text: str
    reported: str
    measured: Callable[[Figures], tuple[str, bool]]


@dataclass(frozen=True, kw_only=True)
class MeasuredClaim:
    """A claim with our figure; `holds` is None if it was not measured, and `ours` has the reason."""

    section: str
    text: str
    reported: str
    ours: str
    holds: bool | None


def measured_claims(results: Sequence[StageResult], size: str) -> list[MeasuredClaim]:
    """Return all claims, in the order of the report, with what the stages measured."""
    figures = {result.name: result.figures for result in results}
    states = {result.name: result for result in results}
    found = []
    for claim in report_claims(size):
        ours, holds = "not measured: the stage was not run", None
        result = states.get(claim.stage)
        if result is not None and result.reason:
            ours = f"not measured: {result.reason}"
        elif result is not None:
            try:
                ours, holds = claim.measured(figures)
            except (KeyError, TypeError, ZeroDivisionError) as error:
                ours = f"not measured: the output of {claim.stage} has no {error}"
        found.append(MeasuredClaim(section=claim.section, text=claim.text, reported=claim.reported, ours=ours, holds=holds))
    return found


def report_claims(size: str) -> tuple[Claim, ...]:
    """Return the claims in the order of the report."""
    named = recipe_size(size)
    return (*_architecture(), *_data(), *_training(size), *_optimization(named), *_use())


def _architecture() -> tuple[Claim, ...]:
    def sharing(figures: Figures) -> tuple[str, bool]:
        model = figures["models"]["on_device"]
        saving = 1 - model["kv_bytes_at_4096_in_16_bits"] / model["kv_bytes_at_4096_in_16_bits_unshared"]
        return f"-{saving:.1%}", abs(saving - 0.375) < 0.001

    def prefill(figures: Figures) -> tuple[str, bool]:
        model = figures["models"]["on_device"]
        share = model["sharing_layers"] / model["layers"]
        return f"-{share:.1%} of the layers in prefill", abs(share - 0.375) < 0.001

    def synchronization(figures: Figures) -> tuple[str, bool]:
        model = figures["models"]["server"]
        tracks, tensors = model["layers"] / model["block_depth"], 2 * model["layers"]
        return f"-{1 - tracks / tensors:.1%} ({tracks:.0f} against {tensors})", abs(1 - tracks / tensors - 0.875) < 0.001

    def windows(figures: Figures) -> tuple[str, bool]:
        model = figures["models"]["server"]
        saving = 1 - model["kv_bytes_at_65536"] / model["kv_bytes_at_65536_all_global"]
        return f"-{saving:.0%} at 65,536 tokens", saving > 0.5

    def layout(figures: Figures) -> tuple[str, bool]:
        plan = figures["models"]["plan"]
        mfu = plan["model_flops_utilization"]
        return f"{plan['devices']:,} chips in {plan['slices']} slices, {mfu:.0%} modeled MFU", plan["fits"] and mfu >= 0.6

    return (
        Claim(
            section="2.1",
            stage="models",
            text="sharing keys and values makes the KV cache smaller",
            reported="-37.5 %",
            measured=sharing,
        ),
        Claim(
            section="2.1",
            stage="models",
            text="and prefill shorter, hence the time to first token",
            reported="about -37.5 %",
            measured=prefill,
        ),
        Claim(
            section="2.2",
            stage="models",
            text="tracks need fewer synchronizations than tensor parallelism",
            reported="-87.5 % for blocks of four layers",
            measured=synchronization,
        ),
        Claim(
            section="2.2",
            stage="models",
            text="local layers make the KV cache of long contexts smaller",
            reported="substantially",
            measured=windows,
        ),
        Claim(
            section="4.3",
            stage="models",
            text="the server model trains on 8,192 chips in 4 slices",
            reported="8,192 TPU v5p",
            measured=layout,
        ),
    )


def _data() -> tuple[Claim, ...]:
    def robots(figures: Figures) -> tuple[str, bool]:
        crawl = figures["web"]["crawl"]
        return f"{crawl['denied']} pages denied, {crawl['opted_out']} opted out, {crawl['done']} read", crawl["denied"] > 0

    def counted(figures: Figures) -> tuple[str, bool]:
        corpus = figures["web"]["corpus"]
        kept, dropped = corpus["documents_kept"], sum(sum(stage["dropped"].values()) for stage in corpus["stages"])
        return f"{kept} of {corpus['documents_in']} kept", 0 < kept == corpus["documents_in"] - dropped

    def drawn(figures: Figures) -> tuple[str, bool]:
        flyers = figures["images"]["flyers"]
        return f"{flyers['images']} flyers in {len(flyers['languages'])} languages", flyers["images"] > 0

    def extended(figures: Figures) -> tuple[str, bool]:
        train, more = figures["tokenizer"]["train"]["vocab_size"], figures["tokenizer"]["extend"]["vocab_size"]
        return f"{train:,} to {more:,}", more == train * 3 // 2

    def fertility(figures: Figures) -> tuple[str, bool]:
        changes = {
            row["language"]: row["tokens_per_character_after"] / row["tokens_per_character_before"] - 1
            for row in figures["tokenizer"]["report"]
        }
        return ", ".join(f"{name} {change:+.0%} tokens" for name, change in changes.items()), max(changes.values()) < 0

    return (
        Claim(
            section="3.1",
            stage="web",
            text="the crawler follows robots.txt and opt-outs",
            reported="yes",
            measured=robots,
        ),
        Claim(
            section="3.1",
            stage="web",
            text="pages are extracted, filtered and deduplicated; each drop has a reason",
            reported="yes",
            measured=counted,
        ),
        Claim(section="3.2", stage="images", text="synthetic text-rich images", reported="yes", measured=drawn),
        Claim(
            section="4.1",
            stage="tokenizer",
            text="the vocabulary grows by half for new languages",
            reported="100k to 150k",
            measured=extended,
        ),
        Claim(
            section="4.1",
            stage="tokenizer",
            text="with fewer tokens for them",
            reported="better representation",
            measured=fertility,
        ),
    )


def _training(size: str) -> tuple[Claim, ...]:
    def goodput(figures: Figures) -> tuple[str, bool]:
        share = figures["pretraining"]["on_device.pretrain"]["goodput"]
        return f"{share:.0%}", share >= 0.9

    def teacher(figures: Figures) -> tuple[str, bool]:
        dense = figures["pretraining"]["on_device.pretrain"]["tokens"]
        taught = figures["distillation"]["on_device.upcycle_teacher"]["tokens"]
        return f"{taught / dense - 1:+.0%} of the tokens", taught <= 0.1 * dense

    def distilled(figures: Figures) -> tuple[str, bool]:
        before = figures["pretraining"]["on_device.pretrain"]["loss_last"]
        after = figures["distillation"]["on_device.distill"]["loss_last"]
        return f"training loss {before:.3f} to {after:.3f}", after < before

    def server(figures: Figures) -> tuple[str, bool]:
        run = figures["server"]["server.pretrain"]
        return f"loss {run['loss_first']:.2f} to {run['loss_last']:.2f}", run["loss_last"] < run["loss_first"]

    def longer(figures: Figures) -> tuple[str, bool]:
        run = figures["continued"]["on_device.long_context"]
        return f"{run['steps']} steps, loss {run['loss_last']:.2f}", run["loss_last"] < run["loss_first"]

    def multimodal(figures: Figures) -> tuple[str, bool]:
        run = figures["continued"]["on_device.multimodal"]
        return f"loss {run['loss_first']:.2f} to {run['loss_last']:.2f}", run["loss_last"] < run["loss_first"]

    def rlhf(figures: Figures) -> tuple[str, bool]:
        rewards = figures["rlhf"]["report"]["curves"]["reward"]
        half = max(len(rewards) // 4, 1)
        first, last = (sum(part) / len(part) for part in (rewards[:half], rewards[-half:]))
        return f"mean reward {first:.3f} to {last:.3f}", last > first

    return (
        Claim(
            section="4.3",
            stage="pretraining",
            text="share of the time spent in steps",
            reported="93 % good output",
            measured=goodput,
        ),
        Claim(
            section="4.3",
            stage="distillation",
            text="upcycling makes the teacher cheaper than training it",
            reported="-90 %",
            measured=teacher,
        ),
        Claim(
            section="4.3",
            stage="distillation",
            text="distillation lowers the loss of the small model",
            reported="better",
            measured=distilled,
        ),
        Claim(
            section="4.3",
            stage="server",
            text="the server model learns with tracks and experts on two processes",
            reported="yes",
            measured=server,
        ),
        Claim(section="4.4", stage="continued", text="multimodal adaptation learns", reported="yes", measured=multimodal),
        Claim(section="4.4", stage="continued", text="longer context", reported="up to 65K tokens", measured=longer),
        Claim(
            section="5.2",
            stage="rlhf",
            text="asynchronous RLOO raises the reward",
            reported="16 : 9 against SFT",
            measured=rlhf,
        ),
    )


def _optimization(size: str) -> tuple[Claim, ...]:
    two_bits, fine_tuned = f"on_device.qat-{size}", f"on_device.sft-{size}"

    def row(figures: Figures, stage: str, name: str) -> Mapping[str, Any]:
        rows = {each["name"]: each for each in figures[stage]["report"]["bundles"]}
        return dict(rows[name])

    def bits(stage: str, name: str, expected: float) -> Callable[[Figures], tuple[str, bool]]:
        def measured(figures: Figures) -> tuple[str, bool]:
            found = row(figures, stage, name)
            weights = found["bits_per_weight"] - found["adapter_bits_per_weight"]
            shown = f"{weights:.2f} bits with the embedding, and {found['adapter_bits_per_weight']:.2f} of the adapter"
            return shown, weights < 1.5 * expected

        return measured

    def retained(stage: str, before: str, after: str) -> Callable[[Figures], tuple[str, bool]]:
        def measured(figures: Figures) -> tuple[str, bool]:
            first, last = (row(figures, stage, name)["loss"] for name in (before, after))
            return f"held-out loss {first:.3f} to {last:.3f}", last < 1.1 * first

        return measured

    return (
        Claim(
            section="6",
            stage="two_bits",
            text="weights on device",
            reported="2 bits",
            measured=bits("two_bits", two_bits, 2),
        ),
        Claim(
            section="6",
            stage="two_bits",
            text="quality after compression to 2 bits",
            reported="MMLU 67.8 to 64.4",
            measured=retained("two_bits", fine_tuned, two_bits),
        ),
        Claim(
            section="6",
            stage="astc",
            text="weights on the server",
            reported="3.56 bits",
            measured=bits("astc", "server-astc", 3.56),
        ),
        Claim(
            section="6",
            stage="astc",
            text="quality after ASTC",
            reported="MMLU 80.0 to 79.2",
            measured=retained("astc", f"server.sft-{size}", "server-astc"),
        ),
    )


def shorten(text: str, length: int = 80) -> str:
    """Return a text of at most `length` characters."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _use() -> tuple[Claim, ...]:
    def draft(figures: Figures) -> tuple[str, bool]:
        run = figures["draft"]["on_device.draft"]
        return (
            f"{run['acceptance']:.0%} accepted, {run['target_passes_per_token']:.2f} passes a token",
            run["target_passes_per_token"] < run["plain_passes_per_token"],
        )

    def guided(figures: Figures) -> tuple[str, bool]:
        content = figures["framework"]["respond"]["content"]
        return shorten(str(content)), isinstance(content, Mapping) and isinstance(content.get("title"), str)

    def taxonomy(figures: Figures) -> tuple[str, bool]:
        subcategories = figures["responsible_ai"]["taxonomy"]["subcategories"]
        categories = {each["id"].split(".")[0] for each in subcategories}
        return f"{len(categories)} and {len(subcategories)}", (len(categories), len(subcategories)) == (6, 58)

    return (
        Claim(section="7", stage="draft", text="a draft model needs fewer passes", reported="yes", measured=draft),
        Claim(section="7", stage="framework", text="answers follow the type", reported="guaranteed", measured=guided),
        Claim(
            section="9",
            stage="responsible_ai",
            text="categories and subcategories of harm",
            reported="6 and 58",
            measured=taxonomy,
        ),
    )
