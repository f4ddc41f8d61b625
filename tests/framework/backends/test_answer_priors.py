"""A bundle with rankers: labels, tools, calls and values follow them, in sessions and classifiers; adapters do not."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_bundles import write_native_bundle, write_random_adapter
from tiny_rankers import TALK, TEXTS, add_ranker, add_span_ranker, write_ranked_bundle

import openafm as fm
from openafm.bundle import BundleTamperedError, open_bundle
from openafm.framework.backends import answer_priors
from openafm.framework.backends.answer_priors import AnswerPrior, with_decided_fields
from openafm.framework.backends.loaded_model import LoadedModel, load
from openafm.ranking.ranker import open_ranker
from openafm.ranking.span_ranker import FoundValue
from openafm.ranking.table import RankerError
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import (
    AssistantTurn,
    ImagePart,
    Instructions,
    TextPart,
    ToolCall,
    ToolDefinition,
    ToolTurn,
    Turn,
    UserTurn,
)

LABELS = tuple(TEXTS)
SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string", "enum": list(LABELS)}},
    "required": ["label"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = tuple(ToolDefinition(name=name.replace(" ", "_"), description="", parameters=NOTHING) for name in LABELS)


@pytest.fixture(autouse=True)
def strong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights know nothing, but their logits differ: let the ranker decide."""
    for name in ("LABEL_WEIGHT", "TOOL_WEIGHT", "CALL_WEIGHT", "VALUE_WEIGHT"):
        monkeypatch.setattr(answer_priors, name, 20.0)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ranked_bundle(tmp_path_factory.mktemp("ranked") / "tiny")


def answer(model: LoadedModel, turns: tuple[Turn, ...], tools: tuple[ToolDefinition, ...] = TOOLS) -> AssistantTurn:
    generation = generate(
        model.engine,
        model.engine.new_sequence(),
        [*model.template.encode(model.tokenizer, opened(turns)).tokens, *model.template.generation_prompt(model.tokenizer)],
        sampling=GreedyConfig(),
        stop_tokens=model.template.stop_tokens(model.tokenizer),
        max_tokens=60,
        grammar=model.grammar(None, tools, max_calls=1),
        processors=model.prior(turns, None, tools).processors,
    )
    return model.template.parse_assistant(model.tokenizer, [event.token for event in generation])


@pytest.mark.parametrize("label", LABELS)
def test_labels_of_sessions_and_classifiers(label: str, bundle: Path) -> None:
    model = fm.SystemLanguageModel(bundle=bundle)
    for text in TEXTS[label]:
        session = fm.LanguageModelSession("Classify the text.", model)
        assert json.loads(session.respond_blocking(text, json_schema=SCHEMA).to_json()) == {"label": label}
        alone = fm.LanguageModelSession("Classify the text.", model)
        values = {"type": "string", "enum": list(LABELS)}
        assert json.loads(alone.respond_blocking(text, json_schema=values).to_json()) == label
        assert fm.Classifier(LABELS, model=model).classify_blocking(text).label == label


def test_sampled_labels_follow_the_ranker_too(bundle: Path) -> None:
    session = fm.LanguageModelSession("Classify the text.", fm.SystemLanguageModel(bundle=bundle))
    options = fm.GenerationOptions(sampling=fm.SamplingMode.random(seed=1), temperature=1.0)
    found = session.respond_blocking("play some jazz", json_schema=SCHEMA, options=options)
    assert json.loads(found.to_json()) == {"label": "play music"}


def test_tools_and_whether_one_is_called(bundle: Path) -> None:
    model = load(open_bundle(bundle))
    for label, texts in TEXTS.items():
        for text in texts:
            turns = (Instructions(text="Help.", tools=TOOLS), UserTurn(text=text))
            (call,) = answer(model, turns).tool_calls
            assert call == ToolCall(name=label.replace(" ", "_"), arguments={})
    starts = {text: model.prior((UserTurn(text=text),), None, TOOLS).processors for text in (*TALK, *TEXTS["weather"])}
    (calls_token,) = model.template.tool_calls_prompt(model.tokenizer)
    for text, processors in starts.items():
        logits_V = np.zeros(model.tokenizer.vocab_size, np.float32)
        for processor in processors:
            processor.process(logits_V, [])
        assert (logits_V[calls_token] > 0) == (text not in TALK)


