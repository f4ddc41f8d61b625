"""Captioning of image corpora: documents get captions in levels; grounded captions are fused from captions of regions.

A caption that fails its check is left out, with its reason in the document's metadata; a document with one image that gets
none of the wanted levels is dropped. In a document with several images each one is captioned: the captions are regions that
cover an image. The output has a shard for each shard of the input. Finished shards and answers are kept, so a run that was
killed continues.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from openafm.core.config import to_dict
from openafm.core.errors import UsageError
from openafm.core.files import check_written
from openafm.core.folder_lock import folder_lock
from openafm.core.progress import progress
from openafm.data.captions import checks
from openafm.data.captions.cache import Answer, AnswerCache, Check, NoAnswer, Outcome
from openafm.data.captions.captioner import Captioner, ImageRequest
from openafm.data.captions.checks import keywords_check, text_check
from openafm.data.captions.config import GROUNDED, KEYWORDS, CaptionConfig, LevelConfig
from openafm.data.captions.grounder import Grounder, grounded_text
from openafm.data.captions.languages import answer_language
from openafm.data.captions.regions import CaptionedRegion, Detector, chosen_regions, crops, grounding_problem, spatial_facts
from openafm.data.images.documents import ImageDocument, Region, StoredImage
from openafm.data.images.grounding import without_boxes
from openafm.data.images.manifest import MANIFEST, PATTERNS, Manifest
from openafm.data.images.shard_writer import ShardItem, finish_corpus, finished_shard, write_image_shard
from openafm.data.images.shards import ImageCorpus
from openafm.data.web.documents import Dropped

VERSION = 2  # of the checks and of the fusion; shards of another version are computed again
ANSWERS = "answers.sqlite"
REASONS = (*checks.REASONS, "coordinates", "no_regions", "opt_out")
"""Reasons of this stage. A document without any caption has that of its first level; the detail has all."""
CAPTIONED = "caption"
"""The kind of regions whose label is the caption of their crop. In documents with several images, `caption.LEVEL` is the
kind of the regions whose label is the caption of a whole image."""
PROMPT_KEY, DROPPED_KEY = "caption.prompt.", "caption.dropped."
"""Keys of a document's metadata, followed by the level: the digest of the prompt; the reason why there is no caption."""

DocumentWork: TypeAlias = Callable[[ImageDocument], ShardItem]


@dataclass(frozen=True, kw_only=True)
class CaptionCounts:
    """What is in a captioned corpus.

    Attributes:
        captions: captions of models, by level.
        kept: captions that the documents had before, such as those of drawn images, by level.
        dropped: captions that failed their check, by level and reason, such as `short.repetitive`; `region` is a level.
        documents_dropped: documents without any caption, and documents that opted out, by reason.
        num_documents: documents of the corpus, also those that had captions before.
    """

    captions: Mapping[str, int]
    kept: Mapping[str, int]
    dropped: Mapping[str, int]
    documents_dropped: Mapping[str, int]
    num_documents: int


def caption_corpus(
    corpus: ImageCorpus, out: Path, captioner: Captioner, config: CaptionConfig, *, num_threads: int = 1
) -> Manifest:
    """Write a copy of a corpus whose documents have captions. The result does not depend on `num_threads`.

    Raises:
        UsageError: `out` is the corpus that is read.
        ForeignFilesError: `out` has other files than an image corpus.
        FolderInUseError: another process is writing it.
        OpenAFMError: the captioner failed; repeat the call to continue.
    """
    recorded = {"version": VERSION, "model": captioner.model, "sampling": captioner.sampling, "captions": to_dict(config)}
    with AnswerFolder(out, captioner, corpus) as cache:
        documents = DocumentCaptioner(corpus, cache, captioner, config)
        return write_corpus(corpus, out, recorded, documents.captioned, num_threads)


def caption_counts(corpus: ImageCorpus) -> CaptionCounts:
    """Return the counts of a captioned corpus."""
    captions, kept, dropped = Counter[str](), Counter[str](), Counter[str]()
    for document in corpus.documents():
        kept.update(it for it in document.captions if it != "alt" and PROMPT_KEY + it not in document.metadata)
        for key, value in document.metadata.items():
            if key.startswith(PROMPT_KEY):
                level = key.removeprefix(PROMPT_KEY)
                of_images = sum(region.kind == f"{CAPTIONED}.{level}" for region in document.regions)
                captions[level] += of_images or 1
            elif key.startswith(DROPPED_KEY):
                level = key.removeprefix(DROPPED_KEY)
                dropped.update(f"{level}.{reason}" for reason in value.split(","))
    return CaptionCounts(
        captions=dict(sorted(captions.items())),
        kept=dict(sorted(kept.items())),
        dropped=dict(sorted(dropped.items())),
        documents_dropped=corpus.manifest.dropped,
        num_documents=corpus.manifest.num_documents,
    )


