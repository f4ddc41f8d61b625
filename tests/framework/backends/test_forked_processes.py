"""A forked process loads its own model, and nothing of its parent makes it wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_bundles import write_native_bundle

FORKING = """
import gc, os, signal, sys, threading
import openafm as fm
from openafm.framework.backends import loaded_model

SHORT = fm.GenerationOptions(maximum_response_tokens=4)

def answer(session):
    return session.respond_blocking("the cat", options=SHORT)

model = fm.SystemLanguageModel(bundle=sys.argv[1])
old, busy = (fm.LanguageModelSession(model=model, when_busy="wait") for _ in range(2))
expected = answer(old)
stream = busy.stream_blocking("the cat", options=SHORT)
next(iter(stream))
locked, fork_ended = threading.Event(), threading.Event()

def load():
    with loaded_model._loading:
        locked.set()
        fork_ended.wait()

threading.Thread(target=load, daemon=True).start()
locked.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        assert answer(fm.LanguageModelSession(model=model)) == expected
        for session, words in ((old, "cannot be used in its fork"), (busy, "when its process was forked")):
            try:
                answer(session)
            except fm.FoundationModelsError as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)
        del session, old, busy, stream, model  # frees the parent's engine in this process
        gc.collect()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
fork_ended.set()
del stream
assert answer(old)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("engine", ["native", pytest.param("torch", marks=pytest.mark.slow)])
def test_a_forked_process_loads_its_own_model(engine: str, tmp_path: Path) -> None:
    bundle = write_native_bundle(tmp_path / "model")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OPENAFM_ENGINE": engine,
        "OPENAFM_THREADS": "2",
        "OPENAFM_HOME": str(tmp_path),
    }
    command = [sys.executable, "-c", FORKING, str(bundle.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
