"""Small SentencePiece tokenizers, trained here, in the forms of published models."""

from __future__ import annotations

import functools
import io
import json
import random
from typing import Any, Literal

import sentencepiece
from sentences import SENTENCES

from openafm.tokenizer.imported.sentence_piece_form import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Piece,
    sentence_piece_form,
)

Kind = Literal["bpe", "unigram"]
Style = Literal["llama", "metaspace", "gemma", "unigram"]

NAMES = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
WORDS = " ".join(SENTENCES).split()
SYMBOLS = "abt -=#*\n\t<>/s0x41e|'\"{}:_今日午後👍🏽łçáḉ"


@functools.cache
def processor(kind: Kind) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*SENTENCES, "def f(x):\n    return  x  # ---- ====", "aaaa aaa  bb    aaaaaaa"] * 4),
        model_writer=model,
        model_type=kind,
        vocab_size=750 if kind == "bpe" else 600,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=["\n\n"] if kind == "unigram" else [],
        control_symbols=list(NAMES),
        num_threads=1,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def pieces(kind: Kind) -> list[Piece]:
    trained = processor(kind)
    return [Piece(trained.id_to_piece(id), trained.get_score(id), _kind(trained, id)) for id in range(trained.vocab_size())]


def _kind(trained: sentencepiece.SentencePieceProcessor, id: int) -> int:
    if trained.is_unknown(id):
        return UNKNOWN
    if trained.is_control(id):
        return CONTROL
    if trained.is_byte(id):
        return BYTE
    return USER_DEFINED if trained.id_to_piece(id) == "\n\n" else NORMAL


def form(style: Style) -> dict[str, Any]:
    """Return a `tokenizer.json` as published with Llama 2, later Mistral models, Gemma, and with Unigram models."""
    if style == "unigram":
        written = sentence_piece_form(pieces("unigram"), prepend_scheme="never")
        vocab = [[piece.text, piece.score] for piece in pieces("unigram")]
        return written | {"model": {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": vocab}}
    written = sentence_piece_form(pieces("bpe"), prepend_scheme="always")
    if style == "metaspace":
        metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
        return written | {"normalizer": None, "pre_tokenizer": metaspace}
    if style == "gemma":
        split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
        return written | {"normalizer": REPLACE, "pre_tokenizer": split}
    return written


def text(style: Style) -> str:
    return json.dumps(form(style))


def texts(count: int, seed: int = 0) -> list[str]:
    """Return multilingual sentences, their parts, and random characters with runs."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        match rng.randrange(4):
            case 0:
                found.append(" ".join(rng.choices(WORDS, k=rng.randint(1, 9))))
            case 1:
                found.append("".join(rng.choices(SYMBOLS, k=rng.randint(1, 40))))
            case 2:
                found.append("".join(rng.choice("ab -=\n") * rng.randint(1, 9) for _ in range(rng.randint(1, 6))))
            case _:
                ranges = ((32, 126), (0xA0, 0x24F), (0x400, 0x4FF), (0x4E00, 0x9FFF), (0x1F300, 0x1F6FF))
                found.append("".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(1, 20))))
    return found
