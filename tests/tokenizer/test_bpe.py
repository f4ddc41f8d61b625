"""Byte-level BPE: lossless, free of injected control tokens, deterministic."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openafm.core.config import ConfigError
from openafm.tokenizer.bpe import (
    NUM_BYTE_TOKENS,
    NUM_SPECIAL_TOKENS,
    SPECIAL_TOKEN_IDS,
    Tokenizer,
    TokenizerConfig,
    train_tokenizer,
)
from openafm.tokenizer.byte_alphabet import bytes_of, characters_of
from openafm.tokenizer.errors import EncodingError, TokenizerError
from openafm.tokenizer.imported.byte_level import ImportedTokenizer

BYTES_ONLY = Tokenizer(merges=())

# Text in many scripts, with spellings of special tokens and unusual white space.
texts = st.lists(
    st.one_of(
        st.text(st.characters(codec="utf-8"), max_size=20),
        st.sampled_from(
            [*SPECIAL_TOKEN_IDS, "<|reserved_40|>", "don't", "l'homme", " \n\t", "漢字かなカナー", "e\u0301", "12345"]
        ),
    )
).map("".join)


@given(text=texts)
def test_any_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_bytes(text.encode()) == ids


@given(data=st.one_of(st.binary(), st.tuples(texts, st.binary()).map(lambda parts: parts[0].encode() + parts[1])))
def test_any_bytes_round_trip(tokenizer: Tokenizer, data: bytes) -> None:
    ids = tokenizer.encode_bytes(data)
    assert tokenizer.decode_bytes(ids) == data
    assert all(id >= NUM_SPECIAL_TOKENS for id in ids)


@given(text=texts)
def test_no_text_encodes_to_a_special_token(tokenizer: Tokenizer, text: str) -> None:
    assert all(id >= NUM_SPECIAL_TOKENS for id in tokenizer.encode(text))


def test_spelled_out_special_tokens_are_text_for_every_encoder(tokenizer: Tokenizer) -> None:
    spelled = "".join(tokenizer.special_names)
    copies = (tokenizer, Tokenizer.from_json(tokenizer.to_json()), pickle.loads(pickle.dumps(tokenizer)))
    for copy in copies:
        ways = (copy.encode(spelled), copy.encode_bytes(spelled.encode()), *copy.encode_batch([spelled]))
        for ids in ways:
            assert min(ids) >= NUM_SPECIAL_TOKENS
            assert copy.decode(ids) == spelled


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    special = tokenizer.special
    assert tokenizer.decode([special.bos, *tokenizer.encode("hi"), special.turn_end]) == "hi"
    assert {tokenizer.token_bytes(id) for id in range(NUM_SPECIAL_TOKENS)} == {b""}
    assert special.pad == 0
    assert len(set(SPECIAL_TOKEN_IDS.values())) == len(SPECIAL_TOKEN_IDS)
    assert [tokenizer.special_names[id] for id in SPECIAL_TOKEN_IDS.values()] == list(SPECIAL_TOKEN_IDS)


def test_every_byte_has_a_token_at_a_fixed_id(tokenizer: Tokenizer) -> None:
    ids = range(NUM_SPECIAL_TOKENS, NUM_SPECIAL_TOKENS + NUM_BYTE_TOKENS)
    assert {tokenizer.token_bytes(id) for id in ids} == {bytes([byte]) for byte in range(256)}
    assert [tokenizer.token_bytes(id) for id in ids] == [BYTES_ONLY.token_bytes(id) for id in ids]


def test_the_byte_alphabet_is_the_one_of_the_library() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = characters_of(bytes(range(256)))
    assert sorted(alphabet) == sorted(ByteLevel.alphabet())
    assert bytes_of(alphabet) == bytes(range(256))
    for byte in range(128):
        ((token, _),) = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(byte))
        assert token == characters_of(bytes([byte]))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("I don't know", ["I", " don", "'t", " know"]),
        ("l'homme, dell'arte", ["l'", "homme", ",", " dell'", "arte"]),
        ("İstanbul'da", ["İstanbul", "'da"]),
        ("on 25 May 2025", ["on", " ", "2", "5", " May", " ", "2", "0", "2", "5"]),
        ("指定したJavaプログラム々ー", ["指定した", "Java", "プログラム々ー"]),
        ("안녕하세요 세계", ["안녕하세요", " 세계"]),
        ("Tiếng Vie\u0302\u0323t", ["Tiếng", " Vie\u0302\u0323t"]),
        ('{"title":"Dinner","n":[1,2]}', ['{"', "title", '":"', "Dinner", '","', "n", '":[', "1", ",", "2", "]}"]),
        ("a\n\n    b  ", ["a", "\n\n", "   ", " b", "  "]),
        ("get_weather", ["get", "_", "weather"]),
    ],
)
def test_word_boundaries(text: str, parts: list[str]) -> None:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    split = Split(Regex(BYTES_ONLY.pattern), behavior="isolated")
    assert [part for part, _ in split.pre_tokenize_str(text)] == parts


def test_no_token_holds_two_digits_or_is_too_long(sentences: tuple[str, ...]) -> None:
    config = TokenizerConfig(vocab_size=500, min_frequency=1, max_token_bytes=6)
    tokenizer = train_tokenizer(config, [*sentences, "2025 2025 2025 2025"])
    tokens = [tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)]
    assert 4 <= max(map(len, tokens)) <= 6
    assert not [token for token in tokens if sum(chr(byte).isdecimal() for byte in token if byte < 128) > 1]


TRAIN_AND_PRINT = """
import sys
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
sys.stdout.reconfigure(encoding="utf-8")
texts = sys.stdin.buffer.read().decode().split(chr(0))
sys.stdout.write(train_tokenizer(TokenizerConfig(vocab_size=600, min_frequency=1), texts).to_json())
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_training_gives_the_same_bytes_in_another_process(
    tokenizer: Tokenizer, sentences: tuple[str, ...], threads: str
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", TRAIN_AND_PRINT],
        input="\0".join(reversed(sentences)).encode(),
        env={"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
        capture_output=True,
        check=True,
    )
    assert run.stdout.decode() == tokenizer.to_json()


def test_too_little_text_is_refused(sentences: tuple[str, ...]) -> None:
    with pytest.raises(TokenizerError, match=r"give \d+ tokens, vocab_size is 100000"):
        train_tokenizer(TokenizerConfig(vocab_size=100_000), sentences)
    assert train_tokenizer(TokenizerConfig(vocab_size=320), []).to_json() == BYTES_ONLY.to_json()
    with pytest.raises(ConfigError, match="use 320 or more"):
        TokenizerConfig(vocab_size=319)


def test_batches_equal_single_texts(tokenizer: Tokenizer, sentences: tuple[str, ...]) -> None:
    assert tokenizer.encode_batch(sentences) == [tokenizer.encode(sentence) for sentence in sentences]
    assert tokenizer.encode_batch([]) == []


def test_halves_of_surrogate_pairs_are_refused_by_name(tokenizer: Tokenizer) -> None:
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(EncodingError, match=r"character 1 .*surrogate"):
            encode("a\ud800")


@pytest.mark.parametrize("id", [-1, 600])
def test_unknown_ids_are_refused(tokenizer: Tokenizer, id: int) -> None:
    with pytest.raises(EncodingError, match=f"token {id} is outside the vocabulary, 0 to 599"):
        tokenizer.decode([id])


def test_files_round_trip_and_have_a_digest(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert loaded.to_json() == tokenizer.to_json()
    compact = json.dumps(json.loads(tokenizer.to_json()), ensure_ascii=False, separators=(",", ":"))
    assert path.read_text(encoding="utf-8") == compact
    assert loaded.digest == tokenizer.digest != BYTES_ONLY.digest
    assert len(loaded.digest) == 64


def test_other_loaders_open_the_file(tokenizer: Tokenizer, sentences: tuple[str, ...]) -> None:
    import llguidance
    import tokenizers

    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    grammar = llguidance.LLTokenizer(tokenizer.to_json(), eos_token=tokenizer.special.turn_end)
    assert grammar.vocab_size == tokenizer.vocab_size
    for sentence in sentences:
        ids = tokenizer.encode(sentence)
        assert library.encode(sentence).ids == ids
        assert library.decode(ids) == sentence
        assert grammar.tokenize_str(sentence) == ids


@pytest.mark.parametrize(
    "edit",
    [
        lambda form: form["model"]["merges"].pop(),
        lambda form: form["model"].update(dropout=0.5),
        lambda form: form.update(normalizer={"type": "NFC"}),
        lambda form: form["added_tokens"].pop(),
        lambda form: form["model"]["merges"].insert(0, ["Q", "missing"]),
        lambda form: form["model"]["merges"].append("a b"),
        lambda form: form.pop("model"),
    ],
)
def test_an_edited_file_is_refused(tokenizer: Tokenizer, tmp_path: Path, edit: object) -> None:
    form = json.loads(tokenizer.to_json())
    edit(form)  # type: ignore[operator]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(form), encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer.load(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff\xfe", b"null"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=r"other\.json"):
        Tokenizer.load(path)
    with pytest.raises(TokenizerError, match="absent"):
        Tokenizer.load(tmp_path / "absent")


def _encode_elsewhere(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text)


def test_a_tokenizer_can_be_sent_to_other_processes(tokenizer: Tokenizer, sentences: tuple[str, ...]) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.starmap(_encode_elsewhere, [(tokenizer, sentence + "<|bos|>") for sentence in sentences])
    assert there == [tokenizer.encode(sentence + "<|bos|>") for sentence in sentences]


def test_long_texts_without_a_word_boundary_take_linear_time(tokenizer: Tokenizer) -> None:
    for piece in ("a", " ", "\n \t"):
        text = piece * (200_000 // len(piece)) + "x"
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_with_separate_spaces_a_word_has_the_same_tokens_everywhere() -> None:
    text = "Dinner with Maria at Luigi's place. " * 5
    apart = train_tokenizer(TokenizerConfig(vocab_size=340, spaces="apart", min_frequency=1), [text])
    joined = train_tokenizer(TokenizerConfig(vocab_size=340, min_frequency=1), [text])

    def tail(tokenizer: Tokenizer, prefix: str) -> list[int]:
        name = tokenizer.encode("Luigi")
        return tokenizer.encode(f"{prefix}Luigi")[-len(name) :]

    assert tail(apart, "at ") == tail(apart, '":"') == apart.encode("Luigi")
    assert tail(joined, "at ") != joined.encode("Luigi")
    assert apart.decode(apart.encode("a  b\n\n c ")) == "a  b\n\n c "
    assert Tokenizer.from_json(apart.to_json()).encode(text) == apart.encode(text)


def test_fewest_tokens_is_a_lower_bound(tokenizer: Tokenizer, sentences: tuple[str, ...]) -> None:
    longest = max(map(tokenizer.token_bytes, range(tokenizer.vocab_size)), key=len).decode()
    assert tokenizer.fewest_tokens(longest * 3) == 3 == len(tokenizer.encode(longest * 3))
    assert tokenizer.fewest_tokens(longest * 3 + ".") == 4
    for text in ("", *sentences):
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text))


def test_a_pattern_without_bound_is_a_typed_error() -> None:
    """The library panics where its regex engine reaches its retry limit, as 12 million spaces do with the usual pattern."""
    tokenizer = Tokenizer(merges=(), pattern="(a|a)*$")
    text = "a" * 40 + "b"
    for encode in (tokenizer.encode, tokenizer.split, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(EncodingError, match=r"41 characters .*retry-limit"):
            encode(text)


def test_mutated_files_are_typed_errors(tokenizer: Tokenizer) -> None:
    text = tokenizer.to_json()
    form = json.loads(text)
    values: list[Any] = [None, 7, -1, 1e300, "x", [], {}, [[]], [["a", 1]], True]
    mutated = [text[:-1], "[" * 100_000, "7", '"x"']
    for path in (("model",), ("model", "merges"), ("model", "vocab"), ("added_tokens",), ("pre_tokenizer",), ("decoder",)):
        for value in values:
            copy = json.loads(text)
            owner = copy if len(path) == 1 else copy[path[0]]
            if owner[path[-1]] != value:
                owner[path[-1]] = value
                mutated.append(json.dumps(copy))
    for index, value in itertools.product((0, 70), values):
        added, pre = json.loads(text), json.loads(text)
        added["added_tokens"][index % 64]["content"] = value
        pre["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = value
        mutated += [json.dumps(added), json.dumps(pre)]
    assert form == json.loads(text)
    for changed in mutated:
        for read in (Tokenizer.from_json, ImportedTokenizer):
            with contextlib.suppress(TokenizerError, EncodingError):
                read(changed)
