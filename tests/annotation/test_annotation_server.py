"""The annotation server over HTTP: runs, changes, conflicts, presence, and a server that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from project_folders import sample_project
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from web_servers import Browser, running_app

from openafm.annotation.environments.project import Project
from openafm.annotation.errors import AnnotationError
from openafm.annotation.scripted_model import ScriptedModel
from openafm.annotation.server.app import build_annotation_app, open_workspace
from openafm.annotation.server.routes import _stream
from openafm.annotation.server.workspace import MAX_RUNS
from openafm.annotation.web import WebConfig

KEYS = (f"change-{number}" for number in range(10**6))


@pytest.fixture(scope="module")
def travel(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return sample_project("travel", tmp_path_factory.mktemp("projects") / "travel")


@pytest.fixture(scope="module")
def url(travel: Project) -> Iterator[str]:
    workspace = open_workspace(travel, ScriptedModel(travel))
    with running_app(build_annotation_app(workspace, WebConfig(port=0))) as url:
        yield url
    workspace.close()


class Page:
    """What the page does with one item."""

    def __init__(self, url: str, item: str, scenario: str = "cheapest-berlin", name: str = "page-a") -> None:
        self.browser, self.item, self.name = Browser(url), item, name
        self.browser.open()
        self.browser.post("/items", {"scenario": scenario, "item": item})
        self.view = self.browser.get(f"/items/{item}?page={name}")

    def request(self, action: str, **values: Any) -> dict[str, Any]:
        return {"key": next(KEYS), "sequence": self.view["sequence"], "page": self.name, "action": action, **values}

    def change(self, action: str, **values: Any) -> dict[str, Any]:
        self.view = self.browser.post(f"/items/{self.item}/changes", self.request(action, **values))
        return self.view

    def refused(self, action: str, **values: Any) -> tuple[int, str]:
        reply = self.browser.send("POST", f"/items/{self.item}/changes", json=self.request(action, **values))
        return reply.status_code, reply.json()["error"]["message"]

    def run(self, key: str = "") -> list[dict[str, Any]]:
        body = {"key": key or next(KEYS), "sequence": self.view["sequence"], "page": self.name}
        reply = self.browser.send("POST", f"/items/{self.item}/run", json=body)
        assert reply.status_code == 200, reply.text
        self.view = self.browser.get(f"/items/{self.item}?page={self.name}")
        return [json.loads(line[6:]) for line in reply.text.splitlines() if line]


def query(text: str) -> dict[str, Any]:
    return {"kind": "query", "text": text, "calls": []}


def test_an_item_from_the_query_to_done(travel: Project, url: str) -> None:
    page = Page(url, "a" * 12)
    page.change("append", content=query(travel.scenarios[0].query))
    events = page.run("run-key-1")
    assert [event["type"] for event in events if event["type"] != "text"][-1] == "stopped"
    assert page.run("run-key-1") == [{"type": "stopped", "reason": "repeated"}]
    stem = page.view["stem"]
    search = next(node for node in page.view["nodes"] if node["id"] == stem[2])
    calls = [{"name": "search_flights", "arguments": search["calls"][0]["arguments"] | {"date": "2025-09-20"}}]
    content = {"kind": "step", "text": "", "calls": calls}
    view = page.change("edit", node=stem[2], content=content, keeps_rest=True, text="Friday is the 19th")
    assert len(view["stem"]) == len(stem)
    abandoned = next(node for node in view["nodes"] if node["id"] == stem[2])
    assert abandoned["reason"] == {"kind": "edited", "text": "Friday is the 19th"}
    page.change("flag", node=stem[2], error="wrong_arguments")
    page.change("comment", node=0, text="Long day.")
    assert page.change("done")["is_done"]
    assert page.browser.get("/items")[0]["is_done"]
    assert page.browser.get(f"/items/{page.item}/tables/0")["bookings"][-1]["id"] == "B-1003"
    assert page.browser.get(f"/items/{page.item}/tables/{view['head']}")["bookings"][-1]["id"] == "B-1004"


def test_a_change_that_is_sent_again_is_made_once(travel: Project, url: str) -> None:
    page = Page(url, "7" * 12)
    page.change("append", content=query("Hello"))
    page.change("append", content={"kind": "answer", "text": "Hi"})
    answer = page.view["head"]
    changes = [
        {"action": "edit", "node": answer, "content": {"kind": "answer", "text": "Good day"}, "keeps_rest": True},
        {"action": "delete", "node": 1, "keeps_rest": False},
        {"action": "undo"},
    ]
    for change in changes:
        body = {"key": next(KEYS), "sequence": page.view["sequence"], **change}
        replies = [page.browser.send("POST", f"/items/{page.item}/changes", json=body) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [200, 200], replies[1].text
        assert replies[0].json()["sequence"] == replies[1].json()["sequence"] == page.view["sequence"] + 1
        page.view = replies[1].json()


def test_wrong_requests_have_a_status_and_a_message(url: str) -> None:
    page = Page(url, "b" * 12)
    assert page.refused("append", content={"kind": "answer", "text": "x"})[0] == 400
    assert page.refused("append")[0] == 422
    page.change("append", content=query("Hello"))
    wrong = {"kind": "step", "calls": [{"name": "book_flight", "arguments": {"traveler": 1}}]}
    assert page.refused("append", content=wrong)[0] == 422
    assert "do not fit at" in page.refused("append", content=wrong)[1]
    assert page.refused("revert", node=99)[0] == 404
    assert page.refused("redo")[0] == 409
    for path in ("/items/none", "/items/none/version", "/items/none/tables/0", f"/items/{page.item}/tables/77"):
        assert page.browser.send("GET", path).status_code == 404, path
    assert page.browser.send("POST", "/items", json={"scenario": "none", "item": "c" * 12}).status_code == 404
    assert page.browser.send("POST", "/items", json={"scenario": "koffer", "item": "../x"}).status_code == 422


def test_two_pages_on_one_item_are_told(url: str) -> None:
    first, second = Page(url, "d" * 12), Page(url, "d" * 12, name="page-b")
    assert second.view["others"] == ["local"]
    first.change("append", content=query("Hello"))
    status, message = second.refused("append", content=query("Hallo"))
    assert status == 409
    assert "another person" in message
    assert second.browser.get(f"/items/{'d' * 12}/version?page=page-b") == {
        "sequence": 1,
        "others": ["local"],
        "is_running": False,
    }


def test_a_browser_that_leaves_cancels_its_run_and_frees_the_item(travel: Project, url: str) -> None:
    page = Page(url, "9" * 12)
    page.change("append", content=query(travel.scenarios[0].query))
    body = {"key": next(KEYS), "sequence": page.view["sequence"]}
    headers = {"X-CSRF-Token": page.browser.csrf, "Content-Type": "application/json"}
    with page.browser._client.stream("POST", f"/api/items/{page.item}/run", json=body, headers=headers) as reply:
        assert reply.status_code == 200
        next(reply.iter_lines())
    deadline = time.monotonic() + 30
    while page.browser.get(f"/items/{page.item}/version")["is_running"] and time.monotonic() < deadline:
        time.sleep(0.05)
    page.view = page.browser.get(f"/items/{page.item}")
    kinds = [node["kind"] for node in page.view["nodes"]]
    assert kinds[0] == "query"
    if kinds[-1] != "answer":  # cancelled after a step: the model resumes there
        page.run()
    assert page.view["nodes"][-1]["kind"] == "answer"
    assert [node["kind"] for node in page.view["nodes"]] == ["query", "step", "step", "step", "answer"]


@pytest.mark.slow  # starts two servers
def test_a_killed_server_loses_no_step(tmp_path: Path) -> None:
    project = sample_project("travel", tmp_path / "travel")
    stem: list[int] = []
    for attempt in range(2):
        command = [sys.executable, "-m", "openafm", "annotate", "serve", "--project", str(project.path)]
        command += ["--model", "scripted", "--port", "0", "--json"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            page = Page(url, "e" * 12)
            assert page.view["stem"] == stem
            if attempt == 0:
                page.change("append", content=query(project.scenarios[0].query))
                body = {"key": "a-run-of-steps", "sequence": page.view["sequence"]}
                client = page.browser._client
                headers = {"X-CSRF-Token": page.browser.csrf, "Content-Type": "application/json"}
                with client.stream("POST", f"/api/items/{page.item}/run", json=body, headers=headers) as reply:
                    nodes: list[int] = []
                    for line in reply.iter_lines():
                        event = json.loads(line[6:]) if line else {}
                        if event.get("type") == "node":
                            nodes.append(event["node"])
                            if len(nodes) == 2:
                                break
                    os.kill(server.pid, signal.SIGKILL)
                    server.wait(60)
                stem = read_stem(project)
                assert stem[1:3] == nodes
            else:
                if page.view["nodes"][-1]["kind"] != "answer":  # the run may have ended before the kill
                    page.run()
                calls = [c for node in page.view["nodes"] for c in node["calls"] if node["id"] in page.view["stem"]]
                assert [call["name"] for call in calls][-1] == "book_flight"
        finally:
            server.kill()
            server.wait(60)


def read_stem(project: Project) -> list[int]:
    workspace = open_workspace(project, ScriptedModel(project))
    try:
        return [node.id for node in workspace.item("e" * 12).tree.path()]
    finally:
        workspace.close()


def test_a_person_has_a_limited_number_of_runs(travel: Project) -> None:
    workspace = open_workspace(travel, ScriptedModel(travel))
    with ExitStack() as stack:
        stack.callback(workspace.close)
        for number in range(MAX_RUNS):
            stack.enter_context(workspace.running(f"item {number}", "ana"))
        with pytest.raises(AnnotationError, match="wait for one") as caught, workspace.running("another", "ana"):
            pass
        assert caught.value.status == 429
        with workspace.running("another", "bo"):
            assert workspace.is_running("another")


def test_open_streams_take_no_threads_of_the_pool() -> None:
    assert asyncio.run(_read_beside_the_pool(60)) == [['data: {"type": "text"}\n\n']] * 60


async def _read_beside_the_pool(num_streams: int) -> list[list[Any]]:
    """Use the thread pool while streams are open; return their lines."""
    release = threading.Event()

    def events() -> Iterator[dict[str, Any]]:
        yield {"type": "text"}
        release.wait(90)

    loop = asyncio.get_running_loop()
    streams = [_stream(events(), threading.Event(), loop) for _ in range(num_streams)]
    lines = [asyncio.ensure_future(_read_all(stream)) for stream in streams]
    await asyncio.sleep(0.2)  # all of them wait for their second event
    try:
        await asyncio.wait_for(run_in_threadpool(time.sleep, 0), 60)
    finally:
        release.set()
    return await asyncio.gather(*lines)


async def _read_all(stream: StreamingResponse) -> list[Any]:
    return [line async for line in stream.body_iterator]
