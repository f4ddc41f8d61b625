"""Whether a model that transcribes looks at the image, and how well it reads.

English held-out drawings: the pages of random words of the recipe, by source, then signs and flyers. `loss` is nats for each
token of the transcription; `loss_of_another` the same with the image of another drawing: a model that memorized the texts
has the same loss. `cer` is the character error rate of greedy decoding, edits without white space, beside tesseract's.

    python benchmarks/transcribing.py --bundle NAME [--count N] [--quick] [--json]

A full run (minutes on one core) writes docs/benchmarks/transcribing.json. --quick trains a tiny model first.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("OMP_THREAD_LIMIT", "1")  # of tesseract
sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
import torch
import torch.nn.functional as F
from flyers import trained_reader
from PIL import Image
from shared.reporting import benchmark_parser, hand_in
from shared.vision_runs import home
from text_rich_difficulty import LAYOUT, Scores, documents
from torch import Tensor

from openafm.bundle import Bundle, open_bundle
from openafm.bundle.decoder import load_decoder
from openafm.data.drawing.base import Drawn
from openafm.data.drawing.corpus import draw_document
from openafm.data.drawing.evaluation import SEED
from openafm.data.images.resolution import image_views
from openafm.evaluation.flyer_baseline import read_lines
from openafm.models.attention.context import PackedDocuments
from openafm.models.attention.spans import EmbeddingSpan, Span
from openafm.models.sizes import named_size
from openafm.models.vision.letters_adapter_config import LettersAdapterConfig
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.recipes.vision.reader import PAGES

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "transcribing.json"
KINDS = ("signs", "flyers")
MOST_TOKENS = 300


class Transcriber:
    """A model that continues an image by its text, as `vision.transcribe` trains it."""

    def __init__(self, bundle: Bundle) -> None:
        self.model = cast("MultimodalDecoder", load_decoder(bundle)).eval()
        self.tokenizer, self.full = bundle.tokenizer, self.model.config.image_modes[0]
        self.show_at(self.full.side)

    def show_at(self, side: int) -> None:
        """Show images as views of this side from now on; their tokens are in proportion."""
        special = self.tokenizer.special
        self.mode = replace(self.full, side=side, tokens=self.full.tokens * side**2 // self.full.side**2)
        self.prompt = [special.bos, special.image_start, *[special.image] * self.mode.tokens, special.image_end]

    def embeddings(self, drawn: Drawn) -> Tensor:
        """Return the embeddings of the tokens of a drawing's image."""
        with Image.open(io.BytesIO(drawn.images[0].data)) as image:
            views = torch.tensor(image_views(np.asarray(image.convert("RGB")), self.mode))
        return self.model.encode_images(views, self.mode.tokens)

    def loss(self, embeddings: Tensor, text: str) -> tuple[float, int]:
        """Return the sum of the losses of a text's tokens and of its end, and how many they are."""
        tokens = [*self.tokenizer.encode(text), self.tokenizer.special.eos]
        logits_NV = self._logits([*self.prompt, *tokens[:-1]], embeddings, len(tokens))
        return float(F.cross_entropy(logits_NV, torch.tensor(tokens), reduction="sum")), len(tokens)

    def read(self, embeddings: Tensor) -> str:
        """Return the text that greedy decoding gives."""
        tokens: list[int] = []
        while len(tokens) < MOST_TOKENS:
            token = int(self._logits([*self.prompt, *tokens], embeddings, 1).argmax())
            if token == self.tokenizer.special.eos:
                break
            tokens.append(token)
        return self.tokenizer.decode(tokens)

    def _logits(self, tokens: list[int], embeddings: Tensor, last: int) -> Tensor:
        start = self.prompt.index(self.tokenizer.special.image)
        span = EmbeddingSpan(0, start, start + self.mode.tokens, "image")
        context = PackedDocuments([Span(0, 0, len(tokens))], 1, len(tokens), self.model.device, spans=[span])
        at = torch.arange(len(tokens) - last, len(tokens))
        hidden_1ND = self.model.hidden_at(torch.tensor([tokens]), context, at, [(span, embeddings)])
        return hidden_1ND[0] @ self.model.head_weight.T


@torch.no_grad()
def figures_of(transcriber: Transcriber, kind: str, drawn: Sequence[Drawn]) -> dict[str, float]:
    """Return the losses and error rates on some drawings."""
    embeddings = [transcriber.embeddings(each) for each in drawn]
    own, others, num_tokens, read, tesseract = 0.0, 0.0, 0, Scores(), Scores()
    for number, each in enumerate(drawn):
        loss, count = transcriber.loss(embeddings[number], each.transcription)
        own, num_tokens = own + loss, num_tokens + count
        others += transcriber.loss(embeddings[number - 1], each.transcription)[0]
        read.add_text(transcriber.read(embeddings[number]), each.transcription)
        lines = read_lines(each.images[0].data, "eng", LAYOUT)
        tesseract.add_text("\n".join(line.text for line in lines), each.transcription)
    return {
        f"loss_{kind}": round(own / num_tokens, 4),
        f"loss_of_another_{kind}": round(others / num_tokens, 4),
        f"cer_{kind}": read.to_dict()["cer"],
        f"tesseract_cer_{kind}": tesseract.to_dict()["cer"],
    }


def measure(bundle: Bundle, count: int) -> dict[str, Any]:
    transcriber, size = Transcriber(bundle), "micro" if bundle.config.dim == named_size("compact.micro").dim else "nano"
    figures: dict[str, float] = {}
    for source, page in PAGES[size].items():
        transcriber.show_at(page.side)
        generator = page.build()
        pages = [draw_document(generator, page.name, "en", "held_out", SEED, number) for number in range(count)]
        figures |= figures_of(transcriber, source, pages)
    transcriber.show_at(transcriber.full.side)
    for kind in KINDS:
        figures |= figures_of(transcriber, kind, documents(kind, "en", count))
    setting = {"bundle": bundle.name, "drawings_of_each_kind": count}
    return {"benchmark": "transcribing", "peer": "tesseract", "setting": setting, "figures": figures}


def main() -> None:
    parser = benchmark_parser(__doc__, "a tiny model and two drawings of each kind; claims nothing")
    parser.add_argument("--bundle", help="a bundle of vision.transcribe or vision.reader")
    parser.add_argument("--count", type=int, default=20, help="drawings of each kind")
    options = parser.parse_args()
    if options.bundle is None and not options.quick:
        parser.error("name a bundle of vision.transcribe by --bundle, or use --quick")
    if options.count < 2:
        parser.error("--count must be 2 or more: the image of another drawing is needed")
    bundle = None if options.bundle is None else open_bundle(options.bundle)
    if bundle is not None and not isinstance(getattr(bundle.config, "adapter", None), LettersAdapterConfig):
        parser.error(f"{options.bundle} has no tokens of letters; name a bundle of vision.transcribe or vision.reader")
    with home() as folder:
        bundle = bundle or open_bundle(trained_reader(folder, "micro", 12, 3))
        hand_in(measure(bundle, 2 if options.quick else options.count), REPORT, options)


if __name__ == "__main__":
    main()
