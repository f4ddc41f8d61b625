"""Packing image corpora: documents with images -> token shards with image slots, and the image shards beside them.

What is learned, each as a document of its own with a source tag:

    interleaved     <|bos|> text and images in order <|eos|>; loss on the text
    alt, short, ... <|bos|> the images, a caption of one level <|eos|>; loss on the caption
    transcription   <|bos|> the images, their text <|eos|>; loss on the text
    letters         <|bos|> the image, numbers: row, column and class of letters (letters.py) <|eos|>; read by the objective
                    of reading, not by a decoder
    questions       a conversation by the chat template: the images before the first question; loss on the answers.
                    A question for an event has the schema of events, as requests for typed values have

The resolution mode of each image is drawn from the seed and the document, so the same input gives the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from openafm.core.config import Config, dump
from openafm.core.files import resumable_folder
from openafm.core.progress import progress
from openafm.data.images.documents import CAPTION_LEVELS, ImageDocument, ImagePart, TextPart
from openafm.data.images.letters import has_words, letter_tokens
from openafm.data.images.manifest import MANIFEST
from openafm.data.images.resolution import MODES, Mode, ResolutionConfig
from openafm.data.images.shard_writer import HELD_OUT
from openafm.data.images.shards import ImageCorpus, open_image_corpus
from openafm.data.pack import Side, resumed_side
from openafm.data.shards.manifest import IMAGE_SLOTS, ImagesConfig
from openafm.data.shards.manifest import Manifest as TokenManifest
from openafm.data.shards.writer import FILE_PATTERNS, TOKENS_PER_SHARD, ShardWriter, check_output
from openafm.data.synthetic import EVENT_SCHEMA
from openafm.tokenizer import conversation as chat
from openafm.tokenizer.template import ChatTemplateError, EncodedText, ImageSpan, concatenated

if TYPE_CHECKING:
    from openafm.tokenizer.bpe import Tokenizer
    from openafm.tokenizer.template import BaseChatTemplate

Learned = Literal["interleaved", "captions", "transcription", "questions", "letters"]
LEARNED: tuple[Learned, ...] = ("interleaved", "captions", "transcription", "questions")
"""What is packed by default."""
_SCHEMAS = {"event": EVENT_SCHEMA}
"""Schemas of the answers by kind of question."""
IMAGES = "images"
FILES = (*FILE_PATTERNS, *(f"{side}.{MANIFEST}.*" for side in ("", f"{HELD_OUT}/")))
"""Patterns of the files of a packed image corpus, also of one that is being written."""


@dataclass(frozen=True, kw_only=True)
class ImagePackConfig(Config):
    """What is packed of an image corpus.

    `source` is the first part of the source tags; the second is what is learned and the third the kind of the document.
    A share `held_out` of the documents, by the hash of their identifiers, goes to the subfolder `held_out`; so do the
    documents of the split `held_out`, if the corpus has both splits. `mode` is the resolution mode of all images, or `drawn`
    (`ResolutionConfig.draw_mode`).
    """

    source: str = ""
    held_out: float = 0.0
    learn: tuple[Learned, ...] = LEARNED
    resolution: ResolutionConfig = field(default_factory=ResolutionConfig)
    mode: Literal["drawn", "rapid", "balanced", "high"] = "drawn"
    seed: int = 0
    tokens_per_shard: int = TOKENS_PER_SHARD

    def __post_init__(self) -> None:
        self.require(0 <= self.held_out < 1, f"held_out is a share from 0 to below 1, got {self.held_out}")
        self.require(self.tokens_per_shard > 0, f"tokens_per_shard must be at least 1, got {self.tokens_per_shard}")
        self.require(
            self.mode != "drawn" or "letters" not in self.learn,
            "letters need one mode for all images; set mode to rapid, balanced or high",
        )
        self.require(len(self.learn) > 0, "learn must name at least one of " + ", ".join(get_args(Learned)))


@dataclass(frozen=True, kw_only=True)
class ImagePackReport:
    """The manifests that were written, and the documents left out.

    `num_opted_out` must not be used for training, or an image of them; `num_skipped` have nothing that `learn` names.
    """

    path: Path
    train: TokenManifest
    held_out: TokenManifest | None
    num_documents: int
    num_opted_out: int
    num_skipped: int


def pack_image_corpus(
    path: Path,
    out: Path,
    tokenizer: Tokenizer,
    template: BaseChatTemplate,
    config: ImagePackConfig | None = None,
) -> ImagePackReport:
    """Pack the image corpus at `path` into token shards at `out`. Its files are linked, or copied where links cannot be.

    A call that was killed is continued by the next one with the same corpus, tokenizer and config.

    Raises:
        ImageCorpusError: `path` is not a complete image corpus.
        ChatTemplateError: the template has no image tokens.
        EmptyCorpusError: one side of the split has no document.
        OutputFolderError: `out` has files that are not token shards.
        OutOfSpaceError: the disk is full. After any error, `out` is unchanged.
    """
    if not template.can_take_images:
        raise ChatTemplateError("this model's chat template has no image tokens; use a tokenizer of openafm")
    config = config or ImagePackConfig(source=path.name)
    corpus = open_image_corpus(path)
    check_output(out)
    key = "\n".join([corpus.manifest.digest, tokenizer.digest, dump(template), dump(config)])
    with resumable_folder(out, key, FILES) as folder, progress(f"pack {path}", corpus.manifest.num_documents) as bar:
        _link_files(corpus, folder / IMAGES)
        train = _side(folder, IMAGES, corpus, tokenizer, config)
        # A corpus of nothing but held-out documents is packed as it is.
        divides = 0 < corpus.manifest.num_held_out < corpus.manifest.num_documents
        has_held_out = bool(config.held_out or divides)
        held_out = _side(folder / HELD_OUT, f"../{IMAGES}", corpus, tokenizer, config) if has_held_out else None
        left = [train.num_stored, held_out.num_stored if held_out else 0]  # token documents that an earlier call stored
        encoder = _Encoder(corpus, tokenizer, template, config)
        num_opted_out = num_skipped = 0
        for number, document in enumerate(corpus.documents(), start=1):
            bar.update(number, f"{number:,} documents")
            if document.opt_out or any(corpus.opt_out(digest) for digest in document.digests):
                num_opted_out += 1
                continue
            is_held_out = (divides and document.split == HELD_OUT) or _share_of(document.id) < config.held_out
            side = held_out if held_out is not None and is_held_out else train
            names = encoder.learned(document)
            num_skipped += not names
            num_stored = min(len(names), left[is_held_out])
            left[is_held_out] -= num_stored
            for name in names[num_stored:]:
                encoder.write(document, name, side.writer)
        return ImagePackReport(
            path=out,
            train=train.writer.finish(),
            held_out=held_out.writer.finish() if held_out else None,
            num_documents=corpus.manifest.num_documents,
            num_opted_out=num_opted_out,
            num_skipped=num_skipped,
        )


class _Encoder:
    """Encodes image documents as token documents with image slots."""

    def __init__(
        self, corpus: ImageCorpus, tokenizer: Tokenizer, template: BaseChatTemplate, config: ImagePackConfig
    ) -> None:
        self._corpus, self._tokenizer, self._template, self._config = corpus, tokenizer, template, config

    def learned(self, document: ImageDocument) -> list[str]:
        """Return the names of what is learned of a document: each becomes a token document."""
        learn = self._config.learn
        texts = (*document.captions.values(), document.transcription)
        has_own_text = document.text.strip() and document.text.strip() not in map(str.strip, texts)
        names = ["interleaved"] if has_own_text and "interleaved" in learn else []
        if "captions" in learn:
            names += [level for level in CAPTION_LEVELS if document.captions.get(level, "").strip()]
        names += ["transcription"] if document.transcription.strip() and "transcription" in learn else []
        names += ["questions"] if document.questions and "questions" in learn else []
        return names + (["letters"] if "letters" in learn and has_words(document) else [])

    def write(self, document: ImageDocument, name: str, writer: ShardWriter) -> None:
        """Encode what `name` says of a document and add it to a writer."""
        modes = self._modes(document, name)
        if name == "questions":
            encoded = self._template.encode_conversation(self._tokenizer, self._conversation(document, modes))
        elif name == "interleaved":
            encoded = self._encoded(document.parts, modes)
        elif name == "letters":
            encoded = self._letters(document, modes)
        else:
            text = document.transcription if name == "transcription" else document.captions[name]
            images = [part for part in document.parts if isinstance(part, ImagePart)]
            encoded = self._encoded([*images, TextPart(text=text)], modes)
        self._add(writer, document, name, encoded, modes)

    def _conversation(self, document: ImageDocument, modes: Sequence[Mode]) -> chat.Conversation:
        content: list[chat.ContentPart] = []
        sizes = iter(modes)
        for part in document.parts:
            if isinstance(part, ImagePart):
                num_tokens = self._config.resolution.num_tokens(next(sizes))
                content.append(chat.ImagePart(digest=part.digest, num_tokens=num_tokens))
            elif document.kind == "interleaved":
                content.append(chat.TextPart(text=part.text + "\n\n"))
        turns: list[chat.Turn] = []
        for question in document.questions:
            question_content = [*content, chat.TextPart(text=question.question)]
            turns.append(chat.UserTurn(content=question_content, response_format=_SCHEMAS.get(question.kind)))
            turns.append(chat.AssistantTurn(text=question.answer))
            content = []  # the first question has the images
        return chat.Conversation(turns=tuple(turns), language=document.language)

    def _encoded(self, parts: Iterable[TextPart | ImagePart], modes: Sequence[Mode]) -> EncodedText:
        special, sizes = self._tokenizer.special, iter(modes)
        encoded = [EncodedText(tokens=[special.bos], loss_mask=[True])]
        follows_text = False
        for part in parts:
            if isinstance(part, TextPart):
                text = "\n\n" * follows_text + part.text
                tokens = self._tokenizer.encode(text)
                encoded.append(EncodedText(tokens=tokens, loss_mask=[True] * len(tokens)))
            else:
                count = self._config.resolution.num_tokens(next(sizes))
                tokens = [special.image_start, *[special.image] * count, special.image_end]
                span = ImageSpan(start=1, stop=1 + count, digest=part.digest)
                encoded.append(EncodedText(tokens=tokens, loss_mask=[False] * len(tokens), images=(span,)))
            follows_text = isinstance(part, TextPart)
        return concatenated([*encoded, EncodedText(tokens=[special.eos], loss_mask=[True])])

    def _letters(self, document: ImageDocument, modes: Sequence[Mode]) -> EncodedText:
        (digest,), (mode,) = document.digests, modes
        numbers = letter_tokens(document, self._corpus.size(digest), self._config.resolution.mode(mode).side)
        image = self._encoded([ImagePart(digest=digest)], modes)
        inner, end = image.tokens[:-1], image.tokens[-1:]
        return EncodedText(
            tokens=[*inner, *numbers, *end],
            loss_mask=[False] * len(inner) + [True] * len(numbers) + [False],
            images=image.images,
        )

    def _modes(self, document: ImageDocument, name: str) -> list[Mode]:
        """Return the mode of each image of a document. It depends on the seed, the document and what is learned."""
        config = self._config
        if config.mode != "drawn":
            return [config.mode] * len(document.digests)
        seed = hashlib.blake2b(f"{config.seed}\0{document.id}\0{name}".encode(), digest_size=8).digest()
        rng = random.Random(int.from_bytes(seed))
        return [config.resolution.draw_mode(*self._corpus.size(digest), rng) for digest in document.digests]

    def _add(
        self, writer: ShardWriter, document: ImageDocument, name: str, encoded: EncodedText, modes: Sequence[Mode]
    ) -> None:
        slots_I = np.zeros(len(encoded.images), IMAGE_SLOTS)
        for slot, span, mode in zip(slots_I, encoded.images, modes, strict=True):
            slot["start"], slot["num_tokens"], slot["digest"] = (
                span.start,
                span.stop - span.start,
                bytes.fromhex(span.digest),
            )
            slot["shard"], slot["row"] = self._corpus.place(span.digest)
            slot["mode"] = MODES.index(mode)
        writer.add(
            encoded.tokens,
            loss_mask=encoded.loss_mask,
            language=document.language,
            source="/".join(part for part in (self._config.source, name, document.kind) if part),
            metadata={"license": document.license} if document.license else {},
            image_slots=slots_I,
        )


def _side(folder: Path, images: str, corpus: ImageCorpus, tokenizer: Tokenizer, config: ImagePackConfig) -> Side:
    slots = ImagesConfig(path=images, digest=corpus.manifest.digest, resolution=config.resolution)
    return resumed_side(folder, tokenizer, config.tokens_per_shard, slots)


def _link_files(corpus: ImageCorpus, folder: Path) -> None:
    """Put the files of a corpus into another folder: as hard links if they belong to this user, else as copies."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (MANIFEST, *(file.name for shard in corpus.manifest.shards for file in shard.files)):
        source, target = corpus.path / name, folder / name
        target.unlink(missing_ok=True)  # of an interrupted call
        if not hasattr(os, "geteuid") or source.stat().st_uid == os.geteuid():
            with contextlib.suppress(OSError):  # another file system, or one without links
                os.link(source, target)
        if not target.exists():
            shutil.copyfile(source, target)


def _share_of(identity: str) -> float:
    """Return a number in [0, 1), uniform over identifiers, that depends on the identifier alone."""
    return int.from_bytes(hashlib.blake2b(identity.encode("utf-8", "replace"), digest_size=6).digest()) / 2**48
