"""Runs of tasks: stored samples, resumption, failures, gates."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_bundles import write_tiny_bundle

import openafm as fm
from openafm.evaluation.harness.answerer import ModelAnswerer, RecordedAnswerer, failure
from openafm.evaluation.harness.cache import CacheError, OutputCache
from openafm.evaluation.harness.compare import compare_runs
from openafm.evaluation.harness.results import RunFolderError, open_run
from openafm.evaluation.harness.runner import RunOptions, run_tasks
from openafm.evaluation.harness.task import Item, Output, Prompt, TaskConfig, TaskDataError, Verdict
from openafm.framework.errors import AssetsUnavailableError, DecodingFailureError, GuardrailViolationError, RefusalError


@dataclass(frozen=True, kw_only=True)
class SumConfig(TaskConfig):
    """Sums of two digits, in two languages."""

    count: int = 6

    def items(self, data: Path) -> Iterator[Item]:
        for number in range(self.count):
            language = "de" if number % 2 else "en"
            yield Item(id=str(number), prompt=Prompt(text=f"{number}+1="), reference=str(number + 1), language=language)

    def judge(self, item: Item, output: Output) -> Verdict:
        is_right = output.text.strip() == item.reference
        return Verdict(scores={"accuracy": float(is_right)}, extraction=output.text, expected=item.reference)


def right(prompt: Prompt) -> Output:
    return Output(text=str(int(prompt.text.partition("+")[0]) + 1), prompt_tokens=3, generated_tokens=1)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[OutputCache]:
    opened = OutputCache(tmp_path / "outputs.sqlite")
    yield opened
    opened.close()


def test_every_sample_is_stored(tmp_path: Path, cache: OutputCache) -> None:
    wrong = {"3+1=": "5"}
    answerer = RecordedAnswerer(lambda prompt: Output(text=wrong.get(prompt.text, right(prompt).text)))
    results = run_tasks(answerer, {"sums": SumConfig()}, tmp_path, tmp_path / "out", cache)
    assert results["sums"].score.mean == pytest.approx(5 / 6)
    assert {name: score.mean for name, score in results["sums"].languages.items()} == {"de": pytest.approx(2 / 3), "en": 1.0}
    run = open_run(tmp_path / "out")
    assert run.tasks["sums"] == results["sums"]
    sample = next(each for each in run.samples("sums") if each.id == "3")
    assert (sample.extraction, sample.expected, sample.scores) == ("5", "4", {"accuracy": 0.0})
    assert sample.prompt["text"] == "3+1="


def test_outputs_are_cached_by_model_and_prompt(tmp_path: Path, cache: OutputCache) -> None:
    asked: list[str] = []

    def counted(prompt: Prompt) -> Output:
        asked.append(prompt.text)
        return right(prompt)

    for name, expected in (("one", 6), ("one", 0), ("two", 6)):
        asked.clear()
        run_tasks(RecordedAnswerer(counted, name), {"sums": SumConfig()}, tmp_path, tmp_path / name, cache)
        assert len(asked) == expected
    assert Prompt(text="a", max_tokens=5).digest != Prompt(text="a", max_tokens=6).digest


KILLED = """
import sys, time
from pathlib import Path
sys.path[:0] = {paths!r}
from test_harness_runner import SumConfig, right
from openafm.evaluation.harness.answerer import RecordedAnswerer
from openafm.evaluation.harness.cache import OutputCache
from openafm.evaluation.harness.runner import RunOptions, run_tasks

def slow(prompt):
    print(prompt.text, flush=True)
    time.sleep(0.05)
    return right(prompt)

out = Path({out!r})
run_tasks(RecordedAnswerer(slow), {{"sums": SumConfig(count=200)}}, out, out / "run", OutputCache(out / "outputs.sqlite"),
          RunOptions(threads=2))
