"""Saved sessions: restored without prefill by the same model, prefilled otherwise; authentication of the saved state."""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import json
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from scripted_models import ScriptedModel
from tiny_bundles import computed_tokens, write_native_bundle, write_random_adapter, write_tiny_bundle

import openafm as fm
from openafm.core.files import data_home
from openafm.framework.session import session_file
from openafm.runtime.decoding.draft_length import DraftLengthConfig
from openafm.runtime.decoding.speculation import Drafter
from openafm.runtime.engines.prefix_cache import PrefixCache
from openafm.runtime.engines.snapshot import read_snapshot, write_snapshot
from openafm.runtime.native.engine import NativeEngine

TAG_BYTES = 32
SHORT = fm.GenerationOptions(maximum_response_tokens=12)
INSTRUCTIONS = "You know the cat, the dog, the mat and the log."


@fm.tool
def look_up(name: str, age: int) -> str:
    """Look a pet up."""
    return f"{name} is {age}"


@pytest.fixture
def model(engine_path: Path, monkeypatch: pytest.MonkeyPatch) -> fm.SystemLanguageModel:
    """Return a model without a prefix cache, so that cached tokens come from the file."""
    described = fm.SystemLanguageModel(bundle=engine_path)
    loaded = described.load()
    monkeypatch.setattr(loaded, "prefixes", PrefixCache(loaded.engine, 0))
    return described


@pytest.fixture
def saved(model: fm.SystemLanguageModel, tmp_path: Path) -> Path:
    session = fm.LanguageModelSession(INSTRUCTIONS, model)
    for prompt in ("the cat", "the dog"):
        session.respond_blocking(prompt, options=SHORT)
    session.save_blocking(tmp_path / "session")
    return tmp_path / "session"


def expected_answer(model: fm.SystemLanguageModel) -> str:
    session = fm.LanguageModelSession(INSTRUCTIONS, model)
    for prompt in ("the cat", "the dog"):
        session.respond_blocking(prompt, options=SHORT)
    return session.respond_blocking("the log", options=SHORT)


