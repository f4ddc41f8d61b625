"""The stages of a reproduction: the report from top to bottom, each stage a list of `openafm` commands.

A stage has no code of its own. Words of a command may name folders: `{here}` is the stage's own, `{data}` that of the stage
`data`. `{site}` is the address of a generated web site that is served while the stage runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

SIZES = ("tiny", "micro", "nano")
"""`tiny` trains micro models for two steps: it shows that the stages fit together, and no effect."""

_FEW_TEXTS = 400
_TWO_STEPS = json.dumps({"type": "StepBudget", "num_steps": 2})
_EVENT = '{"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}'


@dataclass(frozen=True, kw_only=True)
class Command:
    """A call of `openafm`. Its output is stored below the stage's folder; JSON is also its result, under `name`.

    `file` is where its standard output goes instead, relative to the stage's folder.
    """

    name: str
    words: tuple[str, ...]
    file: str = ""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the report.

    Attributes:
        section: the section of the report.
        needs: stages whose results it reads; they come before it.
        commands: in order; if one fails, the stage has failed.
        requires: optional parts of an installation that it uses: `program:NAME` or `module:NAME`.
        files: texts that are written to the stage's folder first, by name.
        serves_site: a generated web site is served while the stage runs.
    """

    name: str
    section: str
    title: str
    commands: tuple[Command, ...]
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    serves_site: bool = False


def report_stages(size: str) -> tuple[Stage, ...]:
    """Return the stages in the order of the report."""
    return (*_models(), *_data(size), *_pretraining(size), *_post_training(size), *_optimization(size), *_use(size))


def _models() -> tuple[Stage, ...]:
    return (
        Stage(
            name="models",
            section="2",
            title="the models of the report's sizes, and the layout of their training",
            commands=(
                Command(name="on_device", words=("inspect", "on_device.base", "--json")),
                Command(name="server", words=("inspect", "server.full", "--json")),
                Command(name="plan", words=("plan", "server.full", "--devices", "8192", "--slices", "4", "--json")),
            ),
        ),
    )