class DocumentCaptioner:
    """Captions documents of a corpus. Several threads may share it."""

    def __init__(self, corpus: ImageCorpus, cache: AnswerCache, captioner: Captioner, config: CaptionConfig) -> None:
        self._corpus, self._cache, self._config = corpus, cache, config
        self._detector: Detector = config.regions.detector.build()
        self._grounder = None if config.grounder is None else config.grounder.build()
        self._recorded = {"caption.model": captioner.model, "caption.sampling": captioner.sampling}

    def captioned(self, document: ImageDocument) -> ShardItem:
        """Return a document with its images and captions, or the reason for its drop."""
        images = [self._corpus.image(digest) for digest in dict.fromkeys(document.digests)]
        opt_out = document.opt_out or next((image.opt_out for image in images if image.opt_out), "")
        if opt_out:
            return Dropped(reason="opt_out", detail=opt_out, url=document.source)
        missing = [level for level in self._config.levels if self._config.replaces or level.name not in document.captions]
        if len(images) > 1:
            return self._each_captioned(document, images), images
        if not images or not missing:
            return document, images
        written = {level.name for level in missing}
        captions = {name: text for name, text in document.captions.items() if name not in written}
        regions = [each for each in document.regions if GROUNDED not in written or each.kind != CAPTIONED]
        language = answer_language(self._config.language, document.language)
        metadata: dict[str, str] = {}
        failed: dict[str, NoAnswer] = {}
        for level in missing:
            if level.name == GROUNDED:
                so_far = replace(document, captions=captions, regions=tuple(regions))
                outcome = self._grounded(so_far, images[0], level, regions, metadata)
            else:
                outcome = self._asked(images[0].data, level, self._prompt(level, language))
            if isinstance(outcome, Answer):
                captions[level.name] = outcome.text
                metadata[PROMPT_KEY + level.name] = _digest(self._prompt(level, language))
            else:
                failed[level.name] = outcome
                metadata[DROPPED_KEY + level.name] = outcome.reason
        if not any(level.name in captions for level in self._config.levels):
            detail = "; ".join(f"{name}: {each.reason} ({each.detail})" for name, each in failed.items())
            return Dropped(reason=next(iter(failed.values())).reason, detail=detail, url=document.source)
        return replace(
            document,
            captions=captions,
            regions=tuple(regions),
            metadata={**document.metadata, **metadata, **self._recorded},
        ), images

    def _each_captioned(self, document: ImageDocument, images: Sequence[StoredImage]) -> ImageDocument:
        """Return a document with captions of each of its images; the level `grounded` is left out."""
        kinds = {f"{CAPTIONED}.{level.name}": level for level in self._config.levels if level.name != GROUNDED}
        regions = [each for each in document.regions if not (self._config.replaces and each.kind in kinds)]
        known = {(each.image, each.kind) for each in regions}
        language = answer_language(self._config.language, document.language)
        metadata: dict[str, str] = {}
        failed: dict[str, list[str]] = defaultdict(list)
        for kind, level in kinds.items():
            prompt = self._prompt(level, language)
            for image in images:
                if (image.digest, kind) in known:
                    continue
                outcome = self._asked(image.data, level, prompt)
                if isinstance(outcome, Answer):
                    box = (0.0, 0.0, float(image.width), float(image.height))
                    regions.append(Region(label=outcome.text, box=box, kind=kind, image=image.digest))
                    metadata[PROMPT_KEY + level.name] = _digest(prompt)
                else:
                    failed[level.name].append(outcome.reason)
        metadata |= {DROPPED_KEY + name: ",".join(reasons) for name, reasons in failed.items()}
        recorded = self._recorded if metadata else {}
        return replace(document, regions=tuple(regions), metadata={**document.metadata, **metadata, **recorded})

    def _grounded(
        self,
        document: ImageDocument,
        image: StoredImage,
        level: LevelConfig,
        regions: list[Region],
        metadata: dict[str, str],
    ) -> Outcome:
        """Return the grounded caption. Append the captioned regions that it is fused from, and record the failed ones."""
        if self._grounder is not None:
            return self._located(self._grounder, document, image, metadata)
        config = self._config.regions
        found = self._detector.regions(document, image)
        boxes = chosen_regions(found, image, min_share=config.min_share, max_regions=config.max_regions)
        captioned, failed = [], []
        language = answer_language(self._config.language, document.language)
        prompt = self._prompt(config.caption, language)
        for box, crop in zip(boxes, crops(image, boxes), strict=True):
            outcome = self._asked(crop, config.caption, prompt)
            if isinstance(outcome, Answer):
                captioned.append(CaptionedRegion(box=box, caption=outcome.text.rstrip(".\u3002")))
            else:
                failed.append(outcome.reason)
        if failed:
            metadata[f"{DROPPED_KEY}region"] = ",".join(failed)
        if not captioned:
            return NoAnswer(reason="no_regions", detail=f"{len(boxes)} regions were found, none was captioned")
        regions += [Region(label=each.caption, box=each.box, kind=CAPTIONED, image=image.digest) for each in captioned]
        lines = "\n".join(spatial_facts(captioned, image.width, image.height))
        prompt = self._prompt(level, language, regions=lines)
        prose = text_check(prompt, min_words=level.min_words, max_words=level.max_words)

        def check(text: str) -> Outcome:
            problem = grounding_problem(text, captioned, image.width, image.height)
            checked = prose(without_boxes(text))
            if isinstance(checked, NoAnswer):
                return checked
            return (
                NoAnswer(reason="coordinates", detail=f"{problem}: {text[:120]}") if problem else Answer(text=text.strip())
            )

        return self._asked(image.data, level, prompt, check)

    def _located(self, grounder: Grounder, document: ImageDocument, image: StoredImage, metadata: dict[str, str]) -> Outcome:
        """Return the paragraph, or else the sentence, with boxes after the phrases that the grounder locates."""
        caption = document.captions.get("paragraph") or document.captions.get("short")
        if caption is None:
            return NoAnswer(reason="no_regions", detail="there is no paragraph or sentence to ground")
        text = grounded_text(caption, grounder.phrases(document, image, caption), image)
        if text == caption:
            return NoAnswer(reason="no_regions", detail=f"no phrase was located in: {caption[:120]}")
        metadata["caption.grounder"] = type(self._config.grounder).__name__
        return Answer(text=text)

    def _asked(self, image: bytes, level: LevelConfig, prompt: str, check: Check | None = None) -> Outcome:
        request = ImageRequest(image=image, prompt=prompt, max_tokens=level.max_tokens, seconds=self._config.seconds)
        if check is None:
            make = keywords_check if level.name == KEYWORDS else text_check
            check = make(prompt, min_words=level.min_words, max_words=level.max_words)
        return self._cache.ask(request, check)

    def _prompt(self, level: LevelConfig, language: str, regions: str = "{regions}") -> str:
        return level.prompt.replace("{language}", language).replace("{regions}", regions)


