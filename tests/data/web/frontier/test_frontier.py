"""The frontier: order, states, delays, what a reopened file holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from openafm.core.files import OutOfSpaceError
from openafm.data.web.frontier.database import FrontierError
from openafm.data.web.frontier.frontier import Candidate, Frontier, Outcome, Task


def stored_score(task: Task) -> float:
    return task.score


def test_pages_come_by_score_within_the_delay_of_their_host(tmp_path: Path) -> None:
    with Frontier(tmp_path / "f") as frontier:
        urls = {"http://a.com/1": 1.0, "http://a.com/2": 2.0, "http://b.com/1": 0.5}
        assert frontier.add(Candidate(url=url, score=score) for url, score in urls.items()) == 3
        assert frontier.add([Candidate(url="http://a.com/1")]) == 0, "known pages are not added again"
        first = frontier.claim(100.0, 1, stored_score)
        assert first is not None
        assert first.url == "http://a.com/2"
        frontier.start(first, 100.0, 101.0, {})
        second = frontier.claim(100.0, 1, stored_score)
        assert second is not None
        assert second.url == "http://b.com/1"
        frontier.finish(first.url, Outcome(state="done"), 100.2, attempt="answered")
        assert frontier.claim(100.5, 1, stored_score) is None, "the host is in its delay"
        assert frontier.next_time(1) == 101.0
        third = frontier.claim(101.0, 1, stored_score)
        assert third is not None
        assert third.url == "http://a.com/1"


def test_a_page_waits_until_its_time(tmp_path: Path) -> None:
    with Frontier(tmp_path / "f") as frontier:
        frontier.add([Candidate(url="http://a.com/1")])
        task = frontier.claim(0.0, 1, stored_score)
        assert task is not None
        frontier.finish(task.url, Outcome(state="waiting", not_before=50.0), 0.0, attempt="timeout")
        assert frontier.claim(49.0, 1, stored_score) is None
        assert frontier.next_time(1) == 50.0
        assert frontier.claim(50.0, 1, stored_score) is not None


def test_a_reopened_frontier_repeats_interrupted_requests_and_keeps_delays(tmp_path: Path) -> None:
    frontier = Frontier(tmp_path / "f")
    frontier.add([Candidate(url="http://a.com/1", score=1.0), Candidate(url="http://a.com/2")])
    task = frontier.claim(10.0, 1, stored_score)
    assert task is not None
    frontier.start(task, 10.0, 15.0, {"delay_s": 5.0})
    with Frontier(tmp_path / "f") as again:  # the first process was killed
        assert again.interrupted(11.0, delay=2.0, max_attempts=3) == ["http://a.com/1"]
        assert again.claim(14.0, 1, stored_score) is None
        assert again.host("a.com").next_at == 16.0, "the delay of the request counts from the restart"
        repeated = again.claim(16.0, 1, stored_score)
        assert repeated is not None
        assert (repeated.url, repeated.attempts) == ("http://a.com/1", 1)
        assert [outcome for _, outcome in again.attempts("http://a.com/1")] == ["interrupted"]


def test_new_pages_and_the_outcome_are_one_transaction(tmp_path: Path) -> None:
    with Frontier(tmp_path / "f") as frontier:
        frontier.add([Candidate(url="http://a.com/1")])

        def links() -> list[Candidate]:
            raise RuntimeError

        with pytest.raises(RuntimeError):
            frontier.finish("http://a.com/1", Outcome(state="done"), 0.0, new=(each for each in links()))  # type: ignore[arg-type]
        page = frontier.page("http://a.com/1")
        assert page is not None
        assert page["state"] == "waiting"


def test_a_closed_host_gives_up_its_pages(tmp_path: Path) -> None:
    with Frontier(tmp_path / "f") as frontier:
        frontier.add([Candidate(url="http://a.com/1"), Candidate(url="http://b.com/1")])
        frontier.close_host("a.com", "it failed")
        assert frontier.states()["failed"] == 1
        assert frontier.reasons() == [("failed", "it failed", 1)]
        task = frontier.claim(0.0, 1, stored_score)
        assert task is not None
        assert task.url == "http://b.com/1"


def test_rescored_pages_change_their_order(tmp_path: Path) -> None:
    with Frontier(tmp_path / "f") as frontier:
        frontier.add(Candidate(url=f"http://a.com/thin/{index}", score=2.0) for index in range(20))
        frontier.add([Candidate(url="http://a.com/rich/1", score=1.0)])
        frontier.rescore("a.com/thin/N", 0.5, 0.1)
        task = frontier.claim(0.0, 1, stored_score)
        assert task is not None
        assert task.url == "http://a.com/rich/1"


def test_files_of_origins(tmp_path: Path) -> None:
    with Frontier(tmp_path / "f") as frontier:
        assert frontier.file("http://a.com/robots.txt") is None
        frontier.put_file("http://a.com/robots.txt", 200, b"Disallow: /" * 100, 5.0)
        assert frontier.file("http://a.com/robots.txt") == (5.0, 200, b"Disallow: /" * 100)


def test_what_is_no_frontier(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"not a database" * 100)
    with pytest.raises(FrontierError, match="cannot be used"):
        Frontier(tmp_path / "f")
    with pytest.raises(FrontierError, match="holds no crawl"):
        Frontier(tmp_path / "none" / "f", read_only=True)
    with Frontier(tmp_path / "g") as frontier:
        frontier.set_fact("format", "99")
    with pytest.raises(FrontierError, match="format 99"):
        Frontier(tmp_path / "g")


def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    with Frontier(tmp_path / "f") as frontier:
        frontier._database.execute("PRAGMA max_page_count = 40")
        with pytest.raises(OutOfSpaceError, match="free some and run the command again"):
            frontier.add(Candidate(url=f"http://a.com/{'x' * 500}/{index}") for index in range(1000))
        assert frontier.states()["waiting"] == 0, "the transaction was rolled back"
        assert frontier.add([Candidate(url="http://a.com/")]) == 1


def test_a_page_that_ends_the_process_each_time_is_given_up(tmp_path: Path) -> None:
    with Frontier(tmp_path / "f") as frontier:
        frontier.add([Candidate(url="http://a.com/1")])
        for _ in range(2):
            task = frontier.claim(100.0, 1, stored_score)
            assert task is not None
            frontier.start(task, 100.0, 0.0, {})
            frontier.interrupted(0.0, delay=0.0, max_attempts=2)
        assert frontier.reasons() == [("failed", "interrupted 2 times", 1)]
