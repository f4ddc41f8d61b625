"""Work in a thread that nobody has to wait for, not even the interpreter at its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

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


def in_daemon_loop(work: Coroutine[Any, Any, ResultT], name: str) -> Future[ResultT]:
    """Run `work` in an event loop and thread of its own. Its result or exception comes with the future, before the end of
    that loop, which waits for tasks that will not be cancelled.

    Raises:
        GenerationError: the system gives no thread.
    """
    future: Future[ResultT] = Future()

    async def deliver() -> None:
        try:
            future.set_result(await work)
        except Exception as error:  # raised again where the result is awaited
            future.set_exception(error)

    def run() -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(deliver())
        except BaseException as error:  # no loop, for want of a file descriptor; or something that ends the program
            work.close()
            if not future.done():
                is_system = isinstance(error, OSError)
                future.set_exception(GenerationError(f"the system gives no event loop: {error}") if is_system else error)

    try:
        in_daemon_thread(run, name)
    except GenerationError:
        work.close()
        raise
    return future
