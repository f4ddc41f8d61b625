"""Work in a thread that nobody has to wait for, not even the interpreter at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from openafm.framework.errors import GenerationError

ResultT = TypeVar("ResultT")


def in_daemon_thread(work: Callable[[], ResultT], name: str) -> Future[ResultT]:
    """Start `work` in a thread of its own. Its result or exception comes with the future.

    Raises:
        GenerationError: the system gives no thread.
    """
    future: Future[ResultT] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # raised again where the result is awaited
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise GenerationError(f"the system gives no thread ({error}); try again with fewer requests at work") from error
    return future
