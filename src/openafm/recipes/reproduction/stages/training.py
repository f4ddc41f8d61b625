"""Sections 4.2 to 5.4: pre-training, continued pre-training, fine-tuning, tool use, rewards, reinforcement learning."""

from __future__ import annotations

import json

from openafm.recipes.reproduction.sizes import budget, bundle_of, by_size, recipe_size, steps, train
from openafm.recipes.reproduction.stages.stage import Command, Stage

_QUESTIONS = (
    "Dinner with Anna at 7 pm",
    "The dentist has an opening on Friday at 9:30",
    "What is 17 + 25?",
    "Which label fits: the match ended 2 : 1 after extra time?",
    "Essen mit Anna um 19 Uhr",
    "Was ist 12 + 30?",
    "Cena con Ana a las siete",
    "Dîner avec Anne à 19 heures",
)
_PROMPTS = "".join(
    json.dumps({"messages": [{"role": "user", "content": text}], "kind": "chat", "language": language}, ensure_ascii=False)
    + "\n"
    for text, language in zip(_QUESTIONS, ("en", "en", "en", "en", "de", "de", "es", "fr"), strict=True)
)


def pretraining_stages(size: str) -> tuple[Stage, ...]:
    """Return the stages of sections 4.2 to 4.4."""
    every_steps = "1" if size == "tiny" else "100"
    return (
        Stage(
            name="vision",
            section="4.2",
            title="vision encoder: contrastive, then with a compact decoder",
            requires=("module:PIL",),
            commands=(train("vision.clip", size), train("vision.joint", size)),
        ),
        Stage(
            name="pretraining",
            section="4.3",
            title="pre-training of the on-device model",
            commands=(train("on_device.pretrain", size),),
        ),
        Stage(
            name="distillation",
            section="4.3",
            title="upcycled teacher; the last tenth of the tokens distilled",
            needs=("pretraining",),
            commands=tuple(
                train(f"on_device.{name}", size, *(("--samples", "20") if name == "distill" and size != "tiny" else ()))
                for name in ("trunk", "upcycle_teacher", "distill")
            ),
        ),
        Stage(
            name="server",
            section="4.3",
            title="pre-training of the server model: tracks and experts, by two processes; one is killed on the way",
            commands=(
                train(
                    "server.pretrain",
                    size,
                    *("--processes", "2", "--restarts", "3", "--set", "trainer.parallel.track=2"),
                    *("--set", f"trainer.checkpoint.every_steps={every_steps}"),
                    kill_rank=True,
                    tiny_steps=12,
                ),
            ),
        ),
        Stage(
            name="continued",
            section="4.4",
            title="continued pre-training: text and languages, images, longer context",
            needs=("pretraining", "vision"),
            commands=tuple(train(f"on_device.{name}", size) for name in ("text_continued", "multimodal", "long_context")),
        ),
    )


def post_training_stages(size: str) -> tuple[Stage, ...]:
    """Return the stages of section 5."""
    return (
        Stage(
            name="fine_tuning",
            section="5.1",
            title="supervised fine-tuning of both models, and on images",
            needs=("pretraining", "server", "continued"),
            commands=tuple(train(name, size) for name in ("on_device.sft", "server.sft", "on_device.multimodal_sft")),
        ),
        _annotation(size),
        Stage(
            name="reward_model",
            section="5.2",
            title="reward model from preferences and grades; prompts with the highest cohesion of labels",
            needs=("fine_tuning",),
            files=(("prompts.jsonl", _PROMPTS),),
            commands=(
                train("on_device.reward_model", size),
                train("on_device.selection_model", size),
                Command(
                    name="prompts",
                    words=(
                        *(
                            "rl",
                            "select-prompts",
                            "{here}/prompts.jsonl",
                            "--share",
                            "0.5",
                            "--out",
                            "{here}/selected.jsonl",
                        ),
                        *("--model", bundle_of("on_device.selection_model", size), "--json"),
                    ),
                ),
            ),
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
                        *("--generators", "2", "--lag", "4"),
                        *budget(size),
                    ),
                ),
                Command(name="report", words=("rl", "report", "{here}/run", "--json")),
                *_timed_updates("asynchronous", size, lag=4),
                *_timed_updates("synchronous", size, lag=0),
            ),
        ),
    )


def _timed_updates(name: str, size: str, lag: int) -> tuple[Command, Command]:
    """Return the first steps of a run, whose samples have the same lengths at any lag, and its report."""
    run = f"{{here}}/{name}"
    return (
        Command(
            name=name,
            words=(
                *("rl", "on_device.rlhf", "--size", recipe_size(size), "--output", run, "--json"),
                *("--generators", "2", "--lag", str(lag), "--name", name),
                *steps(int(by_size(size, tiny=2, micro=10, nano=10))),
            ),
        ),
        Command(name=f"{name}_report", words=("rl", "report", run, "--json")),
    )


def _annotation(size: str) -> Stage:
    """Return the stage of section 5.3. Its people are simulated: `annotate simulate`."""
    sizes = ("--size", recipe_size(size), "--from", bundle_of("on_device.sft", size), "--name", "tool-use")
    exported = ("annotate", "export", "--project", "{here}/device", "--json", "--to")
    return Stage(
        name="annotation",
        section="5.3",
        title="tool use: trees of a sample project, annotated by a script; their main stems fine-tune",
        needs=("fine_tuning",),
        requires=("module:fastapi", "module:sqlalchemy"),
        commands=(
            Command(
                name="project", words=("annotate", "init", "{here}/device", "--sample", "device", "--json"), clears="device"
            ),
            Command(name="annotate", words=("annotate", "simulate", "--project", "{here}/device", "--json")),
            Command(name="stems", words=(*exported, "sft", "--out", "{here}/stems.jsonl")),
            Command(name="branches", words=(*exported, "preferences", "--out", "{here}/branches.jsonl")),
            Command(
                name="tool_use",
                words=(
                    *("train", "on_device.sft", *sizes, "--data", "{here}/stems.jsonl", "--output", "{here}/run", "--json"),
                    *steps(2 if size == "tiny" else 60),
                ),
            ),
        ),
    )
