import ctypes
import gc
import json
import threading
import time

import client
import PIL.Image
import pytest
from tiny_bundles import write_multimodal_bundle

from openafm.apple_sdk import binding as lib
from openafm.apple_sdk.c_values import num_descriptions
from openafm.apple_sdk.handles import HANDLES, FreedHandleError
from openafm.framework.errors import GenerationErrorCode

pytestmark = pytest.mark.usefixtures("stand_in", "no_leaks")


def test_every_function_of_the_interface_exists():
    assert sum(callable(getattr(lib, name)) for name in lib.__all__) == 49 + 4  # functions; types of callbacks and handles
    assert all(hasattr(lib, name) for name in lib.__all__)


def test_a_model_describes_itself():
    model = lib.FMSystemLanguageModelCreate(1, 1)
    reason = ctypes.c_int(77)
    assert lib.FMSystemLanguageModelIsAvailable(model, ctypes.byref(reason)) is True
    assert reason.value == 77
    assert lib.FMSystemLanguageModelGetContextSize(model) > 0


def test_an_unknown_use_case_is_the_general_one_with_a_warning():
    with pytest.warns(UserWarning, match="999"):
        model = lib.FMSystemLanguageModelCreate(999, 0)
    assert lib.FMSystemLanguageModelIsAvailable(model)


def test_a_missing_model_has_a_reason_of_the_sdk(stand_in, tmp_path):
    model = HANDLES.new(stand_in(bundle=tmp_path / "nowhere"))
    reason = ctypes.c_int()
    assert lib.FMSystemLanguageModelIsAvailable(model, ctypes.byref(reason)) is False
    assert reason.value == 2


def test_a_response_comes_from_another_thread_with_the_user_info():
    outcome, handle, words = client.Outcome(), client.session("Count."), client.prompt("Go")
    task = lib.FMLanguageModelSessionRespond(handle, words, None, ctypes.c_void_p(9), outcome)
    status, text, length, user_info = outcome.wait()
    assert status == 0
    assert length == len(text)
    assert text[:length].data.decode().startswith("one two")
    assert user_info.value == 9
    assert outcome.thread != threading.get_ident()
    lib.FMRelease(task)


def test_a_transcript_makes_a_new_session():
    handle = client.session("Count.")
    client.respond(handle, "Go")
    told = json.loads(lib.FMLanguageModelSessionGetTranscriptJSONString(handle))
    assert [entry["role"] for entry in told["transcript"]["entries"]] == ["instructions", "user", "response"]
    loaded = lib.FMTranscriptCreateFromJSONString(json.dumps(told))
    resumed = lib.FMLanguageModelSessionCreateFromTranscript(loaded, None, None, 0)
    client.respond(resumed, "On")
    assert len(json.loads(lib.FMLanguageModelSessionGetTranscriptJSONString(resumed))["transcript"]["entries"]) == 5
    assert json.loads(lib.FMLanguageModelSessionGetTranscriptJSONString(handle)) == told


@pytest.mark.parametrize("text", ["", "{}", '{"version":1}', '{"version":1,"type":"FoundationModels.Transcript"}', "[]"])
def test_invalid_transcripts_have_code_and_description(text):
    errors = client.Errors()
    assert lib.FMTranscriptCreateFromJSONString(text, *errors.outputs) is None
    code, description = errors.taken()
    assert code == GenerationErrorCode.DECODING_FAILURE
    assert description
    assert num_descriptions() == 0


@pytest.mark.parametrize("options", [b'{"maximum_response_tokens":2}', b'{"maximum_response_tokens":"2"}'])
def test_options_reach_the_session(options):
    _, text, _, _ = client.respond(client.session(), "Go", options)
    assert text == b"one two "


def test_invalid_options_fail_the_request():
    status, text, _, _ = client.respond(client.session(), "Go", b'{"temperature":-1}')
    assert status == GenerationErrorCode.UNKNOWN_ERROR
    assert b"temperature" in text


def test_a_cancelled_request_calls_nothing_and_frees_the_session(stand_in, monkeypatch):
    monkeypatch.setattr(stand_in, "seconds_per_word", 0.2)
    outcome, handle = client.Outcome(), client.session()
    task = lib.FMLanguageModelSessionRespond(handle, client.prompt("Go"), None, None, outcome)
    while not lib.FMLanguageModelSessionIsResponding(handle):
        time.sleep(0.01)
    lib.FMTaskCancel(task)
    lib.FMRelease(task)
    while lib.FMLanguageModelSessionIsResponding(handle):
        time.sleep(0.01)
    assert not outcome.called.is_set()
    monkeypatch.setattr(stand_in, "seconds_per_word", 0)
    assert client.respond(handle, "Go", b'{"maximum_response_tokens":1}')[0] == 0
    assert not outcome.called.is_set()


