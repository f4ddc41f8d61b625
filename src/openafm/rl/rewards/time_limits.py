"""Calls within a time limit, for functions that wait for another process or machine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def within(seconds: float, function: Callable[[], Result]) -> Result:
    """Return what a function returns within `seconds`.

    The function runs in a thread of its own, which is left behind if it hangs and does not keep the process alive.

    Raises:
        TimeoutError: it did not return in time.
        Exception: whatever it raises.
    """
    results: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((function(), None))
        except BaseException as error:  # raised in the calling thread
            results.put((None, error))

    threading.Thread(target=run, daemon=True, name="openafm-reward").start()
    try:
        result, error = results.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no result within the time limit of {seconds:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
