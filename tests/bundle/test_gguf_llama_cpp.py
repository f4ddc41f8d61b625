"""Exported GGUF files run in llama.cpp itself, with the same logits. Needs a Python that has llama_cpp."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import gguf_models
import numpy as np
import pytest
import torch
from checkpoints import FAMILIES, VOCAB_ROWS, YARN_SCALING

from openafm.bundle.gguf import export_gguf
from openafm.runtime.engines.torch_engine import TorchEngine

PYTHON = os.environ.get("OPENAFM_LLAMA_PYTHON", "")
PROGRAM = """
import json, sys
import llama_cpp
file, tokens, text = json.loads(sys.argv[1])
f32 = llama_cpp.GGML_TYPE_F32
llama = llama_cpp.Llama(file, n_ctx=256, n_batch=256, logits_all=True, verbose=False, n_threads=1, type_k=f32, type_v=f32)
llama.eval(tokens)
print(json.dumps([llama.scores[: len(tokens)].tolist(), llama.tokenize(text.encode(), add_bos=False, special=True)]))
"""

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="OPENAFM_LLAMA_PYTHON is not set to a Python interpreter that has llama-cpp-python"
)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {family: (family, {}) for family in FAMILIES} | {
    "yarn": ("qwen2", {"rope_parameters": YARN_SCALING}),
    "yarn with a factor of attention": ("qwen3", {"rope_parameters": YARN_SCALING | {"attention_factor": 0.8}}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_llama_cpp_computes_the_same_logits_and_tokens(variant: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    family, changes = VARIANTS[variant]
    bundle = gguf_models.bundle(tmp_path, family, **changes)
    export_gguf(bundle, tmp_path / "model.gguf")
    tokens = np.random.default_rng(0).integers(0, VOCAB_ROWS - 100, 64).tolist()
    text = "What's 17 * 1234?\n\n  今日は 👍 don't"
    sent = json.dumps([str(tmp_path / "model.gguf"), tokens, text])
    done = subprocess.run([PYTHON, "-c", PROGRAM, sent], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs, theirs_tokens = json.loads(done.stdout.splitlines()[-1])
    engine = TorchEngine.open(bundle)
    with torch.no_grad():
        ours = engine.step([(engine.new_sequence(), tokens)], logits="all")[0]
    scale = np.abs(ours).max()
    assert np.abs(ours - np.asarray(theirs)).max() < 1e-4 * scale
    assert theirs_tokens == bundle.tokenizer.encode(text)
