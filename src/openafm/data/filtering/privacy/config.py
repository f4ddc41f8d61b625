"""The privacy filter: mask personal data, or drop documents with much of it; each finding is counted by kind."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from openafm.data.filtering.base import DocumentFilter, FilterConfig, dropped, with_metadata
from openafm.data.web.documents import Dropped, Media, WebDocument

if TYPE_CHECKING:
    from openafm.data.filtering.privacy.finder import Finding

KINDS = ("email", "iban", "card", "national_id", "ip", "phone")
"""The kinds in the order of their precedence: a place of the text is of the first kind that fits."""

_REGIONS = {
    "en": ("US", "GB"), "da": ("DK",), "nl": ("NL", "BE"), "fr": ("FR", "BE"), "de": ("DE", "AT", "CH"), "it": ("IT",),
    "nb": ("NO",), "pt": ("BR", "PT"), "es": ("ES", "MX"), "sv": ("SE",), "tr": ("TR",), "zh-Hans": ("CN",),
    "zh-Hant": ("TW", "HK"), "ja": ("JP",), "ko": ("KR",), "vi": ("VN",),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig(FilterConfig):
    """Mask personal data of the kinds `mask`; drop documents that hold any of the kinds `drop`, or more than `max_findings`.

    Text, title, and the alternative texts and captions of media are masked. A finding is replaced by its kind in brackets,
    as in `[email]`; `replacements` changes that. The metadata counts findings as `privacy.<kind>`, national ids by their
    format. `phone_regions` are the countries whose national phone numbers are found, by language.
    """

    REASONS: ClassVar[tuple[str, ...]] = ("private_data",)

    mask: tuple[str, ...] = KINDS
    drop: tuple[str, ...] = ()
    max_findings: int | None = None
    replacements: dict[str, str] = field(default_factory=dict)
    phone_regions: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(_REGIONS))

    def __post_init__(self) -> None:
        unknown = sorted({*self.mask, *self.drop, *self.replacements} - set(KINDS))
        self.require(not unknown, f"unknown kind {', '.join(unknown)}; known: {', '.join(KINDS)}")
        self.require(self.max_findings is None or self.max_findings >= 0, f"max_findings {self.max_findings} is below 0")

    def build(self) -> DocumentFilter:
        return PrivacyFilter(self)


class PrivacyFilter(DocumentFilter):
    """See `PrivacyConfig`."""

    def __init__(self, config: PrivacyConfig) -> None:
        from openafm.data.filtering.privacy.finder import Finder  # it compiles some hundred expressions

        self._config = config
        self._finder = Finder((*config.mask, *config.drop), config.phone_regions)
        self._replacements = {kind: f"[{kind}]" for kind in KINDS} | config.replacements

    def apply(self, document: WebDocument) -> WebDocument | Dropped:
        config, language = self._config, document.language
        found = self._finder.find(document.text, language)
        title = self._finder.find(document.title, language)
        counts = Counter(_name(each) for each in (*found, *title))
        kinds = {each.kind for each in (*found, *title)}
        if kinds & set(config.drop) or (config.max_findings is not None and counts.total() > config.max_findings):
            return dropped(document, "private_data", ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
        media = tuple(self._masked_media(each, document) for each in document.media)
        if not found and not title and media == document.media:
            return document
        changed = dataclasses.replace(
            document,
            text=self._masked(document.text, found),
            title=self._masked(document.title, title),
            media=tuple(dataclasses.replace(each, offset=self._moved(each.offset, found)) for each in media),
        )
        return with_metadata(changed, {f"privacy.{kind}": str(count) for kind, count in sorted(counts.items())})

    def _masked_media(self, media: Media, document: WebDocument) -> Media:
        if not media.alt and not media.caption:
            return media
        alt, caption = (
            self._masked(text, self._finder.find(text, document.language)) for text in (media.alt, media.caption)
        )
        return dataclasses.replace(media, alt=alt, caption=caption)

    def _masked(self, text: str, found: list[Finding]) -> str:
        parts, last = [], 0
        for each in found:
            parts += [text[last : each.start], self._replacements[each.kind]]
            last = each.end
        return "".join([*parts, text[last:]])

    def _moved(self, offset: int, found: list[Finding]) -> int:
        """Return an offset of the text as one of the masked text."""
        moved = 0
        for each in found:
            if each.end <= offset:
                moved += len(self._replacements[each.kind]) - (each.end - each.start)
            elif each.start < offset:
                return each.start + moved
        return offset + moved


def counts_of(metadata: Mapping[str, str]) -> dict[str, int]:
    """Return the numbers of masked findings in a document's metadata, by kind or format of national id."""
    prefix = "privacy."
    return {key.removeprefix(prefix): int(value) for key, value in metadata.items() if key.startswith(prefix)}


def _name(finding: Finding) -> str:
    return finding.detail or finding.kind
