"""The on-device model's runs (report 4.3, 5.1), at the sizes that the built-in corpus can feed."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from openafm.adapters.config import LoRAConfig
from openafm.compression.config import QATConfig
from openafm.data.copies import CopiesConfig
from openafm.data.loader import LoaderConfig, SourceConfig
from openafm.data.synthetic import LANGUAGES, SyntheticConfig
from openafm.models.config import DecoderConfig
from openafm.models.sizes import named_size
from openafm.recipes.config import CopiesCorpusConfig, CorpusConfig, RunConfig, SyntheticCorpusConfig, recipe
from openafm.tokenizer.bpe import TokenizerConfig
from openafm.training.config import (
    AdamWConfig,
    BFloat16Config,
    BudgetConfig,
    EMAConfig,
    EvaluationConfig,
    Float32Config,
    InductionStart,
    MuonConfig,
    OptimizerConfig,
    StepBudget,
    TimeBudget,
    TrainerConfig,
)
from openafm.training.objectives.config import DistillationConfig
from openafm.training.schedules import WarmupStableDecay

# What the micro model is for is events; a little of every other task lets `respond` and `chat` say something at all.
MICRO_TASKS = {"event": 0.95, "tagging": 0.01, "summary": 0.01, "rewrite": 0.01, "arithmetic": 0.01, "story": 0.01}
MICRO_LANGUAGES = {language: 0.55 if language == "en" else 0.03 for language in LANGUAGES}
NANO_TASKS = {
    "event": 0.40,
    "tool": 0.20,
    "form": 0.12,
    "tagging": 0.07,
    "arithmetic": 0.07,
    "summary": 0.05,
    "rewrite": 0.05,
    "story": 0.04,
}
NANO_LANGUAGES = {language: 0.40 if language == "en" else 0.04 for language in LANGUAGES}
# Copying is learned token by token: with 16,384 of them 2 M tokens of copies do not teach it, with 2,048 0.4 M do. The
# rows of the model beyond are to spare.
NANO_TOKENS = 2048
NANO_COPIES = CopiesCorpusConfig(name="copies", learn="answers", copies=CopiesConfig(), num_examples=20_000)
SMALL_OPTIMIZER = MuonConfig(learning_rate=0.02, weight_decay=0.0, adamw=AdamWConfig(learning_rate=4e-3, weight_decay=0.0))
NANO_OPTIMIZER = replace(SMALL_OPTIMIZER, learning_rate=0.014, adamw=AdamWConfig(learning_rate=2e-3, weight_decay=0.0))


@recipe("on_device.pretrain", sizes=("micro", "nano"))
def pretrain(size: str) -> RunConfig:
    """From nothing to a model that copies from its context; there is time for no more on a laptop."""
    return {"micro": _pretrain_micro, "nano": _pretrain_nano}[size]()


@recipe("on_device.sft", sizes=("micro", "nano"), starts_from="on_device.pretrain")
def sft(size: str) -> RunConfig:
    """Fine-tuning on the assistant's answers only, from a pre-trained bundle and with its tokenizer."""
    return {"micro": _sft_micro, "nano": _sft_nano}[size]()


@recipe("on_device.qat", sizes=("micro", "nano"), starts_from="on_device.sft")
def qat(size: str) -> RunConfig:
    """2-bit quantization-aware training on the data of the stages before, with fewer steps, to a compressed bundle."""
    return {"micro": _qat_micro, "nano": _qat_nano}[size]()


@recipe("on_device.recovery_adapter", sizes=("micro", "nano"), starts_from="on_device.qat")
def recovery_adapter(size: str) -> RunConfig:
    """A low-rank adapter over a compressed bundle, on the same data: the bundle again, with what it lost won back."""
    return {"micro": _recovery_micro, "nano": _recovery_nano}[size]()


@recipe("on_device.draft", sizes=("micro", "nano"), starts_from="on_device.recovery_adapter")
def draft(size: str) -> RunConfig:
    """A draft model, distilled from the bundle that it is to draft for on the data which that was fine-tuned on."""
    return {"micro": _draft_micro, "nano": _draft_nano}[size]()


def _pretrain_micro() -> RunConfig:
    """Extraction is copying, and in a minute nothing is learned that is not rewarded at once: random tokens, said again.

    The loss falls all of a sudden between step 200 and 300; a budget in seconds might end before.

    The built-in corpus is not trained on here; its texts are what the tokenizer learns from.
    """
    copies = CopiesCorpusConfig(name="copies", learn="answers", copies=CopiesConfig(), num_examples=20_000)
    model = named_size("on_device.micro")
    corpora = (copies, _micro_corpus("everything", num_examples=10_000))
    return _copying(model, corpora, model.vocab_size, SMALL_OPTIMIZER, num_steps=350)


def _sft_micro() -> RunConfig:
    return RunConfig(
        recipe="on_device.sft",
        corpora=(_micro_corpus("answers", num_examples=40_000),),
        tokenizer=None,
        trainer=TrainerConfig(
            model=named_size("on_device.micro"),
            data=_one_source("built_in", rows_per_step=1, row_tokens=1024),
            budget=TimeBudget(seconds=180),
            optimizer=SMALL_OPTIMIZER,
            num_threads=1,
            schedule=WarmupStableDecay(decay_fraction=0.3),
        ),
    )


def _pretrain_nano() -> RunConfig:
    """As micro: on a CPU hours are few, and answers teach more in them than the prompts before do. In fp32, at a lower
    learning rate than micro: copying comes at step 150, while in bf16 at micro's it had hardly come at step 400.
    """
    corpora = (NANO_COPIES, *_nano_corpora())
    return _copying(named_size("on_device.nano"), corpora, NANO_TOKENS, NANO_OPTIMIZER, num_steps=400)


