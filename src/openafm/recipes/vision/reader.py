"""A compact decoder with vision that reads flyers into events: it learns letters, then to transcribe, then to answer.

Random words are part of the data, since from texts that make sense the model learns the texts, and does not look.
The report has no such stages. They are the one narrow skill that a model of this size may learn: `benchmarks/flyers.py`
compares it with tesseract and regular expressions. The encoder is convolutions alone, and its image tokens are made of the
letters in them (`LettersAdapterConfig`): a token for each 16 pixels (micro: 24) holds few letters. The vocabulary is that of
bytes.
"""

from __future__ import annotations

from dataclasses import replace

from openafm.data.drawing.flyers import FlyersConfig
from openafm.data.drawing.words import WordsConfig
from openafm.data.images.packing import Learned
from openafm.data.images.resolution import ResolutionConfig
from openafm.data.loading.loader import LoaderConfig
from openafm.models.sizes import named_size
from openafm.models.vision.letters_adapter_config import LettersAdapterConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.sizes import encoder_of
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.sources.drawn_corpus import DrawnCorpusConfig
from openafm.recipes.sources.mixtures import one_source, sources
from openafm.recipes.vision.mixtures import drawn
from openafm.tokenizer.bpe import NUM_BYTE_TOKENS, NUM_SPECIAL_TOKENS, TokenizerConfig
from openafm.training.budgets import TokenBudget
from openafm.training.config import EvaluationConfig, TrainerConfig
from openafm.training.objectives.config import ReadingConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.precision_config import DevicePrecisionConfig, Float32Config, PrecisionConfig
from openafm.training.schedules import WarmupCosine

READER_RESOLUTIONS = {
    "micro": ResolutionConfig(side=168, rapid_side=56, tokens=49, rapid_tokens=9),
    "nano": ResolutionConfig(side=448, rapid_side=64, tokens=784, rapid_tokens=16),
}
PAGES = {
    "micro": {"words": WordsConfig(side=168, most_lines=4)},
    "nano": {
        "large_letters": WordsConfig(side=128, most_lines=1, smallest=20),
        "words": WordsConfig(side=128, most_lines=2),
        "large_pages": WordsConfig(side=256, most_lines=6),
    },
}
"""Pages of words by source, shown as they are. The decoder learns to find the next letter from pages with few tokens and
large letters; with large pages alone this takes far longer (docs/benchmarks.md, Transcribing)."""
ADAPTERS = {"micro": LettersAdapterConfig(factor=3), "nano": LettersAdapterConfig(factor=2)}
NUM_TOKENS = {"micro": 60_000, "nano": 20_000_000}
PRECISIONS: dict[str, PrecisionConfig] = {"micro": Float32Config(), "nano": DevicePrecisionConfig()}
ROW_TOKENS = {"micro": 1024, "nano": 2048}
VOCABULARY = NUM_SPECIAL_TOKENS + NUM_BYTE_TOKENS
"""Without merges: a model that reads letters has to spell."""
KINDS = ("flyers", "signs")
RANDOM_SHARE = 0.6
"""Share of the flyers of training with random words: with names alone the decoder memorizes those of the flyers."""
LANGUAGES = ("en",)


@recipe("vision.letters", sizes=("micro", "nano"))
def letters(size: str) -> RunConfig:
    """Train an encoder and the layer of letters on drawn flyers, signs and words in English."""
    weights = {"letters": 0.5, "word_letters": 0.5}
    return _run("vision.letters", size, ReadingConfig(), weights, texts=(), held_out="letters")


# The encoder and the layer of letters stay as they are in the later stages: with a share of letters and the learning rate of
# the decoder, accuracy on letters fell from 89 to 12 % within a thousand steps.
_FROZEN_LETTERS = ReadingConfig(letters_learn_from="nothing")


