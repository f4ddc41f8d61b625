"""Render Jinja chat templates in a process of its own: `python -P jinja_worker.py`, one JSON request and reply per line.

A checkpoint's template is untrusted code. Jinja's sandbox blocks access to the machine but limits neither time nor memory;
the parent process kills this one when a template takes too long. Imports nothing of openafm, so that it starts quickly.
"""

from __future__ import annotations

import datetime
import functools
import json
import sys
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

MAX_MEMORY_BYTES = 1 << 30
MAX_TEXT_LENGTH = 1_000_000


class _Generation(jinja2.ext.Extension):
    """{% generation %} marks the text that the model generates; it renders its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Date:
    """The function `strftime_now` of templates; records whether it was called."""

    def __init__(self, today: str) -> None:
        self.today, self.was_called = datetime.date.fromisoformat(today), False

    def __call__(self, form: str) -> str:
        self.was_called = True
        return self.today.strftime(form)


@functools.lru_cache(maxsize=8)
def _template(source: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment.from_string(source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def reply(request: dict[str, Any]) -> dict[str, Any]:
    """Return the rendered text, or the error, of one request. Without arguments the template is only compiled."""
    try:
        template = _template(request["source"])
        if request["arguments"] is None:
            return {"text": ""}
        date = _Date(request["today"])
        text = template.render(**request["arguments"], strftime_now=date)
    except MemoryError:
        return {"error": "it needs too much memory"}
    except Exception as error:  # a template may raise anything
        return {"error": f"{error}"[:1000]}
    if len(text) > MAX_TEXT_LENGTH:
        return {"error": f"it renders {len(text):,} characters; at most {MAX_TEXT_LENGTH:,} are allowed"}
    return {"text": text, "asked_for_date": date.was_called}


def main() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    except (ImportError, ValueError, OSError):  # not on this system: the time limit remains
        print("no memory limit", file=sys.stderr)
    for line in sys.stdin:
        print(json.dumps(reply(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
