"""A checkpoint's Jinja chat template, rendered as its house does. Only importing renders it: no session ever runs one."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from openafm.bundle.hugging_face.errors import HuggingFaceError, UnsupportedTemplateError

Message = dict[str, Any]


class JinjaTemplate:
    """A chat template in a sandbox.

    Args:
        source: the template, not trusted.
        variables: its special tokens by name (`bos_token`, ...).
        today: what it is told where it asks for the date; `asked_for_date` is True after that.

    Raises:
        HuggingFaceError: the source is no Jinja template.
    """

    def __init__(self, source: str, variables: Mapping[str, Any], today: datetime.date) -> None:
        import jinja2
        import jinja2.ext
        import jinja2.nodes
        import jinja2.parser
        import jinja2.sandbox

        class Generation(jinja2.ext.Extension):
            """{% generation %} marks what the model writes; nothing to render."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = self._date
        self._variables, self._today, self.asked_for_date = dict(variables), today, False
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise HuggingFaceError(f"the chat template is not Jinja: {error}") from error

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        tools_as: str = "tools",
        prompt: bool = False,
        **arguments: Any,
    ) -> str:
        """The text of a conversation; with `prompt` up to where the model's answer begins, without thinking.

        Raises:
            UnsupportedTemplateError: the template does not take it.
        """
        known = {"messages": list(messages), "tools": None, "documents": None} | {tools_as: list(tools) or None}
        options = {"add_generation_prompt": prompt, "enable_thinking": False}
        try:
            return self._template.render(**self._variables | known | options | arguments)
        except Exception as error:  # whatever code the template brings may raise
            raise UnsupportedTemplateError(f"the chat template fails: {error}") from error

    def _date(self, form: str) -> str:
        self.asked_for_date = True
        return self._today.strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)