def _copying(
    model: DecoderConfig, corpora: tuple[CorpusConfig, ...], num_tokens: int, optimizer: OptimizerConfig, num_steps: int
) -> RunConfig:
    """Copies alone, from weights with a head start; all of the corpora teach the tokenizer."""
    return RunConfig(
        recipe="on_device.pretrain",
        corpora=corpora,
        tokenizer=TokenizerConfig(vocab_size=num_tokens, spaces="apart"),
        trainer=TrainerConfig(
            model=model,
            data=_one_source("copies", rows_per_step=1, row_tokens=1024),
            budget=StepBudget(num_steps=num_steps),
            optimizer=optimizer,
            num_threads=1,
            schedule=WarmupStableDecay(decay_fraction=0.1),
            start=InductionStart(),
        ),
    )


def _sft_nano() -> RunConfig:
    """One row in ten is still copies, of more different tokens than the names and titles of the corpus have."""
    sources = (
        SourceConfig(name="built_in", path="built_in", weight=0.9),
        SourceConfig(name="copies", path="copies", weight=0.1),
    )
    return RunConfig(
        recipe="on_device.sft",
        corpora=(*_nano_corpora(), NANO_COPIES),
        tokenizer=None,
        trainer=TrainerConfig(
            model=named_size("on_device.nano"),
            data=LoaderConfig(sources=sources, rows_per_step=2, row_tokens=1024),
            budget=StepBudget(num_steps=4_000),
            optimizer=NANO_OPTIMIZER,
            precision=BFloat16Config(),
            num_threads=1,
            schedule=WarmupStableDecay(warmup_fraction=0.02, decay_fraction=0.3),
            evaluation=_nano_evaluation(),
        ),
    )


def _qat_micro() -> RunConfig:
    return _quantized(_sft_micro(), TimeBudget(seconds=90))


def _qat_nano() -> RunConfig:
    return _quantized(_sft_nano(), StepBudget(num_steps=700))


def _recovery_micro() -> RunConfig:
    return _adapted(_sft_micro(), TimeBudget(seconds=30), LoRAConfig(rank=8))


def _recovery_nano() -> RunConfig:
    return _adapted(_sft_nano(), StepBudget(num_steps=150), LoRAConfig(rank=2))


def _draft_micro() -> RunConfig:
    return _distilled(_sft_micro(), "on_device.micro_draft", TimeBudget(seconds=120))


def _draft_nano() -> RunConfig:
    return _distilled(_sft_nano(), "on_device.nano_draft", StepBudget(num_steps=600))


def _distilled(run: RunConfig, size: str, budget: BudgetConfig) -> RunConfig:
    """The same data through a fresh student, which copies from its context too: half of the rows are copies."""
    model = named_size(size)
    sources = (
        SourceConfig(name="built_in", path="built_in", weight=0.5),
        SourceConfig(name="copies", path="copies", weight=0.5),
    )
    trainer = replace(
        run.trainer,
        model=model,
        objective=DistillationConfig(),
        data=replace(run.trainer.data, sources=sources),
        budget=budget,
        optimizer=SMALL_OPTIMIZER,
        precision=Float32Config(),
        start=InductionStart(),
    )
    corpora = tuple(corpus for corpus in run.corpora if corpus.name != "copies")
    return replace(run, recipe="on_device.draft", corpora=(*corpora, NANO_COPIES), trainer=trainer)


def _quantized(run: RunConfig, budget: BudgetConfig) -> RunConfig:
    """The same data under quantization awareness, as the report trains it: AdamW, no weight decay, a lower learning rate,
    and the average of the weights handed on."""
    trainer = replace(
        run.trainer,
        budget=budget,
        qat=QATConfig(),
        optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.0),
        schedule=WarmupStableDecay(decay_fraction=0.5),
        ema=EMAConfig(decay=0.98),
    )
    return replace(run, recipe="on_device.qat", trainer=trainer)


def _adapted(run: RunConfig, budget: BudgetConfig, adapter: LoRAConfig) -> RunConfig:
    trainer = replace(
        run.trainer,
        budget=budget,
        adapter=adapter,
        optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.0),
        schedule=WarmupStableDecay(decay_fraction=0.5),
    )
    return replace(run, recipe="on_device.recovery_adapter", trainer=trainer)


def _micro_corpus(learn: Literal["everything", "answers"], num_examples: int) -> SyntheticCorpusConfig:
    synthetic = SyntheticConfig(tasks=MICRO_TASKS, languages=MICRO_LANGUAGES)
    return SyntheticCorpusConfig(name="built_in", learn=learn, synthetic=synthetic, num_examples=num_examples)


def _nano_corpora() -> tuple[SyntheticCorpusConfig, ...]:
    train = SyntheticConfig(tasks=NANO_TASKS, languages=NANO_LANGUAGES)
    held_out = SyntheticConfig(tasks=NANO_TASKS, languages=NANO_LANGUAGES, split="held_out")
    return (
        SyntheticCorpusConfig(name="built_in", learn="answers", synthetic=train, num_examples=200_000),
        SyntheticCorpusConfig(name="held_out", learn="answers", synthetic=held_out, num_examples=1_000),
    )


def _nano_evaluation() -> EvaluationConfig:
    return EvaluationConfig(data=_one_source("held_out", rows_per_step=4, row_tokens=1024), every_steps=500)


def _one_source(name: str, *, rows_per_step: int, row_tokens: int) -> LoaderConfig:
    source = SourceConfig(name=name, path=name)
    return LoaderConfig(sources=(source,), rows_per_step=rows_per_step, row_tokens=row_tokens)
