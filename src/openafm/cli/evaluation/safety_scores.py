"""`openafm evaluate safety`: harmful and harmless prompts by taxonomy and locale."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.evaluation.features import AdapterOption, LimitOption, ThreadsOption
from openafm.cli.evaluation.runs import adapter_identity, print_results, run_and_report
from openafm.cli.model_options import BaseUrlOption, KeyVariableOption, ModelOption, open_model
from openafm.cli.output import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from openafm.evaluation.harness.results import Sample
    from openafm.safety.classifier.rates import Rate


def safety(
    out: Annotated[Path, typer.Option(help="Folder for results, samples and the report.")],
    model: ModelOption = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="JSONL of labeled texts; default: our held-out ones in six languages."
        ),
    ] = None,
    guardrail: Annotated[
        str, typer.Option(help="none, blocklist, or a folder of `openafm safety train-guardrail`, beside the blocklist.")
    ] = "blocklist",
    limit: LimitOption = None,
    base_url: BaseUrlOption = None,
    api_key_variable: KeyVariableOption = None,
    adapter: AdapterOption = None,
    threads: ThreadsOption = 16,
    json: JsonOption = False,
) -> None:
    """Evaluate safety: harmful prompts that are stopped and harmless ones that are answered, by taxonomy and locale."""
    from openafm.evaluation.harness.answerer import ModelAnswerer
    from openafm.evaluation.harness.results import open_run
    from openafm.evaluation.harness.runner import RunOptions
    from openafm.evaluation.tasks.safety import SafetyConfig

    described = open_model(model, base_url, api_key_variable, adapter)
    answerer = ModelAnswerer(described, identity=adapter_identity(adapter, described))
    task = SafetyConfig(texts="" if texts is None else str(texts), guardrail=guardrail)
    results = run_and_report(answerer, {"safety": task}, out, out, None, RunOptions(limit=limit, threads=threads))
    rates = _rates(open_run(out).samples("safety"))
    if json:
        table = {group: {locale: rate.to_dict() for locale, rate in row.items()} for group, row in rates.items()}
        print_json({"model": answerer.name, "out": str(out), "by_category": table, "safety": results["safety"].to_dict()})
        return
    print_results(results, out)
    rows = [(group, locale, rate) for group, row in rates.items() for locale, rate in row.items()]
    print_table(("category", "locale", "stopped, or answered if harmless"), rows)


def _rates(samples: Sequence[Sample]) -> dict[str, dict[str, Rate]]:
    """Return the share of right outcomes by category and locale, and of all locales as `all`."""
    from openafm.safety.classifier.rates import Rate

    found: defaultdict[str, defaultdict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        for locale in (sample.language, "all"):
            found[sample.group][locale].append(sample.scores["appropriate"] == 1)
    return {
        group: {locale: Rate(count=sum(right), n=len(right)) for locale, right in sorted(row.items())}
        for group, row in sorted(found.items())
    }
