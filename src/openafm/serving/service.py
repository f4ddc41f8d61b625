"""Requests to answers: find the model, encode, wait for admission, generate in threads, deliver to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from openafm.framework.backends.loaded_model import LoadedModel
from openafm.runtime.decoding.steps import Step, compute
from openafm.runtime.engines.base import ContextWindowError
from openafm.safety.blocklist import BlocklistConfig
from openafm.safety.guardrail import CombinedGuardrail, Guardrail
from openafm.serving.admission import Admission, default_kv_bytes
from openafm.serving.checked_text import TextDelta
from openafm.serving.config import ServerConfig
from openafm.serving.decode_loop import DecodeLoops
from openafm.serving.errors import ApiError
from openafm.serving.inference import Answer, AnswerCancelledError, Delta, Ended
from openafm.serving.inputs import ChatInput, Decoding, EncodedInput, RawInput, check_bias, encode
from openafm.serving.keys import ANONYMOUS, Client
from openafm.serving.loop_waker import LoopWaker
from openafm.serving.metrics import Metrics
from openafm.serving.models import ModelCatalog, ServedModel
from openafm.tokenizer.conversation import ToolCall

EVENT_SECONDS = 0.003
"""Text that arrives sooner after an event is sent with the next one: an event can cost as much as a small model's token."""

_DEADLINE = ApiError(504, "the answer took longer than this server allows", code="timeout")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One request: an input, its decoding, and the number of answers."""

    model: str | None
    source: ChatInput | RawInput
    decoding: Decoding
    num_choices: int = 1
    client: Client = ANONYMOUS


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A whole answer."""

    text: str
    calls: tuple[ToolCall, ...]
    tokens: TextDelta
    ended: Ended


class RunningTask:
    """Answers that are being generated: an asynchronous iterator over (index of the answer, delta)."""

    def __init__(
        self, model: ServedModel, prompt: EncodedInput, deadline: float, num_choices: int, waker: LoopWaker | None = None
    ) -> None:
        self.model, self.prompt = model, prompt
        self._deadline, self._num_left = deadline, num_choices
        self._loop = asyncio.get_running_loop()
        self._waker = waker or LoopWaker(self._loop)
        self._is_cancelled = threading.Event()
        self._deltas: deque[tuple[int, Delta | Exception]] = deque()
        self._arrived = asyncio.Event()
        self._is_notified = self._is_urgent = False
        self._computed = [asyncio.Event() for _ in range(num_choices)]

    def cancel(self) -> None:
        """End the answers at their next step."""
        self._is_cancelled.set()

    def is_cancelled(self) -> bool:
        return self._is_cancelled.is_set() or time.monotonic() > self._deadline

    def put(self, index: int, delta: Delta | Exception) -> None:
        """Deliver a delta from a worker thread.

        The event loop is woken once for all deltas that it has not read yet, and for the end of an answer.
        """
        self._deltas.append((index, delta))
        is_urgent = not isinstance(delta, TextDelta)
        self._is_urgent |= is_urgent
        if is_urgent or not self._is_notified:
            self._is_notified = True
            self._waker.set(self._arrived)

    def end(self, index: int) -> None:
        """Tell `computed`, from a worker thread, that an answer needs no more memory."""
        self._waker.set(self._computed[index])

    async def computed(self) -> None:
        """Wait until no answer is computed any more. Their deltas may not have been read."""
        for event in self._computed:
            await event.wait()

    async def batches(self) -> AsyncIterator[list[tuple[int, Delta]]]:
        """Yield the deltas that have arrived since the last batch, until all answers have ended.

        Texts of one answer are joined. Batches follow each other after `EVENT_SECONDS`, or when an answer ends.

        Raises:
            ApiError: the deadline has passed.
            OpenAFMError: an answer cannot be computed.
        """
        yielded = 0.0
        while self._num_left:
            await self._arrived.wait()
            self._arrived.clear()
            if not self._is_urgent and (left := yielded + EVENT_SECONDS - self._loop.time()) > 0:
                timer = self._loop.call_later(left, self._arrived.set)
                await self._arrived.wait()
                timer.cancel()
                self._arrived.clear()
            self._is_notified = self._is_urgent = False
            if batch := self._take():
                yielded = self._loop.time()
                yield batch

    def _take(self) -> list[tuple[int, Delta]]:
        """Return the deltas that have arrived, with joined texts."""
        batch: list[tuple[int, Delta]] = []
        places: dict[int, int] = {}  # of the latest text of each answer
        while self._deltas:
            index, delta = self._deltas.popleft()
            if isinstance(delta, Exception):
                raise _DEADLINE if isinstance(delta, AnswerCancelledError) else delta
            self._num_left -= isinstance(delta, Ended)
            if isinstance(delta, TextDelta) and (place := places.get(index)) is not None:
                earlier = batch[place][1]
                assert isinstance(earlier, TextDelta)
                batch[place] = (index, TextDelta(earlier.text + delta.text, earlier.tokens + delta.tokens))
                continue
            if isinstance(delta, TextDelta):
                places[index] = len(batch)
            batch.append((index, delta))
        return batch

    async def choices(self) -> list[Choice]:
        """Wait for the answers and return them in order."""
        deltas: dict[int, list[Delta]] = {}
        async for batch in self.batches():
            for index, delta in batch:
                deltas.setdefault(index, []).append(delta)
        return [_choice(deltas[index]) for index in sorted(deltas)]


