"""Claims of sections 2 to 4.1: architecture, data, tokenizer."""

from __future__ import annotations

from typing import Any

from openafm.recipes.reproduction.claims.claim import claim


@claim("2.1", "models/on_device", "sharing keys and values makes the KV cache smaller", "-37.5 %", trained=False)
def _sharing(model: Any) -> tuple[str, bool]:
    saving = 1 - model["kv_bytes_at_4096_in_16_bits"] / model["kv_bytes_at_4096_in_16_bits_unshared"]
    return f"-{saving:.1%}", abs(saving - 0.375) < 0.001


@claim("2.1", "models/on_device", "and prefill shorter, hence the time to first token", "about -37.5 %", trained=False)
def _prefill(model: Any) -> tuple[str, bool]:
    share = model["sharing_layers"] / model["layers"]
    return f"-{share:.1%} of the layers in prefill", abs(share - 0.375) < 0.001


@claim(
    "2.2",
    "models/server",
    "tracks need fewer synchronizations than tensor parallelism",
    "-87.5 % for blocks of four layers",
    trained=False,
)
def _synchronization(model: Any) -> tuple[str, bool]:
    tracks, tensors = model["layers"] / model["block_depth"], 2 * model["layers"]
    return f"-{1 - tracks / tensors:.1%} ({tracks:.0f} against {tensors})", abs(1 - tracks / tensors - 0.875) < 0.001


@claim("2.2", "models/server", "local layers make the KV cache of long contexts smaller", "substantially", trained=False)
def _windows(model: Any) -> tuple[str, bool]:
    saving = 1 - model["kv_bytes_at_65536"] / model["kv_bytes_at_65536_all_global"]
    return f"-{saving:.0%} at 65,536 tokens", saving > 0.5


@claim("4.3", "models/plan", "the server model trains on 8,192 chips in 4 slices", "8,192 TPU v5p", trained=False)
def _layout(plan: Any) -> tuple[str, bool]:
    mfu = plan["model_flops_utilization"]
    shown = f"{plan['devices']:,} chips in {plan['slices']} slices, {mfu:.0%} modeled MFU at peak rates"
    return shown, plan["fits"] and mfu >= 0.6


@claim("3.1", "web/crawl", "the crawler follows robots.txt and opt-outs", "yes", trained=False)
def _robots(crawl: Any) -> tuple[str, bool]:
    pages = "page" if crawl["denied"] == 1 else "pages"
    return f"{crawl['denied']} {pages} denied, {crawl['opted_out']} opted out, {crawl['done']} read", crawl["denied"] > 0


@claim("3.1", "web/rendered", "pages that scripts build are rendered in a headless browser", "yes", trained=False)
def _rendered(crawl: Any) -> tuple[str, bool]:
    pages = crawl["done"] - crawl["failed"]
    return f"{pages} pages rendered", pages > 0


@claim(
    "3.1",
    "web/corpus",
    "pages are extracted, filtered and deduplicated; each drop has a reason",
    "yes",
    trained=False,
)
def _counted(corpus: Any) -> tuple[str, bool]:
    kept, dropped = corpus["documents_kept"], sum(sum(stage["dropped"].values()) for stage in corpus["stages"])
    return f"{kept} of {corpus['documents_in']} kept", 0 < kept == corpus["documents_in"] - dropped


@claim("3.2.1", "pairs/pairs", "images with their alt texts, filtered for alignment and quality", "over 10B", trained=False)
def _pairs(found: Any) -> tuple[str, bool]:
    pairs = found["counts"]["pairs"]
    return f"{pairs['kept']} of {pairs['in']} pairs kept", 0 < pairs["kept"] < pairs["in"]


@claim("3.2.1", "pairs/pairs", "interleaved documents keep images in their text", "175M with 550M images", trained=False)
def _interleaved(found: Any) -> tuple[str, bool]:
    documents, images = found["counts"]["documents"]["kept"], found["counts"]["interleaved_images"]["kept"]
    return f"{documents} with {images} images", images >= documents > 0


@claim("3.2.2", "captions/captions", "captions at different levels of detail", "over 5B pairs")
def _captions(found: Any) -> tuple[str, bool]:
    levels = {name: count for name, count in found["captions"].items() if count}
    dropped = ", ".join(f"{count} {reason}" for reason, count in found["dropped"].items()) or "none"
    new = ", ".join(f"{count} {name}" for name, count in levels.items()) or "none"
    return f"{new}; dropped: {dropped}", len(levels) >= 2


@claim("3.2.3", "images/drawn", "synthetic text-rich images: charts, tables, documents, flyers", "yes", trained=False)
def _drawn(found: Any) -> tuple[str, bool]:
    kinds, languages = len(found["kinds"]), len(found["languages"])
    return f"{found['images']} images of {kinds} kinds in {languages} languages", kinds >= 4


@claim(
    "4.1",
    "tokenizer/extend",
    "the vocabulary grows by half for new languages",
    "100k to 150k",
    beside="tokenizer/train",
    trained=False,
)
def _extended(extended: Any, english: Any) -> tuple[str, bool]:
    before, after = english["vocab_size"], extended["vocab_size"]
    return f"{before:,} to {after:,}", after == before * 3 // 2


@claim("4.1", "tokenizer/report", "with fewer tokens for them", "better representation", trained=False)
def _fertility(rows: Any) -> tuple[str, bool]:
    changes = {row["language"]: row["tokens_per_character_after"] / row["tokens_per_character_before"] - 1 for row in rows}
    return ", ".join(f"{name} {change:+.0%} tokens" for name, change in changes.items()), max(changes.values()) < 0


MODEL_CLAIMS = (_sharing, _prefill, _synchronization, _windows, _layout)
DATA_CLAIMS = (_robots, _rendered, _counted, _pairs, _interleaved, _captions, _drawn, _extended, _fertility)
