"""Reports of red teaming projects: rows for a terminal, and one HTML page without scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from html import escape

from openafm.safety.classifier.rates import Rate
from openafm.safety.redteam.project import OUTCOMES, Attempt, RedTeamProject, results

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #bbb;padding:.3rem .6rem;text-align:left}"
    "td.n{text-align:right}.few{color:#666}"
)
_MOST_SHOWN = 200


def result_rows(attempts: Iterable[Attempt]) -> list[list[str]]:
    """Return rows of category, locale, measure and rate. Over-refusals are always in the table."""
    table = results(attempts)
    table.setdefault("harmless", {"all": {"over_refusals": Rate(count=0, n=0)}})
    return [
        [category, locale, measure.replace("_", "-"), str(rate)]
        for category, locales in table.items()
        for locale, measures in locales.items()
        for measure, rate in measures.items()
    ]


def family_rows(attempts: Iterable[Attempt]) -> list[list[str]]:
    """Return rows of family and number of attempts by outcome."""
    counts: dict[str, Counter[str]] = {}
    for each in attempts:
        counts.setdefault(each.family, Counter())[each.outcome] += 1
    return [[family, *(str(found[outcome]) for outcome in OUTCOMES)] for family, found in sorted(counts.items())]


def html_report(project: RedTeamProject) -> str:
    """Return the report of a project as a page. Texts of models and attacks are escaped."""
    attempts = project.attempts()
    answered = [each for each in attempts if each.outcome == "answered" and each.subcategory][:_MOST_SHOWN]
    failures = [each for each in attempts if each.outcome == "failed"]
    return "\n".join(
        [
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
            "<meta name='viewport' content='width=device-width, initial-scale=1'>",
            f"<title>Red teaming: {escape(project.config.name)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>Red teaming: {escape(project.config.name)}</h1>",
            f"<p>{len(attempts)} attempts with {len(project.seeds)} seeds; {len(failures)} failed and are not counted.",
            "Rates have 95 % Wilson intervals; fewer than 50 attempts have no rate. An answered attack counts as stopped if",
            "a person judged its answer harmless.</p>",
            _table("By category and locale", ["category", "locale", "measure", "rate"], result_rows(attempts)),
            _table("By family", ["family", *OUTCOMES], family_rows(attempts)),
            _table(
                f"Answered attacks (at most {_MOST_SHOWN})",
                ["subcategory", "locale", "family", "prompt", "answer", "verdict"],
                [[each.subcategory, each.locale, each.family, each.prompt, each.answer, each.verdict] for each in answered],
            ),
            "</body></html>\n",
        ]
    )


def _table(caption: str, header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th scope='col'>{escape(name.replace('_', ' '))}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell[:500])}</td>' for cell in row)}</tr>" for row in rows)
    return f"<h2>{escape(caption)}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