def test_requests_of_one_session_wait_for_each_other():
    handle, outcomes = client.session(), [client.Outcome() for _ in range(4)]
    prompts = [client.prompt(f"Number {index}") for index in range(4)]
    tasks = [
        lib.FMLanguageModelSessionRespond(handle, words, None, None, outcome)
        for words, outcome in zip(prompts, outcomes, strict=True)
    ]
    assert [outcome.wait()[0] for outcome in outcomes] == [0] * 4
    told = json.loads(lib.FMLanguageModelSessionGetTranscriptJSONString(handle))["transcript"]["entries"]
    asked = [entry["contents"][0]["text"] for entry in told if entry["role"] == "user"]
    assert asked == [f"Number {index}" for index in range(4)]
    assert len(tasks) == 4


def test_a_stream_delivers_snapshots_and_an_end():
    received, ended = [], threading.Event()

    def callback(status, text, length, user_info):
        received.append((status, text and text[:length].data.decode()))
        if not length:
            ended.set()

    stream = lib.FMLanguageModelSessionStreamResponse(
        client.session(), client.prompt("Go"), b'{"maximum_response_tokens":3}'
    )
    lib.FMLanguageModelSessionResponseStreamIterate(stream, None, callback)
    assert ended.wait(30)
    assert received == [(0, "one "), (0, "one two "), (0, "one two three "), (0, None)]
    lib.FMRelease(stream)


def test_a_released_stream_ends_and_frees_the_session():
    handle, first, count = client.session(), threading.Event(), 0

    def callback(*arguments):
        nonlocal count
        count += 1
        first.set()

    stream = lib.FMLanguageModelSessionStreamResponse(handle, client.prompt("Go"), None)
    lib.FMLanguageModelSessionResponseStreamIterate(stream, None, callback)
    assert first.wait(30)
    lib.FMRelease(stream)
    seen = count
    assert client.respond(handle, "Go")[0] == 0
    assert count <= seen + 1  # one may have been in flight


def test_generated_content_is_parsed_and_queried():
    content = lib.FMGeneratedContentCreateFromJSON(b'{"name":"Mia","age":3}')
    assert json.loads(lib.FMGeneratedContentGetJSONString(content)) == {"name": "Mia", "age": 3}
    assert lib.FMGeneratedContentIsComplete(content) is True
    assert lib.FMGeneratedContentGetPropertyValue(content, b"name") == "Mia"
    errors = client.Errors()
    assert lib.FMGeneratedContentGetPropertyValue(content, b"age", *errors.outputs) is None
    assert errors.taken()[0] == GenerationErrorCode.DECODING_FAILURE
    assert lib.FMGeneratedContentIsComplete(lib.FMGeneratedContentCreateFromJSON('{"name":"Mi')) is False


def test_invalid_json_is_refused():
    errors = client.Errors()
    assert lib.FMGeneratedContentCreateFromJSON(b"nonsense", *errors.outputs) is None
    assert errors.taken()[0] == GenerationErrorCode.DECODING_FAILURE


@pytest.mark.parametrize(
    "call",
    [
        lib.FMLanguageModelSessionIsResponding,
        lib.FMLanguageModelSessionReset,
        lib.FMSystemLanguageModelGetContextSize,
        lib.FMGeneratedContentGetJSONString,
        lib.FMTaskCancel,
        lambda handle: lib.FMComposedPromptAddText(handle, b"text"),
        lambda handle: lib.FMGenerationSchemaAddProperty(handle, handle),
        lambda handle: lib.FMBridgedToolFinishCall(handle, 1, b""),
    ],
)
def test_freed_handles_raise_and_never_crash(call):
    for handle in (None, client.session(), 4242):
        if handle is not None:
            lib.FMRelease(handle)
        with pytest.raises(FreedHandleError):
            call(handle)