def test_after_an_output_of_a_tool_the_model_decides_alone(bundle: Path) -> None:
    """The request still fits the tool, which would be called again and again."""
    model = load(open_bundle(bundle))
    call = ToolCall(name="weather", arguments={})
    turns = (UserTurn(text="will it rain"), AssistantTurn(tool_calls=(call,)), ToolTurn(name="weather", text="no"))
    assert model.prior(turns[:1], None, TOOLS).processors
    assert model.prior(turns, None, TOOLS).processors == ()


def test_an_adapter_has_its_own_labels(bundle: Path, tmp_path: Path) -> None:
    adapter = write_random_adapter(tmp_path / "own.fmadapter", open_bundle(bundle))
    adapted = load(open_bundle(bundle), adapter)
    assert adapted.priors is None
    assert adapted.prior((UserTurn(text="will it rain"),), SCHEMA).processors == ()


def test_bundles_with_and_without_a_ranker_share_nothing(bundle: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(bundle, tmp_path / "bare", ignore=shutil.ignore_patterns("ranker"))
    with_ranker, without = load(open_bundle(bundle)), load(open_bundle(bare))
    assert with_ranker is not without
    assert without.priors is None
    assert load(open_bundle(add_ranker(bare))) is not without


def test_a_damaged_ranker_is_found(bundle: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(bundle, tmp_path / "copy")
    weights = copy / "ranker" / "ranker.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x07")
    with pytest.raises(BundleTamperedError, match="ranker"):
        open_bundle(copy).verify()
    with pytest.raises(RankerError, match="damaged"):
        open_ranker(copy / "ranker")


def test_descriptions_of_labels_are_ranked(bundle: Path) -> None:
    model = fm.SystemLanguageModel(bundle=bundle)
    described = {"A": "wake me, alarm", "B": "play a song, music", "C": "rain or sun, weather"}
    assert fm.Classifier(described, model=model).classify_blocking("play some jazz").label == "B"


def test_a_bundle_without_a_ranker_has_no_priors(tmp_path: Path) -> None:
    assert load(write_native_bundle(tmp_path / "tiny")).prior((UserTurn(text="play"),), SCHEMA, TOOLS).processors == ()


WEATHER = ToolDefinition(
    name="weather",
    description="",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "day": {"type": "string"}, "degrees": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
        "x-order": ["city", "day", "degrees"],
    },
)


@pytest.fixture(scope="module")
def with_spans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_span_ranker(write_native_bundle(tmp_path_factory.mktemp("spans") / "tiny").path)


def test_values_of_calls_are_spans_of_the_request(with_spans: Path) -> None:
    """Without an opinion of the model: the tokens that the prior alone makes likeliest."""
    model = load(open_bundle(with_spans))
    (calls_token,) = model.template.tool_calls_prompt(model.tokenizer)
    for city in ("Lima", "New York", "Rio de Janeiro"):
        turns = (Instructions(text="Help.", tools=(WEATHER,)), UserTurn(text=f"rain in {city} on friday"))
        prior = model.prior(turns, None, (WEATHER,))
        assert prior.tools[0].parameters["required"] == ["city", "day"]
        text = '[{"name":"weather","arguments":{"city":"'
        answer = [calls_token, *model.tokenizer.encode(text)]
        while model.tokenizer.decode(answer).count('"') == text.count('"'):
            logits_V = np.zeros(model.tokenizer.vocab_size, np.float32)
            for processor in prior.processors:
                processor.process(logits_V, answer)
            answer.append(int(logits_V.argmax()))
        assert model.tokenizer.decode(answer).endswith(f'"city":"{city}"')


def test_fields_without_a_value_are_left_out_of_the_first_answer_alone(with_spans: Path) -> None:
    model = load(open_bundle(with_spans))
    request = UserTurn(text="is it cold in Oslo")
    first = model.prior((request,), None, (WEATHER,))
    assert list(first.tools[0].parameters["properties"]) == ["city", "degrees"]
    assert first.tools[0].parameters["x-order"] == ["city", "degrees"]
    earlier = (UserTurn(text="rain on friday?"), AssistantTurn(text="where?"), request)
    for later in (model.prior((request,), None, (WEATHER,), continues=True), model.prior(earlier, None, (WEATHER,))):
        assert later == AnswerPrior(tools=(WEATHER,))


