"""Plan a training mixture before anything is trained: tokens, epochs and shares per source and language (report 3.2, 4.3).

A cell is one language of one source. Sources have weights, by default their tokens; the languages of a source are sampled by
temperature. `multilingual` sets the share of all languages other than English. No cell is repeated more often than
`max_epochs`: what it cannot take goes to the other cells of its group, English or not, then to the other group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from openafm.core.config import Config
from openafm.core.errors import UsageError
from openafm.core.files import atomic_file
from openafm.data.documents import DocumentFiles, texts_of
from openafm.data.loading.weighted_draws import tempered_shares
from openafm.data.shards.manifest import MANIFEST
from openafm.data.shards.token_shards import open_shards

if TYPE_CHECKING:
    from openafm.tokenizer.bpe import Tokenizer

ENGLISH = "en"
UNDETERMINED = "und"
BYTES_PER_TOKEN = 4.0
_SAMPLED_CHARACTERS = 200_000
_TINY = 1e-12


class MixtureError(UsageError):
    """A mixture cannot be planned from these sources."""


@dataclass(frozen=True, kw_only=True)
class MixtureConfig(Config):
    """How to mix. `tokens` 0 is one epoch of all sources together; `max_epochs` 0 is no cap."""

    tokens: int = 0
    temperature: float = 3.0
    max_epochs: float = 4.0
    multilingual: float | None = None

    def __post_init__(self) -> None:
        self.require(self.tokens >= 0, f"tokens must be 0 (one epoch) or more, got {self.tokens}")
        self.require(self.temperature >= 1, f"temperature must be at least 1, got {self.temperature}")
        self.require(self.max_epochs >= 0, f"max_epochs must be 0 (no cap) or more, got {self.max_epochs}")
        share = self.multilingual
        self.require(share is None or 0 <= share <= 1, f"multilingual is a share from 0 to 1, got {share}")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source of a mixture: its tokens by language. `weight` None is the number of its tokens."""

    name: str
    path: str
    tokens: Mapping[str, int]
    weight: float | None = None
    is_estimated: bool = False


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One language of one source: its tokens, its share of the training tokens, and how often it is repeated."""

    source: str
    language: str
    tokens: int
    share: float
    epochs: float


@dataclass(frozen=True, kw_only=True)
class MixturePlan:
    """A planned mixture. `tokens` is below the wanted number if all cells reach the cap of epochs."""

    cells: tuple[Cell, ...]
    tokens: int
    wanted_tokens: int

    def share_of(self, source: str) -> float:
        """Return the share of a source."""
        return sum(cell.share for cell in self.cells if cell.source == source)

    @property
    def multilingual(self) -> float:
        """The share of languages other than English."""
        return sum(cell.share for cell in self.cells if cell.language != ENGLISH)


def plan_mixture(sources: Sequence[Source], config: MixtureConfig) -> MixturePlan:
    """Return the shares and epochs of every cell.

    Raises:
        MixtureError: there are no tokens, or no tokens of a language that must have a share.
    """
    keys = [(source.name, language) for source in sources for language, count in sorted(source.tokens.items()) if count]
    sizes = {(source.name, language): source.tokens[language] for source in sources for language in source.tokens}
    if not keys:
        raise MixtureError("the sources have no tokens; pass corpora, folders of documents or token shards with text")
    weights = {key: share for source in sources for key, share in _cells_of(source, config.temperature).items()}
    weights = _with_multilingual(weights, config.multilingual)
    wanted = config.tokens or sum(sizes[key] for key in keys)
    caps = {key: config.max_epochs * sizes[key] / wanted if config.max_epochs else 1.0 for key in keys}
    shares = _capped(weights, caps)
    total = sum(shares.values())
    tokens = round(wanted * min(1.0, total))
    return MixturePlan(
        cells=tuple(
            Cell(
                source=key[0],
                language=key[1],
                tokens=sizes[key],
                share=shares[key] / total,
                epochs=wanted * shares[key] / sizes[key],
            )
            for key in keys
        ),
        tokens=tokens,
        wanted_tokens=wanted,
    )


def count_tokens(name: str, path: Path, tokenizer: Tokenizer | None, weight: float | None = None) -> Source:
    """Return a source with its tokens by language: exact for token shards, else estimated from characters.

    The estimate uses tokens per character of the first documents of each language, or without a tokenizer 4 bytes per token.
    """
    if (path / MANIFEST).is_file():
        shards = open_shards(path, verification="sizes")
        counts: dict[str, int] = {}
        for shard in range(shards.num_shards):
            tags, tag_D = np.unique(shards.languages(shard), return_inverse=True)
            for tag, num_tokens in zip(tags, np.bincount(tag_D, weights=np.diff(shards.offsets(shard))), strict=True):
                language = shards.manifest.languages[tag] or UNDETERMINED
                counts[language] = counts.get(language, 0) + int(num_tokens)
        return Source(name=name, path=str(path), tokens=counts, weight=weight)
    texts: dict[str, _Measured] = {}
    for document in DocumentFiles(path):
        language = getattr(document, "language", "") or getattr(getattr(document, "conversation", None), "language", "")
        measured = texts.setdefault(language or UNDETERMINED, _Measured())
        for text in texts_of(document):
            measured.add(text)
    counts = {language: measured.tokens(tokenizer) for language, measured in texts.items()}
    return Source(name=name, path=str(path), tokens=counts, weight=weight, is_estimated=True)


def write_description(plan: MixturePlan, sources: Iterable[Source], out: Path) -> None:
    """Write the plan as a description that `openafm train --data` reads. Paths are absolute."""
    lines = [f"# {plan.tokens:,} tokens; {plan.multilingual:.1%} in languages other than English", ""]
    for source in sources:
        share = plan.share_of(source.name)
        if share <= 0:
            continue
        cells = [cell for cell in plan.cells if cell.source == source.name and cell.share > 0]
        lines += ["[[sources]]", f"name = {_quoted(source.name)}", f"path = {_quoted(str(Path(source.path).resolve()))}"]
        lines += [f"weight = {share:.9g}", "", "[sources.languages]"]
        lines += [f"{_quoted(cell.language)} = {cell.share / share:.9g}" for cell in cells]
        lines.append("")
    with atomic_file(out, "w") as file:
        file.write("\n".join(lines))


class _Measured:
    """Characters and bytes of the texts of one language, and the first of them."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._num_characters = self._num_bytes = self._num_first = 0

    def add(self, text: str) -> None:
        self._num_characters += len(text)
        self._num_bytes += len(text.encode("utf-8", "replace"))
        if self._num_first < _SAMPLED_CHARACTERS:
            self._first.append(text[: _SAMPLED_CHARACTERS - self._num_first])
            self._num_first += len(self._first[-1])

    def tokens(self, tokenizer: Tokenizer | None) -> int:
        if tokenizer is None or not self._num_first:
            return round(self._num_bytes / BYTES_PER_TOKEN)
        count = sum(len(ids) for ids in tokenizer.encode_batch(self._first))
        return round(count * self._num_characters / self._num_first)