class AnswerService:
    """Answer requests with the models of a catalog. Used by the thread of the event loop."""

    def __init__(self, config: ServerConfig, models: ModelCatalog, metrics: Metrics) -> None:
        self.config, self.models, self.metrics = config, models, metrics
        self.admission = Admission(
            kv_bytes=config.kv_bytes or default_kv_bytes(),
            max_running=config.max_running,
            max_waiting=config.max_waiting,
            queue_seconds=config.queue_seconds,
            caches=models,
        )
        self._guardrail = build_guardrail(config)
        # A guardrail model takes longer than a step, for which other answers must not wait.
        self._shares_steps = not config.guardrail_model
        self._threads = ThreadPoolExecutor(config.max_running, thread_name_prefix="openafm-answer")
        self._loops = DecodeLoops()
        self._running: set[RunningTask] = set()
        self._waker: LoopWaker | None = None  # made in the thread of the event loop

    @contextlib.asynccontextmanager
    async def running(self, task: Task) -> AsyncIterator[RunningTask]:
        """Run a block while the answers of a task are generated. Leaving it early ends them within one step.

        Raises:
            ApiError: the model is unknown, the request is invalid, or the server is busy.
            OpenAFMError: the model cannot be loaded.
        """
        if not 1 <= task.num_choices <= self.config.max_choices:
            limit = self.config.max_choices
            raise ApiError(400, f"n is {task.num_choices}; use 1 to {limit}", code="invalid_value", param="n")
        task.client.check_rate()
        async with self.base(task.model) as (model, base):
            check_bias(base, task.decoding.bias)
            prompt, token_bytes = await asyncio.to_thread(self._encoded, model, base, task.source)
            num_tokens = _num_tokens(base, prompt, task.decoding)
            num_bytes = num_tokens * token_bytes * task.num_choices + _embedding_bytes(base, prompt)
            async with contextlib.AsyncExitStack() as place:
                loaded = await place.enter_async_context(
                    self.admitted(model, num_bytes, task.num_choices, task.client.priority, sees=bool(prompt.images))
                )
                place.enter_context(self.metrics.running())
                deadline = time.monotonic() + self.config.request_seconds
                running = RunningTask(model, prompt, deadline, task.num_choices, self._loop_waker())
                self._running.add(running)
                for index in range(task.num_choices):
                    self._threads.submit(self._answer, loaded, task, running, index)
                computed = asyncio.ensure_future(_leave(place, running))
                try:
                    yield running
                finally:
                    running.cancel()
                    self._running.discard(running)
                    await asyncio.shield(computed)

    @contextlib.asynccontextmanager
    async def base(self, name: str | None) -> AsyncIterator[tuple[ServedModel, LoadedModel]]:
        """Run a block with a model by name, and its loaded bundle without its adapter.

        Raises:
            ApiError: the model is unknown.
            OpenAFMError: the model cannot be loaded.
        """
        model = self.models.find(name)
        async with self._loaded(model.base) as loaded:
            yield model, loaded

    @contextlib.asynccontextmanager
    async def admitted(
        self, model: ServedModel, num_bytes: int, num_answers: int = 1, priority: int = 0, *, sees: bool = False
    ) -> AsyncIterator[LoadedModel]:
        """Run a block with a loaded model, once there is memory for keys and values, its adapter and its vision encoder.

        Raises:
            ApiError: as `Admission.admitted`.
            OpenAFMError: the model cannot be loaded.
        """
        reads_files = sees or model.adapter is not None
        shared = await asyncio.to_thread(self.models.shared_memory, model, sees) if reads_files else []
        try:
            async with self.admission.admitted(num_bytes, num_answers, priority, shared), self._loaded(model) as loaded:
                yield loaded
        finally:
            self.admission.retain(self.models.memory_keys())

    def unload(self, model: ServedModel) -> bool:
        """Drop a model that no request uses. Return whether it is gone."""
        is_gone = self.models.unload(model)
        self.admission.retain(self.models.memory_keys())
        return is_gone

    def release_idle(self) -> None:
        """Drop the models that have not been used for long."""
        if self.models.release_idle():
            self.admission.retain(self.models.memory_keys())

    @contextlib.asynccontextmanager
    async def _loaded(self, model: ServedModel) -> AsyncIterator[LoadedModel]:
        loaded = await self.models.acquire(model)
        try:
            yield loaded
        finally:
            self.models.release(model)

    def close(self) -> None:
        """Cancel running answers, wait for their ends, and end the threads."""
        for running in self._running:
            running.cancel()
        self._threads.shutdown(wait=True)
        self._loops.wait()

    def _loop_waker(self) -> LoopWaker:
        """Return the waker that all answers of the running loop share."""
        loop = asyncio.get_running_loop()
        if self._waker is None or self._waker.loop is not loop:
            self._waker = LoopWaker(loop)
        return self._waker

    def _encoded(self, model: ServedModel, base: LoadedModel, source: ChatInput | RawInput) -> tuple[EncodedInput, int]:
        """Worker thread: return the encoded prompt and the bytes of each token of an answer."""
        return encode(base, source, self._guardrail), model.answer_bytes_per_token

    def _answer(self, loaded: LoadedModel, task: Task, running: RunningTask, index: int) -> None:
        """Worker thread: generate an answer up to its first decode step, and the rest where steps cannot be shared."""
        decoding = task.decoding.choice(index)
        answer = _RunningAnswer(
            Answer(loaded, running.prompt, decoding, self._guardrail, running.is_cancelled),
            running,
            index,
            lambda ended: self.metrics.record(running.model.name, ended),
            task.client,
        )
        step = answer.advance()
        if step is not None and self._shares_steps and loaded.drafter is None and loaded.engine.combines:
            self._loops.add(answer, step)
            return
        while step is not None:
            compute((step,))
            step = answer.advance()


