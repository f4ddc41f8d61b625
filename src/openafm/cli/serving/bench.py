"""`openafm bench`: measure an OpenAI-compatible endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_table


def bench(
    url: Annotated[str, typer.Argument(help="Base URL of the API, such as http://localhost:8000/v1.")],
    model: Annotated[str | None, typer.Option(help="Model of the endpoint; default: its default.")] = None,
    users: Annotated[list[int] | None, typer.Option(help="Concurrent chats; may be repeated. Default: 1, 4, 8, 16.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Arrivals per second (Poisson) instead of a constant number of users.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each measurement.")] = 32,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Token limit of an answer.")] = 64,
    schema: Annotated[Path | None, typer.Option(help="JSON Schema of the answers; default: text.")] = None,
    key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="API key.", show_default=False)] = "",
    json: JsonOption = False,
) -> None:
    """Measure tokens per second, time to first token and time between tokens of an endpoint under load."""
    import asyncio
    import dataclasses
    import json as json_module

    from openafm.core.errors import OpenAFMError
    from openafm.core.regular_files import read_document
    from openafm.serving.load import LoadConfig, run_load

    read = None if schema is None else json_module.loads(read_document(schema))
    reports = {}
    for count in users or ((64,) if rate else (1, 4, 8, 16)):
        config = LoadConfig(
            url=url,
            model=model,
            key=key,
            num_requests=requests,
            num_users=count,
            rate=rate,
            max_tokens=max_tokens,
            schema=read,
        )
        reports[count] = asyncio.run(run_load(config))
    if json:
        print_json({count: dataclasses.asdict(report) for count, report in reports.items()})
    else:
        columns = ("users", "tokens/s", "requests/s", "TTFT p50", "p99 ms", "ITL p50", "p99 ms", "failed")
        rows = [
            (
                count,
                report.tokens_per_second,
                report.requests_per_second,
                *(report.ttft_ms.get(name) for name in ("p50", "p99")),
                *(report.itl_ms.get(name) for name in ("p50", "p99")),
                report.num_failed,
            )
            for count, report in reports.items()
        ]
        print_table(columns, rows)
    if all(report.num_failed == report.num_requests for report in reports.values()):
        error = next(iter(reports.values())).errors
        raise OpenAFMError(
            f"every request failed ({', '.join(error)}); check the URL, which often ends with /v1, the model and the key"
        )
