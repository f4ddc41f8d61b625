"""The tokenizer in a GGUF file's metadata as a `tokenizer.json`: byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`).

A file with byte-level BPE names how text is split into words (`tokenizer.ggml.pre`) instead of storing the expression. Only
byte-level BPE is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from openafm.bundle.gguf.errors import GGUFError
from openafm.core.config import nearest
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.errors import TokenizerError
from openafm.tokenizer.imported.sentence_piece import SentencePieceTokenizer
from openafm.tokenizer.imported.sentence_piece_form import CONTROL, NORMAL, UNUSED, USER_DEFINED, Piece, sentence_piece_form

_KINDS = {"t5": "Unigram", "bert": "WordPiece", "rwkv": "RWKV", "none": "none", "plamo2": "PLaMo"}

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_GPT2 = _BYTES | {"use_regex": True}


def _split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _BYTES]}


_DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _GPT2]}
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "llama-bpe": _split(_LLAMA3),
    "llama3": _split(_LLAMA3),
    "llama-v3": _split(_LLAMA3),
    "smaug-bpe": _split(_LLAMA3),
    "dbrx": _split(_LLAMA3),
    "qwen2": _split(_QWEN2),
    "deepseek-r1-qwen": _split(_QWEN2),
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
}
_CONTROL_NAME = re.compile(r"<[|｜].*[|｜]>|</?s>")
_IGNORE_MERGES = ("llama-bpe", "llama3", "llama-v3")
_NFC = ("qwen2", "deepseek-r1-qwen")


def tokenizer_json(metadata: Mapping[str, Any]) -> str:
    """Return the `tokenizer.json` of a file's metadata.

    Raises:
        GGUFError: the tokenizer is of another kind, splits words in an unknown way, or is incomplete.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        stated = _KINDS.get(str(kind), kind)
        raise GGUFError(f"the tokenizer is {stated}; openafm reads byte-level BPE ('gpt2') and SentencePiece ('llama')")
    tokens = _texts(metadata, "tokens")
    types = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise GGUFError("tokenizer.ggml.token_type does not have one entry for each token; restore the file")
    form = _byte_level_form(metadata, tokens, types) if kind == "gpt2" else _sentence_piece_form(metadata, tokens, types)
    return json.dumps(form, ensure_ascii=False)


def _sentence_piece_form(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(isinstance(each, float) for each in scores):
        raise GGUFError("tokenizer.ggml.scores does not have one number for each token; restore the file")
    pieces = [Piece(*each) for each in zip(tokens, scores, types, strict=True)]
    has_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    try:
        return sentence_piece_form(pieces, prepend_scheme="always" if has_prefix else "never")
    except TokenizerError as error:
        raise GGUFError(str(error)) from error


def _byte_level_form(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    pre = metadata.get("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        hint = nearest(str(pre), list(PRE_TOKENIZERS))
        raise GGUFError(f"the pre-tokenizer '{pre}' is not supported{hint}; import the Hugging Face folder of this model")
    added = [
        _added(id, token, type)
        for id, (token, type) in enumerate(zip(tokens, types, strict=True))
        if type in (CONTROL, USER_DEFINED)
    ]
    model = {
        "type": "BPE",
        "vocab": {token: id for id, (token, type) in enumerate(zip(tokens, types, strict=True)) if type == NORMAL},
        "merges": [_pair(merge) for merge in _texts(metadata, "merges")],
        "ignore_merges": pre in _IGNORE_MERGES,
    }
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre in _NFC else None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "decoder": _BYTES,
        "model": model,
    }


def _texts(metadata: Mapping[str, Any], name: str) -> list[str]:
    found = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise GGUFError(f"tokenizer.ggml.{name} is not a list of texts; restore the file")
    return found


def _pair(merge: str) -> list[str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right) or " " in right:
        raise GGUFError(f"tokenizer.ggml.merges has {merge!r}, which is not two tokens; restore the file")
    return [left, right]


def _added(id: int, token: str, type: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id, "content": token, "special": type == CONTROL, **flags}


def file_tokenizer(tokenizer: Tokenizer, num_rows: int, eos: int) -> dict[str, Any]:
    """Return the metadata of a tokenizer for a model with `num_rows` embeddings.

    Raises:
        GGUFError: llama.cpp has no name for how this tokenizer splits words.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        raise GGUFError("tokenizers of SentencePiece are not written as GGUF; export --to hf instead")
    form = json.loads(tokenizer.to_json())
    pre = _pre_name(form)
    tokens = [f"[PAD{id}]" for id in range(num_rows)]
    types = [UNUSED] * num_rows
    for token, id in form["model"]["vocab"].items():
        tokens[id], types[id] = token, NORMAL
    for added in form["added_tokens"]:
        is_control = _CONTROL_NAME.fullmatch(added["content"])  # llama.cpp does not print these; it prints <tool_call>
        tokens[added["id"]], types[added["id"]] = added["content"], CONTROL if is_control else USER_DEFINED
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in form["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": eos,
        "tokenizer.ggml.add_bos_token": False,
    }


def _pre_name(form: Mapping[str, Any]) -> str:
    ignores, is_normalized = bool(form["model"].get("ignore_merges")), form.get("normalizer") is not None
    for name, pre in PRE_TOKENIZERS.items():
        if (ignores, is_normalized) == (name in _IGNORE_MERGES, name in _NFC) and _parts(form["pre_tokenizer"]) == _parts(
            pre
        ):
            return name
    known = ", ".join(PRE_TOKENIZERS)
    raise GGUFError(
        f"llama.cpp has no name for how this tokenizer splits words (known here: {known}); export --to hf instead"
    )


def _parts(pre: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """What a pre-tokenizer does; settings without effect on tokens are left out."""
    if pre["type"] == "Sequence":
        return [part for child in pre["pretokenizers"] for part in _parts(child)]
    keys = ("type", "pattern", "behavior", "add_prefix_space", "use_regex", "individual_digits")
    return [tuple(str(pre.get(key)) for key in keys)]