class _RunningAnswer:
    """Deliver the deltas of an answer to its task. A `SteppedAnswer`."""

    def __init__(
        self, answer: Answer, running: RunningTask, index: int, record: Callable[[Ended], None], client: Client
    ) -> None:
        self._answer, self._parts = answer, answer.parts()
        self._running, self._index, self._record, self._client = running, index, record, client

    def advance(self) -> Step | None:
        try:
            for part in self._parts:
                if isinstance(part, Step):
                    return part
                if isinstance(part, Ended):
                    self._record(part)
                    self._client.charge(self._answer.num_computed)
                self._running.put(self._index, part)
        except BaseException as error:  # delivered to the request; a panic of a Rust library is not an `Exception`
            self._client.charge(self._answer.num_computed)  # answers that fail or are cancelled count too
            self._running.put(self._index, error if isinstance(error, Exception) else RuntimeError(repr(error)))
        self._running.end(self._index)
        return None


def build_guardrail(config: ServerConfig) -> Guardrail | None:
    """Return the guardrails of a server, combined; None without any.

    Raises:
        GuardrailModelError: the folder is not a guardrail model, or is for another bundle.
        BundleError: the bundle that it reads texts with is damaged.
    """
    guardrails: list[Guardrail] = [BlocklistConfig().build()] if config.guardrails else []
    if config.guardrail_model:
        from openafm.safety.classifier.model import ModelGuardrail

        guardrails.append(ModelGuardrail.open(config.guardrail_model))
    return CombinedGuardrail(*guardrails) if guardrails else None


async def _leave(place: contextlib.AsyncExitStack, running: RunningTask) -> None:
    """Free memory and places once the answers are computed. Their texts may wait longer for a client that reads slowly."""
    await running.computed()
    await place.aclose()


def _embedding_bytes(model: LoadedModel, prompt: EncodedInput) -> int:
    """Return the bytes of the embeddings of a prompt's images."""
    num_tokens = sum(stop - start for start, stop, _ in prompt.prompt.insertions)
    return num_tokens * model.bundle.config.dim * np.dtype(np.float32).itemsize


def _num_tokens(loaded: LoadedModel, prompt: EncodedInput, decoding: Decoding) -> int:
    """Return the most tokens that an answer can have, the prompt included."""
    room = loaded.engine.context_length - len(prompt.tokens)
    if room < 1:
        raise ContextWindowError(len(prompt.tokens) + 1, loaded.engine.context_length)
    return len(prompt.tokens) + (room if decoding.max_tokens is None else min(decoding.max_tokens, room))


def _choice(deltas: list[Delta]) -> Choice:
    texts = [delta for delta in deltas if isinstance(delta, TextDelta)]
    text = "".join(delta.text for delta in texts)
    scored = tuple(token for delta in texts for token in delta.tokens)
    ended = deltas[-1]
    assert isinstance(ended, Ended)
    calls = tuple(call for delta in deltas if not isinstance(delta, TextDelta | Ended) for call in delta.calls)
    return Choice(text=text, calls=calls, tokens=TextDelta(text, scored), ended=ended)
