"""Models with SentencePiece tokenizers, from Hugging Face folders and GGUF files: conversations and guided answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import checkpoints
import gguf_models
import pytest
import sentence_pieces
import torch
import transformers
from test_gguf import changed

import openafm as fm
from openafm.bundle import Bundle
from openafm.bundle.gguf import GGUFError, export_gguf, import_gguf
from openafm.bundle.hugging_face import export_hugging_face, import_hugging_face
from openafm.tokenizer.conversation import AssistantTurn, Instructions, ToolCall, ToolDefinition, ToolTurn, Turn, UserTurn
from openafm.tokenizer.template import opened

STYLES = ("llama", "metaspace", "gemma", "unigram")
SHAPE = {"vocab_size": 768, "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
WEATHER = ToolDefinition(name="get_weather", description="The weather of a city.", parameters=CITY)
CALL = ToolCall(name="get_weather", arguments={"city": "Łódź"})
TURNS: tuple[Turn, ...] = (
    Instructions(text="Be brief.", tools=(WEATHER,)),
    UserTurn(text=" How is it in 今日\n\nŁódź?"),
    AssistantTurn(tool_calls=(CALL,)),
    ToolTurn(name="get_weather", text='{"sky": "grey"}'),
    AssistantTurn(text="Grey 🦙.\n"),
    UserTurn(text="And now?"),
)
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " How is it in 今日\n\nŁódź?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": CALL.name, "arguments": CALL.arguments}}],
    },
    {"role": "tool", "name": "get_weather", "content": '{"sky": "grey"}'},
    {"role": "assistant", "content": "Grey 🦙.\n"},
    {"role": "user", "content": "And now?"},
]
FUNCTION = {"name": WEATHER.name, "description": WEATHER.description, "parameters": CITY}
TEMPLATE = "{{- bos_token }}\n" + checkpoints.chatml()


def write_tokenizer(folder: Path, style: Any) -> None:
    (folder / "tokenizer.json").write_text(sentence_pieces.text(style))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("sentence piece")
    checkpoints.save(folder / "model", "llama", **SHAPE)
    for style in STYLES:
        shutil.copytree(folder / "model", folder / style)
        write_tokenizer(folder / style, style)
    return {style: import_hugging_face(folder / style, folder / f"{style}-bundle").bundle for style in STYLES}


def encoded(bundle: Bundle, turns: tuple[Turn, ...] = TURNS) -> list[int]:
    template, tokenizer = bundle.template, bundle.tokenizer
    return [*template.encode(tokenizer, opened(turns)).tokens, *template.generation_prompt(tokenizer)]


@pytest.mark.parametrize("style", STYLES)
def test_conversations_with_tools_have_the_tokens_of_transformers(style: str, bundles: dict[str, Bundle]) -> None:
    bundle = bundles[style]
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(bundle.path.parent / style)
    tools = [{"type": "function", "function": FUNCTION}]
    text = theirs.apply_chat_template(MESSAGES, tools=tools, tokenize=False, add_generation_prompt=True)
    assert encoded(bundle) == theirs.encode(text, add_special_tokens=False)
    assert bundle.tokenizer.spell(encoded(bundle)) == text


@pytest.mark.parametrize("style", STYLES)
def test_answers_with_calls_are_parsed_back(style: str, bundles: dict[str, Bundle]) -> None:
    template, tokenizer = bundles[style].template, bundles[style].tokenizer
    for turn in (TURNS[2], TURNS[4], AssistantTurn(text=" one", tool_calls=(CALL, CALL))):
        tokens = template.encode_turn(tokenizer, turn).tokens
        assert template.parse_assistant(tokenizer, tokens) == turn


@pytest.mark.parametrize("style", ["llama", "unigram"])
def test_guided_answers_and_streams_of_sessions(style: str, bundles: dict[str, Bundle]) -> None:
    session = fm.LanguageModelSession("Plan trips.", fm.SystemLanguageModel(bundle=bundles[style].path))
    options = fm.GenerationOptions(maximum_response_tokens=60)
    schema = {"type": "object", "properties": {"kind": {"enum": ["würk 🦙", "leisure"]}}, "required": ["kind"]}
    content = session.respond_blocking("A trip", json_schema=schema | {"additionalProperties": False}, options=options)
    assert json.loads(content.to_json())["kind"] in ("würk 🦙", "leisure")


def test_an_export_inserts_no_second_space(tmp_path: Path, bundles: dict[str, Bundle]) -> None:
    export_hugging_face(bundles["llama"], tmp_path / "out")
    again = import_hugging_face(tmp_path / "out", tmp_path / "again").bundle
    turns = (Instructions(text="Be brief."), UserTurn(text="Hello"), AssistantTurn(text="Ciao"), UserTurn(text=" x"))
    assert encoded(again, turns) == encoded(bundles["llama"], turns)
    with pytest.raises(GGUFError, match="not written as GGUF"):
        export_gguf(bundles["llama"], tmp_path / "out.gguf")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file with a tokenizer of kind `llama`."""
    folder = tmp_path_factory.mktemp("gguf")
    export_gguf(gguf_models.bundle(folder, "llama", **SHAPE), folder / "small.gguf")
    pieces = sentence_pieces.pieces("bpe")
    padding = SHAPE["vocab_size"] - len(pieces)
    tokens = [*(piece.text for piece in pieces), *(f"[PAD{number}]" for number in range(padding))]
    changes = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": None,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [*(piece.score for piece in pieces), *[-1000.0] * padding],
        "tokenizer.ggml.token_type": [*(piece.kind for piece in pieces), *[5] * padding],
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.chat_template": TEMPLATE,
    }
    place = folder / "small.gguf"
    for key, value in changes.items():
        changed(place, key, value).replace(place)
    return place


def test_a_gguf_file_has_the_tokens_of_the_folder(file: Path, tmp_path: Path, bundles: dict[str, Bundle]) -> None:
    bundle = import_gguf(file, tmp_path / "bundle").bundle
    assert encoded(bundle) == encoded(bundles["llama"])
    texts = sentence_pieces.texts(200, seed=1)
    assert bundle.tokenizer.encode_batch(texts) == bundles["llama"].tokenizer.encode_batch(texts)


def test_a_gguf_file_can_insert_no_space(file: Path, tmp_path: Path, bundles: dict[str, Bundle]) -> None:
    bundle = import_gguf(changed(file, "tokenizer.ggml.add_space_prefix", False), tmp_path / "bundle").bundle
    assert encoded(bundle) == encoded(bundles["gemma"])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.ggml.scores", None, "one number for each token"),
        ("tokenizer.ggml.scores", ["a"] * SHAPE["vocab_size"], "one number for each token"),
        ("tokenizer.ggml.token_type", [1] * SHAPE["vocab_size"], "no piece for unknown characters"),
        ("tokenizer.ggml.model", "t5", "the tokenizer is Unigram"),
    ],
)
def test_damaged_pieces_are_refused(file: Path, tmp_path: Path, key: str, value: Any, message: str) -> None:
    with pytest.raises(GGUFError, match=message):
        import_gguf(changed(file, key, value), tmp_path / "bundle")