"""


@pytest.mark.long
def test_a_killed_run_continues(tmp_path: Path) -> None:
    paths = [str(Path(__file__).parent), *sys.path]
    code = KILLED.format(paths=paths, out=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(10):
        assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    asked: list[str] = []

    def counted(prompt: Prompt) -> Output:
        asked.append(prompt.text)
        return right(prompt)

    cache = OutputCache(tmp_path / "outputs.sqlite")
    results = run_tasks(RecordedAnswerer(counted), {"sums": SumConfig(count=200)}, tmp_path, tmp_path / "run", cache)
    cache.close()
    assert results["sums"].num_cached >= 6
    assert results["sums"].num_cached + len(asked) == 200
    assert results["sums"].score.mean == 1.0


def test_a_failed_request_scores_zero_and_the_run_goes_on(tmp_path: Path, cache: OutputCache) -> None:
    def failing(prompt: Prompt) -> Output:
        if prompt.text == "2+1=":
            raise DecodingFailureError("not JSON", raw_content="half")
        return right(prompt)

    results = run_tasks(RecordedAnswerer(failing), {"sums": SumConfig()}, tmp_path, tmp_path / "out", cache)
    assert (results["sums"].num_failed, results["sums"].score.mean) == (1, pytest.approx(5 / 6))
    failed = next(each for each in open_run(tmp_path / "out").samples("sums") if each.output.error)
    assert failed.output.text == "half"
    assert "not JSON" in failed.output.error


def test_a_model_that_is_gone_ends_the_run(tmp_path: Path, cache: OutputCache) -> None:
    calls = threading.Semaphore(3)

    def unavailable(prompt: Prompt) -> Output:
        if not calls.acquire(blocking=False):
            raise AssetsUnavailableError("the endpoint is gone")
        return right(prompt)

    with pytest.raises(AssetsUnavailableError, match="gone"):
        run_tasks(RecordedAnswerer(unavailable), {"sums": SumConfig()}, tmp_path, tmp_path / "out", cache)
    results = run_tasks(RecordedAnswerer(right), {"sums": SumConfig()}, tmp_path, tmp_path / "out", cache)
    assert results["sums"].num_cached == 3


def test_limits_count_per_language(tmp_path: Path, cache: OutputCache) -> None:
    options = RunOptions(limit=2)
    results = run_tasks(RecordedAnswerer(right), {"sums": SumConfig()}, tmp_path, tmp_path / "out", cache, options)
    assert {name: score.count for name, score in results["sums"].languages.items()} == {"de": 2, "en": 2}
    with pytest.raises(TaskDataError, match="no items in fr"):
        run_tasks(RecordedAnswerer(right), {"sums": SumConfig()}, tmp_path, tmp_path, cache, RunOptions(languages=("fr",)))


def test_runs_are_compared_on_equal_items(tmp_path: Path, cache: OutputCache) -> None:
    def weak(prompt: Prompt) -> Output:
        return Output(text="0") if prompt.text[0] in "13" else right(prompt)

    answers: dict[str, Callable[[Prompt], Output]] = {"strong": right, "weak": weak}
    for name, answer in answers.items():
        run_tasks(RecordedAnswerer(answer, name), {"sums": SumConfig(count=8)}, tmp_path, tmp_path / name, cache)
    comparison = compare_runs(open_run(tmp_path / "strong"), open_run(tmp_path / "weak"))
    found = {row.language: (row.difference.mean, row.wins, row.losses) for row in comparison.rows}
    assert found == {"all": (-0.25, 0, 2), "de": (-0.5, 0, 2), "en": (0.0, 0, 0)}
    run_tasks(RecordedAnswerer(right), {"others": SumConfig()}, tmp_path, tmp_path / "other", cache)
    with pytest.raises(RunFolderError, match="no task with equal items"):
        compare_runs(open_run(tmp_path / "strong"), open_run(tmp_path / "other"))


def test_damaged_files_are_typed_errors(tmp_path: Path, cache: OutputCache) -> None:
    with pytest.raises(RunFolderError, match=r"holds no results\.json"):
        open_run(tmp_path)
    (tmp_path / "results.json").write_text('{"tasks": {"a": {}}}')
    with pytest.raises(RunFolderError, match="cannot be read"):
        open_run(tmp_path)
    (tmp_path / "broken.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(CacheError, match="choose another --cache"):
        OutputCache(tmp_path / "broken.sqlite")


def test_an_output_with_half_a_surrogate_is_stored(tmp_path: Path, cache: OutputCache) -> None:
    def half(prompt: Prompt) -> Output:
        return Output(text="\ud83d", calls=({"name": "f", "arguments": {"a": "\udc00"}},))

    for was_cached in (0, 6):
        results = run_tasks(RecordedAnswerer(half), {"sums": SumConfig()}, tmp_path, tmp_path / str(was_cached), cache)
        assert (results["sums"].num_failed, results["sums"].num_cached) == (0, was_cached)
    assert all(each.output.text == "?" for each in open_run(tmp_path / "6").samples("sums"))
    assert len(Prompt(text="\ud83d").digest) == 64


@pytest.mark.parametrize("row", ["{", "{}", "[]", '{"calls": 1, "log_likelihoods": []}', "[" * 100_000])
def test_a_damaged_row_of_the_cache_is_answered_again(row: str, tmp_path: Path, cache: OutputCache) -> None:
    prompt = Prompt(text="1+1=")
    cache.put("model", prompt, right(prompt))
    with sqlite3.connect(tmp_path / "outputs.sqlite") as connection:
        connection.execute("UPDATE outputs SET output = ?", (row,))
    connection.close()
    assert cache.get("model", prompt) is None
    cache.put("model", prompt, right(prompt))
    assert cache.get("model", prompt) == right(prompt)


def test_a_bundle_answers_chats_completions_and_choices(tmp_path: Path) -> None:
    model = fm.SystemLanguageModel(bundle=write_tiny_bundle(tmp_path / "tiny").path)
    answerer = ModelAnswerer(model)
    chat = answerer.answer(Prompt(text="the cat", max_tokens=5), lambda: False)
    assert chat.generated_tokens <= 5
    loaded = model.load()
    shared = "the cat and the dog sat on the mat, no: " * 3
    for text in (shared + "the log.", shared + "the cat"):
        prompt = Prompt(kind="completion", text=text, prefix=shared, max_tokens=6)
        whole = loaded.scorer.generate_until(text, (), 6)
        assert answerer.answer(prompt, lambda: False).text.startswith(whole)  # it leaves out half characters at the end
        choice = Prompt(kind="choice", text=text, prefix=shared, continuations=(" the dog", " cat", "."))
        expected = [loaded.scorer.loglikelihood(text, each).log_probability for each in choice.continuations]
        assert answerer.answer(choice, lambda: False).log_likelihoods == pytest.approx(expected, abs=1e-4)
    endless = answerer.answer(Prompt(kind="completion", text=shared, max_tokens=8), lambda: False)
    assert (endless.finish, endless.generated_tokens) == ("length", 8)
    stop = endless.text[2:4]
    stopped = answerer.answer(Prompt(kind="completion", text=shared, stop=(stop,), max_tokens=8), lambda: False)
    assert stopped.text == endless.text[: endless.text.index(stop)]
    assert stopped.finish == "stop"
    assert answerer.signature != ModelAnswerer(model, temperature=0.5).signature


def test_a_prompt_that_is_too_long_fails_alone(tmp_path: Path, cache: OutputCache) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Long(SumConfig):
        def items(self, data: Path) -> Iterator[Item]:
            yield Item(id="long", prompt=Prompt(text="the cat " * 2000, max_tokens=2), reference="x")
            yield Item(id="short", prompt=Prompt(text="the", max_tokens=2), reference="x")

    model = fm.SystemLanguageModel(bundle=write_tiny_bundle(tmp_path / "tiny").path)
    results = run_tasks(ModelAnswerer(model), {"long": Long()}, tmp_path, tmp_path / "out", cache)
    assert results["long"].num_failed == 1
    samples = {each.id: each.output for each in open_run(tmp_path / "out").samples("long")}
    assert "context window" in samples["long"].error
    assert not samples["short"].error


@pytest.mark.long
def test_a_model_that_never_stops_is_cut(tmp_path: Path) -> None:
    answerer = ModelAnswerer(fm.SystemLanguageModel(bundle=write_tiny_bundle(tmp_path / "tiny").path))
    output = answerer.answer(Prompt(text="the cat", max_tokens=4096), lambda: False)
    assert output.finish == "length"
    assert output.text


def test_interrupting_ends_requests(tmp_path: Path, cache: OutputCache) -> None:
    started = time.monotonic()

    class Endless(RecordedAnswerer):
        def answer(self, prompt: Prompt, cancelled: Callable[[], bool]) -> Output:
            if prompt.text == "0+1=":
                raise KeyboardInterrupt
            while not cancelled() and time.monotonic() - started < 20:
                time.sleep(0.01)
            return Output(text="late")

    with pytest.raises(KeyboardInterrupt):
        run_tasks(Endless(right), {"sums": SumConfig()}, tmp_path, tmp_path / "out", cache, RunOptions(threads=2))
    assert time.monotonic() - started < 15
    assert not (tmp_path / "out" / "results.json").exists()


def test_only_blocked_requests_count_as_blocked() -> None:
    assert failure(GuardrailViolationError("blocked", side="prompt")).was_blocked
    assert failure(RefusalError("no")).was_blocked
    assert not failure(DecodingFailureError("too long")).was_blocked
    assert Output.from_dict(failure(RefusalError("no")).to_dict()).was_blocked
