"""Sections 6 and 7: compression, the private node, guided generation, adapters and drafts."""

from __future__ import annotations

from openafm.recipes.reproduction.sizes import budget, bundle_of, by_size, recipe_size, train
from openafm.recipes.reproduction.stages.stage import Command, Stage

_EVENT = '{"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}'
_PROMPT = "Dinner with Anna at 7 pm"
SERVER = "server-astc"


def optimization_stages(size: str) -> tuple[Stage, ...]:
    """Return the stages of section 6."""
    server = bundle_of("server.sft", size)
    return (
        Stage(
            name="two_bits",
            section="6",
            title="on-device model at 2 bits: quantization-aware training, recovery adapter",
            needs=("fine_tuning",),
            commands=(
                train("on_device.qat", size),
                train("on_device.recovery_adapter", size),
                _compression_report(size, bundle_of("on_device.sft", size), bundle_of("on_device.qat", size)),
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
                    words=("compress", server, "--format", "astc", "--no-calibration", "--name", SERVER, "--json"),
                ),
                _compression_report(size, server, SERVER),
            ),
        ),
        Stage(
            name="private_node",
            section="6",
            title="a private node serves the compressed server model; a client verifies it first",
            needs=("astc",),
            requires=("module:fastapi",),
            commands=(
                Command(
                    name="log",
                    words=("private", "log", "init", "{here}/log", "--origin", "example.com/releases", "--json"),
                    clears="log",
                ),
                Command(
                    name="release", words=("private", "release", "{here}/node", "--model", SERVER, "--json"), clears="node"
                ),
                Command(name="entry", words=("private", "log", "add", "{here}/log", "{here}/node/release.json", "--json")),
                _server("log_server", "private", "log", "serve", "{here}/log"),
                _server("node", "serve", "--private", "{here}/node"),
                Command(
                    name="trust", words=("private", "trust", "{log.key}", "--log", "{log_server.url}"), file="trust.txt"
                ),
                Command(
                    name="ask",
                    words=(
                        *("private", "ask", "{node.url}", _PROMPT, "--accept", "software-only"),
                        *("--max-tokens", "32", "--json"),
                    ),
                ),
            ),
        ),
    )


def framework_stages(size: str) -> tuple[Stage, ...]:
    """Return the stages of section 7."""
    model = bundle_of("on_device.qat", size)
    return (
        Stage(
            name="framework",
            section="7",
            title="guided generation",
            needs=("two_bits",),
            files=(("event.json", _EVENT),),
            commands=(
                Command(
                    name="respond", words=("respond", _PROMPT, "--model", model, "--schema", "{here}/event.json", "--json")
                ),
            ),
        ),
        Stage(
            name="draft",
            section="7",
            title="draft model for speculative decoding",
            needs=("two_bits",),
            commands=(train("on_device.draft", size),),
        ),
        _adapter(size, model),
        Stage(
            name="apple_sdk",
            section="7",
            title="Apple's SDK for Python on openafm",
            requires=("module:apple_fm_sdk",),
            commands=(Command(name="status", words=("apple-sdk", "status", "--json")),),
        ),
    )


def _adapter(size: str, model: str) -> Stage:
    data = ("--data", "{here}/train.jsonl", "--eval", "{here}/eval.jsonl")
    sample = ("data", "sample", "--task", "tagging", "--count")
    return Stage(
        name="adapter",
        section="7",
        title="an adapter with a draft: trained, exported, signed, delivered over HTTP, used",
        needs=("two_bits",),
        commands=(
            Command(name="data", words=(*sample, by_size(size, 16, 200, 2000)), file="train.jsonl"),
            Command(name="held_out", words=(*sample, by_size(size, 4, 40, 200), "--split", "held_out"), file="eval.jsonl"),
            Command(
                name="train",
                words=(
                    *("adapter", "train", *data, "--base", model, "--name", "tags", "--epochs", by_size(size, 1, 3, 5)),
                    *("--output", "{here}/run", "--json"),
                ),
            ),
            Command(
                name="package",
                words=("adapter", "export", "{here}/run", "--name", "tags", "--output", "{here}/trained", "--json"),
                clears="trained",
            ),
            Command(
                name="draft",
                words=(
                    *("adapter", "draft-train", "{here}/trained/tags.fmadapter", *data, "--base", model, "--json"),
                    *("--size", recipe_size(size), "--name", "tags_draft", "--output", "{here}/draft", *budget(size)),
                ),
            ),
            Command(
                name="export",
                words=(
                    *("adapter", "export", "{here}/run", "--name", "tags", "--output", "{here}/shelf", "--json"),
                    *("--draft", "tags_draft"),
                ),
                clears="shelf",
            ),
            Command(name="key", words=("adapter", "keygen", "{here}/keys/mine", "--json"), clears="keys"),
            _server("server", "adapter", "serve", "{here}/shelf", "--key", "{here}/keys/mine"),
            Command(
                name="pull",
                words=("adapter", "pull", "{server.url}", "tags", "--key", "{key.public}", "--base", model, "--json"),
            ),
            Command(
                name="respond",
                words=("respond", _PROMPT, "--model", model, "--adapter", "tags", "--max-tokens", "32", "--json"),
            ),
        ),
    )


def _server(name: str, *words: str) -> Command:
    """Return a server at a free port."""
    return Command(name=name, words=(*words, "--port", "0", "--json"), serves=True)


def _compression_report(size: str, before: str, after: str) -> Command:
    examples = by_size(size, 4, 40, 40)
    return Command(name="report", words=("compress", "report", before, after, "--examples", examples, "--json"))
