"""A crawl that is killed again and again: nothing is lost, nothing is fetched twice without reason, delays hold."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from crawl_site import Site, serve, tree

from openafm.data.web.crawl.crawler import FRONTIER
from openafm.data.web.documents import Page
from openafm.data.web.frontier.frontier import Frontier
from openafm.data.web.warc import warc_files
from openafm.data.web.warc_reader import read_pages

DELAY_S = 0.02
COMMAND = "from openafm.cli.main import main; main()"


def start(site: Site, folder: Path) -> subprocess.Popen[bytes]:
    values = {"delay_s": DELAY_S, "allow_private_addresses": "true", "max_attempts": 20}
    changes = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-c", COMMAND, "data", "crawl", site.url, "--out", str(folder), *changes]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)


def kill_after(process: subprocess.Popen[bytes], site: Site, num_requests: int) -> None:
    """Kill the process a moment after the server has that many requests more than now."""
    enough = len(site.requests) + num_requests
    deadline = time.monotonic() + 60
    while len(site.requests) < enough and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(random.Random(enough).random() * DELAY_S)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("num_kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_killed_crawl(tmp_path: Path, num_kills: int) -> None:
    with serve(tree(10 + 10 * num_kills)) as site:
        for kill in range(num_kills):
            kill_after(start(site, tmp_path), site, num_requests=4 + kill % 5)
        assert len(site.paths()) < len(site.answers), "the kills came before the end"
        assert start(site, tmp_path).wait(timeout=120) == 0
    pages = [each for path in warc_files(tmp_path) for each in read_pages(path)]
    assert all(isinstance(each, Page) for each in pages)
    assert Counter(each.url.removeprefix(site.url) or "/" for each in pages) == Counter(site.answers.keys())
    with Frontier(tmp_path / FRONTIER) as frontier:
        interrupted = Counter(
            path for path in site.answers for _, outcome in frontier.attempts(site.url + path) if outcome == "interrupted"
        )
    repeated = Counter(site.paths()) - Counter(site.answers.keys())
    assert repeated <= interrupted, "only requests that were on their way are repeated"
    assert interrupted.total() <= num_kills
    assert site.violations(DELAY_S) == []
