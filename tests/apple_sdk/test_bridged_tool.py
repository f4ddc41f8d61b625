import gc
import json
import threading
import time
import weakref

import client
import pytest

from openafm.apple_sdk import binding as lib
from openafm.apple_sdk.handles import HANDLES

pytestmark = pytest.mark.usefixtures("stand_in", "no_leaks")


def parameters():
    return client.schema("Arguments", client.prop("city", "string"))


def answering(tool_holder, text, calls):
    """Return a callback that finishes calls from another thread, as the SDK does."""

    def callback(content, number):
        calls.append(json.loads(lib.FMGeneratedContentGetJSONString(content)))
        lib.FMRelease(content)
        threading.Thread(target=lib.FMBridgedToolFinishCall, args=(tool_holder[0], number, text)).start()

    return callback


def test_a_tool_receives_its_arguments_and_returns_its_output():
    holder, calls = [None], []
    holder[0], _callback = client.tool("weather", parameters(), answering(holder, b"rain", calls))
    status, text, _, _ = client.respond(client.session(tools=(holder[0],)), "Weather?")
    assert status == 0
    assert len(calls) == 1
    assert calls[0].keys() == {"city"}
    assert text.startswith(b"rain")


def test_calls_of_one_answer_run_concurrently():
    opened, tools, callbacks = [], [], []
    everybody = threading.Event()

    def callback_of(index):
        def callback(content, number):
            lib.FMRelease(content)
            opened.append((index, number))
            if len(opened) == 3:
                everybody.set()

        return callback

    for index in range(3):
        tool, callback = client.tool(f"tool{index}", parameters(), callback_of(index))
        tools.append(tool)
        callbacks.append(callback)
    outcome, words = client.Outcome(), client.prompt("Go")
    task = lib.FMLanguageModelSessionRespond(client.session(tools=tuple(tools)), words, None, None, outcome)
    assert everybody.wait(30)
    for index, number in opened:
        lib.FMBridgedToolFinishCall(tools[index], number, f"said{index}".encode())
    assert outcome.wait()[1].startswith(b"said0 said1 said2")
    lib.FMRelease(task)


def test_finishing_an_unknown_call_does_nothing():
    tool, _callback = client.tool("weather", parameters(), lambda content, number: None)
    lib.FMBridgedToolFinishCall(tool, 99, b"late")


def test_a_request_is_cancelled_while_its_tool_runs():
    called, numbers = threading.Event(), []

    def callback(content, number):
        lib.FMRelease(content)
        numbers.append(number)
        called.set()

    tool, _callback = client.tool("weather", parameters(), callback)
    handle, outcome, words = client.session(tools=(tool,)), client.Outcome(), client.prompt("Go")
    task = lib.FMLanguageModelSessionRespond(handle, words, None, None, outcome)
    assert called.wait(30)
    lib.FMTaskCancel(task)
    lib.FMRelease(task)
    while lib.FMLanguageModelSessionIsResponding(handle):
        time.sleep(0.01)
    lib.FMBridgedToolFinishCall(tool, numbers[0], b"too late")
    assert not outcome.called.is_set()


def test_a_session_keeps_its_tools_alive():
    holder, calls = [None], []
    holder[0], callback = client.tool("weather", parameters(), answering(holder, b"rain", calls))
    handle = client.session(tools=(holder[0],))
    del callback
    gc.collect()
    assert client.respond(handle, "Weather?")[0] == 0
    assert len(calls) == 1


def test_a_cycle_of_tool_and_session_is_collected():
    class Owner:
        def called(self, content, number):
            pass

    owner = Owner()
    gone = weakref.ref(owner)
    owner.tool, owner.callback = client.tool("weather", parameters(), owner.called)
    owner.session = client.session(tools=(owner.tool,))
    before = len(HANDLES)
    del owner
    gc.collect()
    assert gone() is None
    assert len(HANDLES) == before - 2


def test_a_tool_with_an_invalid_schema_is_refused():
    errors = client.Errors()
    bad = client.schema("Arguments", client.prop("city", "Nowhere"))
    assert lib.FMBridgedToolCreate(b"weather", b"a tool", bad, lambda content, number: None, *errors.outputs) is None
    code, description = errors.taken()
    assert code == 10
    assert "Nowhere" in description


def test_of_tools_with_equal_names_the_first_is_used():
    holders, calls = [[None], [None]], [[], []]
    callbacks = []
    for index, holder in enumerate(holders):
        holder[0], callback = client.tool("weather", parameters(), answering(holder, b"rain", calls[index]))
        callbacks.append(callback)
    assert client.respond(client.session(tools=(holders[0][0], holders[1][0])), "Weather?")[0] == 0
    assert [len(each) for each in calls] == [1, 0]
