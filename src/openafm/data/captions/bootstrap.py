"""Retrieval bootstrap: from seed prompts with images to similar images with prompts and answers of their own (report 5.1).

    {"image": "receipt.png", "prompt": "How much is the tip?", "answer": "4.20"}

A seed is a line of a JSONL file; images are relative to it, and `answer` may be missing. For each seed the most similar
images of a corpus are found. A teacher writes a prompt of the same kind for each, and its answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from openafm.core.config import Config, to_dict
from openafm.core.errors import UsageError
from openafm.core.files import lines_of
from openafm.data.captions import checks
from openafm.data.captions.cache import AnswerCache, NoAnswer
from openafm.data.captions.captioner import Captioner, ImageRequest
from openafm.data.captions.captioning import AnswerFolder, write_corpus
from openafm.data.captions.languages import answer_language
from openafm.data.captions.questions import FORMAT, SCHEMA, questions_check, read_questions
from openafm.data.captions.retrieval import ColorLayoutConfig, EmbedderConfig, embeddings, nearest
from openafm.data.images.decoding import stored_image
from openafm.data.images.documents import ImageDocument, Question, StoredImage
from openafm.data.images.manifest import Manifest
from openafm.data.images.shard_writer import ShardItem
from openafm.data.images.shards import ImageCorpus
from openafm.data.web.documents import Dropped

VERSION = 1
KIND = "bootstrap"
ABSENT_KIND = "absent"
REASONS = (*checks.REASONS, "opt_out", "several_images", "not_retrieved", "duplicate")
"""`not_retrieved`: not similar enough to any seed; `duplicate`: another document has the same image."""

_EXTRA_NEIGHBORS = 8  # near copies of the seed, which are skipped


class SeedsError(UsageError):
    """A file of seeds has a line that is not a seed, or an image that cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Seed:
    """A prompt with its image, and optionally the answer."""

    image: StoredImage = field(repr=False)
    prompt: str
    answer: str = ""


@dataclass(frozen=True, kw_only=True)
class BootstrapConfig(Config):
    """How many images each seed finds, how similar they are, and what the teacher writes.

    Images more similar than `max_similarity` are copies of the seed. In `prompt`, `{seed}` becomes the prompt of the seed
    with its answer. With `asks_absent`, the teacher also writes a prompt about something that is not in the image, which is
    answered by saying so.
    """

    embedder: EmbedderConfig = field(default_factory=ColorLayoutConfig)
    per_seed: int = 20
    min_similarity: float = 0.6
    max_similarity: float = 0.995
    prompt: str = (
        "About another image someone asked:\n{seed}\nWrite one request of the same kind that fits this image, in other words"
        " and in {language}, and an answer that is certainly correct. " + FORMAT
    )
    absent_prompt: str = (
        "About another image someone asked:\n{seed}\nWrite one request of the same kind, in {language}, about something that"
        " one may expect in this image but that is not in it. Answer in one sentence that it is not there. " + FORMAT
    )
    asks_absent: bool = False
    max_tokens: int = 400
    seconds: float = 120.0
    language: str = "English"

    def __post_init__(self) -> None:
        self.require(self.per_seed > 0, f"per_seed must be at least 1, got {self.per_seed}")
        low, high = self.min_similarity, self.max_similarity
        self.require(-1 <= low < high, f"need -1 <= min_similarity ({low}) < max_similarity ({high})")
        self.require(self.max_tokens > 0 and self.seconds > 0, "max_tokens and seconds must be above 0")


