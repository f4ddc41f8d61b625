"""Daemon threads with futures. Interpreter shutdown does not wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from openafm.framework.errors import GenerationError

ResultT = TypeVar("ResultT")


def in_daemon_thread(work: Callable[[], ResultT], name: str) -> Future[ResultT]:
    """Run `work` in a new daemon thread; return a future of its result.

    Raises:
        GenerationError: the system cannot start a thread.
    """
    future: Future[ResultT] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # re-raised by the future
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise GenerationError(f"cannot start a thread ({error}); run fewer requests at a time") from error
    return future


def in_daemon_loop(work: Coroutine[Any, Any, ResultT], name: str) -> Future[ResultT]:
    """Run `work` in a new event loop and daemon thread; return a future of its result.

    The future completes before the loop closes: closing waits for tasks that ignore cancellation.

    Raises:
        GenerationError: the system cannot start a thread.
    """
    future: Future[ResultT] = Future()

    async def deliver() -> None:
        try:
            future.set_result(await work)
        except Exception as error:  # re-raised by the future
            future.set_exception(error)

    def run() -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(deliver())
        except BaseException as error:  # OSError: no file descriptor for a loop; others: SystemExit, KeyboardInterrupt
            work.close()
            if not future.done():
                is_system = isinstance(error, OSError)
                future.set_exception(GenerationError(f"cannot start an event loop: {error}") if is_system else error)

    try:
        in_daemon_thread(run, name)
    except GenerationError:
        work.close()
        raise
    return future
