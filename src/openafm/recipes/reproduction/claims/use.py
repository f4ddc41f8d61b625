"""Claims of sections 6 to 9: compression, framework, evaluation, responsible AI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openafm.recipes.reproduction.claims.claim import Claim, claim, shorten


def _bits(stage: str, text: str, reported: float) -> Claim:
    """Return the claim that weights need at most half as many bits again as in the report."""

    @claim("6", f"{stage}/report", text, f"{reported} bits")
    def bits(report: Any) -> tuple[str, bool]:
        found = report["bundles"][-1]
        weights = found["bits_per_weight"] - found["adapter_bits_per_weight"]
        shown = f"{weights:.2f} bits with the embedding, and {found['adapter_bits_per_weight']:.2f} of the adapter"
        return shown, weights < 1.5 * reported

    return bits


def _retained(stage: str, text: str, reported: str) -> Claim:
    """Return the claim that the held-out loss rises by less than a tenth."""

    @claim("6", f"{stage}/report", text, reported)
    def retained(report: Any) -> tuple[str, bool]:
        before, after = (each["loss"] for each in report["bundles"])
        return f"held-out loss {before:.3f} to {after:.3f}", after < 1.1 * before

    return retained


@claim("6", "private_node/ask", "a private node serves the compressed server model to clients that verify it", "yes")
def _private(answer: Any) -> tuple[str, bool]:
    return f"verified, then answered: {shorten(answer['content'], 40)}", bool(answer["content"])


@claim("7", "framework/respond", "answers follow the type", "guaranteed")
def _guided(answer: Any) -> tuple[str, bool]:
    content = answer["content"]
    return shorten(str(content)), isinstance(content, Mapping) and isinstance(content.get("title"), str)


@claim("7", "draft/on_device.draft", "a draft model needs fewer passes", "yes")
def _draft(run: Any) -> tuple[str, bool]:
    passes, plain = run["target_passes_per_token"], run["plain_passes_per_token"]
    return f"{run['acceptance']:.0%} accepted, {passes:.2f} passes a token", passes < plain


@claim(
    "7", "adapter/pull", "adapters are delivered for one version of the base", "Background Assets", beside="adapter/export"
)
def _delivered(pulled: Any, package: Any) -> tuple[str, bool]:
    shown = f"{pulled['fetched_bytes']:,} bytes, signed, rank {package['rank']}"
    return shown, pulled["fetched_bytes"] > 0


@claim("7", "adapter/train", "adapters of rank 32 specialize the model", "rank 32")
def _specialized(run: Any) -> tuple[str, bool]:
    losses = run["eval_losses"]
    return f"held-out loss {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} evaluations", losses[-1] < losses[0]


@claim("7", "apple_sdk/status", "apps written for Apple's SDK run unchanged", "yes", trained=False)
def _sdk(status: Any) -> tuple[str, bool]:
    return f"apple-fm-sdk {status['version']}", bool(status["is_intact"]) and status["installer"] == "openafm"


@claim("8", "evaluation/compare", "quality before and after all optimizations", "table 3: IFEval 85.1 to 82.3 on device")
def _table(comparison: Any) -> tuple[str, bool]:
    rows = [row for row in comparison["rows"] if row["language"] == "all"]
    worse = sum(row["difference"]["mean"] < 0 and row["difference"]["is_significant"] for row in rows)
    scores = "; ".join(f"{row['task']} {row['a']['mean']:.2f} to {row['b']['mean']:.2f}" for row in rows)
    # A model without skill has nothing to lose; other tasks give it points for its form.
    knows = any(row["a"]["mean"] > 0.1 for row in rows if row["task"] == "event")
    return f"{scores}; {worse} significantly worse", knows and worse <= len(rows) // 4


@claim("8", "evaluation/held_out", "held-out tasks", "tables 1 and 2: MMLU, MMMLU, MGSM")
def _held_out(found: Any) -> tuple[str, bool]:
    total = found["total"]
    shown = f"loss {total['loss']:.2f}, {total['exact']:.0%} exact, {total['fields']:.0%} of fields; no public benchmark"
    return shown, total["fields"] > 0.1


@claim("8", "flyers/events", "a calendar event from an image of a flyer", "an own evaluation set")
def _flyers(results: Any) -> tuple[str, bool]:
    found = results["tasks"]["flyers"]
    metric = found["metrics"][found["metric"]]
    return f"{found['metric']} {metric['mean']:.0%} of {found['count']} flyers", metric["mean"] > 0


@claim("8", "grading/report", "answers side by side in three groups of locales", "figure 4", trained=False)
def _graded(report: Any) -> tuple[str, bool]:
    groups = {
        name: " : ".join(f"{rows[0][each]['share']:.0%}" for each in ("win", "tie", "loss"))
        for name, rows in report["groups"].items()
        if rows
    }
    shown = "; ".join(f"{name} {shares}" for name, shares in groups.items())
    return f"{shown} (win : tie : loss of fine-tuned against reinforced, simulated graders)", len(groups) == 3


@claim("8", "grading/judge", "a judge model grades too", "agreement with people")
def _judged(judge: Any) -> tuple[str, bool]:
    consistent = judge["consistent"]
    shown = "no verdict" if consistent is None else f"{consistent:.0%} the same in both orders"
    return f"{judge['replies']} replies, {judge['nonsense']} without a verdict; {shown}", (consistent or 0) > 0.5


@claim("9", "taxonomy/taxonomy", "categories and subcategories of harm", "6 and 58", trained=False)
def _taxonomy(found: Any) -> tuple[str, bool]:
    subcategories = found["subcategories"]
    categories = {each["id"].split(".")[0] for each in subcategories}
    return f"{len(categories)} and {len(subcategories)}", (len(categories), len(subcategories)) == (6, 58)


@claim("9", "responsible_ai/guardrail", "a guardrail model intercepts harmful prompts", "yes")
def _guardrail(found: Any) -> tuple[str, bool]:
    row = found["calibration"]["prompt"]["all"]
    recall, refused = row["recall"]["share"], row["false_refusals"]["share"]
    return f"recall {recall:.0%} at {refused:.1%} false refusals", recall > 2 * refused


@claim(
    "9",
    "responsible_ai/override",
    "an overrides list stops terms",
    "yes",
    beside="responsible_ai/harmless",
    trained=False,
)
def _override(term: Any, harmless: Any) -> tuple[str, bool]:
    terms = "term" if len(term["overrides"]) == 1 else "terms"
    shown = f"{len(term['overrides'])} {terms} found; a harmless prompt {'blocked' if harmless['blocked'] else 'passes'}"
    return shown, bool(term["overrides"]) and not harmless["blocked"]


@claim("9", "responsible_ai/attacks", "red teaming before deployment", "by people, per locale")
def _attacks(report: Any) -> tuple[str, bool]:
    return f"{report['attempts']} attempts by a script, in {len(report['results'])} categories", report["attempts"] > 0


USE_CLAIMS = (
    _bits("two_bits", "weights on device", 2),
    _retained("two_bits", "quality after compression to 2 bits", "MMLU 67.8 to 64.4"),
    _bits("astc", "weights on the server", 3.56),
    _retained("astc", "quality after ASTC", "MMLU 80.0 to 79.2"),
    _private,
    _guided,
    _draft,
    _specialized,
    _delivered,
    _sdk,
    _held_out,
    _table,
    _flyers,
    _graded,
    _judged,
    _taxonomy,
    _guardrail,
    _override,
    _attacks,
)
