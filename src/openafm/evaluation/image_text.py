"""Zero-shot evaluation of contrastive towers on image corpora, and the vectors that scorers compare (report 4.2).

Shapes: I images, T texts, E the shared dim.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from openafm.bundle import Bundle
from openafm.bundle.decoder import load_decoder
from openafm.core.errors import UsageError
from openafm.data.images.decoding import pixels
from openafm.data.images.documents import ImageDocument
from openafm.data.images.resolution import ResolutionConfig
from openafm.data.images.shards import ImageCorpus
from openafm.models.vision.clip import ClipModel
from openafm.models.vision.multimodal_config import ClipConfig

Vectors = npt.NDArray[np.float32]
LEVELS = ("short", "alt", "keywords", "paragraph")
"""Levels of captions, the first that a document has counts. Grounded captions have coordinates."""
BATCH = 32
MOST_TOKENS = 256
"""Longer texts are cut."""


class NotContrastiveError(UsageError):
    """The bundle does not hold contrastive towers."""


class ImageTextEncoder:
    """Encodes images and texts by the towers of a bundle of `vision.clip` as unit vectors; their products are similarities.

    Raises:
        NotContrastiveError: the bundle holds another model.
        BundleError: the bundle cannot be read.
    """

    def __init__(self, bundle: Bundle) -> None:
        if not isinstance(bundle.config, ClipConfig):
            raise NotContrastiveError(f"{bundle.path} has no contrastive towers; train vision.clip, or name its bundle")
        self._towers = cast("ClipModel", load_decoder(bundle)).eval()
        self._tokenizer = bundle.tokenizer
        self._resolution = ResolutionConfig(side=bundle.config.vision.image_side)

    @torch.no_grad()
    def images(self, images: Sequence[npt.NDArray[np.uint8]]) -> Vectors:
        """Return the vectors of images [H, W, 3], [I, E]."""
        views = [self._resolution.views(image, "balanced")[0] for image in images]
        parts = (views[start : start + BATCH] for start in range(0, len(views), BATCH))
        encoded = [self._towers.encode_images(torch.from_numpy(np.stack(part))).numpy() for part in parts]
        return np.concatenate(encoded) if encoded else self._none

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, [T, E]. They are encoded as in training, where a text follows its image."""
        special = self._tokenizer.special
        tokens = [
            torch.tensor([special.image_end, *self._tokenizer.encode(text)[:MOST_TOKENS], special.eos]) for text in texts
        ]
        parts = (tokens[start : start + BATCH] for start in range(0, len(tokens), BATCH))
        encoded = [self._towers.encode_texts(part).numpy() for part in parts]
        return np.concatenate(encoded) if encoded else self._none

    @property
    def _none(self) -> Vectors:
        return np.zeros((0, self._towers.config.shared_dim), np.float32)


@dataclass(frozen=True, kw_only=True)
class ZeroShotScores:
    """Shares from 0 to 1 of documents that pick their partner among `candidates`, of which chance finds 1 / `candidates`.

    `kinds` are the shares of images that pick their text, by kind of document. `classes` is the share of charts whose kind
    is picked among the names of all kinds, None without charts.
    """

    num_pairs: int
    candidates: int
    image_to_text: float
    text_to_image: float
    kinds: Mapping[str, float]
    classes: float | None
    num_classes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def zero_shot(
    encoder: ImageTextEncoder, corpus: ImageCorpus, *, candidates: int = 16, most: int | None = None
) -> ZeroShotScores:
    """Return the scores on the documents of a corpus with one image and a caption, the first `most` of them.

    The candidates of a document are its partner and others of its kind and language, drawn by a fixed seed, so that
    neither the kind of the picture nor the language decides.

    Raises:
        UsageError: fewer than two documents of a kind and language have an image and a caption.
    """
    documents = [document for document in corpus.documents() if len(document.digests) == 1 and _caption(document)][:most]
    rivals = list(_rivals(documents, candidates))
    if not any(len(group) > 1 for group in rivals):
        raise UsageError(_too_few(corpus, documents))
    images_IE = encoder.images([pixels(corpus.image(document.digests[0])) for document in documents])
    texts_IE = encoder.texts([_caption(document) for document in documents])
    picks_text, picks_image, by_kind = [], [], dict[str, list[bool]]()
    for index, group in enumerate(rivals):
        if len(group) == 1:
            continue
        picks_text.append(bool((texts_IE[group] @ images_IE[index]).argmax() == 0))
        picks_image.append(bool((images_IE[group] @ texts_IE[index]).argmax() == 0))
        by_kind.setdefault(documents[index].kind, []).append(picks_text[-1])
    classes, num_classes = _classes(encoder, documents, images_IE)
    return ZeroShotScores(
        num_pairs=len(picks_text),
        candidates=max(map(len, rivals)),
        image_to_text=float(np.mean(picks_text)),
        text_to_image=float(np.mean(picks_image)),
        kinds={kind: float(np.mean(each)) for kind, each in sorted(by_kind.items())},
        classes=classes,
        num_classes=num_classes,
    )


def _caption(document: ImageDocument) -> str:
    return next((document.captions[level] for level in LEVELS if document.captions.get(level, "").strip()), "")


def _too_few(corpus: ImageCorpus, documents: Sequence[ImageDocument]) -> str:
    groups = Counter(f"{document.kind} in {document.language or 'no language'}" for document in documents)
    found = ", ".join(f"{count} of {name}" for name, count in groups.most_common(5)) or "none"
    return (
        f"{corpus.path} has no two documents of a kind and language with one image and different captions, so no image can"
        f" pick its caption; it has {found}. Pass a larger corpus, such as of openafm data draw flyers --count 100"
    )


def _rivals(documents: Sequence[ImageDocument], candidates: int) -> Iterator[list[int]]:
    """Yield the candidates of each document: its own index, then others with different captions."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, document in enumerate(documents):
        groups.setdefault((document.kind, document.language), []).append(index)
    rng = random.Random(0)
    for index, document in enumerate(documents):
        others = groups[document.kind, document.language]
        chosen, captions = [index], {_caption(document)}
        for other in rng.sample(others, len(others)):
            caption = _caption(documents[other])
            if caption not in captions and len(chosen) < candidates:
                chosen.append(other)
                captions.add(caption)
        yield chosen


def _classes(encoder: ImageTextEncoder, documents: Sequence[ImageDocument], images_IE: Vectors) -> tuple[float | None, int]:
    """Return the share of charts whose kind is picked, and the number of kinds."""
    labels = {index: document.metadata["chart"] for index, document in enumerate(documents) if "chart" in document.metadata}
    names = sorted(set(labels.values()))
    if not names:
        return None, 0
    texts_TE = encoder.texts([name.replace("_", " ") for name in names])
    picked = (images_IE[list(labels)] @ texts_TE.T).argmax(-1)
    return float(np.mean([names[pick] == label for pick, label in zip(picked, labels.values(), strict=True)])), len(names)