def _cells_of(source: Source, temperature: float) -> dict[tuple[str, str], float]:
    """Return the weights of a source's languages, which add up to the weight of the source."""
    sizes = {language: count for language, count in source.tokens.items() if count}
    if not sizes:
        return {}
    weight = float(sum(sizes.values())) if source.weight is None else source.weight
    return {(source.name, language): weight * share for language, share in tempered_shares(sizes, temperature).items()}


def _with_multilingual(weights: Mapping[tuple[str, str], float], multilingual: float | None) -> dict[tuple[str, str], float]:
    """Return weights that add up to 1, of which languages other than English have `multilingual`."""
    groups = [sum(w for (_, language), w in weights.items() if (language != ENGLISH) == other) for other in (False, True)]
    wanted = [groups[0], groups[1]] if multilingual is None else [1 - multilingual, multilingual]
    for name, group, share in zip(("English", "other languages"), groups, wanted, strict=True):
        if share > 0 and group == 0:
            raise MixtureError(f"the sources have no text in {name}, which must have a share of {share:.0%}; add a source")
    total = sum(wanted)
    factors = [share / group / total if group else 0.0 for share, group in zip(wanted, groups, strict=True)]
    return {key: weight * factors[key[1] != ENGLISH] for key, weight in weights.items()}


def _capped(weights: Mapping[tuple[str, str], float], caps: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Return weights of which none is above its cap. The excess goes to the same group first, in proportion to weights."""
    groups = [[key for key in weights if (key[1] != ENGLISH) == other] for other in (False, True)]
    result: dict[tuple[str, str], float] = {}
    for group in groups:
        result |= _filled({key: weights[key] for key in group}, caps, sum(weights[key] for key in group))
    missing = sum(weights.values()) - sum(result.values())
    if missing > _TINY:
        rest = {key: caps[key] - share for key, share in result.items()}
        extra = _filled({key: weights[key] for key in result if rest[key] > _TINY and weights[key] > 0}, rest, missing)
        result = {key: share + extra.get(key, 0.0) for key, share in result.items()}
    return result


def _filled(
    weights: Mapping[tuple[str, str], float], caps: Mapping[tuple[str, str], float], total: float
) -> dict[tuple[str, str], float]:
    """Divide `total` in proportion to weights, none above its cap; less than `total` if all are at their caps."""
    result = dict.fromkeys(weights, 0.0)
    open_keys = [key for key, weight in weights.items() if weight > 0]
    left = total
    while open_keys and left > _TINY:
        scale = left / sum(weights[key] for key in open_keys)
        full = [key for key in open_keys if weights[key] * scale >= caps[key] - _TINY]
        if not full:
            return result | {key: weights[key] * scale for key in open_keys}
        for key in full:
            result[key] = caps[key]
            left -= caps[key]
        open_keys = [key for key in open_keys if key not in full]
    return result


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
