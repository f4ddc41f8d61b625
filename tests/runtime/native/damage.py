"""Process that damages input in many ways, opens and runs it, and fails at the first error that is not typed.

`python damage.py KIND BUNDLE FOLDER SEED COUNT` prints how many cases raised and how many ran.
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import random
import resource
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openafm.adapters import package
from openafm.bundle import Bundle
from openafm.bundle.files import DOCUMENTS, RECOVERY_ADAPTER
from openafm.bundle.signature import sign
from openafm.bundle.tensor_file import read_tensors
from openafm.core.errors import OpenAFMError
from openafm.core.native_build import cache_home
from openafm.core.user_key import TAG_BYTES, tag
from openafm.runtime.engines.snapshot import _MAGIC, _key
from openafm.runtime.native import weights
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.support import unsupported

MOST_MEMORY = 8 << 30
ODD: list[Any] = [
    *(0, 1, -1, 2, 3, 7, 64, 4096, 8192, 2**31 - 1, 2**31, 2**32 + 64, 2**63, 10**30, -(10**30), 10**400),
    *(1.5, -0.0, 1e-320, 1e308, math.inf, math.nan),
    *(None, True, "", "int2_unbalanced", "F64", "I64", "BF16", [], {}, [[]], [0], [2**40, 2**40], [0, 2**63]),
]


def changed(value: Any, draw: random.Random) -> Any:
    """Return JSON with one random part replaced, removed or duplicated."""
    if isinstance(value, dict | list) and value and draw.random() < 0.93:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key, copy = draw.choice(keys), value.copy()
        chance = draw.random()
        if chance < 0.04:
            del copy[key]
        elif chance < 0.08 and isinstance(copy, list):
            copy.insert(key, copy[key])
        elif chance < 0.08:
            copy[f"{key}x"] = copy.pop(key)
        else:
            copy[key] = changed(value[key], draw)
        return copy
    if type(value) is int and draw.random() < 0.5:
        return max(0, value + draw.choice([-64, -32, -16, -1, 1, 4, 16, 32, 64, value]))
    return draw.choice(ODD)


def changed_bytes(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    kind = draw.randrange(4)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data + draw.randbytes(draw.randrange(1, 100))
    if kind == 2:
        return data[:at] + draw.randbytes(8) + data[at + 8 :]
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def damage_config(folder: Path, draw: random.Random) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    part = draw.choice(["model", "model", "model", "model", "numerics", None])
    if part is None:
        config = changed(config, draw)
    elif part == "model" and draw.random() < 0.3:  # identical layers, which the runtime requires
        layers = config["model"]["layers"]
        field, key = draw.choice([("attention", "num_heads"), ("attention", "head_dim"), ("feed_forward", "hidden_dim")])
        value = changed(layers[0][field][key], draw)
        for layer in layers:
            layer[field][key] = value
    else:
        config[part] = changed(config[part], draw)
    file.write_text(json.dumps(config))


def damage_tensors(file: Path, draw: random.Random) -> None:
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    if draw.random() < 0.1:
        odd = draw.choice([0, 1, length - 1, length + 1, len(data), 99_999_999, 2**32, 2**63, 2**64 - 1])
        file.write_bytes(struct.pack("<Q", odd) + data[8:])
        return
    header = changed(json.loads(data[8 : 8 + length]), draw)
    text = json.dumps(header).encode()
    body = data[8 + length :]
    file.write_bytes(
        struct.pack("<Q", len(text)) + text + (body if draw.random() < 0.9 else body[: draw.randrange(len(body))])
    )


def damage_bytes(folder: Path, draw: random.Random) -> None:
    file = draw.choice(sorted(file for file in folder.iterdir() if file.is_file()))
    data = file.read_bytes()
    if file.suffix == ".safetensors" and draw.random() < 0.7:  # in its header
        head = 8 + int.from_bytes(data[:8], "little")
        file.write_bytes(changed_bytes(data[:head], draw) + data[head:])
    else:
        file.write_bytes(changed_bytes(data, draw))


def damage_adapter(folder: Path, draw: random.Random) -> None:
    chance, metadata = draw.random(), folder / "metadata.json"
    if chance < 0.4:
        metadata.write_text(json.dumps(changed(json.loads(metadata.read_text()), draw)))
    elif chance < 0.8:
        damage_tensors(folder / "adapter_weights.safetensors", draw)
    else:
        damage_bytes(folder, draw)
    if draw.random() < 0.7:
        with contextlib.suppress(OpenAFMError, ValueError):
            values = package._read_json(folder, "metadata.json")
            values["digest"] = package._digest(values, package._read_weights(folder))
            metadata.write_text(json.dumps(values))


def sign_again(folder: Path) -> None:
    """Sign the damaged bundle, as an attacker would.

    Raises:
        OpenAFMError, ValueError: the bundle cannot be signed.
    """
    documents = {name: json.loads((folder / name).read_text()) for name in DOCUMENTS}
    signature = sign(documents, read_tensors(folder / "model.safetensors").values())
    (folder / "signature.json").write_text(json.dumps(signature.to_dict()))


def forget_weights(draw: random.Random) -> None:
    """Weights are repacked again, or in memory only; sometimes the repacked weights of the signature exist."""
    weights._opened.clear()
    kept = cache_home() / "weights"
    chance = draw.random()
    if chance < 0.9:
        shutil.rmtree(kept) if kept.is_dir() else kept.unlink(missing_ok=True)
    if 0.6 < chance < 0.9:
        kept.touch()


def run_bundle(folder: Path) -> bool:
    bundle = Bundle(folder)
    if unsupported(bundle) is not None:
        return False
    _ = bundle.tokenizer, bundle.template
    engine = NativeEngine(bundle, num_threads=1)
    sequence = engine.new_sequence()
    engine.step([(sequence, [0, 1, engine.vocab_size - 1])], "all")
    engine.step([(sequence, [1])])
    return True


def bundle_cases(whole: Path, folder: Path, damage: Callable[[Path, random.Random], None], draw: random.Random) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    damage(folder, draw)
    forget_weights(draw)
    if draw.random() < 0.5:
        with contextlib.suppress(OpenAFMError, ValueError):
            sign_again(folder)
    return run_bundle(folder)


def snapshot_cases(engine: NativeEngine, good: bytes, draw: random.Random) -> bool:
    """Its bytes, or its header, with the tag that belongs to them: what an owner of the key could write."""
    start = len(_MAGIC) + TAG_BYTES
    body = good[start:]
    if draw.random() < 0.8:
        (length,) = struct.unpack_from("<I", body)
        text = json.dumps(changed(json.loads(body[4 : 4 + length]), draw)).encode()
        body = struct.pack("<I", len(text)) + text + body[4 + length :]
    else:
        body = changed_bytes(body, draw)
    data = _MAGIC + tag(_key(), (body,)) + body
    if draw.random() < 0.2:
        data = changed_bytes(good, draw)
    restored = engine.restore(data)
    if restored.length < engine.context_length:
        engine.step([(restored, [1])])
    return True


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "config": damage_config,
    "tensors": lambda folder, draw: damage_tensors(folder / "model.safetensors", draw),
    "bytes": damage_bytes,
    "adapter": lambda folder, draw: damage_adapter(folder / RECOVERY_ADAPTER, draw),
}


def main(kind: str, bundle: str, folder: str, seed: str, count: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    if kind == "snapshot":
        engine = NativeEngine(Bundle(Path(bundle)), num_threads=1)
        sequence = engine.new_sequence()
        engine.step([(sequence, [*range(70)])])
        good = engine.snapshot(sequence)
    counts: collections.Counter[str] = collections.Counter()
    for number in range(int(seed), int(seed) + int(count)):
        draw = random.Random(number)
        try:
            if kind == "snapshot":
                ran = snapshot_cases(engine, good, draw)
            else:
                ran = bundle_cases(Path(bundle), Path(folder), DAMAGES[kind], draw)
            counts["ran" if ran else "refused"] += 1
        except OpenAFMError as error:
            counts["refused"] += 1
            counts[f"  {type(error).__name__}"] += 1
        except BaseException:
            print(f"{kind}, seed {number}", file=sys.stderr, flush=True)
            raise
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