def read_seeds(path: Path) -> tuple[Seed, ...]:
    """Return the seeds of a JSONL file.

    Raises:
        SeedsError: a line is not a seed, or its image cannot be read; the message has the line number.
        OSError: the file cannot be read.
    """
    seeds = []
    for number, line in enumerate(lines_of(path.read_text(encoding="utf-8")), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            place, prompt, answer = values["image"], values["prompt"], values.get("answer", "")
            image = stored_image((path.parent / place).read_bytes(), source=str(place))
        except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
            raise SeedsError(f'{path}, line {number}: {error!r}; a seed is {{"image": path, "prompt": text}}') from error
        if isinstance(image, Dropped) or not isinstance(prompt, str) or not prompt.strip() or not isinstance(answer, str):
            problem = f"{place}: {image.reason} {image.detail}" if isinstance(image, Dropped) else "'prompt' must be text"
            raise SeedsError(f"{path}, line {number}: {problem}")
        seeds.append(Seed(image=image, prompt=prompt, answer=answer))
    if not seeds:
        raise SeedsError(f'{path} has no seeds; write lines such as {{"image": "sign.png", "prompt": "What does it say?"}}')
    return tuple(seeds)


def bootstrap(
    corpus: ImageCorpus,
    seeds: Sequence[Seed],
    out: Path,
    teacher: Captioner,
    config: BootstrapConfig,
    *,
    num_threads: int = 1,
) -> Manifest:
    """Write a corpus of the images that the seeds find, with prompts and answers. It does not depend on `num_threads`.

    Raises:
        UsageError, ForeignFilesError, FolderInUseError: as `caption_corpus`.
        OpenAFMError: the teacher failed; repeat the call to continue.
    """
    recorded = {
        "version": VERSION,
        "model": teacher.model,
        "sampling": teacher.sampling,
        "embedder": type(config.embedder).__name__,
        "bootstrap": to_dict(config),
        "seeds": [[seed.image.digest, seed.prompt, seed.answer] for seed in seeds],
    }
    with AnswerFolder(out, teacher, corpus) as cache:
        found = retrieved(corpus, seeds, config, out, num_threads)
        synthesis = _Synthesis(corpus, seeds, found, cache, teacher, config)
        return write_corpus(corpus, out, recorded, synthesis.synthesized, num_threads)


def retrieved(
    corpus: ImageCorpus, seeds: Sequence[Seed], config: BootstrapConfig, folder: Path, num_threads: int = 1
) -> dict[str, tuple[int, float]]:
    """Return the images that the seeds find: digest -> index of the most similar seed and the similarity.

    The images of the seeds themselves are not among them.

    Args:
        folder: the embeddings of the corpus are stored there.
    """
    digests, rows_ND = embeddings(corpus, config.embedder, folder, num_threads)
    embedder = config.embedder.build()
    queries_QD = np.stack([embedder.embed(seed.image) for seed in seeds])
    indices_QK, similar_QK = nearest(queries_QD, rows_ND, config.per_seed + _EXTRA_NEIGHBORS)
    own = {seed.image.digest for seed in seeds}
    found: dict[str, tuple[int, float]] = {}
    for seed, (indices_K, similar_K) in enumerate(zip(indices_QK, similar_QK, strict=True)):
        fitting = [
            (digests[index], float(similarity))
            for index, similarity in zip(indices_K, similar_K, strict=True)
            if config.min_similarity <= similarity <= config.max_similarity and digests[index] not in own
        ]
        for digest, similarity in fitting[: config.per_seed]:
            if digest not in found or similarity > found[digest][1]:
                found[digest] = (seed, similarity)
    return found


class _Synthesis:
    """Writes prompts and answers for retrieved images. Several threads may share it."""

    def __init__(
        self,
        corpus: ImageCorpus,
        seeds: Sequence[Seed],
        found: Mapping[str, tuple[int, float]],
        cache: AnswerCache,
        teacher: Captioner,
        config: BootstrapConfig,
    ) -> None:
        self._corpus, self._seeds, self._found = corpus, seeds, found
        self._cache, self._teacher, self._config = cache, teacher, config
        self._first: dict[str, str] = {}  # digest -> id of the first document with this image alone
        for document in corpus.documents():
            if len(set(document.digests)) == 1 and not document.opt_out:
                self._first.setdefault(document.digests[0], document.id)

    def synthesized(self, document: ImageDocument) -> ShardItem:
        """Return a document with prompts of the teacher, or the reason why it is left out."""
        reason = self._reason(document)
        if reason:
            return Dropped(reason=reason, detail=document.opt_out, url=document.source)
        digest = document.digests[0]
        index, similarity = self._found[digest]
        seed, image = self._seeds[index], self._corpus.image(digest)
        if image.opt_out:
            return Dropped(reason="opt_out", detail=image.opt_out, url=document.source)
        questions: list[Question] = []
        prompts = [(KIND, self._config.prompt)] + [(ABSENT_KIND, self._config.absent_prompt)] * self._config.asks_absent
        for kind, template in prompts:
            language = answer_language(self._config.language, document.language)
            request = self._request(image, seed, template.replace("{language}", language))
            outcome = self._cache.ask(request, questions_check(request.prompt, 1))
            if isinstance(outcome, NoAnswer) and kind == KIND:
                return Dropped(reason=outcome.reason, detail=outcome.detail, url=document.source)
            if not isinstance(outcome, NoAnswer):
                questions += read_questions(outcome, kind)
        metadata = {
            "bootstrap.seed": str(index),
            "bootstrap.similarity": f"{similarity:.4f}",
            "bootstrap.embedder": type(self._config.embedder).__name__,
            "teacher.model": self._teacher.model,
            "teacher.sampling": self._teacher.sampling,
        }
        return replace(
            document,
            kind=KIND,
            questions=(*document.questions, *questions),
            metadata={**document.metadata, **metadata},
        ), [image]

    def _reason(self, document: ImageDocument) -> str:
        digests = set(document.digests)
        if document.opt_out:
            return "opt_out"
        if len(digests) != 1:
            return "several_images"
        digest = document.digests[0]
        if digest not in self._found:
            return "not_retrieved"
        return "" if self._first[digest] == document.id else "duplicate"

    def _request(self, image: StoredImage, seed: Seed, template: str) -> ImageRequest:
        config = self._config
        shown = f"Request: {seed.prompt}" + (f"\nAnswer: {seed.answer}" if seed.answer else "")
        prompt = template.replace("{seed}", shown)
        return ImageRequest(
            image=image.data, prompt=prompt, max_tokens=config.max_tokens, seconds=config.seconds, schema=SCHEMA
        )
