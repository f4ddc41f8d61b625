"""The base models: `on_device.micro` on the built-in corpus, trained until the loss hardly decreases."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from openafm.compression.config import QATConfig
from openafm.core.progress import progress
from openafm.data.documents import ChatDocument, texts_of
from openafm.data.loading.batch import Batch
from openafm.data.loading.loader import Loader, LoaderConfig, SourceConfig
from openafm.data.pack import PackConfig, pack_synthetic
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.models.config import DecoderConfig
from openafm.models.decoder import Decoder
from openafm.models.sizes import named_size
from openafm.recipes.on_device.pretrain import SMALL_OPTIMIZER
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.training.budgets import StepBudget
from openafm.training.config import EMAConfig, InductionStart, TrainerConfig
from openafm.training.objectives.base import NextToken
from openafm.training.optimizer_config import AdamWConfig, OptimizerConfig
from openafm.training.schedules import WarmupCosine
from openafm.training.state import PreparedModel, TrainingState
from openafm.training.trainer import Trainer

ROW_TOKENS = 1024
SETTLED = WarmupCosine(final=0.0)
EXTRA_OPTIMIZER = AdamWConfig(learning_rate=1e-3, weight_decay=0.0)  # as in the recipe of quantization-aware training
EXTRA_AVERAGE = EMAConfig(decay=0.98)


@dataclass(frozen=True, kw_only=True)
class Size:
    """Size of training and evaluation; rows have 1,024 tokens, and a step reads one."""

    seeds: int
    base_steps: int
    extra_steps: int
    held_out_rows: int
    calibration_rows: int
    conversations: int


FULL = Size(seeds=3, base_steps=1000, extra_steps=250, held_out_rows=24, calibration_rows=12, conversations=16_000)
QUICK = Size(seeds=1, base_steps=10, extra_steps=2, held_out_rows=1, calibration_rows=1, conversations=400)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Training rows, held-out rows of other conversations, and some training rows for calibration."""

    train: Loader
    held_out: Sequence[Batch]
    calibration: Sequence[Batch]


@dataclass(frozen=True, kw_only=True)
class Base:
    """A trained decoder with its held-out loss at the end and after nine tenths of the steps."""

    seed: int
    decoder: Decoder
    loss: float
    loss_at_nine_tenths: float

    @property
    def fall_of_last_tenth(self) -> float:
        """Return the relative decrease of the held-out loss over the last tenth of the steps."""
        return 1 - self.loss / self.loss_at_nine_tenths


def prepare_data(folder: Path, model: DecoderConfig, size: Size) -> Data:
    """Return English conversations of all tasks; held-out ones are other samples of the same distribution."""
    languages = {"en": 1.0}
    train, held_out = (SyntheticConfig(seed=seed, languages=languages) for seed in (0, 1))
    texts = (text for c in generate(train, min(5000, size.conversations)) for text in texts_of(ChatDocument(conversation=c)))
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=model.vocab_size, spaces="apart"), texts)
    everything = PackConfig(learn="everything")
    for name, config, count in (("train", train, size.conversations), ("held_out", held_out, 20 * size.held_out_rows)):
        pack_synthetic(config, count, folder / name, tokenizer, ChatTemplate(), everything)
    loader = _loader(folder / "train", rows=1)
    calibration = [loader.batch(step) for step in range(size.calibration_rows)]
    held_out_batches = [_loader(folder / "held_out", rows=1).batch(step) for step in range(size.held_out_rows)]
    return Data(train=loader, held_out=held_out_batches, calibration=calibration)


def train_base(model: DecoderConfig, data: Data, size: Size, seed: int) -> Base:
    """Return a decoder trained from scratch with the learning rate decayed to zero."""
    decoder = model.build(seed)
    InductionStart().apply(decoder, seed)
    trainer = _trainer(decoder, data, size.base_steps, SMALL_OPTIMIZER, None, None)
    first = seed * (size.base_steps + size.extra_steps)
    _advance(trainer, data, range(first, first + size.base_steps * 9 // 10), f"base {seed}")
    at_nine_tenths = loss(decoder, data.held_out)
    _advance(trainer, data, range(first + size.base_steps * 9 // 10, first + size.base_steps), f"base {seed}, last tenth")
    return Base(seed=seed, decoder=decoder, loss=loss(decoder, data.held_out), loss_at_nine_tenths=at_nine_tenths)


def train_further(base: Base, data: Data, size: Size, qat: QATConfig | None) -> Decoder:
    """Return a copy of the base trained for `extra_steps`, with quantization awareness or, as control, without.

    Optimizer, data and steps are the same for all; averaged weights are evaluated.
    """
    decoder = copy.deepcopy(base.decoder)
    trainer = _trainer(decoder, data, size.extra_steps, EXTRA_OPTIMIZER, EXTRA_AVERAGE, qat)
    first = base.seed * (size.base_steps + size.extra_steps) + size.base_steps
    _advance(trainer, data, range(first, first + size.extra_steps), f"base {base.seed}, {qat or 'control'}"[:60])
    averaged = trainer.state.ema
    assert averaged is not None
    decoder.load_state_dict(dict(averaged))
    return decoder


def train_adapter(decoder: Decoder, seed: int, data: Data, size: Size) -> None:
    """Train the adapter of a decoder for `extra_steps`, in place, on the data after the base's."""
    trainer = _trainer(decoder, data, size.extra_steps, EXTRA_OPTIMIZER, None, None)
    first = seed * (size.base_steps + size.extra_steps) + size.base_steps
    _advance(trainer, data, range(first, first + size.extra_steps), f"adapter over base {seed}")


@torch.no_grad()
def loss(decoder: Decoder, batches: Sequence[Batch]) -> float:
    """Return the mean cross entropy of the next token in nats."""
    losses = [NextToken()(decoder, batch) for batch in batches]
    return sum(x.total.item() for x in losses) / sum(x.count for x in losses)


def _trainer(
    decoder: Decoder,
    data: Data,
    num_steps: int,
    optimizer: OptimizerConfig,
    ema: EMAConfig | None,
    qat: QATConfig | None,
) -> Trainer:
    config = TrainerConfig(
        model=decoder.config,
        data=data.train.config,
        budget=StepBudget(num_steps=num_steps),
        optimizer=optimizer,
        schedule=SETTLED,
        ema=ema,
        qat=qat,
    )
    awareness = None if qat is None else qat.install(decoder)
    state = TrainingState(PreparedModel(model=decoder, awareness=awareness), optimizer, ema, num_steps)
    return Trainer(config, state, data.train)


def _advance(trainer: Trainer, data: Data, steps: range, title: str) -> None:
    with progress(title, len(steps)) as bar:
        for done, step in enumerate(steps, start=1):
            update = trainer.update(data.train.batch(step))
            bar.update(done, f"loss {update.loss:.3f}")


def _loader(folder: Path, rows: int) -> Loader:
    source = SourceConfig(name=folder.name, path=str(folder))
    return LoaderConfig(sources=(source,), rows_per_step=rows, row_tokens=ROW_TOKENS).build()


def micro() -> DecoderConfig:
    return named_size("on_device.micro")
