"""Tool calls in worker processes: state, differences, time, randomness, and tools that misbehave."""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from collections.abc import Iterator

import pytest
from project_folders import write_counters

from openafm.annotation.environments.host import Problem
from openafm.annotation.environments.page_delta import DamagedStateError, apply_deltas, delta
from openafm.annotation.environments.process import ToolProcess, initial, state_key
from openafm.annotation.environments.project import Project
from openafm.annotation.environments.replay import ProjectEnvironment, replay
from openafm.tokenizer.conversation import ToolCall


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_counters(tmp_path_factory.mktemp("projects") / "counters", seconds=1.0, rows=1)


@pytest.fixture(scope="module")
def process(project: Project) -> Iterator[ToolProcess]:
    process = ToolProcess(project)
    yield process
    process.close()


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("raise", Problem.RAISED),
        ("exit", Problem.RAISED),
        ("sleep", Problem.TIMED_OUT),
        ("memory", Problem.OUT_OF_MEMORY),
        ("long", Problem.TOO_LONG),
        ("object", Problem.NOT_JSON),
        ("nan", Problem.NOT_JSON),
        ("surrogate", Problem.NOT_JSON),
        ("schema", Problem.RAISED),
        ("commit", Problem.RAISED),
        ("attach", Problem.RAISED),
        ("kill", Problem.CRASHED),
    ],
)
def test_a_tool_that_misbehaves_is_named_and_changes_nothing(
    project: Project, process: ToolProcess, how: str, problem: Problem
) -> None:
    state = state_key(project.seed)
    result, after = process.call(state, lambda: initial(project.seed), "misbehave", {"how": how}, 0)
    assert (result.problem, result.changes, after) == (problem, (), state)
    assert result.text.startswith("Error: ")
    assert len(result.text) < 1000
    assert process.tables(state, lambda: initial(project.seed)) == {"counters": [{"id": "c0", "value": 0}]}


def test_calls_that_do_not_fit_are_named(project: Project) -> None:
    environment = ProjectEnvironment(project)
    assert environment.run(ToolCall(name="fly", arguments={})).problem is Problem.UNKNOWN_TOOL
    assert environment.run(ToolCall(name="add", arguments={"key": 3})).problem is Problem.INVALID_ARGUMENTS
    assert environment.run(ToolCall(name="add", arguments={"key": "a", "other": 1})).problem is Problem.INVALID_ARGUMENTS
    assert environment.run(ToolCall(name="remove", arguments={"key": "none"})).problem is Problem.REFUSED


def test_mutated_arguments_are_noted_and_the_call_counts(project: Project) -> None:
    arguments = {"how": "mutate", "items": [7]}
    result = ProjectEnvironment(project).run(ToolCall(name="misbehave", arguments=arguments))
    assert (result.problem, result.text, arguments["items"]) == (Problem.MUTATED_ARGUMENTS, "done", [7])
    assert result.changes


def test_changes_are_one_for_each_row(project: Project) -> None:
    environment = ProjectEnvironment(project)
    added = environment.run(ToolCall(name="add", arguments={"key": "a", "value": 2})).changes
    changed = environment.run(ToolCall(name="add", arguments={"key": "a", "value": 3})).changes
    removed = environment.run(ToolCall(name="remove", arguments={"key": "a"})).changes
    assert [(c.before, c.after) for c in (*added, *changed, *removed)] == [
        (None, {"id": "a", "value": 2}),
        ({"id": "a", "value": 2}, {"id": "a", "value": 5}),
        ({"id": "a", "value": 5}, None),
    ]
    assert environment.run(ToolCall(name="read", arguments={})).changes == ()


def test_time_and_random_numbers_depend_on_the_number_of_the_call(project: Project) -> None:
    calls = [ToolCall(name="draw", arguments={})] * 3
    results, digest = replay(project, calls)
    assert (results, digest) == replay(project, calls)
    assert len({result.text for result in results}) == 3
    assert "2025-09-15T09:02:00" in results[2].text


def test_a_worker_returns_to_any_state(project: Project, process: ToolProcess) -> None:
    images, keys = {state_key(project.seed): project.seed}, [state_key(project.seed)]
    for index in range(4):
        result, key = process.call(keys[-1], lambda: initial(images[keys[-1]]), "add", {"key": f"k{index}"}, index)
        images[key] = apply_deltas(images[keys[-1]], [result.delta])
        keys.append(key)
    for index in (1, 3, 0):
        rows = process.tables(keys[index], lambda index=index: initial(images[keys[index]]))["counters"]  # type: ignore[misc]
        assert [row["id"] for row in rows] == ["c0", *(f"k{number}" for number in range(index))]


def test_deltas_lead_from_image_to_image() -> None:
    rng = random.Random(1)
    images = [b""]
    for _ in range(20):
        pages = [images[-1][start : start + 4096] for start in range(0, len(images[-1]), 4096)]
        pages = pages[: rng.randrange(len(pages) + 1)] if rng.random() < 0.2 else pages
        pages += [rng.randbytes(4096) for _ in range(rng.randrange(4))]
        for _ in range(rng.randrange(3)):
            if pages:
                pages[rng.randrange(len(pages))] = rng.randbytes(4096)
        images.append(b"".join(pages))
    deltas = [delta(before, after) for before, after in itertools.pairwise(images)]
    for count, image in enumerate(images):
        assert apply_deltas(b"", deltas[:count]) == image
    with pytest.raises(DamagedStateError):
        apply_deltas(b"", [deltas[0][:-3]])
    page_of_another_image = zlib.compress(struct.pack("<III", 1, 1, 7) + bytes(4096))
    with pytest.raises(DamagedStateError, match="a page that it does not have"):
        apply_deltas(b"", [page_of_another_image])