def test_freed_handles_set_error_outputs():
    handle = client.session()
    lib.FMRelease(handle)
    errors = client.Errors()
    assert lib.FMLanguageModelSessionGetTranscriptJSONString(handle, *errors.outputs) is None
    code, description = errors.taken()
    assert code == GenerationErrorCode.UNKNOWN_ERROR
    assert "released" in description


def test_releasing_twice_is_harmless():
    one, other = client.session(), client.session()
    lib.FMRelease(one)
    lib.FMRelease(one)
    assert lib.FMLanguageModelSessionIsResponding(other) is False


@pytest.mark.parametrize("kind", ["prompt", "instructions", "schema", "transcript", "tools"])
def test_tokens_are_counted(kind):
    model, outcome = lib.FMSystemLanguageModelCreate(0, 0), client.Outcome()
    parameters = client.schema("Arguments", client.prop("city", "string"))
    if kind == "prompt":
        task = lib.FMSystemLanguageModelTokenCountForPrompt(model, client.prompt("How many?"), 5, outcome)
    elif kind == "instructions":
        task = lib.FMSystemLanguageModelTokenCountForInstructions(model, b"Be kind.", 5, outcome)
    elif kind == "schema":
        task = lib.FMSystemLanguageModelTokenCountForSchema(model, parameters, 5, outcome)
    elif kind == "transcript":
        task = lib.FMSystemLanguageModelTokenCountForTranscript(model, client.session("Be kind."), 5, outcome)
    else:
        tool, _ = client.tool("weather", parameters, lambda content, number: None)
        task = lib.FMSystemLanguageModelTokenCountForTools(model, (ctypes.c_void_p * 1)(tool), 1, 5, outcome)
    status, count, description, user_info = outcome.wait()
    assert (status, description, user_info) == (0, None, 5)
    assert count > 0
    lib.FMRelease(task)


def test_fifty_threads_send_requests(stand_in, monkeypatch):
    monkeypatch.setattr(stand_in, "seconds_per_word", 0)
    answers = []

    def talk():
        handle = client.session("Count.")
        answers.append(client.respond(handle, "Go")[0])
        lib.FMRelease(handle)

    threads = [threading.Thread(target=talk) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [0] * 50


def test_a_session_lives_until_its_request_ends(stand_in, monkeypatch):
    monkeypatch.setattr(stand_in, "seconds_per_word", 0.05)
    outcome, handle = client.Outcome(), client.session()
    lib.FMLanguageModelSessionRespond(handle, client.prompt("Go"), b'{"maximum_response_tokens":3}', None, outcome)
    del handle
    gc.collect()
    assert outcome.wait()[0] == 0


def test_a_model_with_vision_gets_the_image(stand_in, tmp_path):
    bundle = write_multimodal_bundle(tmp_path / "seeing")
    PIL.Image.new("RGB", (20, 20)).save(tmp_path / "cat.png")
    model = HANDLES.new(stand_in(bundle=bundle.path))
    words, handle, outcome = client.prompt("Look:"), client.session(model=model), client.Outcome()
    assert lib.FMComposedPromptAddAttachment(words, str(tmp_path / "cat.png").encode(), b"my cat")
    task = lib.FMLanguageModelSessionRespond(handle, words, None, None, outcome)
    assert outcome.wait()[0] == 0
    told = json.loads(lib.FMLanguageModelSessionGetTranscriptJSONString(handle))["transcript"]["entries"]
    text, image = told[0]["contents"]
    assert text["text"] == "Look:\nmy cat:"
    assert image["image"]["numTokens"] == 4
    lib.FMRelease(task)


def test_an_image_is_read(tmp_path):
    PIL.Image.new("RGB", (64, 64), "white").save(tmp_path / "cat.png")
    words, reason = client.prompt("Look:"), ctypes.c_int()
    assert lib.FMComposedPromptAddAttachment(words, str(tmp_path / "cat.png").encode(), b"my cat", ctypes.byref(reason))
    assert not lib.FMComposedPromptAddAttachment(words, b"/nowhere/dog.png", None, ctypes.byref(reason))
    assert reason.value == lib.FMComposedPromptAddImageErrorUnknown
    handle, outcome = client.session(), client.Outcome()
    task = lib.FMLanguageModelSessionRespond(handle, words, None, None, outcome)
    assert outcome.wait()[0] == 0
    told = json.loads(lib.FMLanguageModelSessionGetTranscriptJSONString(handle))["transcript"]["entries"]
    assert "my cat" in told[0]["contents"][0]["text"]
    lib.FMRelease(task)
