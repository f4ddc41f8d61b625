"""robots.txt: expectations of the public conformance set that this parser and its peers meet, and speed.

    python benchmarks/robots.py --data FOLDER [--quick] [--json]

FOLDER holds robots.json: the 145 `IsUserAgentAllowed` expectations of google/robotstxt as objects with `robots_txt`,
`user_agent`, `url` and `allowed`. Peers are measured where they are installed: protego; urllib is part of Python.
A full run writes docs/benchmarks/robots.json. Exit code 3 without the data.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

from openafm.data.web.permissions.robots import Robots

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "robots.json"
NO_DATA = 3
Allows = Callable[[str, str], bool]  # (user agent, url)
Parse = Callable[[str], Allows]


def main() -> None:
    parser = benchmark_parser(__doc__, "a shorter measurement of speed")
    parser.add_argument("--data", type=Path, help="folder of robots.json")
    options = parser.parse_args()
    if options.data is None or not (options.data / "robots.json").is_file():
        print("robots: no conformance set; pass the folder of robots.json with --data", file=sys.stderr)
        sys.exit(NO_DATA)
    cases = json.loads((options.data / "robots.json").read_text(encoding="utf-8"))
    hand_in(measure(cases, seconds=0.2 if options.quick else 2.0), REPORT, options)


def measure(cases: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    parsers = {"openafm": _openafm, "urllib": _urllib}
    if importlib.util.find_spec("protego"):
        parsers["protego"] = _protego
    rows = {name: {"passed": passed(parse, cases), **speed(parse, seconds)} for name, parse in parsers.items()}
    figures = {"passed": rows["openafm"]["passed"], "total": len(cases)}
    figures |= {f"passed_{name}": row["passed"] for name, row in rows.items() if name != "openafm"}
    figures |= {
        f"{key}{'' if name == 'openafm' else f'_{name}'}": row[key]
        for key in ("parses_s", "matches_s")
        for name, row in rows.items()
    }
    return {"figures": figures}


def passed(parse: Parse, cases: list[dict[str, Any]]) -> int:
    """The number of expectations met. An exception counts as not met."""
    return sum(_is_met(parse, case) for case in cases)


def speed(parse: Parse, seconds: float) -> dict[str, float]:
    """Parses of a file with 200 rules and matches against it, per CPU second."""
    text = "User-agent: *\n" + "".join(f"Disallow: /folder{index}/*/page\n" for index in range(200))
    allows = parse(text)
    return {
        "parses_s": _rate(lambda: parse(text), seconds),
        "matches_s": _rate(lambda: allows("FooBot", "https://example.com/folder199/a/other"), seconds),
    }


def _rate(work: Callable[[], object], seconds: float) -> float:
    count, start = 0, time.process_time()
    while (spent := time.process_time() - start) < seconds:
        work()
        count += 1
    return round(count / spent, 1)


def _is_met(parse: Parse, case: dict[str, Any]) -> bool:
    try:
        return parse(case["robots_txt"])(case["user_agent"], case["url"]) is case["allowed"]
    except Exception:  # a peer may raise anything
        return False


def _openafm(text: str) -> Allows:
    return Robots.parse(text.encode()).allows


def _urllib(text: str) -> Allows:
    from urllib.robotparser import RobotFileParser

    parser = RobotFileParser()
    parser.parse(text.splitlines())
    return parser.can_fetch


def _protego(text: str) -> Allows:
    from protego import Protego

    parser = Protego.parse(text)
    return lambda user_agent, url: bool(parser.can_fetch(url, user_agent))


if __name__ == "__main__":
    main()