def test_a_loaded_session_continues_without_prefill(
    model: fm.SystemLanguageModel, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = expected_answer(model)
    session = fm.LanguageModelSession.load(saved, model)
    assert len(session.transcript) == 5
    so_far = model.token_count_blocking(session.transcript)
    counts = computed_tokens(model.load().engine, monkeypatch)
    assert session.respond_blocking("the log", options=SHORT) == expected
    num_new = model.token_count_blocking("the log")
    assert session.usage.prompt_tokens == so_far + num_new
    num_prefilled = session.usage.prompt_tokens - session.usage.cached_tokens
    assert num_new <= num_prefilled <= num_new + 3  # with the end of the last answer, which was not computed
    assert sum(counts) <= num_prefilled + session.usage.generated_tokens
    assert len(session.transcript) == 7


def test_four_thousand_tokens_are_restored_without_prefill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_native_bundle(tmp_path / "long", context_length=4352)
    model = fm.SystemLanguageModel(bundle=tmp_path / "long")
    loaded = model.load()
    assert isinstance(loaded.engine, NativeEngine)
    words = 1000
    while model.token_count_blocking(instructions="the cat " * words) < 4096:
        words += 20
    session = fm.LanguageModelSession("the cat " * words, model)
    session._responder.prewarm("", lambda: False)
    session.save_blocking(tmp_path / "session")
    expected = session.respond_blocking("the dog", options=SHORT)
    loaded.prefixes = PrefixCache(loaded.engine, 0)
    again = fm.LanguageModelSession.load(tmp_path / "session", model)
    counts = computed_tokens(loaded.engine, monkeypatch)
    again._responder.prewarm("", lambda: False)
    assert counts == []
    assert again.respond_blocking("the dog", options=SHORT) == expected
    assert again.usage.cached_tokens == session.usage.cached_tokens >= 4096
    assert counts[0] == model.token_count_blocking("the dog")


def test_other_tools_instructions_or_models_prefill_again(
    model: fm.SystemLanguageModel, saved: Path, tmp_path: Path, engine_path: Path
) -> None:
    no_calls = fm.GenerationOptions(maximum_response_tokens=12, tool_calling_mode="disallowed")
    with_tools = fm.LanguageModelSession.load(saved, model, [look_up])
    plain = fm.LanguageModelSession.from_transcript(fm.LanguageModelSession.load(saved, model).transcript, model, [look_up])
    assert with_tools.respond_blocking("the log", options=no_calls) == plain.respond_blocking("the log", options=no_calls)
    assert with_tools.usage.cached_tokens < model.token_count_blocking(instructions=INSTRUCTIONS)
    other_kind = write_tiny_bundle if engine_path.name == "native" else write_native_bundle
    for other in (other_kind(tmp_path / "kind"), write_tiny_bundle(tmp_path / "weights", seed=1)):
        described = fm.SystemLanguageModel(bundle=other.path)
        loaded = fm.LanguageModelSession.load(saved, described)
        fresh = fm.LanguageModelSession.from_transcript(fm.Transcript(loaded.transcript), described)
        assert fresh.respond_blocking("the log", options=SHORT) == loaded.respond_blocking("the log", options=SHORT)
        assert fresh.usage.prompt_tokens == loaded.usage.prompt_tokens


def state_of(data: bytes) -> bytes:
    """Return the engine's snapshot in a session file."""
    return data[data.index(b"\n", data.index(b"\n") + 1) + 1 + TAG_BYTES :]


def with_state(data: bytes, state: bytes, key: bytes | None = None) -> bytes:
    """Return a session file with another snapshot and the tag of `key`, by default this user's."""
    begin = data.index(b"\n", data.index(b"\n") + 1) + 1
    digest = data[: data.index(b"\n")].split(b" ")[1]
    tag = hmac.digest(key or (data_home() / "session.key").read_bytes(), digest + state, "sha256")
    return data[:begin] + tag + state


def test_a_damaged_snapshot_only_costs_time(model: fm.SystemLanguageModel, saved: Path) -> None:
    expected, data = expected_answer(model), saved.read_bytes()
    state = state_of(data)
    signature = model.load().engine.signature.encode()
    assert signature in state
    assert with_state(data, state) == data
    damaged = {
        "none": data[: -len(state) - TAG_BYTES],
        "no tag": data[: -len(state) - TAG_BYTES] + state,
        "cut": data[:-1],
        "one byte": data[: -len(state) + 1],
        "flipped": data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
        "other version": with_state(data, state.replace(b"SEQUENCE-2", b"SEQUENCE-9", 1)),
        "other engine": with_state(data, state.replace(signature, signature[::-1])),
        "garbage": with_state(data, b"\n" * 1000),
        "nothing": with_state(data, b""),
    }
    for what, content in damaged.items():
        saved.write_bytes(content)
        session = fm.LanguageModelSession.load(saved, model)
        assert session.respond_blocking("the log", options=SHORT) == expected, what
        assert session.usage.cached_tokens == 0, what
    saved.write_bytes(data)
    assert fm.LanguageModelSession.load(saved, model).respond_blocking("the log", options=SHORT) == expected


def test_a_damaged_transcript_is_refused(saved: Path) -> None:
    data = saved.read_bytes()
    first = data.index(b"\n")
    last = data.index(b"\n", first + 1)
    for content in (
        b"",
        b"{}",
        data[: first - 3],
        data[:first],
        data[: first + 1],
        data[: last - 1],
        data[:last],
        data[: first + 9] + b"x" + data[first + 10 :],
        data.replace(b"SESSION-2", b"SESSION-9", 1),
        data.replace(b"\n", b"", 1),
        b"\x00" + data,
        json.dumps({"type": "FoundationModels.Transcript"}).encode(),
    ):
        saved.write_bytes(content)
        with pytest.raises(fm.TranscriptError, match="session"):
            fm.LanguageModelSession.load(saved)
    with pytest.raises(FileNotFoundError):
        fm.LanguageModelSession.load(saved.with_name("none"))


def test_unknown_entries_are_refused_by_name(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transcript = fm.LanguageModelSession.load(saved).transcript
    wire = transcript.as_dict()
    wire["transcript"]["entries"][1]["role"] = "oracle"
    monkeypatch.setattr(transcript, "as_dict", lambda: wire)
    session_file.write_session(saved, session_file.SavedSession(transcript=transcript, snapshot=None))
    with pytest.raises(fm.TranscriptError, match=r"session.*entry 1.*oracle"):
        fm.LanguageModelSession.load(saved)


def test_the_transcript_in_the_file_is_a_line_of_json(saved: Path, model: fm.SystemLanguageModel) -> None:
    line = saved.read_bytes().split(b"\n", 2)[1]
    assert fm.Transcript.parse(json.loads(line)).as_dict() == fm.LanguageModelSession.load(saved, model).transcript.as_dict()


def test_saved_before_and_after_any_request(model: fm.SystemLanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "session"
    session = fm.LanguageModelSession(INSTRUCTIONS, model)
    answers = []
    for prompt in ("the cat", "the dog", "the mat"):
        session.save_blocking(path)
        session = fm.LanguageModelSession.load(path, model)
        session.save_blocking(path)  # before its first request
        session = fm.LanguageModelSession.load(path, model)
        session.prewarm("the ")
        answers.append(session.respond_blocking(prompt, options=SHORT))
        assert (session.usage.cached_tokens > 0) or prompt == "the cat"
    plain = fm.LanguageModelSession(INSTRUCTIONS, model)
    assert [plain.respond_blocking(prompt, options=SHORT) for prompt in ("the cat", "the dog", "the mat")] == answers


def test_saving_is_queued_like_a_request(model: fm.SystemLanguageModel, tmp_path: Path) -> None:
    async def run() -> None:
        session = fm.LanguageModelSession(INSTRUCTIONS, model, when_busy="wait")
        answering = asyncio.create_task(session.respond("the cat", options=SHORT))
        await asyncio.sleep(0)
        await session.save(tmp_path / "session")
        assert len(fm.LanguageModelSession.load(tmp_path / "session").transcript) in (1, 3)
        await answering
        await session.save(str(tmp_path / "session"))
        assert len(fm.LanguageModelSession.load(tmp_path / "session").transcript) == 3
        await session.respond("the dog", options=SHORT)

    asyncio.run(run())


def test_a_busy_session_is_not_saved(tmp_path: Path) -> None:
    session = fm.LanguageModelSession("Help.", ScriptedModel("abc", "d"))
    stream = session.stream_blocking("x")
    next(stream)
    with pytest.raises(fm.ConcurrentRequestsError):
        session.save_blocking(tmp_path / "session")
    assert list(tmp_path.iterdir()) == []
    list(stream)
    session.save_blocking(tmp_path / "session")
    restored = fm.LanguageModelSession.load(tmp_path / "session", session._responder.model)
    assert restored.respond_blocking("y") == "d"
    assert len(restored.transcript) == 5


def test_a_failed_save_leaves_the_session_usable(model: fm.SystemLanguageModel, saved: Path) -> None:
    session = fm.LanguageModelSession.load(saved, model)
    with pytest.raises(OSError, match="session"):
        session.save_blocking(saved / "below a file")
    assert session.respond_blocking("the log", options=SHORT) == expected_answer(model)


def test_sessions_loaded_in_many_threads(model: fm.SystemLanguageModel, saved: Path) -> None:
    expected = expected_answer(model)
    answers: list[str] = []

    def work() -> None:
        session = fm.LanguageModelSession.load(saved, model)
        answers.append(session.respond_blocking("the log", options=SHORT))
        session.save_blocking(saved.with_name(f"{threading.get_ident()}"))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [expected] * 5


def test_another_adapter_prefills_again(tmp_path: Path) -> None:
    bundle = write_native_bundle(tmp_path / "model")
    adapter = write_random_adapter(tmp_path / "adapter", bundle)
    plain = fm.SystemLanguageModel(bundle=bundle.path)
    adapted = fm.SystemLanguageModel(bundle=bundle.path, adapter=adapter.path)
    session = fm.LanguageModelSession(INSTRUCTIONS, plain)
    session.respond_blocking("the cat", options=SHORT)
    session.save_blocking(tmp_path / "session")
    loaded = fm.LanguageModelSession.load(tmp_path / "session", adapted)
    fresh = fm.LanguageModelSession.from_transcript(fm.Transcript(loaded.transcript), adapted)
    answer = loaded.respond_blocking("the dog", options=SHORT)
    assert loaded.usage.cached_tokens == 0
    assert fresh.respond_blocking("the dog", options=SHORT) == answer


def test_a_draft_model_catches_up_with_a_loaded_session(
    model: fm.SystemLanguageModel, saved: Path, engine_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted = fm.SystemLanguageModel(bundle=engine_path, draft=engine_path)
    loaded = drafted.load()
    assert loaded.drafter is not None
    monkeypatch.setattr(loaded, "prefixes", PrefixCache(loaded.engine, 0))
    monkeypatch.setattr(loaded, "drafter", Drafter(loaded.drafter.engine, length=DraftLengthConfig(cost=1e-6)))
    session = fm.LanguageModelSession.load(saved, drafted)
    counts = computed_tokens(loaded.engine, monkeypatch)
    assert session.respond_blocking("the log", options=SHORT) == expected_answer(model)
    assert session.usage.cached_tokens > 0
    assert counts[0] == session.usage.prompt_tokens - session.usage.cached_tokens
    assert session.usage.drafted_tokens > 0


_DIES = """
import os, signal, sys
from pathlib import Path
import openafm as fm
from openafm.framework.session import session_file
from openafm.framework.session.session import LanguageModelSession

session = LanguageModelSession.load(Path(sys.argv[2]), fm.SystemLanguageModel(bundle=sys.argv[1]))
session.respond_blocking("the log", options=fm.GenerationOptions(maximum_response_tokens=12))
assert "torch" not in sys.modules

atomic_file = session_file.atomic_file

class Dying:
    def fileno(self):
        return self.file.fileno()

    def __init__(self, file): self.file = file
    def writelines(self, parts):
        data = b"".join(parts)
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

class Whole:
    def __init__(self, path, **options): self.context = atomic_file(path, **options)
    def __enter__(self): return Dying(self.context.__enter__())
    def __exit__(self, *error): return self.context.__exit__(*error)

session_file.atomic_file = Whole
session.save_blocking(sys.argv[2])
"""


def test_a_process_killed_during_a_save_leaves_the_old_file(tmp_path: Path) -> None:
    bundle = write_native_bundle(tmp_path / "model")
    model = fm.SystemLanguageModel(bundle=bundle.path)
    session = fm.LanguageModelSession(INSTRUCTIONS, model)
    session.respond_blocking("the cat", options=SHORT)
    session.save_blocking(tmp_path / "session")
    before = (tmp_path / "session").read_bytes()
    command = [sys.executable, "-c", _DIES, str(bundle.path), str(tmp_path / "session")]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert finished.returncode == -signal.SIGKILL, finished.stderr
    assert (tmp_path / "session").read_bytes() == before
    assert all(path.name.startswith(".") for path in tmp_path.iterdir() if path.name not in ("model", "session"))
    assert fm.LanguageModelSession.load(tmp_path / "session", model).respond_blocking("the log", options=SHORT)


def test_a_session_file_is_private_and_so_is_the_key(model: fm.SystemLanguageModel, saved: Path) -> None:
    key = data_home() / "session.key"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (saved, key)] == [0o600, 0o600]
    saved.chmod(0o644)
    fm.LanguageModelSession.load(saved, model).save_blocking(saved)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


def forged(saved: Path, model: fm.SystemLanguageModel, key: bytes | None = None) -> bytes:
    """Return a session file that holds the keys and values of other tokens under the same tokens."""
    engine = model.load().engine
    good = read_snapshot(state_of(saved.read_bytes()))
    sequence = engine.new_sequence()
    engine.step([(sequence, [7] * good.length)])
    other = read_snapshot(engine.snapshot(sequence))
    arrays = dict(other.arrays) | {"tokens": good.arrays["tokens"]}
    return with_state(saved.read_bytes(), write_snapshot(dataclasses.replace(good, arrays=arrays)), key)


def test_a_forged_snapshot_is_not_used(model: fm.SystemLanguageModel, saved: Path) -> None:
    expected = expected_answer(model)
    saved.write_bytes(forged(saved, model, key=b"\0" * 32))
    session = fm.LanguageModelSession.load(saved, model)
    assert session.respond_blocking("the log", options=SHORT) == expected
    assert session.usage.cached_tokens == 0


def test_a_restored_sequence_is_never_shared(
    model: fm.SystemLanguageModel, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = expected_answer(model)
    monkeypatch.setattr(model.load(), "prefixes", PrefixCache(model.load().engine, 2**24))
    saved.write_bytes(forged(saved, model))  # with a valid tag, as from a stolen key
    session = fm.LanguageModelSession.load(saved, model)
    assert session.respond_blocking("the log", options=SHORT) != expected  # the forgery works in its own session
    assert session.usage.cached_tokens > 0
    assert expected_answer(model) == expected
    other = fm.LanguageModelSession.from_transcript(fm.LanguageModelSession.load(saved, model).transcript, model)
    assert other.respond_blocking("the log", options=SHORT) == expected


def test_without_the_key_a_session_is_prefilled(model: fm.SystemLanguageModel, saved: Path) -> None:
    expected = expected_answer(model)
    key = data_home() / "session.key"
    old = key.read_bytes()
    for spoil in (key.unlink, lambda: key.write_bytes(b"short"), lambda: key.chmod(0o644)):
        spoil()
        session = fm.LanguageModelSession.load(saved, model)
        assert session.respond_blocking("the log", options=SHORT) == expected
        assert session.usage.cached_tokens == 0
        assert key.read_bytes() != old
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        key.write_bytes(old)


def test_a_session_is_saved_without_state_if_no_key_can_be_stored(
    model: fm.SystemLanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "file"))
    session = fm.LanguageModelSession(INSTRUCTIONS, model)
    session.respond_blocking("the cat", options=SHORT)
    session.save_blocking(tmp_path / "session")
    assert len((tmp_path / "session").read_bytes()) < 2000
    assert len(fm.LanguageModelSession.load(tmp_path / "session", model).transcript) == 3


def test_files_of_the_first_format_are_read_without_their_state(model: fm.SystemLanguageModel, saved: Path) -> None:
    expected, data = expected_answer(model), saved.read_bytes()
    state = state_of(data)
    saved.write_bytes(data[: -len(state) - TAG_BYTES].replace(b"SESSION-2", b"SESSION-1", 1) + state)
    session = fm.LanguageModelSession.load(saved, model)
    assert session.respond_blocking("the log", options=SHORT) == expected
    assert session.usage.cached_tokens == 0
