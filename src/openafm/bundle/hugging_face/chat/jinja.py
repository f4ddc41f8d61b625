"""A checkpoint's Jinja chat template, rendered as transformers renders it, in a process with limits. Used by import only."""

from __future__ import annotations

import atexit
import datetime
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openafm.bundle.hugging_face.errors import HuggingFaceError, UnsupportedTemplateError

Message = dict[str, Any]

TIMEOUT_S = 30.0  # rendering takes milliseconds


class JinjaTemplate:
    """A chat template in a sandbox.

    Args:
        source: the template, untrusted.
        variables: its special tokens by name (`bos_token`, ...).
        today: the date that `strftime_now` returns; `asked_for_date` is True once the template has called it.

    Raises:
        HuggingFaceError: the source is not a Jinja template.
    """

    def __init__(self, source: str, variables: Mapping[str, Any], today: datetime.date) -> None:
        self._source, self._variables, self._today = source, dict(variables), today
        self.asked_for_date = False
        reply = self._reply(None)
        if "error" in reply:
            raise HuggingFaceError(f"the chat template is not Jinja: {reply['error']}")

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        tools_as: str = "tools",
        prompt: bool = False,
        **arguments: Any,
    ) -> str:
        """Return the text of a conversation; with `prompt` up to where the model's answer begins, without thinking.

        Raises:
            UnsupportedTemplateError: the template fails, or exceeds the limits of time, memory or output.
        """
        known = {"messages": list(messages), "tools": None, "documents": None} | {tools_as: list(tools) or None}
        options = {"add_generation_prompt": prompt, "enable_thinking": False}
        reply = self._reply(self._variables | known | options | arguments)
        if "error" in reply:
            raise UnsupportedTemplateError(f"the chat template fails: {reply['error']}")
        self.asked_for_date |= bool(reply["asked_for_date"])
        return str(reply["text"])

    def _reply(self, arguments: dict[str, Any] | None) -> dict[str, Any]:
        return _worker.reply({"source": self._source, "today": self._today.isoformat(), "arguments": arguments})


class _Worker:
    """The process that renders, started on first use and again after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            timer = threading.Timer(TIMEOUT_S, process.kill)
            timer.start()
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
            finally:
                timer.cancel()
            if not line.endswith("\n"):
                self.stop()
                return {"error": f"it takes more than {TIMEOUT_S:g} s or too much memory"}
            reply: dict[str, Any] = json.loads(line)
            return reply

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("jinja_worker.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
            )
        return self._process


_worker = _Worker()
atexit.register(_worker.stop)
