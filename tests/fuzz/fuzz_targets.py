"""The file formats of openafm as fuzz targets: how to write a valid example, to reseal a changed one, and to read it all.

Resealing recomputes digests and signatures after a change, as an attacker would, so that the code after the checks runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from mutations import mutate_json
from safetensors.torch import save_file

from openafm.adapters import package
from openafm.adapters.config import LoRAConfig
from openafm.adapters.delivery.keys import public_key, sign
from openafm.adapters.delivery.manifest import open_manifest
from openafm.adapters.delivery.server import build_catalog
from openafm.bundle import open_bundle, write_bundle
from openafm.bundle.decoder import load_decoder
from openafm.bundle.files import DOCUMENTS, read_all_tensors
from openafm.bundle.signature import sign as sign_bundle
from openafm.core.files import file_digest
from openafm.core.regular_files import read_document
from openafm.core.user_key import tag, user_key
from openafm.data.shards.token_shards import open_shards
from openafm.data.shards.writer import write_shards
from openafm.framework.session.session_file import SavedSession, read_session, write_session
from openafm.framework.transcripts.transcript import Transcript
from openafm.models.sizes import shared_kv_decoder
from openafm.runtime.engines.base import Engine
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.files import read_tokenizer
from openafm.tokenizer.imported.template import read_template
from openafm.training.budgets import StepBudget
from openafm.training.checkpoints.checkpoint import open_checkpoint
from openafm.training.checkpoints.index import INDEX, IndexedTensor, TensorBlock, write_index
from openafm.training.checkpoints.record import CONFIG as CONFIG_FILE
from openafm.training.checkpoints.record import record_digest
from openafm.training.checkpoints.writer import write_checkpoint
from openafm.training.config import TrainerConfig
from openafm.training.initialization import fresh_state
from openafm.training.optimizer_config import AdamWConfig

BASE = "0123456789abcdef" * 2 + "01234567"
PRIVATE = "1" * 64
CONFIG = shared_kv_decoder(
    vocab_size=330,
    dim=16,
    num_own_layers=2,
    num_shared_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    hidden_dim=24,
    context_length=64,
)


SCHEMA = {"title": "Trip", "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA |= {"additionalProperties": False, "x-order": ["city"]}
TRANSCRIPT: dict[str, Any] = {
    "type": "FoundationModels.Transcript",
    "version": 1,
    "transcript": {
        "entries": [
            {
                "id": "1",
                "role": "instructions",
                "contents": [{"id": "2", "type": "text", "text": "Help with journeys."}],
                "tools": [{"type": "function", "function": {"name": "trains", "description": "", "parameters": SCHEMA}}],
            },
            {
                "id": "3",
                "role": "user",
                "contents": [{"id": "4", "type": "text", "text": "Where to?"}],
                "options": {"temperature": 0.5, "sampling": {"mode": "greedy"}},
                "responseFormat": {"type": "jsonSchema", "jsonSchema": {"name": "Trip", "schema": SCHEMA}},
            },
            {"id": "5", "role": "response", "toolCalls": [{"id": "6", "name": "trains", "arguments": "{}"}]},
            {"id": "7", "role": "response", "contents": [{"id": "8", "type": "text", "text": "Rome"}]},
        ]
    },
}


@dataclass(frozen=True, kw_only=True)
class Target:
    """`write` puts a valid example into a folder, `read` reads all of it, `reseal` makes a changed one pass the checks.

    `has_values`: `read` returns arrays by name; without resealing they never differ from those that were written.
    `reads_paths` is False if `read` opens the file itself.
    """

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], object]
    reseal: Callable[[Path], None] | None = None
    has_values: bool = False
    reads_paths: bool = True


def resealed_json(file: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    values = json.loads(file.read_bytes())
    file.write_text(json.dumps(change(values)), encoding="utf-8")


@cache
def tokenizer() -> Any:
    return train_tokenizer(TokenizerConfig(vocab_size=330), ["the cat sat on the mat, the dog sat on the log. " * 30])


def write_adapter(folder: Path) -> None:
    weights = {"layers.0.attention.query.lora.a": np.ones((3, 16)), "layers.0.attention.query.lora.b": np.ones((16, 3))}
    about = package.AdapterAbout(author="me", creator_defined={"topics": ["weather", 1, None]})
    package.write_adapter(
        folder / "a", weights=weights, config=LoRAConfig(rank=3), base_signature=BASE, name="tags", about=about
    )


def read_adapter(folder: Path) -> object:
    adapter = package.open_adapter(folder / "a")
    adapter.verify()
    build_catalog(folder, PRIVATE)
    return adapter.weights()


def reseal_adapter(folder: Path) -> None:
    from safetensors.numpy import load_file

    weights = load_file(folder / "a" / package.WEIGHTS)
    resealed_json(folder / "a" / package.METADATA, lambda values: values | {"digest": package._digest(values, weights)})


def write_bundle_example(folder: Path) -> None:
    model = CONFIG.build()
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    write_bundle(
        folder / "cat", config=CONFIG, tokenizer=tokenizer(), template=ChatTemplate(), tensors=tensors, card="# Cat\n"
    )


def read_bundle(folder: Path) -> object:
    bundle = open_bundle(folder / "cat")
    bundle.card()
    bundle.verify()
    assert bundle.tokenizer
    assert bundle.template
    return {name: tensor.numpy() for name, tensor in load_decoder(bundle).state_dict().items()}


def reseal_bundle(folder: Path) -> None:
    path = folder / "cat"
    documents = {name: json.loads((path / name).read_text(encoding="utf-8")) for name in DOCUMENTS}
    signature = sign_bundle(documents, read_all_tensors(path).values())
    (path / "signature.json").write_text(json.dumps(signature.to_dict()))


def write_shards_example(folder: Path) -> None:
    with write_shards(folder / "shards", tokens_per_shard=50, tokenizer_digest="a" * 64, vocab_size=1000) as writer:
        for n in range(20):
            writer.add(range(n, 2 * n + 1), language="en", source="numbers", loss_mask=[t % 3 > 0 for t in range(n + 1)])


def read_shards(folder: Path) -> object:
    shards = open_shards(folder / "shards")
    return [
        shards.document(shard, index)
        for shard, record in enumerate(shards.manifest.shards)
        for index in range(min(record.num_documents, 100))
    ]


def reseal_shards(folder: Path) -> None:
    def sealed(record: Any) -> Any:
        if isinstance(record, dict):
            record = {key: sealed(value) for key, value in record.items()}
            file = folder / "shards" / str(record.get("name"))
            if "sha256" in record and file.is_file():
                data = file.read_bytes()
                record |= {"num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return [sealed(value) for value in record] if isinstance(record, list) else record

    resealed_json(folder / "shards" / "manifest.json", sealed)


def write_checkpoint_example(folder: Path) -> None:
    from openafm.data.loading.loader import LoaderConfig, SourceConfig

    data = LoaderConfig(sources=(SourceConfig(name="x", path="x"),), rows_per_step=1, row_tokens=16)
    config = TrainerConfig(model=CONFIG, data=data, budget=StepBudget(num_steps=3), optimizer=AdamWConfig())
    write_checkpoint(folder, config, fresh_state(config, "cpu").snapshot(), "data")


def write_sharded_checkpoint(folder: Path) -> None:
    """Write a checkpoint of two processes: halves of the rows, and an index of the blocks."""
    write_checkpoint_example(folder)
    (path,) = folder.glob("step-*")
    tensors = {
        f"{group}/{name}": it for group, its in open_checkpoint(path).read().tensors.items() for name, it in its.items()
    }
    files, index = [f"rank-{rank:05}-of-00002.safetensors" for rank in range(2)], {}
    halves: dict[str, dict[str, torch.Tensor]] = {file: {} for file in files}
    for key, tensor in tensors.items():
        cuts = [0, len(tensor) // 2, len(tensor)] if tensor.dim() and len(tensor) > 1 else [0, None]
        blocks = []
        for file, start, stop in zip(files, cuts, cuts[1:], strict=False):
            half = halves[file][key] = (tensor[start:stop] if tensor.dim() else tensor).clone()
            offsets = (start, *[0] * (tensor.dim() - 1)) if tensor.dim() else ()
            blocks.append(TensorBlock(file=file, key=key, offsets=offsets, shape=tuple(half.shape)))
        index[key] = IndexedTensor(dtype=tensor.dtype, shape=tuple(tensor.shape), blocks=tuple(blocks))
    for file in path.glob("*.safetensors"):
        file.unlink()
    for name, named in halves.items():
        save_file(named, path / name)
    write_index(path, index)
    digests = {name: file_digest(path / name) for name in (*files, INDEX, CONFIG_FILE)}
    replace(open_checkpoint(path).record, num_processes=2, files=digests).write(path)


def read_checkpoint(folder: Path) -> object:
    (path,) = folder.glob("step-*")
    checkpoint = open_checkpoint(path)
    checkpoint.verify()
    model = checkpoint.config.model.build()
    checkpoint.check_layout({name: parameter.shape for name, parameter in model.named_parameters()})
    tensors = checkpoint.load().tensors
    return {f"{group}/{name}": tensor.numpy() for group, named in tensors.items() for name, tensor in named.items()}


def reseal_checkpoint(folder: Path) -> None:
    (path,) = folder.glob("step-*")

    def sealed(values: dict[str, Any]) -> dict[str, Any]:
        files = values["files"]
        files |= {name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in files if (path / name).is_file()}
        values |= {"files": files}
        return values | {"digest": record_digest(values)}

    resealed_json(path / "record.json", sealed)


def write_manifest(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as shelf:
        write_adapter(Path(shelf))
        (folder / "manifest.json").write_bytes(build_catalog(Path(shelf), PRIVATE).signed)


def read_manifest(folder: Path) -> object:
    return open_manifest((folder / "manifest.json").read_bytes(), public_key(PRIVATE))


def reseal_manifest(folder: Path) -> None:
    """Sign a mutation of the inner document, which the signed one holds as text."""

    def sealed(values: dict[str, Any]) -> dict[str, Any]:
        text = values["manifest"]
        inner = mutate_json(text.encode(), Random(zlib.crc32((folder / "manifest.json").read_bytes())))
        return values | {"manifest": inner.decode("utf-8", "surrogateescape"), "signature": sign(inner, PRIVATE)}

    resealed_json(folder / "manifest.json", sealed)


@cache
def engine() -> Engine:
    torch.set_num_threads(1)
    return TorchEngine(CONFIG.build(), signature="fuzz")


def write_snapshot(folder: Path) -> None:
    sequence = engine().new_sequence()
    engine().step([(sequence, [1, 2, 3, 4, 5])])
    (folder / "sequence").write_bytes(engine().snapshot(sequence))


def read_snapshot(folder: Path) -> object:
    sequence = engine().load(folder / "sequence")
    engine().step([(sequence, [1])])
    return engine().close(sequence)


def reseal_snapshot(folder: Path) -> None:
    data = (folder / "sequence").read_bytes()
    start = len(b"OPENAFM-SEQUENCE-2\n")
    (folder / "sequence").write_bytes(data[:start] + tag(user_key() or b"", (data[start + 32 :],)) + data[start + 32 :])


def write_session_example(folder: Path) -> None:
    transcript = Transcript.parse(TRANSCRIPT)
    write_session(folder / "session", SavedSession(transcript=transcript, snapshot=b"x" * 40))


def reseal_session(folder: Path) -> None:
    data = (folder / "session").read_bytes()
    first = data.find(b"\n")
    last = data.find(b"\n", first + 1)
    digest = hashlib.sha256(data[first + 1 : last]).hexdigest().encode()
    (folder / "session").write_bytes(data[:18] + digest + data[first:])


def write_record(folder: Path) -> None:
    from openafm.core.config import dump
    from openafm.recipes.catalog import build_run

    (folder / "run.json").write_text(dump(build_run("on_device.pretrain", "micro")), encoding="utf-8")


def read_record(folder: Path) -> object:
    from openafm.core.config import from_dict
    from openafm.recipes.config import RunConfig

    with contextlib.suppress(ValueError, RecursionError):  # not JSON: the callers report it
        return from_dict(RunConfig, json.loads(read_document(folder / "run.json")))


def one_file(name: str, text: Callable[[], str], read: Callable[[str], object]) -> Target:
    def reader(folder: Path) -> object:
        with contextlib.suppress(UnicodeDecodeError):  # the readers take text
            return read((folder / name).read_text(encoding="utf-8"))

    return Target(
        name=name, write=lambda folder: (folder / name).write_text(text(), encoding="utf-8"), read=reader, reads_paths=False
    )  # type: ignore[arg-type,return-value]


TARGETS = (
    Target(name="adapter", write=write_adapter, read=read_adapter, reseal=reseal_adapter, has_values=True),
    Target(name="bundle", write=write_bundle_example, read=read_bundle, reseal=reseal_bundle, has_values=True),
    one_file("tokenizer.json", lambda: tokenizer().to_json(), read_tokenizer),
    one_file("chat_template.json", lambda: ChatTemplate().to_json(), read_template),
    Target(name="shards", write=write_shards_example, read=read_shards, reseal=reseal_shards),
    Target(
        name="checkpoint", write=write_checkpoint_example, read=read_checkpoint, reseal=reseal_checkpoint, has_values=True
    ),
    Target(
        name="sharded_checkpoint",
        write=write_sharded_checkpoint,
        read=read_checkpoint,
        reseal=reseal_checkpoint,
        has_values=True,
    ),
    Target(name="manifest", write=write_manifest, read=read_manifest, reseal=reseal_manifest, reads_paths=False),
    Target(name="snapshot", write=write_snapshot, read=read_snapshot, reseal=reseal_snapshot),
    Target(
        name="session",
        write=write_session_example,
        read=lambda folder: read_session(folder / "session"),
        reseal=reseal_session,
    ),
    Target(name="run.json", write=write_record, read=read_record),
)
