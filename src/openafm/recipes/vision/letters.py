"""The encoder of the page reader (`openafm.reading`), which learns from drawings with boxes of words which letter is where.

The report has no such model. The page reader makes views of several sides, of which one has the letters as large as in
training. More than half of the data are pages of random words.
"""

from __future__ import annotations

from dataclasses import replace

from openafm.data.drawing.flyers import FlyersConfig
from openafm.data.drawing.words import WordsConfig
from openafm.data.images.resolution import ResolutionConfig
from openafm.data.loading.loader import LoaderConfig
from openafm.models.vision.multimodal_config import LettersModelConfig
from openafm.models.vision.sizes import encoder_of, raised
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.sources.drawn_corpus import DrawnCorpusConfig
from openafm.recipes.sources.mixtures import one_source, sources
from openafm.recipes.vision.mixtures import drawn
from openafm.tokenizer.bpe import NUM_BYTE_TOKENS, NUM_SPECIAL_TOKENS, TokenizerConfig
from openafm.training.budgets import TokenBudget
from openafm.training.config import EvaluationConfig, TrainerConfig
from openafm.training.objectives.config import LettersConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.precision_config import DevicePrecisionConfig, Float32Config, PrecisionConfig
from openafm.training.schedules import WarmupCosine

SIDES = {"micro": 160, "nano": 896}
"""Side of flyers and signs, which are also shown at a half and a quarter of it, in pixels."""
WORD_PAGES = {
    "micro": WordsConfig(side=160, most_lines=4),
    "nano": WordsConfig(side=256, most_lines=8, smallest=12, paragraph_share=0.5),
}
SMALL_PAGES = {
    "micro": WordsConfig(side=128, most_lines=4, paragraph_share=0.7),
    "nano": WordsConfig(side=160, most_lines=6, smallest=8, paragraph_share=0.7),
}
"""Pages in small letters, which are enlarged to the side of the others, as the reader enlarges screenshots."""
WEIGHTS = {"letters": 0.28, "half_letters": 0.1, "quarter_letters": 0.02, "word_letters": 0.35, "small_letters": 0.25}
NUM_TOKENS = {"micro": 60_000, "nano": 20_000_000}
PRECISIONS: dict[str, PrecisionConfig] = {"micro": Float32Config(), "nano": DevicePrecisionConfig()}
ROW_TOKENS = {"micro": 1024, "nano": 2048}
VOCABULARY = NUM_SPECIAL_TOKENS + NUM_BYTE_TOKENS
"""The encoder reads no tokens, so the tokenizer of its bundle has no merges."""
KINDS = ("flyers", "signs")
RANDOM_SHARE = 0.6
"""Share of the flyers of training with random words."""


@recipe("vision.letters", sizes=("micro", "nano"))
def letters(size: str) -> RunConfig:
    """Train the encoder of the page reader on drawn flyers, signs and words in English."""
    side, row, page = SIDES[size], ROW_TOKENS[size], WORD_PAGES[size]
    return RunConfig(
        recipe="vision.letters",
        corpora=(
            _corpus("letters", size, side),
            _corpus("half_letters", size, side // 2),
            _corpus("quarter_letters", size, side // 4),
            _word_corpus("word_letters", size, page.side, page),
            _word_corpus("small_letters", size, page.side, SMALL_PAGES[size]),
            _corpus("held_out_letters", size, side, held_out=True),
        ),
        tokenizer=TokenizerConfig(vocab_size=VOCABULARY, spaces="apart"),
        trainer=TrainerConfig(
            model=LettersModelConfig(vocab_size=VOCABULARY, vision=raised(encoder_of(f"reader.{size}"), side)),
            objective=LettersConfig(),
            data=LoaderConfig(sources=sources(**WEIGHTS), rows_per_step=2, row_tokens=row),
            budget=TokenBudget(num_tokens=NUM_TOKENS[size]),
            optimizer=AdamWConfig(learning_rate=2e-3, weight_decay=0.0),
            num_threads=1,
            precision=PRECISIONS[size],
            schedule=WarmupCosine(),
            evaluation=EvaluationConfig(
                data=one_source("held_out_letters", rows_per_step=2, row_tokens=row), every_steps=500
            ),
        ),
    )


def _corpus(name: str, size: str, side: int, *, held_out: bool = False) -> DrawnCorpusConfig:
    """Return the letters of English flyers and signs in views of this side, which take a token for each 32 x 32 pixels."""
    resolution = ResolutionConfig(side=side, tokens=(side // 32) ** 2)
    corpus = drawn(name, size, KINDS, ("letters",), resolution=resolution, held_out=held_out)
    generators = tuple(
        replace(each, random_share=RANDOM_SHARE) if isinstance(each, FlyersConfig) and not held_out else each
        for each in corpus.drawing.generators
    )
    return replace(corpus, drawing=replace(corpus.drawing, generators=generators, languages=("en",)))


def _word_corpus(name: str, size: str, side: int, page: WordsConfig) -> DrawnCorpusConfig:
    """Return the letters of as many pages of random words as there are flyers and signs, in views of this side."""
    corpus = _corpus(name, size, side)
    count = len(KINDS) * corpus.drawing.count
    return replace(corpus, drawing=replace(corpus.drawing, generators=(page,), count=count))