def test_fields_with_names_that_are_not_known_stay(with_spans: Path) -> None:
    properties = {"cursor": {"type": "string"}, "day": {"type": "string"}}
    unknown = replace(WEATHER, parameters={**WEATHER.parameters, "properties": properties, "required": [], "x-order": []})
    prior = load(open_bundle(with_spans)).prior((UserTurn(text="is it cold in Oslo"),), None, (unknown,))
    assert list(prior.tools[0].parameters["properties"]) == ["cursor"]


def test_the_second_request_of_a_session_continues(with_spans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values may be in the first request. The weights are random: only what the priors are asked for is compared."""
    seen: list[bool] = []
    of_answer = answer_priors.AnswerPriors.of_answer

    def recorded(self: object, *arguments: object, continues: bool) -> object:
        seen.append(continues)
        return of_answer(self, *arguments, continues=continues)  # type: ignore[arg-type]

    monkeypatch.setattr(answer_priors.AnswerPriors, "of_answer", recorded)
    session = fm.LanguageModelSession("Help.", fm.SystemLanguageModel(bundle=with_spans))
    for text in ("rain in Lima on friday", "and in Oslo"):
        session.respond_blocking(text, json_schema=SCHEMA)
    assert seen == [False, True]


def test_values_in_images_are_not_absent(with_spans: Path) -> None:
    image = ImagePart(digest="0" * 64, num_tokens=1)
    turn = UserTurn(content=(TextPart(text="is it cold in Oslo"), image))
    assert load(open_bundle(with_spans)).prior((turn,), None, (WEATHER,)) == AnswerPrior(tools=(WEATHER,))


VALUES = {
    "a": FoundValue({}, 0.99, 0.0),
    "b": FoundValue({"x": 0.95}, 0.01, 0.0),
    "c": FoundValue({"x": 0.5}, 0.5, 0.0),
    "d": FoundValue({}, 0.99, 0.0),
    "e": FoundValue({"x": 0.5, "y": 0.4}, 0.01, 0.0),  # surely present, but which span?
    "f": FoundValue({"x": 0.0}, 0.96, 0.0),
}
CLOSED = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in "abcdefg"},
    "required": ["d"],
    "additionalProperties": False,
    "x-order": ["b", "a", "c", "d", "e", "f", "g"],
}


def test_fields_are_decided_only_if_optional_and_sure() -> None:
    decided = with_decided_fields(CLOSED, VALUES)
    assert list(decided["properties"]) == ["b", "c", "d", "e", "f", "g"]
    assert decided["required"] == ["d", "b"]
    assert decided["x-order"] == ["b", "c", "d", "e", "f", "g"]
    assert with_decided_fields({**CLOSED, "required": list("abcdef")}, VALUES)["properties"] == CLOSED["properties"]
    assert with_decided_fields({"type": "string"}, VALUES) == {"type": "string"}


def test_schemas_with_other_conditions_stay_as_they_are() -> None:
    """A field that is left out could make them unsatisfiable, or lose its own condition."""
    assert list(with_decided_fields({**CLOSED, "additionalProperties": True}, VALUES)["properties"]) == list("abcdefg")
    for key, value in (
        ("anyOf", [{"required": ["a"]}, {"required": ["c"]}]),
        ("dependentRequired", {"b": ["a"]}),
        ("maxProperties", 1),
        ("if", {}),
        ("$defs", {}),
    ):
        assert with_decided_fields({**CLOSED, key: value}, VALUES) == {**CLOSED, key: value}
    child = {**CLOSED, "properties": {"a": {"type": "string"}, "h": {"$ref": "#/properties/a"}}}
    assert with_decided_fields(child, VALUES) == child


def test_labels_that_are_no_words_are_left_to_the_model(bundle: Path) -> None:
    priors = load(open_bundle(bundle)).priors
    assert priors is not None
    for labels in (("A", "B", "C"), ("1", "2", "3"), ("yes", "no"), ("S", "M", "large")):
        assert priors.of_labels("play some jazz", dict.fromkeys(labels, "")) == [0.0] * len(labels)
    assert priors.of_labels("play some jazz", {"A": "set alarm", "B": "play music"})[1] > -1
    assert any(priors.of_labels("音楽", {"音": "", "雨": ""}))


def test_priors_of_a_schema_do_not_act_in_calls(bundle: Path) -> None:
    model = load(open_bundle(bundle))
    schema = {"type": "object", "properties": {"kind": {"type": "string", "enum": list(LABELS)}}, "required": ["kind"]}
    for text, is_changed in (('{"kind":"', True), ('[{"name":"x","arguments":{"kind":"', False)):
        prior = model.prior((UserTurn(text="play some jazz"),), schema, TOOLS)  # for one answer
        logits_V = np.zeros(model.tokenizer.vocab_size, np.float32)
        for processor in prior.processors:
            processor.process(logits_V, model.tokenizer.encode(text))
        assert logits_V.any() == is_changed


def test_odd_texts_and_schemas_raise_no_other_errors(bundle: Path, with_spans: Path) -> None:
    for folder in (bundle, with_spans):
        model = load(open_bundle(folder))
        for schema in (
            {"properties": True},
            {"type": "object", "properties": {"k": {"enum": ["\ud800", "other"]}}},
            {"properties": {"": {"enum": ["one", "two"]}, 'a"b\\': {"enum": ["é", "ü x"]}}},
            {"$ref": "#"},
            {"enum": [1, "two", None]},
        ):
            assert model.prior((UserTurn(text="play \ud800 jazz"),), schema).tools == ()


def test_values_are_written_as_in_json(bundle: Path) -> None:
    """Labels with quotes and letters beyond ASCII, under a property with a quote."""
    model = load(open_bundle(bundle))
    labels = ('mood "good"', "größe", "play music")
    schema = {"type": "object", "properties": {'a "b"': {"type": "string", "enum": list(labels)}}, "required": ['a "b"']}
    prior = model.prior((UserTurn(text="play some jazz"),), schema)
    logits_V = np.zeros(model.tokenizer.vocab_size, np.float32)
    prior.processors[0].process(logits_V, model.tokenizer.encode('{"a \\"b\\"":"'))
    shares = {letter: float(logits_V[model.tokenizer.encode(letter)[0]]) for letter in "mgpx"}
    assert max(shares, key=lambda letter: shares[letter] if letter != "x" else -np.inf) == "p"
    assert shares["m"] < -1
    assert shares["g"] < -1
    assert shares["x"] == 0  # the grammar forbids it


def test_letters_beyond_ascii_are_not_escaped() -> None:
    assert answer_priors._ended({"größe": -1.0, 'a "b"': -2.0}) == {'größe"'.encode(): -1.0, b'a \\"b\\""': -2.0}
    assert answer_priors._opening("größe") == '"größe":"'.encode()


def test_tools_are_ranked_by_the_words_of_their_names_and_by_descriptions() -> None:
    tool = ToolDefinition(name="getWeather_today", description="Rain or sun.", parameters=NOTHING)
    assert answer_priors.tool_text(tool) == "get Weather today Rain or sun."


def test_the_values_of_one_tool_are_no_prior_of_another(with_spans: Path) -> None:
    """Both have a city; the prior of each begins with its name."""
    model = load(open_bundle(with_spans))
    other = replace(WEATHER, name="trains")
    for name, is_changed in (("weather", True), ("trains", True), ("music", False)):
        prior = model.prior((UserTurn(text="is it cold in Oslo"),), None, (WEATHER, other))  # for one answer
        logits_V = np.zeros(model.tokenizer.vocab_size, np.float32)
        for processor in prior.processors:
            processor.process(logits_V, model.tokenizer.encode(f'[{{"name":"{name}","arguments":{{"city":"'))
        assert logits_V.any() == is_changed


def test_a_damaged_span_ranker_is_found(with_spans: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(with_spans, tmp_path / "copy")
    weights = copy / "spans" / "spans.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x07")
    with pytest.raises(BundleTamperedError, match="spans"):
        open_bundle(copy).verify()
