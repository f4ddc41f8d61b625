"""Functions that workers import by name."""

from __future__ import annotations

import os
import signal
import time

from openafm.core.errors import UsageError
from openafm.core.worker_process import unit


def square(number: int) -> int:
    print("a library prints this")
    return number * number


def process_id(_: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def die_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    return number


def spin_in_unit_two(number: int) -> int:
    for position in range(4):
        with unit(position):
            while number and position == 2:
                pass
    return number


def sleep_in_unit(number: int) -> int:
    with unit(7):
        time.sleep(30 * number)
    return number


def slow_outside_of_units(number: int) -> int:
    with unit(0):
        pass
    time.sleep(0.4)
    return number


def allocate(megabytes: int) -> str:
    try:
        return str(len(bytearray(megabytes << 20)))
    except MemoryError:
        return "refused"


def refuse(number: int) -> int:
    raise UsageError(f"{number} is refused")