@recipe("vision.transcribe", sizes=("micro", "nano"), starts_from="vision.letters")
def transcribe(size: str) -> RunConfig:
    """Train a model of `vision.letters` to transcribe the drawings."""
    weights = {**{name: 0.8 / len(PAGES[size]) for name in PAGES[size]}, "texts": 0.2}
    return _run("vision.transcribe", size, _FROZEN_LETTERS, weights, texts=("transcription",), held_out="transcription")


@recipe("vision.reader", sizes=("micro", "nano"), starts_from="vision.transcribe")
def reader(size: str) -> RunConfig:
    """Train a model of `vision.transcribe` to answer questions about the drawings, one of them for the event of a flyer."""
    texts: tuple[Learned, ...] = ("transcription", "questions")
    return _run("vision.reader", size, _FROZEN_LETTERS, {"texts": 1.0}, texts=texts, held_out="questions")


def _run(
    name: str,
    size: str,
    objective: ReadingConfig,
    weights: dict[str, float],
    *,
    texts: tuple[Learned, ...],
    held_out: Learned,
) -> RunConfig:
    decoder, vision = replace(named_size(f"compact.{size}"), vocab_size=VOCABULARY), encoder_of(f"reader.{size}")
    # The objective finds letters by the name of their source.
    tested = "held_out_letters" if held_out == "letters" else "held_out"
    return RunConfig(
        recipe=name,
        corpora=(
            *(_corpus(source, size, texts) for source in weights),
            _english(tested, size, (held_out,), held_out=True),
        ),
        tokenizer=TokenizerConfig(vocab_size=VOCABULARY, spaces="apart"),
        trainer=TrainerConfig(
            model=MultimodalConfig.of(decoder, vision, ADAPTERS[size], (READER_RESOLUTIONS[size].mode("balanced"),)),
            objective=replace(objective, sources=("letters", "word_letters", "held_out_letters")),
            data=LoaderConfig(sources=sources(**weights), rows_per_step=2, row_tokens=ROW_TOKENS[size]),
            budget=TokenBudget(num_tokens=NUM_TOKENS[size]),
            # Without weight decay, a stage leaves the weights alone that it has no loss for.
            optimizer=AdamWConfig(learning_rate=2e-3, weight_decay=0.0),
            num_threads=1,
            precision=PRECISIONS[size],
            schedule=WarmupCosine(),
            evaluation=EvaluationConfig(
                data=one_source(tested, rows_per_step=2, row_tokens=ROW_TOKENS[size]), every_steps=200
            ),
        ),
    )


def _corpus(source: str, size: str, texts: tuple[Learned, ...]) -> DrawnCorpusConfig:
    if source in PAGES[size]:
        return _words(source, size, PAGES[size][source], ("transcription",))
    if source == "word_letters":
        return _words(source, size, max(PAGES[size].values(), key=lambda page: page.side), ("letters",))
    return _english(source, size, ("letters",) if source == "letters" else texts)


def _english(name: str, size: str, learn: tuple[Learned, ...], *, held_out: bool = False) -> DrawnCorpusConfig:
    corpus = drawn(name, size, KINDS, learn, resolution=READER_RESOLUTIONS[size], held_out=held_out)
    generators = tuple(
        replace(each, random_share=RANDOM_SHARE) if isinstance(each, FlyersConfig) and not held_out else each
        for each in corpus.drawing.generators
    )
    return replace(corpus, drawing=replace(corpus.drawing, generators=generators, languages=LANGUAGES))


def _words(name: str, size: str, page: WordsConfig, learn: tuple[Learned, ...]) -> DrawnCorpusConfig:
    """Return pages of words. Their number is that of flyers and signs together."""
    corpus, full = _english(name, size, learn), READER_RESOLUTIONS[size]
    drawing = replace(corpus.drawing, generators=(page,), count=len(KINDS) * corpus.drawing.count)
    resolution = replace(full, side=page.side, tokens=full.tokens * page.side**2 // full.side**2)
    return replace(corpus, drawing=drawing, packing=replace(corpus.packing, resolution=resolution))
