"""Largest difference of logits between a bundle and its exports, computed by the libraries that read them.

    python benchmarks/export_parity.py [--quick] [--json] [--peer-python PYTHON]

For random models of every exported family: `hf` by transformers, `gguf` read back by openafm, `peft` by PEFT; and for the
shape of the report's on-device model, which transformers runs from the exported modules.

With `--peer-python`, a Python that has llama-cpp-python, `gguf` is also computed by llama.cpp with float32 keys and values.
`max_difference` is the largest difference of all but llama.cpp's, divided by the largest logit; `llama_cpp_difference` is
that of llama.cpp. `--json` prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shared.reporting import hand_in

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "bundle"))

FAMILIES, QUICK_FAMILIES = ("llama", "qwen2", "qwen3", "smollm3"), ("llama", "qwen3")
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "export_parity.json"
NUM_TOKENS = 64
_LLAMA_PROGRAM = """
import json, sys
import llama_cpp
file, tokens = json.loads(sys.argv[1])
f32 = llama_cpp.GGML_TYPE_F32
llama = llama_cpp.Llama(file, n_ctx=256, n_batch=256, logits_all=True, verbose=False, n_threads=1, type_k=f32, type_v=f32)
llama.eval(tokens)
print(json.dumps(llama.scores[: len(tokens)].tolist()))
"""

Logits = NDArray[np.float32]


def own_logits(bundle: Any, tokens: list[int], adapter: Any = None) -> Logits:
    from openafm.runtime.engines.torch_engine import TorchEngine

    engine = TorchEngine.open(bundle, adapter)
    logits: Logits = engine.step([(engine.new_sequence(), tokens)], "all")[0]
    return logits


def transformers_logits(folder: Path, tokens: list[int], adapter: Path | None = None) -> Logits:
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True)
    if adapter is not None:
        import peft

        model = peft.PeftModel.from_pretrained(model, str(adapter))
    with torch.no_grad():
        logits: Logits = model.eval()(torch.tensor([tokens])).logits[0].numpy()
    return logits


def llama_logits(python: str, file: Path, tokens: list[int]) -> Logits:
    done = subprocess.run(
        [python, "-c", _LLAMA_PROGRAM, json.dumps([str(file), tokens])], capture_output=True, text=True, check=True
    )
    return np.asarray(json.loads(done.stdout.splitlines()[-1]), np.float32)


def random_adapter(bundle: Any, place: Path) -> Any:
    from openafm.adapters.config import LoRAConfig
    from openafm.adapters.package import write_adapter

    random, config = np.random.default_rng(5), LoRAConfig(rank=4, targets=("query", "key", "down"), precision="float32")
    weights = {}
    for name, tensor in bundle.stored_tensors.items():
        linear, _, kind = name.rpartition(".")
        if kind == "weight" and name.startswith("layers.") and linear.rpartition(".")[2] in config.targets:
            rows, columns = tensor.shape
            weights[f"{linear}.lora.a"] = random.standard_normal((4, columns)).astype(np.float32) / 10
            weights[f"{linear}.lora.b"] = random.standard_normal((rows, 4)).astype(np.float32) / 10
    return write_adapter(place, weights=weights, config=config, base_signature=bundle.signature, name="random")


def differences(family: str, folder: Path, peer_python: str | None) -> dict[str, float]:
    """The difference of each export of one family, relative to the largest logit."""
    import gguf_models

    from openafm.bundle.gguf import export_gguf, import_gguf
    from openafm.bundle.hugging_face import export_hugging_face
    from openafm.bundle.hugging_face.peft import export_peft

    with contextlib.redirect_stdout(sys.stderr):
        bundle = gguf_models.bundle(folder, family)
    tokens = np.random.default_rng(0).integers(0, 600, NUM_TOKENS).tolist()
    ours = own_logits(bundle, tokens)
    export_hugging_face(bundle, folder / "hf")
    export_gguf(bundle, folder / "model.gguf")
    adapter = random_adapter(bundle, folder / "random.fmadapter")
    export_peft(adapter, bundle, folder / "peft")
    again = import_gguf(folder / "model.gguf", folder / "again").bundle
    pairs = {
        "hf": (ours, transformers_logits(folder / "hf", tokens)),
        "gguf": (ours, own_logits(again, tokens)),
        "peft": (own_logits(bundle, tokens, adapter), transformers_logits(folder / "hf", tokens, folder / "peft")),
    }
    if peer_python:
        pairs["llama_cpp"] = (ours, llama_logits(peer_python, folder / "model.gguf", tokens))
    found = {name: float(np.abs(one - other).max() / np.abs(one).max()) for name, (one, other) in pairs.items()}
    print(f"{family}: {', '.join(f'{name} {value:.1e}' for name, value in found.items())}", file=sys.stderr)
    return found


def own_architecture_difference(folder: Path) -> float:
    """The difference of the exported modules for a small model with shared keys and values."""
    from openafm.bundle import write_bundle
    from openafm.bundle.hugging_face import export_hugging_face
    from openafm.models.sizes import SIZES
    from openafm.tokenizer.bpe import Tokenizer
    from openafm.tokenizer.chat_template import ChatTemplate

    config = SIZES["on_device.nano"]()
    tensors = {name: tensor.numpy() for name, tensor in config.build().state_dict().items()}
    bundle = write_bundle(
        folder / "bundle", config=config, tokenizer=Tokenizer(merges=()), template=ChatTemplate(), tensors=tensors
    )
    export_hugging_face(bundle, folder / "hf")
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, NUM_TOKENS).tolist()
    ours = own_logits(bundle, tokens)
    return float(np.abs(ours - transformers_logits(folder / "hf", tokens)).max() / np.abs(ours).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two families")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--peer-python", help="a Python that has llama-cpp-python")
    arguments = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for family in QUICK_FAMILIES if arguments.quick else FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found[family] = differences(family, Path(folder), arguments.peer_python)
    with tempfile.TemporaryDirectory() as folder:
        found["openafm"] = {"hf": own_architecture_difference(Path(folder))}
    own = [value for each in found.values() for name, value in each.items() if name != "llama_cpp"]
    peers = [each["llama_cpp"] for each in found.values() if "llama_cpp" in each]
    result = {"max_difference": max(own), "llama_cpp_difference": max(peers, default=None), "by_family": found}
    hand_in({"figures": result}, REPORT, arguments)


if __name__ == "__main__":
    main()