def _data(size: str) -> tuple[Stage, ...]:
    count, tokens = {"tiny": (4, 700), "micro": (200, 2000), "nano": (2000, 8000)}[size]
    texts = {"tiny": "200", "micro": "2000", "nano": "20000"}[size]
    sample = ("data", "sample", "--count", texts)
    return (
        Stage(
            name="web",
            section="3.1",
            title="web pages: crawled, extracted, filtered, deduplicated",
            requires=("module:fastwarc", "module:selectolax", "module:pyarrow"),
            serves_site=True,
            commands=(
                Command(
                    name="crawl",
                    words=(
                        *("data", "crawl", "{site}", "--out", "{here}/crawl", "--json"),
                        *("--set", "delay_s=0", "--set", "allow_private_addresses=true"),
                    ),
                ),
                Command(
                    name="corpus",
                    words=("data", "run", "web.recipe", "-i", "{here}/crawl", "--out", "{here}/corpus", "--json"),
                ),
            ),
        ),
        Stage(
            name="images",
            section="3.2",
            title="text-rich images, drawn with their truth",
            requires=("module:PIL",),
            commands=(
                Command(
                    name="flyers",
                    words=("data", "draw", "flyers", "--count", str(count), "--out", "{here}/flyers", "--json"),
                ),
            ),
        ),
        Stage(
            name="tokenizer",
            section="4.1",
            title="a tokenizer of English, extended by half for other languages",
            commands=(
                Command(name="english", words=(*sample, "--language", "en"), file="texts/en.txt"),
                Command(name="german", words=(*sample, "--language", "de"), file="more/de.txt"),
                Command(name="japanese", words=(*sample, "--language", "ja"), file="more/ja.txt"),
                Command(
                    name="train",
                    words=(
                        *("tokenizer", "train", "{here}/texts", "--vocab-size", str(tokens)),
                        *("--out", "{here}/english.json", "--json"),
                    ),
                ),
                Command(
                    name="extend",
                    words=(
                        *("tokenizer", "extend", "{here}/english.json", "{here}/more", "--vocab-size", str(tokens * 3 // 2)),
                        *("--out", "{here}/extended.json", "--json"),
                    ),
                ),
                Command(
                    name="report",
                    words=("tokenizer", "report", "{here}/english.json", "{here}/extended.json", "{here}/more", "--json"),
                ),
            ),
        ),
    )


def _pretraining(size: str) -> tuple[Stage, ...]:
    return (
        Stage(
            name="pretraining",
            section="4.3",
            title="pre-training of the on-device model",
            commands=(_train("on_device.pretrain", size),),
        ),
        Stage(
            name="distillation",
            section="4.3",
            title="upcycled teacher; the last tenth of the tokens distilled",
            needs=("pretraining",),
            commands=(
                _train("on_device.trunk", size),
                _train("on_device.upcycle_teacher", size),
                _train("on_device.distill", size),
            ),
        ),
        Stage(
            name="server",
            section="4.3",
            title="pre-training of the server model: tracks and experts, by two processes",
            commands=(_train("server.pretrain", size, "--processes", "2", "--set", "trainer.parallel.track=2"),),
        ),
        Stage(
            name="vision",
            section="4.2",
            title="vision encoder: contrastive, then with a compact decoder",
            requires=("module:PIL",),
            commands=(_train("vision.clip", size), _train("vision.joint", size)),
        ),
        Stage(
            name="continued",
            section="4.4",
            title="continued pre-training: text and languages, images, longer context",
            needs=("pretraining", "vision"),
            commands=(
                _train("on_device.text_continued", size),
                _train("on_device.multimodal", size),
                _train("on_device.long_context", size),
            ),
        ),
    )


def _post_training(size: str) -> tuple[Stage, ...]:
    return (
        Stage(
            name="fine_tuning",
            section="5.1",
            title="supervised fine-tuning of both models, and on images",
            needs=("pretraining", "server", "continued"),
            commands=(
                _train("on_device.sft", size),
                _train("server.sft", size),
                _train("on_device.multimodal_sft", size),
            ),
        ),
        Stage(
            name="reward_model",
            section="5.2",
            title="reward model from preferences and grades",
            needs=("fine_tuning",),
            commands=(_train("on_device.reward_model", size),),
        ),
        Stage(
            name="rlhf",
            section="5.2",
            title="asynchronous reinforcement learning with RLOO",
            needs=("fine_tuning",),
            commands=(
                Command(
                    name="train",
                    words=(
                        *("rl", "on_device.rlhf", "--size", recipe_size(size), "--output", "{here}/run", "--json"),
                        *_budget(size),
                    ),
                ),
                Command(name="report", words=("rl", "report", "{here}/run", "--json")),
            ),
        ),
    )


def _optimization(size: str) -> tuple[Stage, ...]:
    server = f"server.sft-{recipe_size(size)}"
    return (
        Stage(
            name="two_bits",
            section="6",
            title="on-device model at 2 bits: quantization-aware training, recovery adapter",
            needs=("fine_tuning",),
            commands=(
                _train("on_device.qat", size),
                _train("on_device.recovery_adapter", size),
                Command(
                    name="report",
                    words=(
                        *("compress", "report", f"on_device.sft-{recipe_size(size)}", f"on_device.qat-{recipe_size(size)}"),
                        *("--examples", "4" if size == "tiny" else "40", "--json"),
                    ),
                ),
            ),
        ),
        Stage(
            name="astc",
            section="6",
            title="server model as ASTC blocks with an adapter",
            needs=("fine_tuning",),
            commands=(
                Command(
                    name="compress",
                    words=(
                        *("compress", server, "--format", "astc", "--no-calibration", "--name", "server-astc", "--json"),
                    ),
                ),
                Command(
                    name="report",
                    words=(
                        *("compress", "report", server, "server-astc"),
                        *("--examples", "4" if size == "tiny" else "40", "--json"),
                    ),
                ),
            ),
        ),
        Stage(
            name="draft",
            section="7",
            title="draft model for speculative decoding",
            needs=("two_bits",),
            commands=(_train("on_device.draft", size),),
        ),
    )


def _use(size: str) -> tuple[Stage, ...]:
    model = f"on_device.qat-{recipe_size(size)}"
    return (
        Stage(
            name="framework",
            section="7",
            title="guided generation",
            needs=("two_bits",),
            files=(("event.json", _EVENT),),
            commands=(
                Command(
                    name="respond",
                    words=("respond", "Dinner with Anna at 7 pm", "--model", model, "--schema", "event.json", "--json"),
                ),
            ),
        ),
        Stage(
            name="evaluation",
            section="8",
            title="held-out tasks",
            needs=("two_bits",),
            commands=(
                Command(
                    name="data",
                    words=("data", "sample", "--split", "held_out", "--count", "8" if size == "tiny" else "200"),
                    file="held_out.jsonl",
                ),
                Command(
                    name="held_out",
                    words=("evaluate", "run", model, "--data", "{here}/held_out.jsonl", "--json"),
                ),
            ),
        ),
        Stage(
            name="responsible_ai",
            section="9",
            title="taxonomy of harm",
            commands=(Command(name="taxonomy", words=("safety", "taxonomy", "--json")),),
        ),
    )


def recipe_size(size: str) -> str:
    """Return the size of the recipes' models."""
    return "micro" if size == "tiny" else size


def _train(recipe: str, size: str, *more: str) -> Command:
    """Return the training of a recipe; its bundle has the recipe's default name, which later recipes start from."""
    run = f"{{here}}/{recipe}"
    words = (
        "train",
        recipe,
        "--size",
        recipe_size(size),
        "--output",
        run,
        "--json",
        *more,
        *_budget(size),
        *_few_documents(recipe, size),
    )
    return Command(name=recipe, words=words)


def _budget(size: str) -> tuple[str, ...]:
    return ("--set", f"trainer.budget={_TWO_STEPS}") if size == "tiny" else ()


def _few_documents(recipe: str, size: str) -> tuple[str, ...]:
    """Return the changes that make the corpora of a recipe as small as two steps need."""
    if size != "tiny":
        return ()
    from openafm.recipes.catalog import build_run

    words: list[str] = []
    for corpus in build_run(recipe, recipe_size(size)).corpora:
        if hasattr(corpus, "num_examples"):
            words += ["--set", f"corpora.{corpus.name}.num_examples={_FEW_TEXTS}"]
    return tuple(words)