class AnswerFolder(AnswerCache):
    """The cache of answers in the folder of the corpus that is made of them.

    Raises:
        UsageError: `out` is the corpus that is read.
        ForeignFilesError: it has other files than an image corpus.
    """

    def __init__(self, out: Path, captioner: Captioner, corpus: ImageCorpus) -> None:
        if out.resolve() == corpus.path.resolve():
            raise UsageError(f"{out} is the corpus that is read; choose another output folder")
        if out.exists() and any(out.iterdir()):
            check_written(out, (*PATTERNS, f".{MANIFEST}.*", ".[0-9]*", f"{ANSWERS}*", "*embeddings-*.npy*"))
        super().__init__(out / ANSWERS, captioner)


def write_corpus(
    corpus: ImageCorpus, out: Path, config: Mapping[str, Any], work: DocumentWork, num_threads: int = 1
) -> Manifest:
    """Write a corpus with a shard for each shard of `corpus`: what `work` returns for its documents, in their order.

    Shards that an earlier call finished with the same `config` and input are kept.
    """
    with folder_lock(out), ThreadPoolExecutor(num_threads, "openafm-documents") as threads:
        shards = corpus.manifest.shards
        summaries = []
        (out / MANIFEST).unlink(missing_ok=True)  # a corpus without a manifest is not complete
        with progress(f"write {out}", sum(shard.num_documents for shard in shards)) as bar:
            num_done = 0
            for shard in shards:
                files = {file.name: file.sha256 for file in shard.files}
                key = hashlib.sha256(json.dumps([config, files], sort_keys=True).encode()).hexdigest()
                summary = finished_shard(out, shard.index, key)
                if summary is None:
                    documents = _counted(corpus.shard_documents(shard.index), bar.update, num_done)
                    items = _mapped(threads, work, documents, 2 * num_threads)
                    summary = write_image_shard(out, shard.index, items, key=key)
                summaries.append(summary)
                num_done += shard.num_documents
                bar.update(num_done)
        return finish_corpus(out, config, summaries)


def _mapped(
    threads: ThreadPoolExecutor, work: DocumentWork, documents: Iterable[ImageDocument], ahead: int
) -> Iterator[ShardItem]:
    """Yield the results in the order of the documents; at most `ahead` documents are in work."""
    pending: list[Any] = []
    try:
        for document in documents:
            pending.append(threads.submit(work, document))
            if len(pending) >= ahead:
                yield pending.pop(0).result()
        while pending:
            yield pending.pop(0).result()
    finally:
        for future in pending:  # after an error
            future.cancel()


def _counted(
    documents: Iterable[ImageDocument], update: Callable[[float], None], num_before: int
) -> Iterator[ImageDocument]:
    for number, document in enumerate(documents, start=num_before):
        update(number)
        yield document


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
