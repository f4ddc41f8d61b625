"""A trace as a tree in the terminal, or as plain text."""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, Any

from openafm.core.terminal import escaped
from openafm.framework.profiling.spans import Flag, Span, SpanKind, Trace

if TYPE_CHECKING:
    from rich.tree import Tree

_STYLES = {Flag.ERROR: "bold red", Flag.LONG: "yellow", Flag.MANY_TOKENS: "yellow"}
_PLAIN_WIDTH = 160


def print_tree(trace: Trace, file: IO[str]) -> None:
    """Print the trace: styled on a terminal, else as plain text."""
    from rich.console import Console

    width = None if file.isatty() else _PLAIN_WIDTH
    Console(file=file, width=width, highlight=False, markup=False, emoji=False).print(_tree(trace))


def tree_text(trace: Trace) -> str:
    """Return the trace as plain text."""
    file = io.StringIO()
    print_tree(trace, file)
    return file.getvalue().rstrip("\n")


def _tree(trace: Trace) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    totals = trace.totals()
    figures = [
        _counted(totals["requests"], "request"),
        _counted(totals["inferences"], "inference"),
        f"TTFT {_ms(totals['ttft_ms'])}",
        f"{_number(totals['tokens_per_second'])} tokens/s",
        f"latency {_ms(totals['latency_ms'])}",
    ]
    if totals["errors"]:
        figures.append(_counted(totals["errors"], "error"))
    if trace.peak_memory_mb is not None:
        figures.append(f"peak memory {trace.peak_memory_mb:,.0f} MiB")
    tree = Tree(Text(" · ".join(figures), "bold"))
    if not trace.sessions:
        tree.add(Text("no session answered a request in this process", "dim"))
    for session in trace.sessions:
        _add(tree, session)
    return tree


def _add(parent: Tree, span: Span) -> None:
    from rich.text import Text

    line = Text()
    line.append(escaped(span.name if span.kind in (SpanKind.SESSION, SpanKind.REQUEST) else f"{span.kind} {span.name}"))
    line.append(f"  {_ms(1000 * span.seconds)}", "cyan")
    details = _details(span.kind, span.attributes)
    if details:
        line.append(f"  {details}", "dim")
    for flag in span.flags:
        line.append(f"  {span.error if flag is Flag.ERROR else flag.value}", _STYLES[flag])
    branch = parent.add(line)
    for name, text in span.content.items():
        branch.add(Text(f"{name}: {' '.join(escaped(text).split())}", "dim", overflow="ellipsis", no_wrap=True))
    for child in span.children:
        _add(branch, child)


def _details(kind: SpanKind, values: Any) -> str:
    match kind:
        case SpanKind.INFERENCE if "prompt_tokens" in values:
            parts = [f"{values['prompt_tokens']} prompt"]
            parts += [f"{values[name]} {name.partition('_')[0]}" for name in _COUNTS if values.get(name)]
            if values.get("ttft_ms"):
                parts.append(f"TTFT {_ms(values['ttft_ms'])}")
            if values.get("tokens_per_second"):
                parts.append(f"{_number(values['tokens_per_second'])} tokens/s")
            parts += [f"{name.removesuffix('_ms')} {_ms(values[name])}" for name in _TIMES if values.get(name)]
            if values.get("kv_bytes"):
                parts.append(f"{values['kv_bytes'] / 2**20:.1f} MiB of keys and values")
            return ", ".join(parts)
        case SpanKind.DECODE if values.get("tokens"):
            parts = [f"{_ms(values['itl_p50_ms'])} between tokens, p99 {_ms(values['itl_p99_ms'])}"]
            return ", ".join(parts)
        case SpanKind.REQUEST:
            return str(values.get("model", ""))
    return ""


_COUNTS = ("cached_tokens", "generated_tokens", "forced_tokens", "drafted_tokens", "accepted_tokens")
_TIMES = ("grammar_ms", "draft_ms")


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.1f} ms"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
