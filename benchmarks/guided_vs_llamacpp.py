"""Speed of typed answers: tool calls as JSON under a grammar, compared with llama.cpp under its own grammar.

    python benchmarks/guided_vs_llamacpp.py --peer-python PYTHON [--quick] [--json]

Both run the same random weights of a Qwen3 shape in 8 bits on one thread (openafm: int8 groups of 32 on the native engine;
llama.cpp: Q8_0), the same prompt and the same JSON Schema, greedily, alternating. `ratio` is openafm's tokens per second of
whole answers, prompt included, over llama.cpp's: medians over answers. Grammars are compiled before the time starts.
Without a Python that has llama-cpp-python, `ratio` is null and the exit code is 3. `--json` prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from shared.reporting import hand_in

os.environ.setdefault("OPENAFM_THREADS", "1")
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "guided_vs_llamacpp.json"
EXIT_WITHOUT_PEER = 3
PROMPT_TOKENS, MAX_TOKENS = 64, 300
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"const": "book_a_table"},
        "arguments": {
            "type": "object",
            "properties": {
                "restaurant": {"type": "string", "minLength": 4, "maxLength": 24},
                "guests": {"type": "integer", "minimum": 1, "maximum": 12},
                "seating": {"enum": ["inside", "outside", "at the bar"]},
                "note": {"type": "string", "minLength": 4, "maxLength": 48},
            },
            "required": ["restaurant", "guests", "seating", "note"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """A Qwen3 shape, the tokens of its vocabulary, and the number of answers."""

    dim: int
    hidden_dim: int
    num_layers: int
    num_heads: int
    head_dim: int
    vocab_size: int
    answers: int


FULL = Size(dim=1024, hidden_dim=3072, num_layers=28, num_heads=16, head_dim=128, vocab_size=32_000, answers=9)
QUICK = Size(dim=512, hidden_dim=1536, num_layers=8, num_heads=8, head_dim=64, vocab_size=8_000, answers=7)


def write_checkpoint(folder: Path, size: Size) -> None:
    """Write a random Qwen3 checkpoint with a byte-level tokenizer trained on this repository's sources."""
    import tokenizers
    import torch
    import transformers
    from tokenizers import models, trainers

    from openafm.bundle.gguf.tokenizer import PRE_TOKENIZERS

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=size.vocab_size + 64,
        hidden_size=size.dim,
        intermediate_size=size.hidden_dim,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        num_key_value_heads=size.num_heads // 2,
        head_dim=size.head_dim,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    form = json.loads(tokenizers.Tokenizer(models.BPE()).to_str())
    form["pre_tokenizer"], form["decoder"] = PRE_TOKENIZERS["qwen2"], {"type": "ByteLevel"} | PRE_TOKENIZERS["gpt-2"]
    form["normalizer"] = {"type": "NFC"}
    trained = tokenizers.Tokenizer.from_str(json.dumps(form))
    sources = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parents[1].glob("src/openafm/**/*.py"))]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        sources, trainers.BpeTrainer(vocab_size=size.vocab_size, initial_alphabet=alphabet, show_progress=False)
    )
    trained.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    trained.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


class Ours:
    """openafm's native engine with a grammar."""

    def __init__(self, bundle: Any) -> None:
        from openafm.runtime.decoding.grammar import GrammarCompiler
        from openafm.runtime.engines.selection import engine_name, open_engine

        self.name = engine_name(bundle)
        self._engine, self._tokenizer = open_engine(bundle), bundle.tokenizer
        self._grammar = GrammarCompiler(bundle.tokenizer, bundle.template).json_schema(SCHEMA)

    def answer(self, prompt: list[int]) -> dict[str, Any]:
        from openafm.runtime.decoding.generation import generate
        from openafm.runtime.decoding.sampling import GreedyConfig

        sequence = self._engine.new_sequence()
        started = perf_counter()
        generation = generate(
            self._engine,
            sequence,
            prompt,
            sampling=GreedyConfig(),
            stop_tokens=(),
            max_tokens=MAX_TOKENS,
            grammar=self._grammar,
        )
        tokens = [event.token for event in generation if not event.is_stop]
        seconds = perf_counter() - started
        self._engine.close(sequence)
        return {"seconds": seconds, "tokens": len(tokens), "text": self._tokenizer.decode(tokens)}


class Peer:
    """llama.cpp with its grammar, in a process of its own."""

    def __init__(self, python: str, model: Path) -> None:
        worker = Path(__file__).parent / "guided" / "llama_grammar_worker.py"
        self._process = subprocess.Popen(
            [python, str(worker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.version = self.ask(model=str(model), schema=SCHEMA)["version"]

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply: dict[str, Any] = json.loads(self._process.stdout.readline())
        return reply

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def has_llama_cpp(python: str | None) -> bool:
    return python is not None and subprocess.run([python, "-c", "import llama_cpp"], capture_output=True).returncode == 0


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def figures(size: Size, peer_python: str | None) -> dict[str, Any]:
    from openafm.bundle.gguf import export_gguf
    from openafm.bundle.hugging_face import Conversion, import_hugging_face

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with contextlib.redirect_stdout(sys.stderr):
            write_checkpoint(folder / "checkpoint", size)
            wide = import_hugging_face(folder / "checkpoint", folder / "wide").bundle
            export_gguf(wide, folder / "model.gguf", type="q8_0")
            ours = Ours(
                import_hugging_face(folder / "checkpoint", folder / "int8", conversion=Conversion(weights="int8")).bundle
            )
        peer = Peer(str(peer_python), folder / "model.gguf") if has_llama_cpp(peer_python) else None
        found: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
        for index in range(size.answers + 1):
            prompt = np.random.default_rng(index).integers(0, size.vocab_size, PROMPT_TOKENS).tolist()
            answers = {"ours": ours.answer(prompt)}
            if peer is not None:
                answers["peer"] = peer.ask(prompt=prompt, max_tokens=MAX_TOKENS)
            for side, answer in answers.items():
                answer["valid"] = is_json(answer["text"])
                shown = "" if answer["valid"] else f", no JSON: {answer['text']!r}"
                print(f"{side}: {answer['tokens']} tokens in {answer['seconds']:.3f} s{shown}", file=sys.stderr)
                if index:  # the first warms up
                    found[side].append(answer)
        if peer is not None:
            peer.close()
    rates = {side: [each["tokens"] / each["seconds"] for each in answers] for side, answers in found.items() if answers}
    medians = {side: round(statistics.median(values), 2) for side, values in rates.items()}
    valid = {side: sum(each["valid"] for each in answers) / len(answers) for side, answers in found.items() if answers}
    return {
        "ratio": round(medians["ours"] / medians["peer"], 3) if "peer" in medians else None,
        "tokens_s": medians["ours"],
        "llama_cpp_tokens_s": medians.get("peer"),
        "valid": valid["ours"],
        "llama_cpp_valid": valid.get("peer"),
        "engine": ours.name,
        "llama_cpp_python": None if peer is None else peer.version,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller shape and fewer answers")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--peer-python", default=os.environ.get("OPENAFM_LLAMA_PYTHON"), help="has llama-cpp-python")
    arguments = parser.parse_args()
    result = figures(QUICK if arguments.quick else FULL, arguments.peer_python)
    hand_in({"figures": result}, REPORT, arguments)
    sys.exit(0 if result["ratio"] is not None else EXIT_WITHOUT_PEER)


if __name__ == "__main__":
    main()
