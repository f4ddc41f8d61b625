"""Imported chat templates: text and tokens equal transformers, turns cannot be imitated, answers are parsed back."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import transformers
from checkpoints import FAMILIES, TEMPLATES, chatml
from hypothesis import given
from hypothesis import strategies as st

from openafm.bundle.hugging_face import HuggingFaceError, UnsupportedTemplateError
from openafm.bundle.hugging_face.chat.jinja import JinjaTemplate
from openafm.bundle.hugging_face.chat.template import ReadTemplate, read_chat_template
from openafm.runtime.decoding.grammar import Grammar, GrammarCompiler
from openafm.runtime.decoding.sampling import RandomConfig
from openafm.tokenizer.conversation import (
    AssistantTurn,
    ImagePart,
    Instructions,
    ToolCall,
    ToolDefinition,
    ToolTurn,
    Turn,
    UserTurn,
)
from openafm.tokenizer.errors import TokenizerError
from openafm.tokenizer.files import read_tokenizer
from openafm.tokenizer.imported.byte_level import ImportedTokenizer
from openafm.tokenizer.imported.template import read_template
from openafm.tokenizer.template import ChatTemplateError, MalformedAnswerError, opened
from openafm.tokenizer.tool_calls import tool_calls_schema

TODAY = datetime.date.today()
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = ToolDefinition(name="get_weather", description="The weather of a city now.", parameters=CITY)
TREE = {
    "type": "object",
    "properties": {"below": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}, "day": {"enum": ["ä", 3]}},
    "required": ["below", "day"],
    "additionalProperties": False,
}
GROW = ToolDefinition(name="grow", description="", parameters=TREE)
CALL = ToolCall(name="get_weather", arguments={"city": "Łódź"})
CALL_2 = ToolCall(name="grow", arguments={"below": [], "day": "ä"})

HOMES = {family: checkpoints.tokenizer(family) for family in FAMILIES}
TOKENIZERS = {family: ImportedTokenizer(home.to_str()) for family, home in HOMES.items()}


def read(family: str, source: str) -> ReadTemplate:
    jinja = JinjaTemplate(source, {"bos_token": "<|begin_of_text|>"}, TODAY)
    return read_chat_template(jinja, TOKENIZERS[family], HOMES[family], ())


READ = {family: read(family, source) for family, source in TEMPLATES.items()}
TEMPLATE = {family: read.template for family, read in READ.items()}


def reference(family: str, folder: Path) -> Any:
    checkpoints.save_tokenizer(folder, family)
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def message(turn: Turn, calls_in_text: bool) -> dict[str, Any]:
    match turn:
        case Instructions():
            return {"role": "system", "content": turn.text}
        case UserTurn():
            return {"role": "user", "content": turn.text}
        case ToolTurn():
            return {"role": "tool", "name": turn.name, "content": turn.text}
        case AssistantTurn():
            functions = [{"name": call.name, "arguments": call.arguments} for call in turn.tool_calls]
            if calls_in_text and functions:
                written = [f"<tool_call>\n{json.dumps(f, ensure_ascii=False)}\n</tool_call>" for f in functions]
                return {"role": "assistant", "content": "\n".join(written)}
            calls = [{"type": "function", "function": function} for function in functions]
            return {"role": "assistant", "content": turn.text} | ({"tool_calls": calls} if calls else {})


CONVERSATIONS: dict[str, tuple[Turn, ...]] = {
    "prompt": (UserTurn(text="Hello there"),),
    "instructions": (Instructions(text="Be brief."), UserTurn(text="Ciao!\n\n  two  spaces")),
    "turns": (
        Instructions(text="Be brief."),
        UserTurn(text="1 + 1?"),
        AssistantTurn(text="2"),
        UserTurn(text="今日は 👍🏽"),
        AssistantTurn(text="こんにちは\n\n- a\n- b"),
        UserTurn(text="And?"),
    ),
    "tools": (Instructions(text="", tools=(WEATHER, GROW)), UserTurn(text="How is it in Łódź?")),
    "one call": (
        Instructions(text="Use tools.", tools=(WEATHER,)),
        UserTurn(text="How is it in Łódź?"),
        AssistantTurn(tool_calls=(CALL,)),
        ToolTurn(name="get_weather", text='{"sky": "grey"}\nwind'),
        AssistantTurn(text="Grey."),
        UserTurn(text="And now?"),
        AssistantTurn(tool_calls=(CALL,)),
        ToolTurn(name="get_weather", text="the same"),
    ),
    "two calls": (
        Instructions(text="Use tools.", tools=(WEATHER, GROW)),
        UserTurn(text="Both"),
        AssistantTurn(tool_calls=(CALL, CALL_2)),
        ToolTurn(name="get_weather", text="grey"),
        ToolTurn(name="grow", text="grown"),
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_equal_those_of_transformers(family: str, name: str, tmp_path: Path) -> None:
    turns, template, tokenizer = CONVERSATIONS[name], TEMPLATE[family], TOKENIZERS[family]
    if family == "llama" and name == "two calls":
        with pytest.raises(ChatTemplateError, match="one tool call per turn"):
            template.encode(tokenizer, turns)
        return
    theirs = reference(family, tmp_path)
    tools = [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for turn in turns
        if isinstance(turn, Instructions)
        for t in turn.tools
    ]
    arguments = {"tools_in_user_message": False, "enable_thinking": False}
    arguments |= {"xml_tools": tools} if family == "smollm3" and tools else {"tools": tools or None}
    messages = [message(t, family == "smollm3") for t in turns if not isinstance(t, Instructions) or t.text]
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **arguments)
    if family == "qwen3":  # earlier answers keep their empty thought
        text = text.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n")
        text = text.replace("<think>\n\n</think>\n\n" * 2, "<think>\n\n</think>\n\n")
    ours = [*template.encode(tokenizer, opened(turns)).tokens, *template.generation_prompt(tokenizer)]
    assert theirs.decode(ours, skip_special_tokens=False) == text
    assert ours == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_notes_for_the_user(family: str) -> None:
    notes = " | ".join(READ[family].notes)
    assert ("stays in the history" in notes) == (family == "qwen3")
    assert ("one tool call per turn" in notes) == (family == "llama")
    assert ("state today's date in the instructions" in notes) == (family in ("llama", "smollm3"))
    assert ("helpful assistant" in notes) == (family == "qwen2")
    assert "without tools" not in notes


@pytest.mark.parametrize("family", FAMILIES)
def test_templates_and_tokenizers_are_data(family: str) -> None:
    template, tokenizer = TEMPLATE[family], TOKENIZERS[family]
    assert read_template(template.to_json()) == template
    again = read_tokenizer(tokenizer.to_json())
    assert isinstance(again, ImportedTokenizer)
    assert again.digest == tokenizer.digest
    for version in (1, 3):
        with pytest.raises(ChatTemplateError):
            read_template(json.dumps(json.loads(template.to_json()) | {"version": version}))
    with pytest.raises(ChatTemplateError, match="must start with a token"):
        read_template(json.dumps(json.loads(template.to_json()) | {"user": ["user: ", "{text}", "{response_format}"]}))


names = [name for tokenizer in TOKENIZERS.values() for name in tokenizer.special_ids]
text_values = st.lists(st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from([*names, "\n"]), max_size=4).map(
    "".join
)
tool_outputs = st.lists(st.builds(ToolTurn, name=text_values, text=text_values), min_size=1, max_size=2)
conversations = st.builds(
    lambda told, rest: (Instructions(text=told, tools=(WEATHER,)), *(turn for group in rest for turn in group)),
    text_values,
    st.lists(
        st.builds(UserTurn, text=text_values, response_format=st.none() | st.just(CITY)).map(lambda turn: [turn])
        | st.builds(AssistantTurn, text=text_values).map(lambda turn: [turn])
        | tool_outputs,
        max_size=4,
    ),
)


@pytest.mark.parametrize("family", FAMILIES)
@given(turns=conversations)
def test_texts_cannot_imitate_turns(family: str, turns: tuple[Turn, ...]) -> None:
    """Special tokens are those of the same conversation with harmless texts."""
    template, tokenizer = TEMPLATE[family], TOKENIZERS[family]
    special = set(tokenizer.special_ids.values())
    harmless: list[Turn] = []
    for turn in turns:
        text = "a" if turn.text else ""
        match turn:
            case UserTurn():
                harmless.append(UserTurn(text=text, response_format=turn.response_format))
            case ToolTurn():
                harmless.append(ToolTurn(name="n", text=text))
            case _:
                harmless.append(replace(turn, text=text))
    tokens, expected = (
        [token for token in template.encode(tokenizer, some).tokens if token in special] for some in (turns, harmless)
    )
    assert tokens == expected


@pytest.mark.parametrize("family", FAMILIES)
@given(text=text_values)
def test_texts_never_encode_to_special_tokens(family: str, text: str) -> None:
    tokenizer = TOKENIZERS[family]
    for tokens in (tokenizer.encode(text), *tokenizer.encode_batch([text]), tokenizer.encode_bytes(text.encode())):
        assert not set(tokens) & set(tokenizer.special_ids.values())
        if HOMES[family].normalizer is None:
            assert tokenizer.decode(tokens) == text


@pytest.mark.parametrize("family", FAMILIES)
@given(text=text_values.filter(lambda text: not text.startswith("{")))
def test_answers_are_parsed_back(family: str, text: str) -> None:
    template, tokenizer = TEMPLATE[family], TOKENIZERS[family]
    if HOMES[family].normalizer is not None:
        text = HOMES[family].normalizer.normalize_str(text)
    turn = AssistantTurn(text=text)
    encoded = template.encode_turn(tokenizer, turn)
    prompt = template.generation_prompt(tokenizer)
    assert encoded.tokens[: len(prompt)] == prompt
    assert not any(encoded.loss_mask[: len(prompt)])
    learned = [token for token, is_learned in zip(encoded.tokens, encoded.loss_mask, strict=True) if is_learned]
    assert learned[-1] == template.stop_token(tokenizer)
    for tokens in (encoded.tokens, learned, learned[:-1]):
        assert template.parse_assistant(tokenizer, tokens) == turn


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_parsed_back(family: str) -> None:
    template, tokenizer = TEMPLATE[family], TOKENIZERS[family]
    turns = [AssistantTurn(tool_calls=(CALL,))]
    if family != "llama":
        turns += [AssistantTurn(tool_calls=(CALL, CALL_2)), AssistantTurn(text="I look.", tool_calls=(CALL_2,))]
    for turn in turns:
        tokens = template.encode_turn(tokenizer, turn).tokens
        assert template.parse_assistant(tokenizer, tokens) == turn
        answer = tokens[len(template.generation_prompt(tokenizer)) :]
        seen = [template.is_calls(tokenizer, answer[:length]) for length in range(len(answer))]
        assert seen[0] is None
        assert seen[-1] is (not turn.text)


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        (("<tool_call>", "\n{"), "malformed"),
        (("<tool_call>", '\n{"name": "x", "arguments": []}\n', "</tool_call>"), "an object as arguments"),
        (("<tool_call>", '\n{"name": "x"}\n', "</tool_call>"), "exactly the keys"),
        (("<tool_call>", '\n{"name": "x", "arguments": {}}'), "follows the last call"),
        (("<tool_call>", '\n{"name": "', "<|im_end|>", '", "arguments": {}}\n', "</tool_call>"), "inside a call"),
        (("a", "<|im_start|>", "b"), r"special token <\|im_start\|>"),
        (("<think>", "b"), "special token <think>"),
    ],
)
def test_malformed_answers_are_refused(pieces: tuple[str, ...], problem: str) -> None:
    template, tokenizer = TEMPLATE["qwen3"], TOKENIZERS["qwen3"]
    ids = tokenizer.special_ids
    tokens = [token for piece in pieces for token in ([ids[piece]] if piece in ids else tokenizer.encode(piece))]
    with pytest.raises(MalformedAnswerError, match=problem):
        template.parse_assistant(tokenizer, tokens)


def random_answer(grammar: Grammar, family: str, seed: int) -> list[int]:
    """An answer from random logits that increasingly favor closing brackets and quotes."""
    tokenizer, stop = TOKENIZERS[family], grammar.stop_token
    generator, sampler = np.random.default_rng(seed), RandomConfig(seed=seed).build()
    closing_V = np.array([sum(c in b'"]}' for c in tokenizer.token_bytes(id)) for id in range(tokenizer.vocab_size)])
    closing_V[stop] = closing_V.max() + 1
    matcher, tokens = grammar.matcher(), list[int]()
    while tokens[-1:] != [stop]:
        logits_V = generator.normal(scale=2, size=tokenizer.vocab_size + 5).astype(np.float32)
        logits_V[: tokenizer.vocab_size] += (closing_V * len(tokens) / 10).astype(np.float32)
        matcher.apply(logits_V)
        tokens.append(sampler.sample(logits_V, len(tokens)))
        matcher.accept(tokens[-1:])
        assert len(tokens) < 1500
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_random_logits_give_calls_that_can_be_parsed(family: str) -> None:
    template, tokenizer = TEMPLATE[family], TOKENIZERS[family]
    compiler, calls = GrammarCompiler(tokenizer, template), tool_calls_schema((WEATHER, GROW))
    assert compiler.answer(calls_schema=calls).likely_calls is None  # greedy answers are those of transformers
    for seed in range(15):
        turn = template.parse_assistant(
            tokenizer, random_answer(compiler.answer(calls_schema=calls, must_call=True), family, seed)
        )
        assert turn.tool_calls
        assert {call.name for call in turn.tool_calls} <= {"get_weather", "grow"}
        assert not turn.text
        answer = random_answer(compiler.answer(CITY, calls), family, seed)
        turn = template.parse_assistant(tokenizer, answer)
        assert turn.tool_calls or json.loads(turn.text).keys() == {"city"}
        answer = random_answer(compiler.answer(calls_schema=calls), family, seed)
        is_calls = [template.is_calls(tokenizer, answer[:length]) for length in range(1, len(answer))]
        turn = template.parse_assistant(tokenizer, answer)
        assert (True in is_calls) == bool(turn.tool_calls)


def test_text_starts_differently_from_bare_json_calls() -> None:
    grammar = GrammarCompiler(TOKENIZERS["llama"], TEMPLATE["llama"]).answer(calls_schema=tool_calls_schema((WEATHER,)))
    matcher = grammar.matcher()
    matcher.accept(TOKENIZERS["llama"].encode("a {"))
    assert matcher.may_stop
    begun = grammar.matcher()
    begun.accept(TOKENIZERS["llama"].encode("{"))
    assert TOKENIZERS["llama"].decode(begun.forced()).startswith('"name": "get_weather"')


def changed(old: str, new: str) -> str:
    source = chatml()
    assert old in source
    return source.replace(old, new)


PROMPT_END = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
TURN = "'<|im_start|>' + m.role + '\\n' + m.content"
REFUSED: dict[str, tuple[str, str]] = {
    "only the last turns": (chatml().replace("in messages %}", "in messages[-2:] %}"), "append|expected once"),
    "counts turns": (changed("+ message.content +", "+ messages | length | string + message.content +"), "append"),
    "shouts": (changed("+ message.content +", "+ message.content | upper +"), "0 times, expected once"),
    "always thinks": (
        chatml(thinks=True).replace("'<think>\\n\\n</think>\\n\\n' }}{%- endif", "'<think>\\n' }}{%- endif"),
        "always thinks",
    ),
    "no instructions": (
        "{% if messages[0].role == 'system' %}{{ raise_exception('No system') }}{% endif %}" + chatml(),
        "No system",
    ),
    "no special tokens": (
        "{% for m in messages %}{{ '\\n### ' + m.role + ': ' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '\\n### assistant: ' }}{% endif %}",
        "no special token",
    ),
    "cuts long texts": (changed("+ message.content +", "+ message.content[:20] +"), "longer conversations"),
    "hidden words": (
        f"{{%- for m in messages %}}{{{{- {TURN} + '<|im_end|>\\n' }}}}{{%- endfor %}}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\nSure: ' }}{%- endif %}",
        "removes it from the history",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_templates_that_are_not_append_only_are_refused(name: str) -> None:
    source, reason = REFUSED[name]
    with pytest.raises(HuggingFaceError, match=reason):
        read("qwen3", source)


WITHOUT_TOOLS: dict[str, tuple[str, str]] = {
    "ignores tools": (changed("{%- if tools %}", "{%- if false %}"), "ignores tools"),
    "drops outputs": (changed("message.content + '\\n</tool_response>'", "'\\n</tool_response>'"), "format of tool outputs"),
    "unknown calls": (changed("call.function.arguments | tojson", "call.function.arguments | list"), "format of tool calls"),
    "bare and compact calls": (
        changed("""'<tool_call>\\n{"name": "'""", """'{"name":"'""")
        .replace("""'", "arguments": '""", """'","arguments":'""")
        .replace("arguments | tojson", "arguments | tojson(separators=(',', ':'))")
        .replace("""'}\\n</tool_call>'""", "'}'"),
        "cannot be distinguished",
    ),
    "after the prompt": (
        f"{{%- for m in messages %}}{{{{- {TURN} + (tools[0] | tojson if tools and loop.last else '') + '<|im_end|>\\n' }}}}"
        f"{{%- endfor %}}{PROMPT_END}",
        "after the first prompt",
    ),
}


@pytest.mark.parametrize("name", WITHOUT_TOOLS)
def test_templates_with_unsupported_tools_are_imported_without_tools(name: str) -> None:
    source, reason = WITHOUT_TOOLS[name]
    found = read("qwen3", source)
    assert re.search(f"^without tools: .*{reason}", found.notes[-1]), found.notes
    assert not found.template.can_call_tools
    for turn in (Instructions(text="", tools=(WEATHER,)), ToolTurn(name="a", text="b"), AssistantTurn(tool_calls=(CALL,))):
        with pytest.raises(ChatTemplateError, match="does not support tools"):
            found.template.encode_turn(TOKENIZERS["qwen3"], turn)


MERGED = next(text for pair in json.loads(HOMES["qwen2"].to_str())["model"]["merges"] if (text := "".join(pair)).isascii())
ADDED = {"id": 700, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def edited(**changes: Any) -> str:
    return json.dumps(json.loads(HOMES["qwen2"].to_str()) | changes)


FAR = json.loads(HOMES["qwen2"].to_str())
FAR["model"]["vocab"] |= {"far": 100_000_000}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a tokenizer.json"),
        ("[]", "not a tokenizer.json"),
        (edited(normalizer={"type": "Lowercase"}), "normalizes text .Lowercase"),
        (edited(pre_tokenizer={"type": "Whitespace"}), "does not work on bytes"),
        (edited(decoder=None), "does not work on bytes"),
        (edited(model={"type": "WordPiece"}), "WordPiece"),
        (edited(model=json.loads(HOMES["qwen2"].to_str())["model"] | {"byte_fallback": True}), "byte fallback"),
        (edited(model=json.loads(HOMES["qwen2"].to_str())["model"] | {"dropout": 0.1}), "dropout"),
        (edited(added_tokens=[ADDED | {"content": MERGED}]), "encoded as a control token"),
        (json.dumps(FAR), "ids up to 100000000"),
    ],
)
def test_other_tokenizers_are_refused(text: str, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        ImportedTokenizer(text)


def test_an_imported_tokenizer_has_no_special_tokens_of_openafm() -> None:
    with pytest.raises(TokenizerError, match="conversations"):
        _ = TOKENIZERS["llama"].special


def test_images_are_refused_without_image_tokens() -> None:
    template = TEMPLATE["qwen3"]
    turn = UserTurn(content=(ImagePart(digest="ca7", num_tokens=3),))
    assert not template.can_take_images
    with pytest.raises(ChatTemplateError, match="no image tokens"):
        template.encode_turn(TOKENIZERS["qwen3"], turn)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{{ 'x' * 2000000 }}",
    ],
    ids=["loops", "memory", "recursion", "output"],
)
def test_a_template_without_bound_is_refused_in_time(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openafm.bundle.hugging_face.chat.jinja.TIMEOUT_S", 1.0)
    template = JinjaTemplate(source, {}, TODAY)
    with pytest.raises(UnsupportedTemplateError, match=r"more than 1 s|too much memory|2,000,000 characters"):
        template.text([])
    monkeypatch.undo()
    assert JinjaTemplate("{{ bos }}", {"bos": "a"}, TODAY).text([]) == "a", "the next template renders"
