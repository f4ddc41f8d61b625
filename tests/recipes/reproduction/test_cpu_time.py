"""CPU time of commands, those of orphans included."""

import subprocess
import sys

import pytest

from openafm.recipes.reproduction.cpu_time import ChildTime

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to another parent")

_WORK = "import time\nwhile time.process_time() < 0.5: pass"
_FORGETFUL_PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_WORK!r}])"


def test_the_time_of_a_process_whose_parent_has_ended_is_counted() -> None:
    with ChildTime() as time:
        subprocess.run([sys.executable, "-c", _FORGETFUL_PARENT], check=True)
    assert time.seconds >= 0.5


def test_children_from_before_are_not_awaited() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as older:
        with ChildTime() as time:
            subprocess.run([sys.executable, "-c", "pass"], check=True)
        assert 0 < time.seconds < 0.5
        assert older.poll() is None
        older.communicate(b"\n")
